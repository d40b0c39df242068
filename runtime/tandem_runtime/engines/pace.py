"""Knows what a step costs on stated accelerators, and stretches a model's steps to that cost on the real clock.

Refuses to know what is computed: every result is the wrapped model's own.

So a small model on a CPU keeps the cost *ratio* of a large pair: real text and real acceptance under the timing of a
70B target on an H100 and an 8B draft on an L4. A step is stretched by sleeping what remains after the real computation;
a step that takes longer than stated is not shortened. Both sums are kept, since a paced figure is only to be shown
beside the unpaced one.

    h100-70b   15 + 0.6 K ms, K = the most proposed tokens that one row of the step verifies (outputs - 1)
    l4-8b      4 ms

A prompt chunk costs what a plain step costs. One step carries at most a few hundred prompt tokens, which on such
accelerators fit beside a decode step that waits for memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.ports import Clock, Logits, Row, StepModel

__all__ = ["TABLES", "Cost", "PacedModel", "cost_named"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of a step: `step` + `proposed` for each of the K tokens of the longest proposal in it."""

    step: float
    proposed: float

    def seconds(self, rows: Sequence[Row]) -> float:
        """Cost(15, .6) over rows with 1, 6 and 0 outputs: 15 + .6 x 5 = 18 ms."""
        k = max((row.outputs - 1 for row in rows), default=0)
        return (self.step + self.proposed * max(0, k)) / 1000


TABLES: Mapping[str, Cost] = MappingProxyType({"h100-70b": Cost(15, 0.6), "l4-8b": Cost(4, 0)})


def cost_named(table: str) -> Cost:
    """Raises ModelRefused for an unknown table."""
    if table not in TABLES:
        raise ModelRefused(f"--pace {table}: there is no such table; the tables are {', '.join(sorted(TABLES))}")
    return TABLES[table]


class PacedModel:
    """`ports.StepModel` around another one. `sleep` blocks the model's own thread only."""

    def __init__(self, model: StepModel, cost: Cost, *, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._model = model
        self._cost = cost
        self._clock = clock
        self._sleep = sleep
        self.steps = 0
        self.paced_seconds = 0.0
        """What all steps together took, sleep included."""
        self.unpaced_seconds = 0.0
        """What the computation alone took."""

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_length(self) -> int:
        return self._model.max_length

    @property
    def determinism(self) -> str:
        return self._model.determinism

    @property
    def kv_used(self) -> float:
        return self._model.kv_used

    def allocate(self) -> int:
        return self._model.allocate()

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        began = self._clock.monotonic()
        logits = self._model.forward(rows)
        computed = self._clock.monotonic()
        self._sleep(max(0.0, self._cost.seconds(rows) - (computed - began)))
        self.steps += 1
        self.unpaced_seconds += computed - began
        self.paced_seconds += self._clock.monotonic() - began
        return logits

    def release(self, slot: int) -> None:
        self._model.release(slot)
