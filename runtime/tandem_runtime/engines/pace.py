"""Knows what a step costs on stated accelerators, and stretches a step loop's steps to that cost on the real clock.

Refuses to know what is computed.

So a small model on a CPU keeps the cost *ratio* of a large pair: real text and real acceptance under the timing of a
70B target on an H100 and an 8B draft on an L4. The stated cost is that of the whole step, planning and sampling
included: before its results are sent, a step is stretched by sleeping what remains. A step that takes longer than
stated is not shortened. Both sums are kept, since a paced figure is only to be shown beside the unpaced one.

    h100-70b     15 + 0.6 K ms, K = the most proposed tokens that one row of the step verifies (outputs - 1)
    l4-8b        4 ms
    l4-8b-eager  8 ms: the same draft without captured graphs, each operation started by itself

A prompt chunk costs what a plain step costs. One step carries at most a few hundred prompt tokens, which on such
accelerators fit beside a decode step that waits for memory.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.ports import Clock, Row

__all__ = ["TABLES", "UNPACED", "Cost", "Pace", "cost_named"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of a step: `step` + `proposed` for each of the K tokens of the longest proposal in it."""

    step: float
    proposed: float

    def seconds(self, rows: Sequence[Row]) -> float:
        """Cost(15, .6) over rows with 1, 6 and 0 outputs: 15 + .6 x 5 = 18 ms."""
        k = max((row.outputs - 1 for row in rows), default=0)
        return (self.step + self.proposed * max(0, k)) / 1000


UNPACED = Cost(0, 0)
"""Every step as fast as it is."""

TABLES: Mapping[str, Cost] = MappingProxyType(
    {"h100-70b": Cost(15, 0.6), "l4-8b": Cost(4, 0), "l4-8b-eager": Cost(8, 0)}
)


def cost_named(table: str) -> Cost:
    """Raises ModelRefused for an unknown table."""
    if table not in TABLES:
        raise ModelRefused(f"--pace {table}: there is no such table; the tables are {', '.join(sorted(TABLES))}")
    return TABLES[table]


class Pace:
    """One step loop's pace: when a step's results are due, and what all steps took. Used on the loop's thread."""

    def __init__(self, cost: Cost, *, clock: Clock, sleep: Callable[[float], None] = time.sleep) -> None:
        self._cost = cost
        self._clock = clock
        self._sleep = sleep
        self.steps = 0
        self.paced_seconds = 0.0
        """What all steps together took, sleep included."""
        self.unpaced_seconds = 0.0
        """What their own work took."""

    def due(self, rows: Sequence[Row], began: float) -> float:
        """The earliest moment for the results of a step over `rows` that began at `began`."""
        return began + self._cost.seconds(rows)

    def stretch(self, began: float, due: float) -> None:
        """The work of the step that began at `began` is done: sleep until its results are due."""
        worked = self._clock.monotonic()
        if worked < due:
            self._sleep(due - worked)
        self.steps += 1
        self.unpaced_seconds += worked - began
        self.paced_seconds += self._clock.monotonic() - began
