"""What rounds cost: planes over K and the batch, and samples that are no cost at all."""

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.costs import (
    AGE_LIMIT_SECONDS,
    COMPANY_SECONDS,
    LEAST_SECONDS,
    MANY,
    NOISE,
    OUTLIER_FACTOR,
    ROW_SHARE,
    SLOPE_WALK,
    WALK_PER_SAMPLE,
    WALK_PER_SECOND,
    Costs,
    HeadStart,
    Model,
    Plane,
    Seen,
    learned,
)
from tandem_runtime.domain.tokens import Round


def a_round(k: int, *, rows: int = 1, draft_rows: int = 1, slowed: float = 1.0, **seconds: float) -> Round:
    """t_d 4, t_v 18, o 1 and t_b 15 milliseconds."""
    forward, drafting = (0.018 if k else 0.015) * slowed, 0.004 * k * slowed
    told = {"seconds": forward + drafting + (0.001 if k else 0.0), **seconds}
    return Round(
        k, 0, 1, drafting, forward, forward, drafting, rows=rows, draft_rows=draft_rows, seconds=told["seconds"]
    )


def after(costs: Costs, round: Round, now: float) -> Costs:
    return costs.followed(Seen(round, now))


def known(*rounds: Round, now: float = 0.0) -> Costs:
    costs = Costs()
    for round in rounds:
        costs = after(costs, round, now)
    return costs


SETTLED = known(*[a_round(4), a_round(0)] * 20)


def test_costs_are_told_apart() -> None:
    model = SETTLED.model(0.0)
    assert model is not None
    assert model[:4] == pytest.approx((0.019, 0.004, 0.0, 0.015))


def test_guesses_that_are_ready_with_the_verdict_cost_their_verification_and_what_misses_take() -> None:
    model = Model(0.020, 0.006, 0.001, 0.015, head_start=HeadStart(hits=0.75, tokens=2.5))
    assert [model.next_token(k) for k in range(4)] == pytest.approx([0.0025, 0.0025, 0.00475, 0.007])
    assert [model.cost(k) for k in range(1, 5)] == pytest.approx([0.0225, 0.025, 0.02975, 0.03675])


def test_engines_that_tell_no_seconds_are_judged_by_the_gateways_own() -> None:
    round = Round(2, 0, 1, 0.020, 0.019, seconds=0.039)
    model = known(round).model(0.0)
    assert model is not None
    assert (model.draft_token, model.cost(2)) == pytest.approx((0.010, 0.039))


def test_what_was_never_seen_is_not_known() -> None:
    assert Costs().model(0.0) is None
    assert known(a_round(0)).model(0.0) is None
    model = known(a_round(3)).model(0.0)
    assert model is not None
    assert (model.plain_token, model.baseline) == (None, model.fixed)


def test_what_was_not_measured_for_long_is_not_known() -> None:
    assert SETTLED.model(AGE_LIMIT_SECONDS) is not None
    assert SETTLED.model(AGE_LIMIT_SECONDS + 1) is None
    refreshed = after(SETTLED, a_round(4), AGE_LIMIT_SECONDS).model(AGE_LIMIT_SECONDS + 1)
    assert refreshed is not None
    assert refreshed.plain_token is None


@pytest.mark.parametrize(
    ("truth", "within"),
    [
        (lambda k, rows: 0.018, 0.0004),
        (lambda k, rows: 0.015 + 0.0006 * k, 0.0004),
        (lambda k, rows: 0.015 + 0.0006 * k + 0.0005 * (rows - 1), 0.0006),
    ],
)
def test_a_plane_finds_the_coefficients_behind_noisy_samples(truth: Callable[[int, int], float], within: float) -> None:
    chance, plane = random.Random(1), None
    for _ in range(400):
        k, rows = chance.randint(1, 8), chance.randint(1, 16)
        plane = learned(plane, truth(k, rows) * chance.gauss(1, 0.05), k, rows, 0.0)
    assert plane is not None
    for k, rows in ((1, 1), (4, 8), (8, 16)):
        assert plane.seconds(k, rows) == pytest.approx(truth(k, rows), abs=2 * within)


def by_the_equations(plane: Plane, seconds: float, k: int, rows: int, now: float) -> list[float]:
    """What a sample makes of a plane, with vectors and matrices: what `learned` does number by number."""
    c, (p00, p01, p02, p11, p12, p22) = np.array(plane[:3]), plane[3:9]
    covariance = np.array([[p00, p01, p02], [p01, p11, p12], [p02, p12, p22]])
    h, x = np.array([1.0, k, rows - 1]), rows - 1
    scale = max(h @ c, seconds / OUTLIER_FACTOR, LEAST_SECONDS) ** 2
    walked = WALK_PER_SAMPLE**2 + WALK_PER_SECOND**2 * max(now - plane.at, 0.0)
    slope = WALK_PER_SAMPLE / x if x > MANY else SLOPE_WALK
    covariance = covariance + scale * np.diag([walked, SLOPE_WALK**2, slope**2])
    gain = covariance @ h / (h @ covariance @ h + scale * NOISE**2)
    c, covariance = c + gain * (seconds - h @ c), covariance - np.outer(gain, h @ covariance)
    return [*c, *covariance[np.triu_indices(3)], max(now, plane.at)]


