"""Knows one life of one stream at the caller's end: which number stands for which session, which reply for which call.

Refuses to know how the stream was made and what comes after it.

No method here waits for the network but by the inbox of its own call, so a session that hangs holds up no other.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TypeVar

from tandem_runtime.domain.errors import BadRequest, SessionLost, TandemError, TargetLost
from tandem_runtime.domain.tokens import Capabilities, Incarnation, Opened, OpenSession, SessionId
from tandem_runtime.wire import codec, transport
from tandem_runtime.wire.codec import Cancel, Close, Ended, ReplyBody, RequestBody
from tandem_runtime.wire.outbox import Outbox

Answer = TypeVar("Answer", bound=ReplyBody)


@dataclass(slots=True)
class _Seat:
    """A session's place on this link. `bound` is what Opened named."""

    number: int
    bound: Incarnation | None = None
    calls: set[int] = field(default_factory=set)


class _Inbox:
    """The replies to one call, in order, for the one who waits for them. Each call has one: a queue takes longer to be
    made than to be used once."""

    def __init__(self) -> None:
        self._replies: deque[ReplyBody] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.over = False

    def put(self, reply: ReplyBody) -> None:
        self._replies.append(reply)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> ReplyBody:
        """Raises what the peer raised."""
        while not self._replies:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        reply = self._replies.popleft()
        if isinstance(reply, TandemError):
            self.over = True
            raise reply
        return reply


class Link:
    """Calls over one stream: `outbox.frames()` is to be sent, what arrives goes to `take`, the end to `fail`."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.outbox = Outbox()
        self._seats: dict[SessionId, _Seat] = {}
        self._inboxes: dict[int, _Inbox] = {}
        self._calls = itertools.count(1)
        self._numbers = itertools.count(1)

    async def open(self, request: OpenSession) -> Opened:
        """A session already open keeps its number and is replaced by the peer. An open that fails leaves none."""
        seat = self._seats.setdefault(request.session, _Seat(number=0))
        seat.number = seat.number or next(self._numbers)
        try:
            opened = expect(Opened, await self._ask(seat, request))
        except BaseException:
            self.close(request.session)
            raise
        seat.bound = opened.incarnation
        return opened

    async def ask(self, session: SessionId, request: RequestBody) -> ReplyBody:
        """The one reply. Raises SessionLost for a session that was not opened on this link."""
        return await self._ask(self._seat(session), request)

    async def follow(self, session: SessionId, request: RequestBody) -> AsyncGenerator[ReplyBody]:
        """Replies until the peer says that it was all; closing the iterator ends the work at the peer."""
        seat = self._seat(session)
        call, inbox = self._call(seat, request)
        try:
            while not isinstance(reply := await inbox.get(), Ended):
                yield reply
            inbox.over = True
        finally:
            self._hang_up(seat, call, inbox)

    def close(self, session: SessionId) -> None:
        """Calls of the session that still wait raise SessionLost. Nothing comes back; unknown sessions are fine."""
        seat = self._seats.pop(session, None)
        if seat is None:
            return
        self.outbox.put(codec.request_frame(Close(), call=next(self._calls), session=seat.number))
        for call in seat.calls & self._inboxes.keys():
            self._inboxes[call].put(SessionLost("the session was closed while this call waited"))

    def take(self, frame: bytes) -> None:
        """Hand out replies; those to calls given up are dropped. Raises BadRequest if the peer is not ours."""
        for reply in codec.read_replies(frame):
            if reply.call == 0:
                raise BadRequest(f"the peer could not read a frame: {_decoded(reply)}")
            inbox = self._inboxes.get(reply.call)
            if inbox is not None:
                inbox.put(_decoded(reply))

    def fail(self, reason: str) -> None:
        """The stream is over: every call that waits raises TargetLost."""
        self.outbox.end()
        for inbox in self._inboxes.values():
            inbox.put(TargetLost(reason))

    def _seat(self, session: SessionId) -> _Seat:
        if session not in self._seats:
            raise SessionLost(f"session {session} is not open on this link; open it again with its tokens so far")
        return self._seats[session]

    async def _ask(self, seat: _Seat, request: RequestBody) -> ReplyBody:
        call, inbox = self._call(seat, request)
        try:
            reply = await inbox.get()
            inbox.over = True
            return reply
        finally:
            self._hang_up(seat, call, inbox)

    def _call(self, seat: _Seat, request: RequestBody) -> tuple[int, _Inbox]:
        """Ask; whoever does hangs up in the end."""
        call = next(self._calls)
        frame = codec.request_frame(request, call=call, session=seat.number, bound=seat.bound)
        transport.check_request(len(frame))
        inbox = self._inboxes[call] = _Inbox()
        seat.calls.add(call)
        self.outbox.put(frame)
        return call, inbox

    def _hang_up(self, seat: _Seat, call: int, inbox: _Inbox) -> None:
        del self._inboxes[call]
        seat.calls.discard(call)
        if not inbox.over:
            self.outbox.put(codec.request_frame(Cancel(), call=call, session=seat.number))


def _decoded(reply: codec.IncomingReply) -> ReplyBody:
    """A reply without meaning fails its own call only."""
    try:
        return reply.body()
    except BadRequest as error:
        return TargetLost(f"the peer's reply makes no sense: {error}")


def expect(kind: type[Answer], reply: ReplyBody) -> Answer:
    """Raises TargetLost for an answer of another kind."""
    if not isinstance(reply, kind):
        raise TargetLost(f"the peer answered {type(reply).__name__} where {kind.__name__} was due")
    return reply
