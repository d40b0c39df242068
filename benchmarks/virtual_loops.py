"""Knows how the product's own step loops run in virtual time: batching, shares, memory and budget as they are served.

Refuses to know what is asked of them. A loop takes its turns in the event loop instead of on a thread, and a step takes
what it is stated to cost, whatever this machine does meanwhile: the same figures on a busy machine as on an idle one.

    async def main() -> None:
        clock = SteppedClock()
        async with running(BatchedTarget(model, FACTS, clock=clock, pace=Pace(cost, clock=clock, sleep=clock.ahead))):
            ...
    run_virtually(main)
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tandem_runtime.engines.batched import BatchedEngine
from tandem_runtime.engines.pace import Cost
from tandem_runtime.ports import Row

LOOK_SECONDS = 500e-6
"""Between two looks of an idle loop for something to do."""


class SteppedClock:
    """`ports.Clock` of one step loop. During a step it goes ahead of the event loop, as the step's results will."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ahead = 0.0

    def monotonic(self) -> float:
        return self._loop.time() + self._ahead

    def wall(self) -> float:
        return self.monotonic()

    def ahead(self, seconds: float) -> None:
        """As `time.sleep`, on the loop's side."""
        self._ahead += seconds

    async def catch_up(self) -> None:
        """Until the event loop is there, too."""
        ahead, self._ahead = self._ahead, 0.0
        await asyncio.sleep(ahead)


@dataclass(frozen=True, slots=True)
class RowCost(Cost):
    """`row` milliseconds more for each row that a step computes."""

    row: float = 0.0

    def seconds(self, rows: Sequence[Row]) -> float:
        return Cost.seconds(self, rows) + self.row * sum(len(row.tokens) for row in rows) / 1000


@asynccontextmanager
async def running(*engines: tuple[BatchedEngine, SteppedClock]) -> AsyncIterator[None]:
    """While the block lasts, the engines' loops take their turns."""
    turns = [asyncio.create_task(_turns(engine, clock)) for engine, clock in engines]
    try:
        yield
    finally:
        for task in turns:
            task.cancel()
        for task in turns:
            with suppress(asyncio.CancelledError):
                await task


async def _turns(engine: BatchedEngine, clock: SteppedClock) -> None:
    while True:
        if engine.loop.is_idle:
            await asyncio.sleep(LOOK_SECONDS)
            continue
        engine.loop.turn()
        await clock.catch_up()
        engine.loop.send()
