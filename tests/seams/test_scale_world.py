"""What stands in for gateways at scale is read as gateways are, only grows, and gives the operator nothing to do."""

from datetime import UTC, datetime

from benchmarks.scale_world import HOUR, REQUESTS_PER_SECOND, Span, StandInPod, document

from tandem_operator.domain import record
from tandem_operator.domain.evidence import in_window
from tandem_operator.domain.intervals import ratio
from tandem_operator.domain.samples import Arm, Document, Scrape, has_grown

NOW = 1_800_000_000.0


def pod(name: str, role: str) -> StandInPod:
    labels = {"tandem.dev/deployment": "pair-1", "tandem.dev/role": role, "tandem.dev/role-hash": f"{role}-hash"}
    return StandInPod("scale-0", name, f"uid-{name}", "10.244.16.2", labels)


def span(number: int, since: float) -> Span:
    revision = {"name": "b07d51ee", "weight": 100}
    return Span({"number": number, "revisions": [revision]}, since)


SPANS = [span(1, NOW - HOUR), span(2, NOW - 100)]


def told(now: float) -> Document:
    engines = [pod("t", "target"), pod("d", "draft")]
    return record.load(Document, document(pod("g", "gateway"), SPANS, engines, now))


def test_it_follows_the_newest_policy_reaches_its_engines_and_lists_an_hour_of_slots() -> None:
    found = told(NOW)
    assert (found.boot, found.policy, found.serving) == ("uid-g", 2, True)
    assert (found.admitted.targets, found.admitted.drafts) == ({"target-hash": 1}, {"draft-hash": 1})
    assert len(found.slots) == 180
    assert {slot.arm for slot in found.slots} == {Arm.ON, Arm.OFF}
    assert {slot.policy for slot in found.slots} == {1, 2}


def test_its_sums_grow_with_time_and_those_of_an_earlier_policy_stand() -> None:
    before, after = told(NOW), told(NOW + 25)
    assert before.strata[0] == after.strata[0]
    assert has_grown(before.strata[1], after.strata[1])
    assert after.strata[1].requests - before.strata[1].requests == 25 * REQUESTS_PER_SECOND


def test_acceptance_over_a_window_does_not_drift() -> None:
    found = []
    for minute in range(1, 60, 7):
        moments = [NOW + 60 * minute + seconds for seconds in (0, 120)]
        baseline, now = (Scrape(datetime.fromtimestamp(at, UTC), {"g": told(at)}) for at in moments)
        sums = in_window(now, baseline, "b07d51ee")
        assert sums is not None
        assert sums.acceptance is not None
        estimate = ratio(sums.acceptance.accepted, sums.acceptance.examined)
        assert estimate is not None
        found.append(estimate.value)
    assert max(found) - min(found) < 0.005


def test_before_any_policy_it_has_counted_nothing() -> None:
    found = record.load(Document, document(pod("g", "gateway"), [], [], NOW))
    assert (found.policy, found.serving, found.strata, found.slots) == (0, False, (), ())
