"""The rig's closed forms: the table of the literature's costs, and the rule by which K is extended."""

import pytest
from benchmarks.simulator.costs import CROWDED, FLAT, SLOPED, Part, Rig, best_k, expected, speed_up


@pytest.mark.parametrize(
    ("alpha", "gain", "k"),
    [(0.5, 1.0, 0), (0.6, 1.089, 2), (0.7, 1.226, 3), (0.8, 1.441, 4), (0.9, 1.820, 6), (0.95, 2.193, 10)],
)
def test_the_optimum_is_that_of_draft_4_verify_18_plain_15_network_1(alpha: float, gain: float, k: int) -> None:
    assert best_k(FLAT, alpha) == k
    assert speed_up(FLAT, alpha, k) == pytest.approx(gain, abs=1e-3)


@pytest.mark.parametrize("rig", [FLAT, SLOPED, CROWDED])
@pytest.mark.parametrize("alpha", [0.65, 0.75, 0.85, 0.9])
def test_at_the_optimum_another_token_does_not_pay_for_itself_and_the_last_one_does(rig: Rig, alpha: float) -> None:
    k = best_k(rig, alpha)
    marginal = rig.cycle(k + 1) - rig.cycle(k)
    assert k > 1
    assert alpha ** (k + 1) * rig.cycle(k) <= marginal * expected(alpha, k)
    assert alpha**k * rig.cycle(k - 1) >= marginal * expected(alpha, k - 1)


def test_a_step_costs_what_its_longest_proposal_and_its_rows_beyond_the_free_ones_do() -> None:
    plain = [Part(1, 1)] * 64
    assert FLAT.target.seconds(plain) == pytest.approx(0.015)
    assert FLAT.target.seconds([*plain, Part(6, 6)]) == pytest.approx(0.018)
    assert SLOPED.target.seconds([*plain, Part(6, 6)]) == pytest.approx(0.018)
    assert CROWDED.target.seconds([Part(6, 6)] * 64) == pytest.approx(0.018 + 0.00006 * (64 * 6 - 256))
    assert CROWDED.draft.seconds(plain) == pytest.approx(0.004 * (1 + 0.03 * 63))


def test_a_chunk_of_a_prompt_is_read_along_with_its_step() -> None:
    assert FLAT.target.seconds([Part(256, 0), Part(1, 1)]) == pytest.approx(0.015)
