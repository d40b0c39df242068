"""Knows which rows the next step takes, of all the jobs that could go on.

Refuses to know threads, models, and what comes of a step. Who goes first is `domain.batching`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tandem_runtime.domain.batching import Shares
from tandem_runtime.domain.blocks import Key
from tandem_runtime.domain.tokens import Priority
from tandem_runtime.engines.jobs import Job
from tandem_runtime.engines.lines import Line, Lines
from tandem_runtime.ports import Row

__all__ = ["CHUNK_TOKENS", "RIDE_ALONG_TOKENS", "STEP_ROWS", "Plan", "StepSize", "plan_step"]

RIDE_ALONG_TOKENS = 32
"""A need up to this size is taken whole: it holds any proposal that pays."""

CHUNK_TOKENS = 256
"""Prompt tokens per step: about what a step over a handful of verify rows can carry without doubling its time."""

STEP_ROWS = 512
"""Rows of those who ride along, per step: 64 sessions that guess 7 tokens each. Whoever has many sessions that guess
more does not set everybody's pace by it."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a step may hold: `chunk_tokens` of long needs, and `rows` of short ones."""

    chunk_tokens: int = CHUNK_TOKENS
    rows: int = STEP_ROWS

    def __post_init__(self) -> None:
        assert self.chunk_tokens >= 1, "a step reads one prompt token at least"
        assert self.rows >= RIDE_ALONG_TOKENS, "a need that rides along fits into a step"


@dataclass(slots=True)
class Plan:
    """`starved` are the jobs for which there is no memory, or beside more urgent ones no room, at present; `given_up`
    those that drafted ahead and have no memory, or lost it: not worth waiting, or computing anew."""

    parts: list[tuple[Job, Row]] = field(default_factory=list)
    starved: list[Job] = field(default_factory=list)
    given_up: list[Job] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.parts]


def plan_step(jobs: Sequence[Job], lines: Lines, shares: Mapping[Priority, Shares], *, size: StepSize) -> Plan:
    """One piece of each job, as far as there is room and memory; whose turn it is comes first."""
    planning = _Planning(lines, shares, frozenset(job.line for job in jobs), size)
    for job in _in_order(jobs, shares):
        planning.consider(job)
    return planning.plan


def _in_order(jobs: Sequence[Job], shares: Mapping[Priority, Shares]) -> Iterator[Job]:
    waiting = [(job.claim, job) for job in sorted(jobs, key=lambda job: (job.since, job.line.number))]
    for priority, own in shares.items():
        yield from own.turns([(claim.tenant, job) for claim, job in waiting if claim.priority is priority])


@dataclass(slots=True)
class _Planning:
    lines: Lines
    shares: Mapping[Priority, Shares]
    at_work: frozenset[Line]
    size: StepSize
    plan: Plan = field(default_factory=Plan)
    chunked: int = 0
    """Rows of long needs so far."""
    riding: int = 0
    """Rows of short needs so far."""
    coming: set[Key] = field(default_factory=set)
    """Blocks that the step is about to make known."""

    def consider(self, job: Job) -> None:
        """Plan the job's next piece if there is room and memory for it, and nobody else computes it already."""
        self.lines.adopt(job.current)
        is_long = job.missing > RIDE_ALONG_TOKENS
        if is_long and job.line.is_ahead:
            self.plan.given_up.append(job)
            return
        block = self.lines.upcoming(job.current)
        if is_long and block in self.coming:
            return
        rows = self._fitting(job, is_long=is_long)
        if rows == 0:
            self.plan.starved += [job] if self._is_beside_more_urgent(job) else []
        elif self._take(job, rows):
            self.chunked += rows if is_long else 0
            self.riding += 0 if is_long else rows
            if block is not None:
                self.coming.add(block)

    def _fitting(self, job: Job, *, is_long: bool) -> int:
        """How many rows of the job there is room for. Beside more urgent work that is what a prompt's chunk has left,
        so that those steps do not get much longer."""
        room = self.size.chunk_tokens - self.chunked if is_long else self.size.rows - self.riding
        if self._is_beside_more_urgent(job):
            room = min(room, max(0, self.size.chunk_tokens - self.chunked - self.riding))
        missing = job.missing
        return min(missing, room) if is_long or missing <= room else 0

    def _is_beside_more_urgent(self, job: Job) -> bool:
        return bool(self.plan.parts) and self.plan.parts[0][0].claim.priority < job.claim.priority

    def _take(self, job: Job, rows: int) -> bool:
        line, before = job.line, self._gave_way
        granted = self.lines.grant(line, len(line.held) + rows, at_work=self.at_work)
        if self._gave_way > before:
            self._drop_those_who_gave_way()
        if granted:
            self.plan.parts.append((job, job.row(rows)))
            self._charge(job, rows)
        else:
            self._leave_out(job)
        return granted

    @property
    def _gave_way(self) -> int:
        return self.lines.counts.preemptions + self.lines.counts.abandoned

    def _leave_out(self, job: Job) -> None:
        """There is no memory for it."""
        (self.plan.given_up if job.line.is_ahead else self.plan.starved).append(job)

    def _drop_those_who_gave_way(self) -> None:
        """Whose memory went to somebody ranked higher that came later in turn."""
        gone = [(job, row) for job, row in self.plan.parts if not job.line.table.blocks]
        for job, row in gone:
            self.plan.parts.remove((job, row))
            self._leave_out(job)
            self._charge(job, -len(row.tokens))

    def _charge(self, job: Job, rows: int) -> None:
        claim = job.claim
        self.shares[claim.priority].charge(claim, rows)
