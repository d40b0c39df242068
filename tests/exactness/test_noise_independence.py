"""The noise obeys its law far into the tails, and numbers of different positions, tokens, salts, choices and seeds are
independent. Thresholds hold for any seed: each of the checks fails with probability 1e-6 at most where the law holds.
"""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from tests.exactness.statistics_of_counts import FALSE_ALARM, chi_square_tail, judged, samples_for

from tandem_runtime.domain.noise import Salt, bits, gumbel, key, uniform, uniform_at

Words = npt.NDArray[np.uint64]

TOKENS = 1 << 21
"""Numbers for the tails: the share beyond an expected count of 200 is then known within 38 % at 1e-6."""


def words(seed: int, *, count: int) -> Words:
    """`domain.noise.bits` of tokens 0 to count - 1 at one position, in numpy for speed."""

    def mixed(word: Words) -> Words:
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))

    return mixed(np.uint64(key(seed, 0, Salt.COUPLED, 5)) ^ mixed(np.arange(count, dtype=np.uint64)))


def gumbels(word: Words) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = -np.log(-np.log(((word >> np.uint64(12)).astype(np.float64) + 0.5) / (1 << 52)))
    return found


@pytest.mark.parametrize("expected", [200, 2_000, 20_000, 200_000])
@pytest.mark.parametrize("side", ["high", "low"])
def test_extreme_quantiles_are_those_of_the_gumbel_law(expected: int, side: str) -> None:
    share = expected / TOKENS
    found = gumbels(words(seed=1, count=TOKENS))
    if side == "high":
        count = int((found > -math.log(-math.log1p(-share))).sum())
    else:
        count = int((found < -math.log(-math.log(share))).sum())
    deviation = (count - expected) / math.sqrt(expected * (1 - share))
    assert abs(deviation) < 5.0, "a normal deviate is beyond 5 with probability 6e-7"


def test_the_largest_of_many_numbers_has_its_own_law() -> None:
    """The largest of n Gumbel numbers, less ln n, is Gumbel again; e^-x of it is exponential, and twice the sum of m
    such numbers is chi-square with 2 m degrees of freedom."""
    groups = gumbels(words(seed=2, count=TOKENS)).reshape(512, -1)
    exponentials = np.exp(-(groups.max(axis=1) - math.log(groups.shape[1])))
    statistic = 2 * float(exponentials.sum())
    assert FALSE_ALARM < chi_square_tail(statistic, 1024) < 1 - FALSE_ALARM


def test_quantiles_are_flat_over_the_whole_range() -> None:
    n = samples_for(32, distance=0.01)
    bins = Counter((words(seed=3, count=n) >> np.uint64(59)).tolist())
    assert judged("32 bins", bins, dict.fromkeys(range(32), 1 / 32)).p_value > FALSE_ALARM


def test_u_is_never_0_or_1_and_both_ends_are_exact() -> None:
    assert (uniform(0), uniform(2**64 - 1)) == (2.0**-53, 1 - 2.0**-53)
    assert uniform((1 << 12) - 1) == uniform(0), "the lowest 12 bits are not looked at"
    assert gumbel(0) == pytest.approx(-math.log(53 * math.log(2)))
    assert gumbel(2**64 - 1) == pytest.approx(53 * math.log(2))


PAIRED: dict[str, Callable[[int], tuple[float, float]]] = {
    "positions": lambda n: (at(position=2 * n), at(position=2 * n + 1)),
    "far positions": lambda n: (at(position=n), at(position=n + 4096)),
    "tokens": lambda n: (at(position=n, token=n), at(position=n, token=n + 1)),
    "salts": lambda n: (at(position=n, salt=Salt.ACCEPT), at(position=n, salt=Salt.RESIDUAL)),
    "draft and residual": lambda n: (at(position=n, salt=Salt.DRAFT), at(position=n, salt=Salt.RESIDUAL)),
    "choices": lambda n: (at(position=n, choice=0), at(position=n, choice=1)),
    "seeds": lambda n: (at(seed=n), at(seed=n + 1)),
    "seeds that differ in the highest bit": lambda n: (at(seed=n), at(seed=n + 2**63)),
    "position against token": lambda n: (at(position=n, token=n + 7), at(position=n + 7, token=n)),
    "seed against choice": lambda n: (at(seed=n, choice=n + 1), at(seed=n + 1, choice=n)),
}


def at(*, seed: int = 9, choice: int = 0, salt: Salt = Salt.COUPLED, position: int = 0, token: int = 0) -> float:
    return uniform(bits(key(seed, choice, salt, position), token))


def quarters(pair: tuple[float, float]) -> tuple[int, int]:
    return int(4 * pair[0]), int(4 * pair[1])


FLAT = {(first, second): 1 / 16 for first in range(4) for second in range(4)}


@pytest.mark.parametrize("name", PAIRED)
def test_numbers_with_different_keys_are_independent(name: str) -> None:
    counts = Counter(quarters(PAIRED[name](n)) for n in range(samples_for(16, distance=0.05)))
    assert judged(name, counts, FLAT).p_value > FALSE_ALARM


def test_the_check_of_independence_finds_a_slight_dependence() -> None:
    """Every eighth second number is the first one over again: the joint law is off by .09."""
    pairs = (PAIRED["positions"](n) for n in range(samples_for(16, distance=0.05)))
    counts = Counter(quarters((first, first if at % 8 == 0 else second)) for at, (first, second) in enumerate(pairs))
    assert judged("dependent", counts, FLAT).p_value < FALSE_ALARM


def test_several_numbers_of_one_position_are_independent() -> None:
    counts = Counter(
        quarters((uniform_at(n, 0, Salt.ACCEPT, 3, 0), uniform_at(n, 0, Salt.ACCEPT, 3, 1)))
        for n in range(samples_for(16, distance=0.05))
    )
    assert judged("numbers of a position", counts, FLAT).p_value > FALSE_ALARM
