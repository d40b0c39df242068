"""Knows which rows the next step takes, of all the jobs that could go on.

Refuses to know threads, models, and what comes of a step. Who goes first is `domain.batching`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from tandem_runtime.domain.batching import Claim, Shares
from tandem_runtime.domain.blocks import Key
from tandem_runtime.domain.budget import NOTHING_MEASURED, UNKNOWN, Measured, Offer, StepSeconds, kept_slots
from tandem_runtime.domain.tokens import Priority
from tandem_runtime.engines.jobs import Job
from tandem_runtime.engines.lines import Line, Lines
from tandem_runtime.engines.options import STEP_ROWS
from tandem_runtime.ports import Row

__all__ = ["CHUNK_TOKENS", "RIDE_ALONG_TOKENS", "Plan", "StepSize", "plan_step"]

RIDE_ALONG_TOKENS = 32
"""A need up to this size is taken whole: it holds any proposal that pays."""

CHUNK_TOKENS = 256
"""Prompt tokens per step: about what a step over a handful of verify rows can carry without doubling its time."""


_BY_ARRIVAL = attrgetter("since", "line.number")


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
    """`starved` are the jobs for which there is no memory, or beside more urgent ones no room, at present; `given_up`
    those that drafted ahead and have no memory, or lost it: not worth waiting, or computing anew."""

    parts: list[tuple[Job, Row]] = field(default_factory=list)
    starved: list[Job] = field(default_factory=list)
    given_up: list[Job] = field(default_factory=list)

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
    waiting: dict[Priority, list[tuple[str | None, Job]]] = {}
    for job in sorted(jobs, key=_BY_ARRIVAL):
        waiting.setdefault(job.claim.priority, []).append((job.claim.tenant, job))
    for priority, own in shares.items():
        yield from own.turns(waiting.get(priority, ()))


def _spared(jobs: Sequence[Job], size: StepSize, seconds: StepSeconds) -> Mapping[Job, int]:
    """How many guesses are left out of each job's need. A chunk of a prompt is part of what a step costs anyhow."""
    if seconds.per_row <= 0:
        return {}
    long, riding, offers = 0, [], []
    for job in jobs:
        compulsory = job.missing - len(job.guesses)
        if _is_long(job, size):
            long += job.missing
        elif compulsory > 0:
            riding.append(job)
            offers.append(Offer(job.claim, compulsory, job.guesses))
    beside = replace(seconds, fixed=seconds.fixed + seconds.per_row * min(long, size.chunk_tokens), rows=size.rows)
    spared = {}
    for job, offer, kept in zip(riding, offers, kept_slots(offers, beside), strict=True):
        if kept < len(offer.survivals):
            spared[job] = len(offer.survivals) - kept
    return spared


def _is_long(job: Job, size: StepSize) -> bool:
    """Whether its need is cut into chunks, and its guesses are judged whatever they cost.

    How many guesses there are has no part in it: that depends on what was drawn, as drafting stops behind an end token,
    and what is judged must not (see `domain.budget`). Only a need that no step could hold is cut in any case.
    """
    compulsory = job.missing - len(job.guesses)
    return compulsory > min(RIDE_ALONG_TOKENS, size.rows // 2) or job.missing > size.rows


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
        want = job.current
        self.lines.adopt(want)
        missing = job.missing - self.spared.get(job, 0)
        is_long, stem = _is_long(job, self.size), job.line.stem
        if stem is not None and (is_long or not stem.stands):
            self.plan.given_up.append(job)
            return
        block = self.lines.upcoming(want)
        if is_long and block in self.coming:
            return
        is_beside = self._is_beside_more_urgent(want.line.claim)
        rows = self._fitting(missing, is_long=is_long, is_beside=is_beside)
        if rows == 0:
            self.plan.starved += [job] if is_beside else []
        elif self._take(job, rows):
            if is_long:
                self.plan.chunked += rows
            else:
                self.riding += rows
            if block is not None:
                self.coming.add(block)

    def _fitting(self, missing: int, *, is_long: bool, is_beside: bool) -> int:
        """How many of the rows that a job misses there is room for. Beside more urgent work that is what a prompt's
        chunk has left, so that those steps do not get much longer."""
        room = self.size.chunk_tokens - self.plan.chunked if is_long else self.size.rows - self.riding
        if is_beside:
            room = min(room, max(0, self.size.chunk_tokens - self.plan.chunked - self.riding))
        return min(missing, room) if is_long or missing <= room else 0

    def _is_beside_more_urgent(self, claim: Claim) -> bool:
        parts = self.plan.parts
        return bool(parts) and parts[0][0].claim.priority < claim.priority

    def _take(self, job: Job, rows: int) -> bool:
        line, before = job.line, self._gave_way
        granted = self.lines.grant(line, len(line.held) + rows, at_work=self.at_work)
        if self._gave_way > before:
            self._drop_those_who_gave_way()
        if granted:
            if job in self.spared:
                job.left_out += self.spared[job]
            self.plan.parts.append((job, job.row(rows)))
            self._charge(line.claim, rows)
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
            self._charge(job.claim, -len(row.tokens))

    def _charge(self, claim: Claim, rows: int) -> None:
        self.shares[claim.priority].charge(claim, rows)
