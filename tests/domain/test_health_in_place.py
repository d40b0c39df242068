"""Checks of a canary in place, which is held against what stable did before it gave way, as a table."""

from dataclasses import replace

import pytest
from tests.domain.test_health import NOTHING, RULES, plain, spread, with_slots, with_waits

from tandem_operator.domain.decision import CheckVerdict
from tandem_operator.domain.evidence import Boot, Evidence
from tandem_operator.domain.health import Question, assess, record_lacks
from tandem_operator.domain.samples import Arm, Buckets, Stratum, Waits


def in_turn(
    *,
    stable: Buckets | None,
    canary: Buckets | None = None,
    slots: tuple[int, int] = (30, 30),
    paces: tuple[float, float],
) -> Evidence:
    """Stable alone under policy 1, with its speed-up; the canary under policy 2, while stable decodes plainly."""
    strata = [Stratum(policy=1, revision="stable", requests=900, rounds=9000, speculating=9000, acceptance=stable)]
    strata += [Stratum(policy=2, revision=name, requests=90, rounds=900) for name in ("stable", "canary")]
    strata[2] = replace(strata[2], speculating=900, acceptance=canary)
    before = with_slots(on=(slots[0], 20 / paces[0]), off=(slots[0], 20))
    record = [replace(held, of="t", arm=Arm.BESIDE) if held.arm is Arm.ON else held for held in before.slots]
    after = with_slots(on=(slots[1], 30 / paces[1]), off=(slots[1], 30))  # the time is a slower one for everybody
    held = (*record, *(replace(sums, policy=2) for sums in after.slots))
    return replace(NOTHING, boots={"x": Boot(pod="a", strata=tuple(strata))}, slots=held)


GOOD = plain(2000, 0.9, 1)


@pytest.mark.parametrize(
    ("evidence", "acceptance", "speed"),
    [
        (in_turn(stable=GOOD, canary=plain(2000, 0.9, 2), paces=(1.5, 1.5)), "Pass", "Pass"),
        (in_turn(stable=GOOD, canary=plain(2000, 0.82, 2), paces=(1.5, 1.5)), "Fail", "Pass"),
        (in_turn(stable=GOOD, canary=plain(2000, 0.9, 2), paces=(1.5, 1.3)), "Pass", "Fail"),
        (in_turn(stable=GOOD, canary=None, slots=(30, 7), paces=(1.5, 1.5)), "NoData", "Inconclusive"),
        (
            in_turn(stable=GOOD, canary=plain(900, 0.9, 2), slots=(7, 30), paces=(1.5, 1.5)),
            "Inconclusive",
            "Inconclusive",
        ),
    ],
)
def test_a_canary_in_place_is_held_against_what_stable_did_before(
    evidence: Evidence, acceptance: str, speed: str
) -> None:
    asked = Question(analysis=RULES, evidence=evidence, target="t", in_turn=True)
    found = {check.name: check for check in assess(asked)}
    assert (found["acceptanceDrop"].verdict, found["speedupDrop"].verdict) == (acceptance, speed)
    assert found["speedupDrop"].threshold == "> 0.950 of stable"


def one_after_the_other(canary: tuple[int, int], stable: tuple[int, int]) -> Evidence:
    """Errors and requests: stable's under policy 1, then nobody is served under policy 2, then the canary's."""
    counted = ((1, "stable", stable), (2, "stable", (400, 400)), (3, "canary", canary))
    strata = [
        Stratum(policy=policy, revision=name, errors=errors, requests=requests)
        for policy, name, (errors, requests) in counted
    ]
    return replace(NOTHING, boots={"x": Boot(pod="a", strata=tuple(strata))})


@pytest.mark.parametrize(
    ("canary", "stable", "verdict"),
    [
        ((2, 2000), (20, 20000), CheckVerdict.PASS),
        ((30, 900), (20, 20000), CheckVerdict.FAIL),
        ((30, 90), (20, 20000), CheckVerdict.FAIL),  # before minRequests, too
        ((1, 10), (0, 20000), CheckVerdict.INCONCLUSIVE),  # the first error ever is no proof
        ((16, 1000), (10, 1000), CheckVerdict.INCONCLUSIVE),  # more than allowed, but chance may do it
    ],
)
def test_errors_of_a_canary_alone_are_held_against_those_before_and_not_against_the_time_without_service(
    canary: tuple[int, int], stable: tuple[int, int], verdict: CheckVerdict
) -> None:
    held = one_after_the_other(canary, stable)
    alone = Question(analysis=RULES, evidence=held, target="t", in_turn=True, shares_target=False, gave_way=2)
    found = {check.name: check for check in assess(alone)}
    assert found["errors"].verdict == verdict
    assert found["errors"].samples == f"{canary[0]}/{canary[1]} against {stable[0]}/{stable[1]} requests"
    assert "speedupDrop" not in found


def test_a_pair_goes_down_only_once_its_errors_are_known_and_waiting_times_are_compared_with_nobody() -> None:
    held = with_waits(spread(1000, 0.05, 1), Waits())
    alone = Question(analysis=RULES, evidence=held, target="t", in_turn=True, shares_target=False, speculates=False)
    found = {check.name: check for check in assess(alone)}
    assert found["timeToFirstToken"].verdict == CheckVerdict.NOT_COMPARED
    assert record_lacks(alone) == "revision stable has not had the 1000 requests that its errors are to be known from"
    assert record_lacks(replace(alone, evidence=one_after_the_other((0, 0), (0, 1000)))) == ""


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (in_turn(stable=GOOD, paces=(1.5, 1.5)), ""),
        (in_turn(stable=None, paces=(1.5, 1.5)), "no acceptance sums of revision stable yet"),
        (in_turn(stable=plain(900, 0.9, 1), paces=(1.5, 1.5)), "revision stable has 900 of the 1000 requests it needs"),
        (
            in_turn(stable=GOOD, slots=(7, 30), paces=(1.5, 1.5)),
            "revision stable has 7 on + 7 off slots, and needs 8 of each side",
        ),
        (None, "no gateway has answered yet"),
    ],
)
def test_stables_draft_does_not_give_way_before_enough_is_known_of_it(evidence: Evidence | None, words: str) -> None:
    asked = Question(analysis=RULES, evidence=evidence, target="t", in_turn=True)
    assert record_lacks(asked) == words
    for nothing_to_learn in ({"silence": "RuntimeAtZero"}, {"speculates": False}):
        told = record_lacks(replace(asked, **nothing_to_learn))
        assert told == ("" if evidence is not None else words)
