"""Knows which rows the next step takes, of all the jobs that could go on.

Refuses to know threads, models, and what comes of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem_runtime.domain.blocks import Key
from tandem_runtime.engines.jobs import Job
from tandem_runtime.engines.lines import Line, Lines
from tandem_runtime.ports import Row

__all__ = ["RIDE_ALONG_TOKENS", "Plan", "plan_step"]

RIDE_ALONG_TOKENS = 32
"""A need up to this size is taken whole in every step: it holds any proposal that pays."""


@dataclass(slots=True)
class Plan:
    """`starved` are the jobs for which there is no memory at present."""

    parts: list[tuple[Job, Row]] = field(default_factory=list)
    starved: list[Job] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.parts]


@dataclass(slots=True)
class _Planning:
    lines: Lines
    at_work: frozenset[Line]
    budget: int
    plan: Plan = field(default_factory=Plan)
    taken: set[Line] = field(default_factory=set)
    coming: set[Key] = field(default_factory=set)
    """Blocks that the step is about to make known."""

    def consider(self, job: Job) -> None:
        """Plan the job's next piece if there is budget and memory for it, and nobody else computes it already."""
        self.lines.adopt(job.current)
        is_long = job.missing > RIDE_ALONG_TOKENS
        block = self.lines.upcoming(job.current)
        size = min(job.missing, self.budget) if is_long else job.missing
        if size == 0 or (is_long and block in self.coming):
            return
        if self._take(job, size):
            self.budget -= size if is_long else 0
            self.coming |= set() if block is None else {block}

    def _take(self, job: Job, size: int) -> bool:
        length = len(job.line.held) + size
        granted = self.lines.grant(job.line, length, at_work=self.at_work, keep=self.taken)
        if granted:
            self.taken.add(job.line)
            self.plan.parts.append((job, job.row(size)))
        else:
            self.plan.starved.append(job)
        return granted


def plan_step(jobs: Sequence[Job], lines: Lines, *, chunk_tokens: int) -> Plan:
    """One piece of each job, while the prompt budget lasts; those whose sessions were opened first come first."""
    planning = _Planning(lines, frozenset(job.line for job in jobs), chunk_tokens)
    for job in sorted(jobs, key=lambda job: job.line.number):
        planning.consider(job)
    return planning.plan