@given(
    st.lists(st.tuples(st.floats(0.001, 0.1), st.integers(0, 8), st.integers(1, 32), st.floats(0, 100)), min_size=2),
    st.booleans(),
)
def test_a_plane_is_what_the_equations_say_whether_k_ever_was_another_than_0_or_not(
    samples: list[tuple[float, int, int, float]], plain: bool
) -> None:
    plane: Plane | None = None
    for seconds, k, rows, now in samples:
        asked = seconds, 0 if plain else k, rows, now
        expected = None if plane is None else by_the_equations(plane, *asked)
        plane = learned(plane, *asked)
        if expected is not None:
            assert list(plane) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_slopes_stay_as_long_as_k_and_the_batch_do() -> None:
    plane: Plane | None = None
    for k in (1, 8) * 40:
        plane = learned(plane, 0.015 + 0.0006 * k, k, 1, 0.0)
    settled = plane
    for number in range(500):
        plane = learned(plane, 0.015 + 0.0006 * 4, 4, 1, number * 0.04)
    assert plane is not None
    assert settled is not None
    assert plane.per_token == pytest.approx(settled.per_token, abs=1e-5)


def test_slopes_below_zero_are_taken_for_none() -> None:
    plane = Plane(0.02, -0.001, -0.001, 1e-9, 0.0, 0.0, 1e-9, 0.0, 1e-9, 0.0)
    assert plane.seconds(8, 8) == 0.02


@given(
    st.lists(
        st.tuples(st.integers(0, 16), st.integers(1, 64), st.floats(0, 100), st.floats(-10, 10_000)),
        max_size=20,
    )
)
def test_whatever_is_sampled_costs_are_finite_and_not_below_zero(
    samples: list[tuple[int, int, float, float]],
) -> None:
    costs = Costs()
    for k, rows, slowed, now in samples:
        costs = after(costs, a_round(k, rows=rows, slowed=slowed), now)
    model = costs.model(0.0, rows=3, draft_rows=3)
    if model is not None:
        assert all(0 <= cost < inf for cost in (model.fixed, model.per_token, model.baseline))


@pytest.mark.parametrize(
    "round",
    [
        a_round(4, seconds=-0.5),
        a_round(4, seconds=nan),
        a_round(0, seconds=inf),
        replace(a_round(4), drafting_seconds=-1.0),
        replace(a_round(4), verify_seconds=nan),
    ],
)
def test_seconds_that_cannot_have_passed_teach_nothing(round: Round) -> None:
    assert after(SETTLED, round, 1.0) is SETTLED


def test_a_round_that_waited_for_a_step_of_others_bounds_what_rounds_cost_beside_steps() -> None:
    def fixed(costs: Costs) -> float:
        model = costs.model(0.0)
        assert model is not None
        return model.fixed

    late, soon = a_round(4, seconds=0.046), a_round(4, seconds=0.0342)
    assert fixed(after(SETTLED, late, 0.0)) > 0.0191
    assert fixed(SETTLED.followed(Seen(late, 0.0, waited=True))) == pytest.approx(0.019)
    assert fixed(SETTLED.followed(Seen(soon, 0.0, waited=True))) < 0.01899
    assert fixed(Costs().followed(Seen(late, 0.0, waited=True))) == pytest.approx(0.030), "better than nothing"


@pytest.mark.parametrize("pause", [0.2, 3600.0])
@pytest.mark.parametrize("k", [0, 4])
def test_one_pause_of_the_collector_or_of_the_machine_moves_no_cost(pause: float, k: int) -> None:
    paused = after(SETTLED, a_round(k, seconds=pause), 1.0)
    assert paused.model(1.0) == SETTLED.model(1.0)
    again = after(paused, a_round(k), 1.1).model(1.1)
    before = SETTLED.model(1.1)
    assert again is not None
    assert before is not None
    assert again.cost(4) == pytest.approx(before.cost(4), rel=0.01)
    assert again.baseline == pytest.approx(before.baseline, rel=0.01)


def test_two_slow_rounds_in_a_row_are_a_change_and_believed_at_once() -> None:
    changed = after(after(SETTLED, a_round(4, slowed=5), 1.0), a_round(4, slowed=5), 1.1)
    model = changed.model(1.1)
    assert model is not None
    assert model.cost(4) == pytest.approx(5 * 0.034 + 0.001, rel=0.1)


@pytest.mark.parametrize("seen", [Seen(a_round(4), 1.0, warm=False), Seen(replace(a_round(0), prefill=True), 1.0)])
def test_what_had_to_be_caught_up_with_is_no_cost_of_going_on(seen: Seen) -> None:
    assert SETTLED.followed(seen) is SETTLED


