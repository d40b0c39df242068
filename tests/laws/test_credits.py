"""Credits: what a verdict says of an examined position has the mean of its coin, exactly, and less spread."""

from fractions import Fraction
from operator import itemgetter
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.enumeration import Model, Numbers, law_of_process
from tests.laws.rounds import Proposed, Rule, judged, model, up_to_an_end, up_to_k

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.verification import verify_rejection

RULES = [pytest.param(verify_rejection, id="rejection"), pytest.param(verify_block, id="block")]

PAIRS = [
    pytest.param(model((1, 2)), model((2, 1)), 3, id="thirds swapped"),
    pytest.param(model((1, 2, 3), (3, 3, 0)), model((2, 2, 2), (0, 3, 3)), 3, id="zero mass on each side"),
    pytest.param(model((0, 4), (3, 1)), model((4, 0), (1, 3)), 4, id="disjoint supports"),
    pytest.param(model((1, 1, 2)), model((1, 1, 2)), 3, id="equal laws"),
    pytest.param(model((1, 1, 1, 1), (2, 2, 0, 0)), model((0, 4, 0, 0), (1, 0, 0, 0)), 4, id="one-hot draft"),
    pytest.param(model((1, 0, 2, 1), (2, 1, 1, 0)), model((2, 1, 0, 1), (0, 1, 3, 0)), 3, id="four tokens"),
    pytest.param(model((5, 2), (1, 6), (3, 4)), model((1, 1), (6, 1)), 4, id="two tokens, K = 4"),
]

Examined: TypeAlias = tuple[Fraction, bool]
"""A position's credit, and whether it stood."""


def examined_at(
    position: int, rule: Rule, target: Model, draft: Model, *, k: int, goes_on: Proposed = up_to_k
) -> dict[Examined, Fraction]:
    """How often, in rounds that examine `position`, a credit comes with an outcome there."""

    def process(numbers: Numbers) -> Examined | None:
        ids, verified = judged(numbers, rule, target, draft, k=k, goes_on=goes_on)
        assert len(verified.credits) == min(verified.accepted + 1, len(ids))
        if position >= len(verified.credits):
            return None
        return Fraction(verified.credits[position]), position < verified.accepted

    return {seen: mass for seen, mass in law_of_process(process).items() if seen is not None}


def moments(seen: dict[Examined, Fraction], which: int) -> tuple[Fraction, Fraction]:
    """Mean and variance of the credit (0) or of the outcome (1)."""
    total = sum(seen.values(), Fraction(0))
    value = itemgetter(which)
    mean = sum((value(each) * mass for each, mass in seen.items()), Fraction(0)) / total
    return mean, sum(((value(each) - mean) ** 2 * mass for each, mass in seen.items()), Fraction(0)) / total


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("goes_on", [up_to_k, up_to_an_end])
@pytest.mark.parametrize(("target", "draft", "k"), PAIRS)
def test_a_credit_has_the_mean_of_its_coin_and_no_more_spread(
    rule: Rule, goes_on: Proposed, target: Model, draft: Model, k: int
) -> None:
    for position in range(k):
        seen = examined_at(position, rule, target, draft, k=k, goes_on=goes_on)
        if seen:
            (mean, variance), (share, spread) = moments(seen, 0), moments(seen, 1)
            assert mean == share
            assert variance <= spread


def weights(vocab: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(0, 5)] * vocab).filter(any)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Model, Model]:
    vocab = draw(st.integers(2, 3))
    rows = st.lists(weights(vocab), min_size=1, max_size=3)
    return model(*draw(rows)), model(*draw(rows))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=20, deadline=None)
@given(pair=pairs())
def test_a_credit_has_the_mean_of_its_coin_for_any_pair_of_models(rule: Rule, pair: tuple[Model, Model]) -> None:
    for position in range(2):
        seen = examined_at(position, rule, *pair, k=2)
        if seen:
            assert moments(seen, 0)[0] == moments(seen, 1)[0]


def test_the_credit_of_a_drawn_guess_varies_far_less_than_its_coin() -> None:
    target, draft = model((6, 3, 1)), model((4, 4, 2))
    seen = examined_at(0, verify_rejection, target, draft, k=1)
    assert moments(seen, 0) == (Fraction(4, 5), Fraction(7, 200))
    assert moments(seen, 1) == (Fraction(4, 5), Fraction(4, 25))


def test_the_ratio_of_one_position_would_be_too_low_in_a_block() -> None:
    # min(1, p/q) has the mean 2/3 at either position; of the second, given that the first stands, 5/6 stand.
    target, draft = model((1, 2)), model((2, 1))
    assert moments(examined_at(1, verify_block, target, draft, k=2), 0)[0] == Fraction(5, 6)
    assert moments(examined_at(1, verify_rejection, target, draft, k=2), 0)[0] == Fraction(2, 3)
