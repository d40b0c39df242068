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
"""Whoever has so much to read beside his guesses at most is served in one piece."""

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
    _decide(jobs, size, seconds)
    planning = _Planning(lines, shares, frozenset(job.line for job in jobs), size)
    for job in _in_order(jobs, shares):
        planning.consider(job)
    return planning.plan


def _in_order(jobs: Sequence[Job], shares: Mapping[Priority, Shares]) -> Iterator[Job]:
    waiting: dict[Priority, list[tuple[str | None, Job]]] = {}
    for job in sorted(jobs, key=_BY_ARRIVAL):
        waiting.setdefault(job.claim.priority, []).append((job.claim.tenant, job))
    for priority, own in shares.items():
        yield from own.turns(waiting.get(priority, ()))


def _decide(jobs: Sequence[Job], size: StepSize, seconds: StepSeconds) -> None:
    """Say of every new need how many of its guesses are judged.

    It is said once, of guesses that were asked for, before anything is known of room and memory: so the number of those
    that came, which was drawn, has no part in it (see `domain.budget`). From here on it only says when they are
    computed. Beside a prompt they are all judged; a chunk of one is part of what a step costs anyhow.
    """
    riding = [job for job in jobs if 0 < job.compulsory <= RIDE_ALONG_TOKENS]
    long = sum(job.compulsory + len(job.slots) for job in jobs if job.compulsory > RIDE_ALONG_TOKENS)
    beside = replace(seconds, fixed=seconds.fixed + seconds.per_row * min(long, size.chunk_tokens), rows=size.rows)
    offers = [Offer(job.claim, job.compulsory, job.slots) for job in riding]
    worth = dict(zip(riding, kept_slots(offers, beside), strict=True))
    for job in jobs:
        if job.kept is None:
            job.kept = worth.get(job, len(job.slots))


@dataclass(slots=True)
class _Planning:
    lines: Lines
    shares: Mapping[Priority, Shares]
    at_work: frozenset[Line]
    size: StepSize
    plan: Plan = field(default_factory=Plan)
    riding: int = 0
    """Rows of short needs so far."""
    coming: set[Key] = field(default_factory=set)
    """Blocks that the step is about to make known."""

    def consider(self, job: Job) -> None:
        """Plan the job's next piece if there is room and memory for it, and nobody else computes it already."""
        want = job.current
        self.lines.adopt(want)
        is_long = self._is_long(job)
        if is_long and job.line.is_ahead:
            self.plan.given_up.append(job)
            return
        block = self.lines.upcoming(want)
        if is_long and block in self.coming:
            return
        is_beside = self._is_beside_more_urgent(want.line.claim)
        rows = self._fitting(job.missing, is_long=is_long, is_beside=is_beside)
        if rows == 0:
            self.plan.starved += [job] if is_beside else []
        elif self._take(job, rows):
            if is_long:
                self.plan.chunked += rows
            else:
                self.riding += rows
            if block is not None:
                self.coming.add(block)

    def _is_long(self, job: Job) -> bool:
        """Whether its need is cut into chunks: it has much to read, or is more than any step holds."""
        return job.compulsory > RIDE_ALONG_TOKENS or job.missing > self.size.rows

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
