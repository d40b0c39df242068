"""Knows which kinds of call a target and a draft serve, and which method of the port each one is.

Refuses to know streams and sessions' numbers.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tandem_runtime.domain.errors import BadRequest, Overloaded
from tandem_runtime.domain.tokens import (
    Capabilities,
    OpenSession,
    ProposeRound,
    ReadPrompt,
    RunRounds,
    ScoreTokens,
    SessionId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.ports import DraftEngine, PromptReader, Remembering, TargetEngine
from tandem_runtime.wire import transport
from tandem_runtime.wire.codec import Ended, ReplyBody, RequestBody, Scored


class Role(Protocol):
    """An engine as a conversation sees it: a request in, replies out."""

    @property
    def service(self) -> str: ...

    async def capabilities(self) -> Capabilities: ...

    def answer(self, request: RequestBody) -> AsyncGenerator[ReplyBody]:
        """Closing the generator ends the work."""
        ...

    async def close(self, session: SessionId) -> None: ...

    async def forget(self, tenant: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TargetRole:
    engine: TargetEngine
    service: ClassVar[str] = transport.TARGET_SERVICE

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def answer(self, request: RequestBody) -> AsyncGenerator[ReplyBody]:
        match request:
            case OpenSession():
                yield await self.engine.open(request)
            case VerifyRound():
                yield await self.engine.verify(request)
            case RunRounds():
                async with _ending(self.engine.run(request)) as verdicts:
                    async for verdict in verdicts:
                        yield verdict
                yield Ended()
            case ReadPrompt() if isinstance(self.engine, PromptReader):
                yield await self.engine.read(request)
            case _:
                raise BadRequest(f"a target does not serve {type(request).__name__}", parameter="kind")

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)

    async def forget(self, tenant: str) -> None:
        await _forgotten(self.engine, tenant)


@dataclass(frozen=True, slots=True)
class DraftRole:
    engine: DraftEngine
    service: ClassVar[str] = transport.DRAFT_SERVICE

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def answer(self, request: RequestBody) -> AsyncGenerator[ReplyBody]:
        match request:
            case OpenSession():
                yield await self.engine.open(request)
            case ProposeRound():
                yield await self.engine.propose(request)
            case ScoreTokens():
                bits = await self.engine.score(request)
                if bits is None:
                    raise Overloaded("this draft is left alone for a while; ask again later")
                yield Scored(bits)
            case _:
                raise BadRequest(f"a draft does not serve {type(request).__name__}", parameter="kind")

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)

    async def forget(self, tenant: str) -> None:
        await _forgotten(self.engine, tenant)


async def _forgotten(engine: object, tenant: str) -> None:
    """By an engine that keeps nothing it is forgotten already."""
    if isinstance(engine, Remembering):
        await engine.forget(tenant)


@asynccontextmanager
async def _ending(verdicts: AsyncIterator[Verdict]) -> AsyncIterator[AsyncIterator[Verdict]]:
    """End a run that is left early; an iterator that is no generator holds nothing to end."""
    try:
        yield verdicts
    finally:
        if isinstance(verdicts, AsyncGenerator):
            await verdicts.aclose()