def test_a_clock_that_goes_back_ages_nothing() -> None:
    later = after(SETTLED, a_round(4), 100.0)
    back = after(later, a_round(4), 50.0)
    assert back.forward is not None
    assert back.forward.at == 100.0
    assert back.model(50.0) is not None


def test_a_loosened_cost_is_turned_by_the_next_round() -> None:
    firm = after(SETTLED, a_round(4, slowed=2), 1.0).model(1.0)
    loose = after(SETTLED.loosened(), a_round(4, slowed=2), 1.0).model(1.0)
    assert firm is not None
    assert loose is not None
    assert firm.cost(4) < 0.045 < 0.06 < loose.cost(4)


def plain_token(costs: Costs, rows: int = 1) -> float | None:
    model = costs.model(0.0, rows=rows)
    assert model is not None
    return model.plain_token


def test_a_plain_token_beside_others_guesses_only_bounds_what_one_costs() -> None:
    beside = replace(a_round(0, rows=4), seconds=0.025, beside=3)
    assert plain_token(known(a_round(4), *[beside] * 50)) is None
    assert plain_token(known(*[a_round(4), a_round(0)] * 20, *[beside] * 50)) == pytest.approx(0.015)
    settled = known(*[a_round(4, rows=4), a_round(0, rows=4)] * 20)
    for _ in range(50):
        settled = after(settled, replace(beside, seconds=0.010), 0.0)
    assert plain_token(settled, rows=4) == pytest.approx(0.010, abs=0.001)


def test_who_is_never_alone_with_plain_tokens_believes_what_they_cost_in_company() -> None:
    costs, beside = known(a_round(4)), replace(a_round(0, rows=4), seconds=0.025, beside=3)
    for moment in range(40):
        costs = after(costs, beside, moment * COMPANY_SECONDS / 20)
    assert plain_token(costs, rows=4) == pytest.approx(0.025, abs=0.001)
    alone = costs
    for _ in range(40):
        alone = after(alone, a_round(0, rows=4), 2 * COMPANY_SECONDS)
    assert plain_token(alone, rows=4) == pytest.approx(0.015, abs=0.001)


def test_a_plain_token_in_company_long_ago_lets_none_be_believed_once_proposals_went_between() -> None:
    beside = replace(a_round(0, rows=4), seconds=0.040, beside=3)
    costs = known(*[a_round(4, rows=4), a_round(0, rows=4)] * 20, beside)
    costs = after(costs, a_round(4, rows=4), 10 * COMPANY_SECONDS)
    for _ in range(3):
        costs = after(costs, beside, 10 * COMPANY_SECONDS)
    assert plain_token(costs, rows=4) == pytest.approx(0.015, abs=0.001)


def test_a_verify_costs_what_it_would_if_all_in_the_step_had_as_many_guesses() -> None:
    chance, costs = random.Random(2), Costs()
    for _ in range(400):
        k, beside = chance.randint(1, 8), chance.randint(0, 24)
        seconds = 0.015 + 0.0005 * (k + beside)
        costs = after(costs, replace(a_round(k, rows=4, seconds=1.0), forward_seconds=seconds, beside=beside), 0.0)
    model = costs.model(0.0, rows=4)
    assert model is not None
    assert model.verify_token == pytest.approx(4 * 0.0005, rel=0.1)


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_what_a_plain_token_costs_is_sure_at_the_batch_that_was_seen(rows: int) -> None:
    costs = known(a_round(4, rows=rows), *[a_round(0, rows=rows)] * 40)
    model = costs.model(0.0, rows=rows)
    assert model is not None
    assert model.plain_doubt < 0.025


def test_a_slope_below_zero_leaves_the_cost_where_it_was_seen() -> None:
    plane = None
    for rows, seconds in [(16, 0.015), (12, 0.0152), (8, 0.0155)] * 60:
        plane = learned(plane, seconds, 0, rows, 0.0)
    assert plane is not None
    assert plane.per_session < 0
    assert plane.seconds(0, 1) == plane.seconds(0, 16) == pytest.approx(0.0152, abs=0.0004)


def test_a_drafts_step_is_believed_to_grow_with_those_who_share_it_before_any_did() -> None:
    costs = known(*[a_round(4)] * 8)
    alone, crowded = (costs.model(0.0, draft_rows=rows) for rows in (1, 64))
    assert alone is not None
    assert crowded is not None
    assert crowded.draft_token == pytest.approx(alone.draft_token * (1 + 63 * ROW_SHARE), rel=0.05)
    for _ in range(8):
        costs = after(costs, replace(a_round(4), draft_rows=64), 0.0)
    seen = costs.model(0.0, draft_rows=64)
    assert seen is not None
    assert seen.draft_token == pytest.approx(alone.draft_token, rel=0.05)
