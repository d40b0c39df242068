"""The price of a target's guesses: what cuts tell, and how long that is believed."""

import pytest

from tandem_runtime.domain.price import FREE, judged_alone, price_after

SURVIVALS = (0.8, 0.64, 0.51, 0.41)


@pytest.mark.parametrize(("left_out", "price"), [(1, 0.46), (2, 0.575), (3, 0.72), (4, 0.9)])
def test_cuts_lead_the_price_to_between_what_was_judged_and_what_was_not(left_out: int, price: float) -> None:
    believed = FREE
    for _ in range(20):
        believed = price_after(believed, SURVIVALS, left_out)
    assert believed == pytest.approx(price, abs=0.001)
    kept = len(SURVIVALS) - left_out
    assert judged_alone(SURVIVALS, believed) == (*SURVIVALS[:kept], *(0.0,) * left_out)


def test_one_full_step_does_not_cost_half_a_proposal() -> None:
    believed = price_after(FREE, SURVIVALS, 2)
    assert judged_alone(SURVIVALS, believed) == SURVIVALS


def test_a_price_that_nobody_asks_any_more_is_forgotten() -> None:
    believed, rounds = 0.575, 0
    while believed != FREE:
        believed = price_after(believed, SURVIVALS[:2] if rounds % 2 else (), 0)
        rounds += 1
    assert 1000 < rounds < 1500
    assert judged_alone(SURVIVALS, believed) is SURVIVALS


def test_what_was_never_cut_is_free() -> None:
    assert price_after(FREE, SURVIVALS, 0) == FREE
