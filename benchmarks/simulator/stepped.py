"""Knows the product's own engines in virtual time: real step loops, sampler and KV books, steps of stated cost.

Refuses to know models: any `ports.StepModel` will do. What it computes takes no virtual time; a step's results come
when its cost says so, and what arrives meanwhile waits for the next step, as on the thread that it has in service.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.simulator.costs import Part, StepCost
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
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import UNPACED, Pace
from tandem_runtime.engines.step_loop import StepLoop
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Clock, DraftEngine, Row, TargetEngine


class StatedPace(Pace):
    """Steps take what `cost` states, times what `chance` draws."""

    def __init__(self, cost: StepCost, *, clock: Clock, chance: Callable[[], float]) -> None:
        super().__init__(UNPACED, clock=clock, sleep=lambda _: None)
        self._stated = cost
        self._chance = chance

    def due(self, rows: Sequence[Row], began: float) -> float:
        parts = [Part(len(row.tokens), row.outputs) for row in rows]
        return began + self._stated.seconds(parts) * self._chance()


class SteppedLoop(StepLoop):
    """Steps on the event loop that runs, one after another, while there is something to do."""

    def start(self) -> None:
        self._home = asyncio.get_running_loop()
        self._stepping = False

    def stop(self) -> None:
        self._end()

    def _tell(self, command: Callable[[], None]) -> bool:
        told = super()._tell(command)
        if told and not self._stepping:
            self._stepping = True
            self._home.call_soon(self._go)
        return told

    def _go(self) -> None:
        began = self._clock.monotonic()
        for command in self._arrived():
            command()
        self._step(began)
        if self.now() > began:
            self._home.call_at(self.now(), self._results_are_due)
            return
        self.send()
        self._stepping = not self._commands.empty()
        if self._stepping:
            self._home.call_soon(self._go)

    def _results_are_due(self) -> None:
        self.send()
        self._go()


class SteppedDraft(BatchedDraft):
    steps: ClassVar[type[StepLoop]] = SteppedLoop


class SteppedTarget(BatchedTarget):
    steps: ClassVar[type[StepLoop]] = SteppedLoop


@dataclass(frozen=True, slots=True)
class FarTarget:
    """`ports.TargetEngine` that is `hop_seconds` away. Openings and closings go with other messages."""

    engine: TargetEngine
    hop_seconds: float

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self.engine.open(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        await asyncio.sleep(self.hop_seconds)
        verdict = await self.engine.verify(request)
        await asyncio.sleep(self.hop_seconds)
        return verdict

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        """The hop back is paid once: verdicts of a run follow each other on the way."""
        await asyncio.sleep(2 * self.hop_seconds)
        run = self.engine.run(request)
        assert isinstance(run, AsyncGenerator)
        async with aclosing(run) as verdicts:
            async for verdict in verdicts:
                yield verdict

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)


@dataclass(frozen=True, slots=True)
class FarDraft:
    """`ports.DraftEngine` likewise."""

    engine: DraftEngine
    hop_seconds: float

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self.engine.open(request)

    async def propose(self, request: ProposeRound) -> Proposal:
        await asyncio.sleep(self.hop_seconds)
        proposal = await self.engine.propose(request)
        await asyncio.sleep(self.hop_seconds)
        return proposal

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self.engine.score(request)

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)
