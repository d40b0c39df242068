"""The shared noise: known vectors, its range, and that the Gumbel-max trick over it draws from the law."""

import math

import numpy as np
import pytest

from tandem_runtime.domain.noise import Salt, bits, gumbel, key, mix, uniform, uniform_at

CHI_SQUARE_LIMIT = {3: 30.66, 7: 40.52}
"""By degrees of freedom: exceeded with probability 1e-6 where the law holds."""


def test_the_mixer_gives_the_published_outputs_of_splitmix64_from_state_zero() -> None:
    states = [count * 0x9E3779B97F4A7C15 % 2**64 for count in range(4)]
    assert [mix(state) for state in states] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
        0xF88BB8A8724C81EC,
    ]


@pytest.mark.parametrize(
    ("seed", "choice", "salt", "position", "expected_key", "expected_bits"),
    [
        (0, 0, Salt.COUPLED, 0, 0xE3EDDE919C2ADD2B, 0xC02FCE460CB9B4E8),
        (42, 0, Salt.COUPLED, 0, 0x8D2D26660ACEAD7A, 0x7987C546203247B8),
        (42, 1, Salt.COUPLED, 0, 0x60BAEAA02F1A5D01, 0xF708FF06CA5D8E18),
        (42, 0, Salt.ACCEPT, 7, 0x253CC0F1AAE53267, 0x2F2FE343D08E870E),
        (2**64 - 1, 3, Salt.RESIDUAL, 100_000, 0x84A93C4319A98EE3, 0x6F4426B87146E905),
    ],
)
def test_keys_and_bits_of_version_1_never_change(
    seed: int, choice: int, salt: Salt, position: int, expected_key: int, expected_bits: int
) -> None:
    found = key(seed, choice, salt, position)
    assert (found, bits(found, 49_151)) == (expected_key, expected_bits)


def test_numpy_words_that_wrap_around_give_the_same_bits_as_plain_integers() -> None:
    tokens = np.arange(1000, dtype=np.uint64)
    position_key = key(7, 0, Salt.COUPLED, 3)

    def wrapped(words: "np.ndarray[tuple[int], np.dtype[np.uint64]]") -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))

    found = wrapped(np.uint64(position_key) ^ wrapped(tokens))
    assert found.tolist() == [bits(position_key, token) for token in range(1000)]


def test_uniform_numbers_are_never_0_or_1_and_gumbel_numbers_are_finite() -> None:
    assert (uniform(0), uniform(2**64 - 1)) == (2.0**-53, 1 - 2.0**-53)
    assert -3.7 < gumbel(0) < gumbel(2**64 - 1) < 36.8


def test_each_part_of_the_key_and_the_token_changes_the_number() -> None:
    base = (1, 0, Salt.COUPLED, 0)
    others = [(2, 0, Salt.COUPLED, 0), (1, 1, Salt.COUPLED, 0), (1, 0, Salt.DRAFT, 0), (1, 0, Salt.COUPLED, 1)]
    numbers = {bits(key(*parts), 0) for parts in [base, *others]} | {bits(key(*base), 1)}
    assert len(numbers) == 6


def test_swapped_seed_and_choice_do_not_share_numbers() -> None:
    assert uniform_at(1, 2, Salt.ACCEPT, 0) != uniform_at(2, 1, Salt.ACCEPT, 0)


def chi_square(counts: list[int], law: list[float]) -> float:
    total = sum(counts)
    return sum((count - total * p) ** 2 / (total * p) for count, p in zip(counts, law, strict=True))


LAW = [0.30, 0.22, 0.15, 0.12, 0.09, 0.06, 0.04, 0.02]
SAMPLES = 52_000
"""Eight tokens, error of the law 0.02 in total variation: seen with probability .999 at a false alarm rate of 1e-6."""


def gumbel_max_counts(law: list[float], *, over_seeds: bool) -> list[int]:
    counts = [0] * len(law)
    logs = [math.log(p) for p in law]
    for sample in range(SAMPLES):
        position_key = key(sample if over_seeds else 5, 0, Salt.COUPLED, 0 if over_seeds else sample)
        counts[max(range(len(law)), key=lambda x: logs[x] + gumbel(bits(position_key, x)))] += 1
    return counts


@pytest.mark.parametrize("over_seeds", [True, False], ids=["over seeds", "over positions"])
def test_the_gumbel_max_choice_has_the_law(over_seeds: bool) -> None:
    counts = gumbel_max_counts(LAW, over_seeds=over_seeds)
    assert chi_square(counts, LAW) < CHI_SQUARE_LIMIT[7]
    shifted = [LAW[0] - 0.02, LAW[1] + 0.02, *LAW[2:]]
    assert chi_square(counts, shifted) > CHI_SQUARE_LIMIT[7], "the test must see an error of .02"


def test_choices_at_neighbouring_positions_are_independent() -> None:
    pairs = [0, 0, 0, 0]
    for seed in range(20_000):
        first = uniform_at(seed, 0, Salt.COUPLED, 10) < 0.5
        second = uniform_at(seed, 0, Salt.COUPLED, 11) < 0.5
        pairs[2 * first + second] += 1
    assert chi_square(pairs, [0.25] * 4) < CHI_SQUARE_LIMIT[3]
