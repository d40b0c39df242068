"""What is believed of acceptance: levels and paces against brute force, credits, changes both ways, positions, kin."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_runtime.domain.acceptance import (
    ALIKE,
    GRID,
    LEVELS,
    PACES,
    SWITCH,
    UNKNOWN,
    Acceptance,
    Kin,
    Own,
)

BITS = st.lists(st.sampled_from((0.0, 1.0)), min_size=1, max_size=16).map(tuple)
CREDITS = st.lists(st.floats(0, 1), min_size=1, max_size=16).map(tuple)


def first(belief: Acceptance) -> float:
    return belief.survivals(1)[0]


def after(belief: Acceptance, *rounds: tuple[float, ...]) -> Acceptance:
    for credits in rounds:
        belief, _ = belief.observed(credits, ALIKE)
    return belief


def round_at(alpha: float, k: int, chance: random.Random) -> tuple[float, ...]:
    bits: list[float] = []
    while len(bits) < k and (not bits or bits[-1]):
        bits.append(float(chance.random() < alpha))
    return tuple(bits)


@given(st.lists(CREDITS, max_size=12), st.integers(1, 32))
def test_whatever_is_credited_the_belief_stays_a_distribution_and_survival_falls(
    rounds: list[tuple[float, ...]], positions: int
) -> None:
    belief = after(UNKNOWN, *rounds)
    assert belief.chances.sum() == pytest.approx(1)
    assert belief.haunts.sum() == pytest.approx(len(PACES))
    survivals = (1.0, *belief.survivals(positions))
    assert all(0 <= later <= earlier for earlier, later in pairwise(survivals))


def spelled_out(bits: tuple[float, ...]) -> float:
    """The believed chance of one more token, by the sums of a hidden Markov model over one-token rounds, state by
    state: what `Acceptance` does by matrices and in strides."""
    states = [(pace, level) for pace in range(len(PACES)) for level in range(LEVELS)]
    belief = dict(zip(states, UNKNOWN.chances.tolist(), strict=True))
    prior = UNKNOWN.haunts[:LEVELS].tolist()
    for bit in bits:
        seen = {state: chance * (GRID[state[1]] if bit else 1 - GRID[state[1]]) for state, chance in belief.items()}
        total = sum(seen.values())
        belief = dict.fromkeys(states, 0.0)
        for (pace, level), chance in seen.items():
            _spread(belief, pace, level, chance / total, prior)
    return float(sum(chance * GRID[level] for (_, level), chance in belief.items()))


def _spread(belief: dict[tuple[int, int], float], pace: int, level: int, chance: float, prior: list[float]) -> None:
    """Where a state's chance goes within a token: a jump, or a step to a neighbour and perhaps another pace."""
    jump, drift = PACES[pace]
    for place in range(LEVELS):
        belief[pace, place] += chance * jump * prior[place]
    for step, share in ((0, 1 - 2 * drift), (1, drift), (-1, drift)):
        place = min(max(level + step, 0), LEVELS - 1)
        for other in range(len(PACES)):
            moved = (1 - SWITCH) * (other == pace) + SWITCH / len(PACES)
            belief[other, place] += chance * (1 - jump) * share * moved


@settings(max_examples=30)
@given(BITS)
def test_a_belief_is_what_the_model_spelled_out_says(bits: tuple[float, ...]) -> None:
    belief = UNKNOWN
    for bit in bits:
        belief = after(Acceptance(belief.chances, UNKNOWN.haunts), (bit,))
    assert first(belief) == pytest.approx(spelled_out(bits), abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.8, 0.95, 1.0])
def test_a_level_that_stays_is_found(alpha: float) -> None:
    chance, belief, seen = random.Random(1), UNKNOWN, []
    for number in range(300):
        belief = after(belief, round_at(alpha, 5, chance))
        seen += [first(belief)] if number >= 100 else []
    assert sum(seen) / len(seen) == pytest.approx(alpha, abs=0.04)


