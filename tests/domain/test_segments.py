"""Segments: who shares a belief, what a new one begins with, and how many are kept."""

from dataclasses import replace

import pytest
from tests.domain.known_pair import a_round, belief

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.lookahead import Belief, Bounds
from tandem_runtime.domain.segments import Heat, Segment, Segments, heat_of
from tandem_runtime.domain.tokens import Round

PLAIN = Segment("r1")


@pytest.mark.parametrize(
    ("temperature", "heat"),
    [(0.0, Heat.GREEDY), (0.01, Heat.COOL), (0.6, Heat.COOL), (0.7, Heat.WARM), (1.0, Heat.WARM), (1.5, Heat.HOT)],
)
def test_temperatures_fall_into_buckets(temperature: float, heat: Heat) -> None:
    assert heat_of(temperature) is heat


def test_sessions_of_a_segment_share_a_belief_and_others_do_not() -> None:
    segments = Segments()
    first, second, other = segments.begin(PLAIN), segments.begin(PLAIN), segments.begin(Segment("r2"))
    first.hear(matched=0, examined=32)
    assert second.belief is first.belief
    assert other.belief == Belief()


def test_a_new_segment_begins_with_what_is_known_of_its_pair() -> None:
    segments = Segments()
    taught = segments.begin(PLAIN)
    taught.hear(matched=0, examined=64)
    for _ in range(3):
        taught.learn(Round(2, 0, 1, 0.01, 0.02, 0.02, 0.01, seconds=0.03), 0.0, warm=True)
    hot = segments.cell(Segment("r1", heat=Heat.HOT)).belief
    assert hot.costs is taught.belief.costs
    assert hot.acceptance.survivals(1)[0] == pytest.approx(taught.belief.acceptance.survivals(1)[0], abs=0.1)
    assert (hot.k, hot.plain_rounds) == (None, 0)


def test_a_draft_that_pays_only_because_it_works_ahead_is_asked_in_a_new_segment_too() -> None:
    """A token takes it longer than the target, and one is ready with most verdicts."""
    segments, bounds = Segments(), Bounds(1, 8)
    taught = segments.cell(PLAIN)
    taught.belief = belief(0.8, k=None, t_d=20, o=1)
    taught.foresight.learn(a_round(1, 1, drafting_seconds=0.02, seconds=0.039), asked=False)
    hot = segments.cell(Segment("r1", heat=Heat.HOT)).begin()
    assert hot.choose(replace(bounds, overlap=Overlap.AUTO), 8, 0.0, warm=True).k > 0
    assert hot.choose(bounds, 8, 0.0, warm=True).k == 0


def test_the_nearest_of_a_pair_is_the_one_with_the_same_adapter() -> None:
    segments, adapter = Segments(), AdapterDigest("a")
    segments.cell(Segment("r1", adapter)).hear(matched=64, examined=64)
    segments.cell(PLAIN).hear(matched=0, examined=64)
    assert segments.cell(Segment("r1", adapter, Heat.HOT)).belief.acceptance.survivals(1)[0] > 0.7


def test_the_least_lately_asked_for_is_forgotten_first() -> None:
    segments = Segments(most=2)
    kept, lost = segments.cell(PLAIN), segments.cell(Segment("r2"))
    assert segments.cell(PLAIN) is kept
    segments.cell(Segment("r3"))
    assert segments.cell(PLAIN) is kept
    assert segments.cell(Segment("r2")) is not lost
    assert [segment.revision for segment, _ in segments.of("r1")] == ["r1"]
