"""From logits to a law and from a law to a token."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.errors import NotANumber
from tandem_runtime.domain.sampling import coupled_choice, distribution, draw, filtered, rank
from tandem_runtime.domain.tokens import SamplingParameters

INF = math.inf


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) if p else -INF for p in probabilities]


def parameters(**changes: object) -> SamplingParameters:
    return SamplingParameters(**{"seed": 0, **changes})  # type: ignore[arg-type]  # a table row names real fields


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {0: 0.3, 1: 0.4, 2: 0.2, 3: 0.1}),
        ({"top_k": 2}, {0: 3 / 7, 1: 4 / 7}),
        ({"top_p": 0.65}, {0: 3 / 7, 1: 4 / 7}),
        ({"top_p": 1e-9}, {1: 1.0}),
        ({"min_p": 0.5}, {0: 1 / 3, 1: 4 / 9, 2: 2 / 9}),
        ({"min_p": 1.0}, {1: 1.0}),
        ({"temperature": 0.5}, {0: 9 / 30, 1: 16 / 30, 2: 4 / 30, 3: 1 / 30}),
        ({"temperature": 0.0}, {1: 1.0}),
        ({"temperature": 0.0, "logit_bias": ((3, 100.0),)}, {3: 1.0}),
        ({"logit_bias": ((1, -INF),)}, {0: 0.5, 2: 1 / 3, 3: 1 / 6}),
        ({"logit_bias": ((3, math.log(4)),), "top_k": 2}, {1: 0.5, 3: 0.5}),
        # top-k cuts before top-p: .3 and .4 are all the mass there is, so .5 of it is token 1 alone.
        ({"top_k": 2, "top_p": 0.5}, {1: 1.0}),
        # top-p cuts before min-p, which looks at the likeliest token only.
        ({"top_p": 0.9, "min_p": 0.6}, {0: 3 / 7, 1: 4 / 7}),
    ],
)
def test_each_step_acts_in_its_order(changes: dict[str, object], expected: dict[int, float]) -> None:
    law = distribution(logs(0.3, 0.4, 0.2, 0.1), parameters(**changes))
    assert law == pytest.approx(expected)
    assert list(law) == sorted(law)


def test_filters_keep_fractions_exact() -> None:
    law = {0: Fraction(3, 10), 1: Fraction(4, 10), 2: Fraction(2, 10), 3: Fraction(1, 10)}
    assert filtered(rank(law), parameters(top_k=2)) == {0: Fraction(3, 7), 1: Fraction(4, 7)}


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.1}])
def test_greedy_ties_pick_the_lowest_token_id(changes: dict[str, object]) -> None:
    assert coupled_choice([1.0, 3.0, 3.0, 3.0], parameters(**changes), 0) == 1


def test_top_k_keeps_exactly_k_where_logits_tie() -> None:
    assert list(distribution([2.0] * 5, parameters(top_k=2))) == [0, 1]


@pytest.mark.parametrize("row", [[0.0, math.nan], [math.nan, -INF], [INF, 0.0], [-INF, -INF], []])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_law_fails_the_request(row: list[float], temperature: float) -> None:
    with pytest.raises(NotANumber):
        coupled_choice(row, parameters(temperature=temperature), 0)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.5])
def test_a_forbidden_token_never_comes(temperature: float) -> None:
    choices = {coupled_choice([-INF, 0.0, 0.1], parameters(temperature=temperature), at) for at in range(200)}
    assert 0 not in choices


def test_tiny_temperatures_do_not_overflow() -> None:
    assert coupled_choice([1000.0, -1000.0, 999.0], parameters(temperature=1e-6), 0) == 0


@pytest.mark.parametrize(
    ("u", "expected"), [(0.0001, 0), (0.2499, 0), (0.25, 2), (0.5, 2), (0.7499, 2), (0.75, 5), (0.9999, 5)]
)
def test_draw_takes_the_token_where_the_running_sum_first_exceeds_u(u: float, expected: int) -> None:
    assert draw({0: 0.25, 2: 0.5, 5: 0.25}, u) == expected


def test_draw_gives_the_last_token_if_rounding_leaves_the_sum_short() -> None:
    assert draw(dict.fromkeys(range(10), 0.1), 1 - 2.0**-53) == 9


@given(
    row=st.lists(st.floats(-30, 30), min_size=1, max_size=8),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.integers(0, 8),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_coupled_choice_lies_in_the_support_and_the_law_adds_up(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    wanted = SamplingParameters(seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    law = distribution(row, wanted)
    assert sum(law.values()) == pytest.approx(1)
    assert coupled_choice(row, wanted, 3) in law
    assert max(law, key=lambda token: law[token]) in law


def test_the_coupled_choice_has_the_filtered_law() -> None:
    wanted = [coupled_choice(logs(0.3, 0.4, 0.2, 0.1), parameters(top_k=2), position) for position in range(20_000)]
    assert wanted.count(0) / 20_000 == pytest.approx(3 / 7, abs=4 * math.sqrt(12 / 49 / 20_000))
    assert set(wanted) == {0, 1}
