"""Which verdicts are worth preparing for, and what a draft's own scores say of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.fan_out import LEAST_CHANCE, Chances, Worth, fan_out, on_average

BRANCHES = 12


def counts(found: tuple[Chances, ...]) -> tuple[int, ...]:
    return tuple(len(each) for each in found)


@pytest.mark.parametrize(
    ("acceptance", "found"),
    [(0.5, (4, 2, 1, 0, 1)), (0.7, (2, 2, 1, 1, 2)), (0.8, (2, 2, 1, 1, 2)), (0.95, (1, 1, 1, 1, 2))],
)
def test_guesses_go_where_rejections_are_likely(acceptance: float, found: tuple[int, ...]) -> None:
    assert counts(fan_out(on_average([acceptance**i for i in (1, 2, 3, 4)]), 8)) == found


@given(st.lists(st.floats(0, 1), max_size=9), st.integers(0, 40))
def test_a_fan_out_has_a_number_per_outcome_and_stays_within_its_branches(chances: list[float], branches: int) -> None:
    survivals = [1.0]
    for chance in chances:
        survivals.append(survivals[-1] * chance)
    found = fan_out(on_average(survivals[1:]), branches)
    assert len(found) == len(chances) + 1
    assert sum(counts(found)) <= branches
    assert all(chance >= LEAST_CHANCE for each in found for chance in each)


@pytest.mark.parametrize("branches", [0, 1, 2, 3])
def test_of_verdicts_that_are_as_likely_no_more_get_a_branch_than_there_are(branches: int) -> None:
    even = (0.5, 0.5)
    assert sum(counts(fan_out((even, even, (1.0,)), branches))) == branches
    assert counts(fan_out(on_average((1.0,)), branches))[1] == min(branches, 1)


def test_what_never_happens_is_not_prepared_for() -> None:
    assert counts(fan_out(on_average((1.0, 1.0, 0.0)), BRANCHES))[:2] == (0, 0)


def test_the_chances_of_all_verdicts_that_are_looked_at_add_up_to_one_at_most() -> None:
    sure = (0.99, 0.006, 0.002, 0.001)
    doubtful = (0.5, 0.4, 0.05, 0.02)
    found = fan_out((sure, doubtful, sure), 50)
    assert found[1] == pytest.approx((0.99 * 0.4, 0.99 * 0.05, 0.99 * 0.02))
    assert found[2] == pytest.approx((0.99 * 0.5 * 0.99,))
    assert sum(map(sum, found)) <= 1


def test_where_a_choice_leads_by_much_no_guess_is_spent() -> None:
    worth = Worth()
    sure, doubtful = worth.chances((0.0, 5.0, 6.0, 7.0)), worth.chances((0.0, 0.1, 2.0, 3.0))
    assert counts(fan_out((sure, doubtful, sure), BRANCHES)) == (0, 1, 1)


@pytest.mark.parametrize("unit", [0.1, 0.4, 1.6])
def test_verdicts_tell_how_much_a_lead_is_worth(unit: float) -> None:
    chance = random.Random(1)
    worth, behind = Worth(), [0.0, unit, 2 * unit, 3 * unit, 9 * unit]
    for _ in range(300):
        at = Worth(tuple(0.0 if one == unit else -1.0 for one in (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)))
        law = at.chances(behind)
        rank = chance.choices(range(len(law) + 1), [*law, 1 - sum(law)])[0]
        worth = worth.told(behind, rank if rank < len(law) else None)
    assert worth.chances(behind) == pytest.approx(law, abs=0.15)


@given(st.lists(st.floats(0, 1e300) | st.just(float("inf")), min_size=1, max_size=12), st.none() | st.integers(0, 20))
def test_whatever_the_scores_chances_are_chances(leads: list[float], rank: int | None) -> None:
    behind = [0.0, *sorted(leads)]
    found = Worth().told(behind, rank).chances(behind)
    assert all(0 <= each <= 1 for each in found)
    assert sum(found) <= 1 + 1e-9
