"""Knows a target or a draft that lives behind gRPC: the ports over one stream per peer, re-made when it breaks.

Refuses to know engines, the deadline of a round and what a driver does about a loss.

A peer has at most one `Link` at a time, and a link is one life of one stream. Sessions are numbers on a link, so no
session outlives it: the server closes the sessions of an ended stream, calls that wait raise TargetLost, and later
calls for those sessions raise SessionLost, whichever engine answers by then. For a draft these are DraftLost and
DraftForgot; what it says of the request itself (BadRequest, Overloaded, NotANumber) stays what it is.

A slow reader of a `run` holds nobody up: its verdicts wait at this end, `max_tokens` of them at most.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import grpc.aio

from tandem_runtime.domain.adapters import AdapterFacts
from tandem_runtime.domain.errors import BadRequest, DraftForgot, DraftLost, SessionLost, TargetLost, origin
from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    PromptRead,
    Proposal,
    ProposeRound,
    ReadPrompt,
    RunRounds,
    ScoreTokens,
    SessionId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.wire import pod_calls, transport
from tandem_runtime.wire.codec import Scored
from tandem_runtime.wire.link import Link, expect
from tandem_runtime.wire.tls import RoleTls, hint

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5.0
"""A pod in the same cluster answers within milliseconds; one that does not answer in this time is not serving."""

LOOK_AGAIN_SECONDS: Final = 5.0
"""How soon an adapter that was loaded or unloaded is known at this end. A reply takes some hundred bytes."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: doubling, each shortened by up to half by chance, so that peers do not march in step."""

    first_seconds: float = 0.1
    most_seconds: float = 2.0

    def pauses(self, chance: Callable[[], float]) -> Iterator[float]:
        """0.1, 0.2, 0.4, ... 2.0, 2.0 times (1 - chance/2)."""
        pause = self.first_seconds
        while True:
            yield pause * (1 - chance() / 2)
            pause = min(2 * pause, self.most_seconds)