@pytest.mark.parametrize(("before", "later"), [(0.9, 0.3), (0.3, 0.9), (0.95, 0.6), (0.5, 0.85)])
def test_a_level_that_jumps_is_followed_within_some_tokens_up_and_down(before: float, later: float) -> None:
    middle, needed = (before + later) / 2, []
    for seed in range(20):
        chance, belief, tokens = random.Random(seed), UNKNOWN, 0
        for _ in range(100):
            belief = after(belief, round_at(before, 4, chance))
        while (first(belief) > middle) == (before > middle):
            bits = round_at(later, 4, chance)
            belief, tokens = after(belief, bits), tokens + len(bits)
        needed.append(tokens)
    assert sorted(needed)[10] <= 20
    assert max(needed) <= 60


def test_a_credit_counts_by_as_much_as_it_says() -> None:
    refused, half, accepted = (first(after(UNKNOWN, (credit,))) for credit in (0.0, 0.5, 1.0))
    assert refused < half < accepted


def test_credits_know_a_level_sooner_than_bits_do() -> None:
    """Given min(1, p/q), .8 on the mean, instead of an outcome: so much less it strays."""
    chance, of_bits, of_credits = random.Random(3), [], []
    bits = credits = UNKNOWN
    for _ in range(400):
        credit = chance.choice((0.6, 1.0))
        bits, credits = after(bits, (float(chance.random() < credit),)), after(credits, (credit,))
        of_bits.append(first(bits))
        of_credits.append(first(credits))
    assert np.std(of_credits[100:]) < 0.7 * np.std(of_bits[100:])


def test_scored_tokens_teach_the_first_guess() -> None:
    assert first(UNKNOWN.heard(matched=16, examined=16)) > 0.9
    assert first(UNKNOWN.heard(matched=0, examined=16)) < 0.25
    assert UNKNOWN.heard(matched=0, examined=0) is UNKNOWN
    assert np.isfinite(UNKNOWN.heard(matched=50_000, examined=100_000).chances).all()


def test_positions_that_fail_more_than_the_first_are_believed_less() -> None:
    """Acceptance .9 at the first position and .6 at all after it."""
    chance, belief, survivals = random.Random(5), UNKNOWN, np.zeros(4)
    for number in range(3000):
        bits: list[float] = []
        while len(bits) < 4 and (not bits or bits[-1]):
            bits.append(float(chance.random() < (0.6 if bits else 0.9)))
        belief = after(belief, tuple(bits))
        if number >= 1500:
            survivals += belief.survivals(4)
    conditional = survivals / np.array([1500, *survivals[:-1]])
    assert conditional == pytest.approx([0.9, 0.6, 0.6, 0.6], abs=0.08)


def test_survivals_are_calibrated_where_all_positions_are_alike() -> None:
    chance, belief = random.Random(7), UNKNOWN
    expected, stood = np.zeros(4), np.zeros(4)
    for _ in range(2000):
        expected += belief.survivals(4)
        bits = round_at(0.75, 4, chance)
        stood[: int(sum(bits))] += 1
        belief = after(belief, bits)
    assert expected / 2000 == pytest.approx(stood / 2000, abs=0.03)


def test_a_record_of_ones_own_speaks_where_sessions_differ_and_only_there() -> None:
    failing = Own(failed=20, expected=8)
    alike = Acceptance(UNKNOWN.chances, kin=Kin(0.0, 100.0))
    unlike = Acceptance(UNKNOWN.chances, kin=Kin(50.0, 100.0))
    assert alike.survivals(3, failing) == alike.survivals(3, ALIKE)
    assert unlike.survivals(3, failing) < unlike.survivals(3, ALIKE)
    assert unlike.survivals(3, Own(failed=4, expected=8)) > unlike.survivals(3, ALIKE)


def test_a_loosened_belief_is_still_about_the_same_and_soon_another() -> None:
    firm = UNKNOWN.heard(matched=0, examined=64)
    loose = firm.loosened()
    assert first(loose) == pytest.approx(first(firm), abs=0.1)
    turned = (1.0, 1.0, 1.0)
    assert first(after(loose, turned)) > first(after(firm, turned))


def test_nothing_examined_teaches_nothing() -> None:
    own = Own(1.0, 2.0)
    assert UNKNOWN.observed((), own) == (UNKNOWN, own)
    assert UNKNOWN.survivals(0) == ()
