"""Knows what can go wrong between a driver and its engines, and does it to real engines by a private chance.

Refuses to know what the text should be.

Each fault is followed by at least one call that works, so that a session never loses its target three times in a row
without a token between, which would fail it rightly.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tandem_runtime.domain.errors import DraftLost, TargetLost
from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    ScoreTokens,
    SessionId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.ports import DraftEngine, TargetEngine

_T = TypeVar("_T")


@dataclass
class Trouble:
    """When a fault comes: in a share `rate` of the calls, never in two calls in a row. Counts what happened."""

    chance: Random
    rate: float
    counts: dict[str, int] = field(default_factory=dict)
    spared: bool = True

    def strikes(self, *names: str) -> str | None:
        """The name of the fault to commit now, or None."""
        if self.spared or self.chance.random() >= self.rate:
            self.spared = False
            return None
        self.spared = True
        name = self.chance.choice(names)
        self.counts[name] = self.counts.get(name, 0) + 1
        return name


async def _once_more(call: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """The first reply got lost, so the same round is asked again; the second must be the same but for its seconds."""
    first, second = await call(), await call()
    assert first == second, "the same round got two verdicts"
    return second


class TroubledTarget:
    """`ports.TargetEngine` as one session sees it when the network and the target have bad moments."""

    def __init__(self, engine: TargetEngine, trouble: Trouble) -> None:
        self._engine = engine
        self._trouble = trouble

    async def capabilities(self) -> Capabilities:
        return await self._engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self._engine.open(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        match self._trouble.strikes("asked twice", "lost before", "reply lost", "forgotten"):
            case "asked twice":
                return await _once_more(lambda: self._engine.verify(request))
            case "lost before":
                raise TargetLost("cut before the request")
            case "reply lost":
                await self._engine.verify(request)
                raise TargetLost("cut before the reply")
            case "forgotten":
                await self._engine.close(request.session)
        return await self._engine.verify(request)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        fault = self._trouble.strikes("run cut", "forgotten", "told twice")
        if fault == "forgotten":
            await self._engine.close(request.session)
        verdicts = self._engine.run(request)
        left = self._trouble.chance.randrange(1, 8) if fault == "run cut" else None
        async with aclosing(verdicts):  # type: ignore[type-var]  # the port promises an iterator; engines give generators
            async for verdict in verdicts:
                if left == 0:
                    raise TargetLost("cut within a run")
                left = None if left is None else left - 1
                yield verdict
                if fault == "told twice":
                    yield verdict

    async def close(self, session: SessionId) -> None:
        await self._engine.close(session)


class TroubledDraft:
    """`ports.DraftEngine` that is lost now and then: before a proposal, after it, or because it forgot the session."""

    def __init__(self, engine: DraftEngine, trouble: Trouble) -> None:
        self._engine = engine
        self._trouble = trouble

    async def capabilities(self) -> Capabilities:
        return await self._engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self._engine.open(request)

    async def propose(self, request: ProposeRound) -> Proposal:
        match self._trouble.strikes("draft lost", "draft reply lost", "draft forgot"):
            case "draft lost":
                raise DraftLost("cut before the request")
            case "draft reply lost":
                await self._engine.propose(request)
                raise DraftLost("cut before the reply")
            case "draft forgot":
                await self._engine.close(request.session)
        return await self._engine.propose(request)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self._engine.score(request)

    async def close(self, session: SessionId) -> None:
        await self._engine.close(session)
