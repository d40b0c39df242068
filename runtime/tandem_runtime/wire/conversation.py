"""Knows one stream at the engine's end: its sessions, its calls in progress, and the order they run in.

Refuses to know gRPC: frames of bytes come in by `take` and go out by `outbox.frames()`.

Calls of one session run in the order of arrival, each as a task that waits for the one before. Cancel and Close
overtake them, and a Cancel takes effect before the next call of that session starts; a run gives way to any later call.
A call that makes replies faster than the peer reads waits for room in the outbox. What makes no sense is answered and
harms nothing else.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tandem_runtime.domain.errors import BadRequest, Overloaded, SessionLost, TandemError, TargetLost, origin
from tandem_runtime.domain.tokens import Incarnation, Opened, SessionId
from tandem_runtime.wire import codec, transport
from tandem_runtime.wire.codec import Ended, IncomingRequest
from tandem_runtime.wire.outbox import Outbox
from tandem_runtime.wire.roles import Role

logger = logging.getLogger(__name__)

MAX_CALLS: Final = 4096
"""Calls in progress on one stream; engines hold tens of sessions, so more is a peer gone wrong."""


@dataclass(slots=True)
class _Seat:
    """A session on this stream. Its name at the engine is never used again, so a late close cannot hit another."""

    session: SessionId
    bound: Incarnation | None = None
    last: asyncio.Task[None] | None = None
    """The latest call: the next one waits for it."""
    calls: set[asyncio.Task[None]] = field(default_factory=set)
    run: int | None = None
    """The call of the latest run."""


class Conversation:
    """`refusal` says why a new session is refused at the moment, or None; `on_vacated` hears of each session closed."""

    def __init__(
        self, role: Role, *, name: str, refusal: Callable[[], str | None], on_vacated: Callable[[], None]
    ) -> None:
        self.outbox = Outbox()
        self._role = role
        self._name = name
        self._refusal = refusal
        self._on_vacated = on_vacated
        self._deaf = False
        self._seats: dict[int, _Seat] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._serial = itertools.count(1)

    @property
    def sessions(self) -> int:
        """Those that the engine still holds: open, or being closed."""
        return len(self._seats) + len(self._closings)

    async def read(self, frames: AsyncIterator[bytes]) -> None:
        """Take frames until the peer has sent its last; what was asked by then is still answered."""
        async for frame in frames:
            self.take(frame)
        await self.hang_up(seconds=None)

    async def hang_up(self, *, seconds: float | None) -> None:
        """Take nothing more, let the calls in progress finish (None: however long it takes), then end the stream."""
        self._deaf = True
        if self._calls:
            await asyncio.wait(self._calls.values(), timeout=seconds)
        self.outbox.end()

    def take(self, frame: bytes) -> None:
        if self._deaf:
            return
        try:
            requests = codec.read_requests(frame)
        except BadRequest as error:
            self._refuse(0, error)
            return
        for request in requests:
            self._dispatch(request)

    async def finish(self) -> None:
        """The stream is over: end its calls, close its sessions."""
        self.outbox.end()
        for number in list(self._seats):
            self._close(number)
        while self._closings:
            await asyncio.wait(self._closings)

    def _dispatch(self, request: IncomingRequest) -> None:
        match request.kind:
            case "cancel":
                self._cancel(request.call)
            case "close":
                self._close(request.session)
            case _:
                try:
                    self._start(request, self._seat(request))
                except TandemError as error:
                    self._refuse(request.call, error)

    def _seat(self, request: IncomingRequest) -> _Seat:
        if len(self._calls) >= MAX_CALLS:
            raise Overloaded(f"{MAX_CALLS} calls are in progress on this stream")
        if request.call in self._calls or request.call == 0:
            raise BadRequest(f"call {request.call} is 0 or in progress; number calls from 1", parameter="call")
        seat = self._seats.get(request.session)
        if request.kind == "open":
            return seat or self._admit(request.session)
        if seat is None:
            raise SessionLost(f"session {request.session} is not open on this stream")
        return seat

    def _admit(self, number: int) -> _Seat:
        refusal = self._refusal()
        if refusal is not None:
            raise Overloaded(refusal)
        seat = self._seats[number] = _Seat(SessionId(f"{self._name}-{next(self._serial)}"))
        return seat

    def _start(self, request: IncomingRequest, seat: _Seat) -> None:
        if seat.run is not None:
            self._give_way(seat.run)
        seat.run = request.call if request.kind == "run" else None
        task = asyncio.create_task(self._answer(request, seat, seat.last))
        seat.last = self._calls[request.call] = task
        seat.calls.add(task)
        task.add_done_callback(partial(self._answered, request.call, seat))

    def _answered(self, call: int, seat: _Seat, task: asyncio.Task[None]) -> None:
        seat.calls.discard(task)
        self._calls.pop(call, None)

    async def _answer(self, request: IncomingRequest, seat: _Seat, before: asyncio.Task[None] | None) -> None:
        ahead = set() if before is None or before.done() else {before}
        if request.kind == "open":
            ahead |= self._closings  # what is being freed is room for this one
        if ahead:
            await asyncio.wait(ahead)
        try:
            await self._reply(request, seat)
        except TandemError as error:
            self._refuse(request.call, error)
        except Exception as error:
            logger.error("call failed kind=%s error=%s", request.kind, origin(error))
            self._refuse(request.call, TargetLost(f"the engine failed with {type(error).__name__}; its log says where"))
        finally:
            if request.kind == "open" and seat.bound is None:
                self._forget(request.session, seat)

    async def _reply(self, request: IncomingRequest, seat: _Seat) -> None:
        body = request.body(session=seat.session, bound=seat.bound or Incarnation(""))
        async with aclosing(self._role.answer(body)) as replies:
            async for reply in replies:
                if isinstance(reply, Opened):
                    seat.bound = reply.incarnation
                frame = codec.reply_frame(reply, call=request.call)
                transport.check_reply(len(frame))
                self.outbox.put(frame)
                if request.kind == "run":
                    await asyncio.sleep(0)  # the writer's turn, between verdicts that are there already
                await self.outbox.room()

    def _refuse(self, call: int, error: TandemError) -> None:
        self.outbox.put(codec.reply_frame(error, call=call))

    def _cancel(self, call: int) -> None:
        task = self._calls.get(call)
        if task is not None:
            task.cancel()

    def _give_way(self, run: int) -> None:
        if run in self._calls:
            self._cancel(run)
            self.outbox.put(codec.reply_frame(Ended(), call=run))

    def _forget(self, number: int, seat: _Seat) -> None:
        """An open that came to nothing leaves no session, here or at the engine."""
        if self._seats.get(number) is seat:
            self._close(number)

    def _close(self, number: int) -> None:
        seat = self._seats.pop(number, None)
        if seat is not None:
            closing = asyncio.create_task(self._vacate(seat))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
            closing.add_done_callback(lambda _: self._on_vacated())

    async def _vacate(self, seat: _Seat) -> None:
        if seat.calls:
            for call in seat.calls:
                call.cancel()
            await asyncio.wait(seat.calls)
        try:
            await self._role.close(seat.session)
        except Exception as error:
            logger.error("close failed error=%s", origin(error))
