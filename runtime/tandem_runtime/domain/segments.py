"""Knows which sessions share a belief about acceptance and costs: those of a segment; and how many segments are kept.

Refuses to know what is believed.

A segment is what acceptance depends on: the pair (its revision), the adapter that the target answers with and its draft
does not, who of the pair's drafters proposes, and how hot the sampling is, since a hot law is guessed worse. The batch
is no part of it: acceptance does not depend on who shares a step, and costs are planes over the batch. A segment that
was not seen before begins with what is known of another of its pair and drafter: the same costs, and its acceptance,
loosely held. A session begins with its segment's belief, and what it does differently is its own (`acceptance.Own`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.cells import Lookahead, Shared
from tandem_runtime.domain.lessons import IN_PYTHON, Beginning
from tandem_runtime.domain.lookahead import Belief
from tandem_runtime.domain.tokens import Drafter

MOST_SEGMENTS: Final = 256
"""Far more than are ever in use at once."""


class Heat(StrEnum):
    """A bucket of temperatures."""

    GREEDY = "Greedy"
    COOL = "Cool"
    WARM = "Warm"
    HOT = "Hot"


def heat_of(temperature: float) -> Heat:
    """0; up to .6; up to 1.1; above."""
    if temperature == 0:
        return Heat.GREEDY
    if temperature <= 0.6:
        return Heat.COOL
    return Heat.WARM if temperature <= 1.1 else Heat.HOT


@dataclass(frozen=True, slots=True)
class Segment:
    """`revision` names draft and target together; `adapter` None is the model alone."""

    revision: str
    adapter: AdapterDigest | None = None
    heat: Heat = Heat.WARM
    drafter: Drafter = Drafter.MODEL


class Segments:
    """The cells of all segments. The least lately asked for is forgotten first."""

    def __init__(self, most: int = MOST_SEGMENTS, beginning: Beginning = IN_PYTHON) -> None:
        self._most = most
        self.beginning = beginning
        self._cells: dict[Segment, Shared] = {}

    def begin(self, segment: Segment) -> Lookahead:
        """For one more session of it."""
        return self.cell(segment).begin()

    def cell(self, segment: Segment) -> Shared:
        known = self._cells.pop(segment) if segment in self._cells else self._begun(segment)
        self._cells[segment] = known
        if len(self._cells) > self._most:
            del self._cells[next(iter(self._cells))]
        return known

    def of(self, revision: str) -> list[tuple[Segment, Shared]]:
        """The segments of one revision, the most lately asked for first."""
        return [(segment, cell) for segment, cell in reversed(self._cells.items()) if segment.revision == revision]

    def _begun(self, segment: Segment) -> Shared:
        """With what is known of pair and drafter from another segment, one with the same adapter if there is one."""
        others = [other for other in self.of(segment.revision) if other[0].drafter is segment.drafter]
        others.sort(key=lambda other: other[0].adapter != segment.adapter)
        if not others:
            return Shared(Belief(self.beginning.untaught))
        nearest = others[0][1]
        lessons = nearest.belief.lessons.loosened(acceptance=True)
        return Shared(Belief(lessons), nearest.foresight.kindred())