class RemotePeer:
    """Keeps a link to `address` (host:port) alive in the background for as long as the context lasts; in clear, unless
    `tls` is given."""

    service: str

    def __init__(self, address: str, *, backoff: Backoff | None = None, tls: RoleTls | None = None) -> None:
        self.address = address
        self.trouble: str | None = "not connected yet"
        """Why there is no link, in one line; None while there is one."""
        self._backoff = backoff or Backoff()
        self._tls = tls
        self._link: Link | None = None
        self._forget: Callable[[bytes], Awaitable[bytes]] | None = None
        self._linked = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeping = asyncio.create_task(self._keep(), name=f"link to {self.address}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def wait_connected(self) -> None:
        """Returns once there is a link; the caller sets the deadline."""
        await self._linked.wait()

    async def capabilities(self) -> Capabilities:
        """What the engine said when this link was made; of its adapters, what it said last."""
        return self._require().capabilities

    @property
    def adapters(self) -> tuple[AdapterFacts, ...]:
        """What the engine had loaded at the last look; nothing while there is no link."""
        return () if self._link is None else self._link.capabilities.adapters

    async def close(self, session: SessionId) -> None:
        """Sent, not awaited: the engine frees the session when it reads this, or when the stream ends."""
        if self._link is not None:
            self._link.close(session)

    async def forget(self, tenant: str) -> None:
        """`ports.Remembering`. Waits for a link where there is none; the caller sets the deadline."""
        await self._linked.wait()
        if self._forget is None:
            raise TargetLost(f"no connection to {self.address}: {self.trouble}")
        try:
            await self._forget(pod_calls.forget_request(tenant))
        except grpc.aio.AioRpcError as error:
            raise TargetLost(f"{self.address} forgot nothing: {error.code().name}: {error.details()}") from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise TargetLost(f"the link to {self.address} ended before it was known to have forgotten") from None

    def _require(self) -> Link:
        if self._link is None:
            raise TargetLost(f"no connection to {self.address}: {self.trouble}")
        return self._link

    async def _keep(self) -> None:
        chance = random.random
        pauses = self._backoff.pauses(chance)
        try:
            while True:
                reason = await self._reason_of_the_end()
                if _is_cancelled():
                    raise asyncio.CancelledError
                if self.connected:
                    pauses = self._backoff.pauses(chance)
                elif reason != self.trouble:
                    logger.warning("no link peer=%s reason=%s", self.address, reason)
                self._drop(reason)
                await asyncio.sleep(next(pauses))
        finally:
            self._drop("this end closed the link")

    async def _reason_of_the_end(self) -> str:
        try:
            await self._live()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return f"the peer does not serve {self.service}"
            about_tls = "" if self.connected else hint(str(error.details()), secured=self._tls is not None)
            return f"{error.code().name}: {error.details()}{about_tls}"
        except TimeoutError:
            return f"no answer within {_CONNECT_SECONDS} s"
        except BadRequest as error:
            return f"the peer speaks another protocol: {error}"
        except Exception as error:  # a fault of ours must not end the keeping: without it the peer is lost for good
            logger.error("link failed peer=%s error=%s", self.address, origin(error))
            return f"a fault at this end, {type(error).__name__}"
        return "the peer ended the stream"

    async def _live(self) -> None:
        """One life of a link, to its end."""
        async with self._channel() as channel:
            async with asyncio.timeout(_CONNECT_SECONDS):
                describe = channel.unary_unary(f"/{self.service}/Describe", bytes, bytes)
                described = await describe(pod_calls.describe_request())
                link = Link(pod_calls.read_capabilities(described))
                converse = channel.stream_stream(f"/{self.service}/Converse", bytes, bytes)
                stream = converse(link.outbox.frames())
                await stream.wait_for_connection()
            self._forget = channel.unary_unary(f"/{self.service}/Forget", bytes, bytes)
            self._link, self.trouble = link, None
            self._linked.set()
            logger.info("linked peer=%s service=%s", self.address, self.service)
            looking = asyncio.create_task(self._look_again(describe, link), name=f"looks at {self.address}")
            try:
                async for frame in stream:
                    link.take(frame)
            finally:
                looking.cancel()
                await asyncio.wait((looking,))

    def _channel(self) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options=transport.CLIENT_OPTIONS)
        return self._tls.channel(self.address)

    async def _look_again(self, describe: Callable[[bytes], Awaitable[bytes]], link: Link) -> None:
        """Keep the link's capabilities up to date. A failure that lasts is told by the stream, not here."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            with suppress(grpc.aio.AioRpcError, BadRequest, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    link.capabilities = pod_calls.read_capabilities(await describe(pod_calls.describe_request()))

    def _drop(self, reason: str) -> None:
        self._linked.clear()
        self.trouble = reason
        link, self._link, self._forget = self._link, None, None
        if link is not None:
            logger.warning("link ended peer=%s reason=%s", self.address, reason)
            link.fail(f"the link to {self.address} broke: {reason}")


def _is_cancelled() -> bool:
    """Whether somebody wants this task to end. gRPC does not always tell: a call that is cancelled at the moment at
    which it fails raises the failure, and who waited for this task would wait for ever. Nor is it so whenever gRPC says
    so: a call whose channel is closed raises as if it were."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class RemoteTarget(RemotePeer):
    """The port `TargetEngine`."""

    service = transport.TARGET_SERVICE

    async def open(self, request: OpenSession) -> Opened:
        return await self._require().open(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        return expect(Verdict, await self._require().ask(request.session, request))

    async def run(self, request: RunRounds) -> AsyncGenerator[Verdict]:
        async with aclosing(self._require().follow(request.session, request)) as replies:
            async for reply in replies:
                yield expect(Verdict, reply)

    async def read(self, request: ReadPrompt) -> PromptRead:
        return expect(PromptRead, await self._require().ask(request.session, request))


class RemoteDraft(RemotePeer):
    """The port `DraftEngine`."""

    service = transport.DRAFT_SERVICE

    async def capabilities(self) -> Capabilities:
        with _AS_OF_A_DRAFT:
            return await super().capabilities()

    async def open(self, request: OpenSession) -> Opened:
        with _AS_OF_A_DRAFT:
            return await self._require().open(request)

    async def propose(self, request: ProposeRound) -> Proposal:
        with _AS_OF_A_DRAFT:
            return expect(Proposal, await self._require().ask(request.session, request))

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        with _AS_OF_A_DRAFT:
            return expect(Scored, await self._require().ask(request.session, request)).matches


class _AsOfADraft:
    """A link says of every peer that a target is lost. One for all, as a round passes it each time."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SessionLost):
            raise DraftForgot(str(error)) from error
        if isinstance(error, TargetLost):
            raise DraftLost(str(error)) from error


_AS_OF_A_DRAFT: Final = _AsOfADraft()
