"""Replayed answers of a canary on targets whose rounding may split them, as a table."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tandem_operator.domain.decision import CheckVerdict
from tandem_operator.domain.evidence import Boot, Evidence, begin
from tandem_operator.domain.health import NEAR_TIES_PART, Question, assess
from tandem_operator.domain.samples import Replayed, Stratum
from tandem_operator.domain.spec import Analysis

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def replays(
    *, equal: int = 0, split: int = 0, plain: int = 0, plain_split: int = 0, length: int = 200, plain_length: int = 200
) -> Replayed:
    """So many answers of each kind, of so many tokens that were compared."""
    tokens, plain_tokens = length * (equal + split), plain_length * (plain + plain_split)
    return Replayed(
        equal=equal,
        uncertain=split,
        plain_equal=plain,
        plain_uncertain=plain_split,
        tokens=tokens,
        plain_tokens=plain_tokens,
    )


def with_replays(*spans: tuple[Replayed, Replayed]) -> Evidence:
    """The canary's and stable's, by policy."""
    strata = [
        Stratum(policy=policy, revision=name, exactness=held)
        for policy, span in enumerate(spans, 1)
        for name, held in zip(("canary", "stable"), span, strict=True)
    ]
    return replace(begin("canary", "stable", since=1, now=NOW), boots={"x": Boot(pod="a", strata=tuple(strata))})


def asked(canary: Replayed, stable: Replayed, *, shares_target: bool = True) -> Question:
    evidence = with_replays((canary, stable))
    return Question(analysis=Analysis(), evidence=evidence, target="t", shares_target=shares_target)


@pytest.mark.parametrize(
    ("canary", "stable", "verdict", "message"),
    [
        (replays(equal=360, split=40), replays(plain=398, plain_split=2), CheckVerdict.FAIL, "more often than plain"),
        (replays(equal=397, split=3), replays(plain=398, plain_split=2), CheckVerdict.PASS, "rounding may do it"),
        (replays(equal=360, split=40), replays(plain=360, plain_split=40), CheckVerdict.PASS, "rounding may do it"),
        (replays(equal=19, split=1), replays(plain=20), CheckVerdict.PASS, "rounding may do it"),
        (replays(split=40), replays(equal=100), CheckVerdict.NOT_COMPARED, "say nothing alone"),
        (replays(), replays(plain=20), CheckVerdict.NOT_COMPARED, "say nothing alone"),
    ],
)
def test_answers_that_split_are_held_against_plain_ones_that_do(
    canary: Replayed, stable: Replayed, verdict: CheckVerdict, message: str
) -> None:
    (found,) = (check for check in assess(asked(canary, stable)) if check.name == "nearTies")
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_plain_answers_of_a_stable_on_another_target_say_nothing_of_this_one() -> None:
    canary, stable = replays(equal=360, split=40, plain=10), replays(plain=998, plain_split=2)
    told = {
        shares: next(check for check in assess(asked(canary, stable, shares_target=shares)) if check.name == "nearTies")
        for shares in (True, False)
    }
    assert {shares: check.samples for shares, check in told.items()} == {
        True: "40 splits in 80000 tokens, plain 2 in 202000",
        False: "40 splits in 80000 tokens, plain 0 in 2000",
    }
    assert (told[True].verdict, told[False].verdict) == (CheckVerdict.FAIL, CheckVerdict.PASS)


def test_short_answers_in_which_nothing_was_proposed_make_no_long_ones_suspicious() -> None:
    """One token in a thousand splits, on or off; most plain answers are of a single token."""
    canary, stable = replays(equal=320, split=80), replays(plain=3996, plain_split=4, plain_length=1)
    (found,) = (check for check in assess(asked(canary, stable)) if check.name == "nearTies")
    assert found.verdict is CheckVerdict.PASS, found


def test_a_canary_that_grew_into_an_hour_whose_answers_split_is_not_blamed_for_the_hour() -> None:
    """In each span the canary's split as often as plain ones; its part was 5 % in the first, and half in the second."""
    calm = (replays(equal=50), replays(plain=1000, plain_split=1))
    rough = (replays(equal=450, split=50), replays(plain=180, plain_split=20))
    question = Question(analysis=Analysis(), evidence=with_replays(calm, rough), target="t")
    (found,) = (check for check in assess(question) if check.name == "nearTies")
    assert found.verdict is CheckVerdict.PASS, found


def test_where_bits_are_equal_nothing_is_asked() -> None:
    exact, near = asked(replays(equal=50), replays(equal=90)), asked(replays(equal=50), replays(plain=9))
    assert [("nearTies" in {check.name for check in assess(each)}) for each in (exact, near)] == [False, True]


def test_a_first_split_takes_nothing_from_checks_that_were_looked_at_before_it() -> None:
    """What each check may be wrong is spent from the first look on; a part that came later would be spent twice."""
    before, after = asked(replays(equal=50), replays(equal=90)), asked(replays(equal=50, split=1), replays(plain=9))
    assert before.alpha == after.alpha == pytest.approx(0.05 / (6 + NEAR_TIES_PART))


def test_splits_are_judged_at_their_own_part() -> None:
    """Some 200 are beyond what a whole part takes, 125, and not beyond four times as much."""
    question = asked(replays(equal=384, split=16), replays(plain=399, plain_split=1))
    (found,) = (check for check in assess(question) if check.name == "nearTies")
    e_value = float(found.message.rpartition(" ")[2])
    assert (found.verdict, 1 / question.alpha < e_value < 1 / (NEAR_TIES_PART * question.alpha)) == (
        CheckVerdict.PASS,
        True,
    ), found


def test_one_difference_on_a_target_of_equal_bits_stays_proof() -> None:
    found = {check.name: check.verdict for check in assess(asked(Replayed(equal=50, different=1), replays()))}
    assert found["exactness"] is CheckVerdict.FAIL
