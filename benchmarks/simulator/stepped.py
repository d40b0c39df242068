"""Knows the product's own engines in virtual time: real step loops, sampler, KV books and budget, steps of stated cost.

Refuses to know models: any `ports.StepModel` will do. What it computes takes no virtual time; a step's results come
when its cost says so, and what arrives meanwhile waits for the next step, as on the thread that it has in service.

    async def main() -> None:
        clock = SteppedClock()
        with SteppedTarget(model, FACTS, clock=clock, pace=clock.pace(Cost(15, 0.6))) as target:
            ...
    run_virtually(main)
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.simulator.clock import VirtualClock
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
from tandem_runtime.engines.pace import UNPACED, Cost, Pace
from tandem_runtime.engines.step_loop import StepLoop
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import DraftEngine, Row, TargetEngine


class SteppedClock(VirtualClock):
    """`ports.Clock` of one step loop. During a step it goes ahead of the event loop, as the step's results will."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def ahead(self, seconds: float) -> None:
        """As `time.sleep`, on the loop's side."""
        self._ahead += seconds

    def back(self) -> None:
        """To the event loop's time, for those who come while the step goes on."""
        self._ahead = 0.0

    def pace(self, cost: Cost) -> Pace:
        """Steps take what `cost` says."""
        return Pace(cost, clock=self, sleep=self.ahead)


@dataclass(frozen=True, slots=True)
class RowCost(Cost):
    """`row` milliseconds more for each row that a step computes."""

    row: float = 0.0

    def seconds(self, rows: Sequence[Row]) -> float:
        return Cost.seconds(self, rows) + self.row * sum(len(row.tokens) for row in rows) / 1000


class StatedPace(Pace):
    """Steps take what `cost` states, times what `chance` draws."""

    def __init__(self, cost: StepCost, *, clock: SteppedClock, chance: Callable[[], float]) -> None:
        super().__init__(UNPACED, clock=clock, sleep=clock.ahead)
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
        self._alarm: asyncio.TimerHandle | None = None
        """When a step begins that waits."""

    def stop(self) -> None:
        self._silence()
        self._end()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _tell(self, command: Callable[[], None]) -> bool:
        told = super()._tell(command)
        if told and not self._stepping:
            self._stepping = True
            self._silence()
            self._home.call_soon(self._go)
        return told

    def _go(self) -> None:
        self._stepping = not self.is_idle
        if self._stepping:
            self._take_turn()

    def _take_turn(self) -> None:
        self._stepping = True
        self.turn()
        due, clock = self.now(), self._clock
        assert isinstance(clock, SteppedClock), "a step's seconds are its clock's to count"
        clock.back()
        if self.waits_until is None:
            self._home.call_at(due, self._results_are_due)
        else:
            self._wait_until(self.waits_until)

    def _wait_until(self, moment: float) -> None:
        """Take the next turn then, or as soon as anything is told."""
        self.send()
        self._stepping = not self.is_idle
        if self._stepping:
            self._home.call_soon(self._go)
        else:
            self._alarm = self._home.call_at(moment, self._take_turn)

    def _results_are_due(self) -> None:
        self.send()
        self._go()


class SteppedDraft(BatchedDraft):
    steps: ClassVar[type[StepLoop]] = SteppedLoop


class SteppedTarget(BatchedTarget):
    steps: ClassVar[type[StepLoop]] = SteppedLoop


@dataclass(frozen=True, slots=True)
class FarTarget:
    """`ports.TargetEngine` that is `hop_seconds` away. Nobody waits for a closing, as on the wire."""

    engine: TargetEngine
    hop_seconds: float
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        await asyncio.sleep(self.hop_seconds)
        opened = await self.engine.open(request)
        await asyncio.sleep(self.hop_seconds)
        return opened

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
        _begin(self.engine.close(session), self.closing)


@dataclass(frozen=True, slots=True)
class FarDraft:
    """`ports.DraftEngine` likewise."""

    engine: DraftEngine
    hop_seconds: float
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        await asyncio.sleep(self.hop_seconds)
        opened = await self.engine.open(request)
        await asyncio.sleep(self.hop_seconds)
        return opened

    async def propose(self, request: ProposeRound) -> Proposal:
        await asyncio.sleep(self.hop_seconds)
        proposal = await self.engine.propose(request)
        await asyncio.sleep(self.hop_seconds)
        return proposal

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self.engine.score(request)

    async def close(self, session: SessionId) -> None:
        _begin(self.engine.close(session), self.closing)


def _begin(work: Coroutine[Any, Any, None], under_way: set[asyncio.Task[None]]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    under_way.add(task)
    task.add_done_callback(under_way.discard)
