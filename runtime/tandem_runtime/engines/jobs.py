"""Knows a conversation of one request with a model: what it wants next, how much of that is computed, its answer.

Refuses to know which conversations share a step, threads, and what logits mean.

A job is a generator, so that what it needs is written as a conversation: it yields a `Want`, is sent a `Seen`, and
returns its result.

    def work() -> Work[int]:
        seen = yield Want(line, tokens, first=len(tokens) - 1, settled=len(tokens))  # one pass, or many for a long one
        return int(seen.logits[-1].argmax())
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.errors import TandemError
from tandem_runtime.domain.tokens import SessionId
from tandem_runtime.engines.lines import Line, Want
from tandem_runtime.ports import Logits, Row

__all__ = ["Job", "Seen", "Step", "Work", "guesses_of"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Seen:
    """`logits` is [len(tokens) - first, vocab], fewer where guesses were left out; the seconds are those of the steps
    that made it, and of the wait.

    `rows` is how many sessions had asked for the last of those steps, `beside` how many guesses of others it judged."""

    logits: Logits
    queue_seconds: float
    forward_seconds: float
    kv_used: float
    rows: int
    beside: int


@dataclass(frozen=True, slots=True)
class Step:
    """One that was computed: its seconds, how many sessions had asked for it, and how many guesses it judged."""

    seconds: float
    rows: int
    guesses: int


def guesses_of(parts: Iterable[tuple["Job", Row]]) -> int:
    """What a step judges: tokens of its rows behind those that are settled. A prompt that is told of has none."""
    return sum(job.guesses(row) for job, row in parts)


Work: TypeAlias = Generator[Want, Seen, Result]


@dataclass(slots=True, eq=False)
class Job:
    """One conversation under way. `want` is None before its first word. `since` is when it began to wait."""

    lane: SessionId | tuple[SessionId, int]
    work: Work[Any]
    answer: Callable[[Any, TandemError | None], None]
    gives_way: bool
    since: float
    want: Want | None = None
    line: Line = field(init=False)
    """That of what it wants."""
    parts: list[Logits] = field(default_factory=list)
    queue_seconds: float | None = None
    forward_seconds: float = 0.0
    rows: int = 1
    beside: int = 0
    kept: int | None = None
    """So many guesses are judged of those that were asked for; None: that is not decided. Those behind them will not be
    computed."""

    def need(self, want: Want) -> None:
        self.want, self.line, self.parts, self.kept = want, want.line, [], None
        self.queue_seconds, self.forward_seconds = None, 0.0

    @property
    def current(self) -> Want:
        assert self.want is not None, "a job in a lane's first place has said what it wants"
        return self.want

    @property
    def is_asked_for(self) -> bool:
        """Somebody waits for its answer; for a branch that a draft prepares beside a session's lane, nobody does."""
        return not isinstance(self.lane, tuple)

    @property
    def claim(self) -> Claim:
        return self.line.claim

    @property
    def missing(self) -> int:
        """Tokens that are still to be computed."""
        want = self.current
        end = len(want.tokens) if self.kept is None else min(len(want.tokens), want.compulsory + self.kept)
        return end - len(self.line.held)

    @property
    def compulsory(self) -> int:
        """Tokens that are still to be computed whatever is left out."""
        return self.current.compulsory - len(self.line.held)

    @property
    def slots(self) -> tuple[float, ...]:
        """The survivals of the guesses that were asked for and are not left out, whether they came or not."""
        return self.current.survivals[: self.kept]

    def row(self, size: int) -> Row:
        """The next `size` tokens of what is missing. Whoever lost the memory of wanted positions begins them anew."""
        want = self.current
        start = len(want.line.held)
        if start <= want.first:
            self.parts = []
        end = start + size
        outputs = max(0, end - max(start, want.first))
        line = want.line
        return Row(line.blocks, line.begins + start, tuple(want.tokens[start:end]), outputs, line.adapter)

    def guesses(self, row: Row) -> int:
        settled = self.current.settled - (row.start - self.line.begins)
        return len(row.tokens) - min(max(settled, 0), len(row.tokens))

    def took(self, row: Row, logits: Logits, *, waited: float, step: Step) -> None:
        """Note that `row` was computed, in `step`."""
        self.rows, self.beside = step.rows, step.guesses - self.guesses(row)
        if self.queue_seconds is None:
            self.queue_seconds = waited
        self.forward_seconds += step.seconds
        if row.outputs:
            self.parts.append(logits)

    def seen(self, kv_used: float) -> Seen:
        logits = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)
        return Seen(logits, self.queue_seconds or 0.0, self.forward_seconds, kv_used, self.rows, self.beside)
