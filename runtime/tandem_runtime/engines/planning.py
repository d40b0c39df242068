"""Knows which rows the next step takes, of all the jobs that could go on.

Refuses to know threads, models, and what comes of a step. Who goes first is `domain.batching`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem_runtime.domain.batching import Shares
from tandem_runtime.domain.blocks import Key
from tandem_runtime.domain.budget import NOTHING_MEASURED, UNKNOWN, Measured, Offer, StepSeconds, kept_slots
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
    costs: Measured | None = NOTHING_MEASURED
    """What is known of steps before the first one; None: every proposal is judged whole, whatever that costs."""

    def __post_init__(self) -> None:
        assert self.chunk_tokens >= 1, "a step reads one prompt token at least"
        assert self.rows >= RIDE_ALONG_TOKENS, "a need that rides along fits into a step"


@dataclass(slots=True)
class Plan:
    """`starved` are the jobs for which there is no memory, or beside more urgent ones no room, at present."""

    parts: list[tuple[Job, Row]] = field(default_factory=list)
    starved: list[Job] = field(default_factory=list)

    chunked: int = 0
    """Rows of long needs."""

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.parts]


def plan_step(
    jobs: Sequence[Job],
    lines: Lines,
    shares: Mapping[Priority, Shares],
    *,
    size: StepSize,
    seconds: StepSeconds = UNKNOWN,
) -> Plan:
    """One piece of each job, as far as there is room and memory; whose turn it is comes first. Guesses that are not
    worth the `seconds` of a step are left out."""
    spared = _spared(jobs, size, seconds)
    planning = _Planning(lines, shares, frozenset(job.line for job in jobs), size, spared)
    for job in _in_order(jobs, shares):
        planning.consider(job)
    return planning.plan


def _in_order(jobs: Sequence[Job], shares: Mapping[Priority, Shares]) -> Iterator[Job]:
    waiting = [(job.claim, job) for job in sorted(jobs, key=lambda job: (job.since, job.line.number))]
    for priority, own in shares.items():
        yield from own.turns([(claim.tenant, job) for claim, job in waiting if claim.priority is priority])


def _spared(jobs: Sequence[Job], size: StepSize, seconds: StepSeconds) -> Mapping[Job, int]:
    """How many guesses are left out of each job's need. A chunk of a prompt is part of what a step costs anyhow."""
    if seconds.per_row <= 0:
        return {}
    riding = [job for job in jobs if len(job.current.survivals) < job.missing <= RIDE_ALONG_TOKENS]
    long = sum(job.missing for job in jobs if job.missing > RIDE_ALONG_TOKENS)
    beside = replace(seconds, fixed=seconds.fixed + seconds.per_row * min(long, size.chunk_tokens), rows=size.rows)
    offers = [Offer(job.claim, job.missing - len(job.current.survivals), job.current.survivals) for job in riding]
    kept = kept_slots(offers, beside)
    counts = [len(offer.survivals) - count for offer, count in zip(offers, kept, strict=True)]
    return {job: count for job, count in zip(riding, counts, strict=True) if count}


@dataclass(slots=True)
class _Planning:
    lines: Lines
    shares: Mapping[Priority, Shares]
    at_work: frozenset[Line]
    size: StepSize
    spared: Mapping[Job, int]
    plan: Plan = field(default_factory=Plan)
    riding: int = 0
    """Rows of short needs so far."""
    coming: set[Key] = field(default_factory=set)
    """Blocks that the step is about to make known."""

    def consider(self, job: Job) -> None:
        """Plan the job's next piece if there is room and memory for it, and nobody else computes it already."""
        self.lines.adopt(job.current)
        is_long = job.missing > RIDE_ALONG_TOKENS
        block = self.lines.upcoming(job.current)
        if is_long and block in self.coming:
            return
        rows = self._fitting(job, is_long=is_long)
        if rows == 0:
            self.plan.starved += [job] if self._is_beside_more_urgent(job) else []
        elif self._take(job, rows):
            self.plan.chunked += rows if is_long else 0
            self.riding += 0 if is_long else rows
            if block is not None:
                self.coming.add(block)

    def _fitting(self, job: Job, *, is_long: bool) -> int:
        """How many rows of the job there is room for. Beside more urgent work that is what a prompt's chunk has left,
        so that those steps do not get much longer."""
        room = self.size.chunk_tokens - self.plan.chunked if is_long else self.size.rows - self.riding
        if self._is_beside_more_urgent(job):
            room = min(room, max(0, self.size.chunk_tokens - self.plan.chunked - self.riding))
        missing = job.missing - self.spared.get(job, 0)
        return min(missing, room) if is_long or missing <= room else 0

    def _is_beside_more_urgent(self, job: Job) -> bool:
        return bool(self.plan.parts) and self.plan.parts[0][0].claim.priority < job.claim.priority

    def _take(self, job: Job, rows: int) -> bool:
        line, before = job.line, self.lines.counts.preemptions
        granted = self.lines.grant(line, len(line.held) + rows, at_work=self.at_work)
        if self.lines.counts.preemptions > before:
            self._drop_those_who_gave_way()
        if granted:
            if job in self.spared:
                job.leave_out(self.spared[job])
            self.plan.parts.append((job, job.row(rows)))
            self._charge(job, rows)
        else:
            self.plan.starved.append(job)
        return granted

    def _drop_those_who_gave_way(self) -> None:
        """Whose memory went to somebody ranked higher that came later in turn."""
        gone = [(job, row) for job, row in self.plan.parts if not job.line.table.blocks]
        for job, row in gone:
            self.plan.parts.remove((job, row))
            self.plan.starved.append(job)
            self._charge(job, -len(row.tokens))

    def _charge(self, job: Job, rows: int) -> None:
        claim = job.claim
        self.shares[claim.priority].charge(claim, rows)
