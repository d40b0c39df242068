"""C and numpy screen a row alike: the same tokens with the same words bit for bit, and shares as exact as both say."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_runtime.domain.noise import bits
from tandem_runtime.engines import native, screens
from tandem_runtime.engines.native import NotBuilt
from tandem_runtime.engines.noise_words import Ids, Words
from tandem_runtime.engines.screens import DOUBT, Bounds, NativeScreens, NumpyScreens, Screens
from tandem_runtime.ports import Logits

BY_NUMPY = NumpyScreens("by numpy")

seeds = st.integers(0, 2**32)
lengths = st.one_of(st.integers(1, 40), st.integers(100, 3000), st.sampled_from([128, 129, 1024]))


@pytest.fixture(scope="module")
def by_c() -> NativeScreens:
    try:
        return NativeScreens(screens.built())
    except NotBuilt as reason:
        pytest.skip(f"this machine cannot build C: {reason}")


def made_row(seed: int, length: int, *, step: float, forbidden: float) -> npt.NDArray[np.float32]:
    """Some centre and spread, on a lattice of `step` if that is not 0, and -inf for a share of tokens."""
    chance = np.random.default_rng(seed)
    row = chance.normal(chance.normal(0, 300), chance.choice([0, 0.1, 3, 30, 1e30]), length)
    row = np.round(row / step) * step if step else row
    row[(chance.random(length) < forbidden) & (np.arange(length) > 0)] = -np.inf
    return row.astype(np.float32)


def sorted_pairs(passed: tuple[Ids, Words]) -> list[tuple[int, int]]:
    return sorted(zip(passed[0].tolist(), passed[1].tolist(), strict=True))


@settings(deadline=None, max_examples=200)
@given(
    seed=seeds,
    length=lengths,
    step=st.sampled_from([0.0, 0.5]),
    position_key=st.integers(0, 2**64 - 1),
    least=st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=2),
    floors=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    share=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_tokens_that_pass_and_their_words_are_the_same_bit_for_bit(
    by_c: NativeScreens,
    seed: int,
    length: int,
    step: float,
    position_key: int,
    least: list[int],
    floors: list[float],
    share: float,
) -> None:
    row = made_row(seed, length, step=step, forbidden=0.2)
    lucky, luckier = (np.uint64(upper << 33) for upper in sorted(least))
    hopeful, near = sorted(np.float32(value) for value in np.quantile(row[row > -np.inf], floors))
    bounds = Bounds(lucky=lucky, luckier=luckier, hopeful=hopeful, near=near)
    tokens = None if share == 1 else np.flatnonzero(np.random.default_rng(seed).random(length) < share)
    passed = sorted_pairs(by_c.screened(row, tokens, position_key, bounds))
    assert passed == sorted_pairs(BY_NUMPY.screened(row, tokens, position_key, bounds))
    words = [(token, bits(position_key, token)) for token in (range(length) if tokens is None else tokens.tolist())]
    assert passed == [
        (token, word)
        for token, word in words
        if row[token] >= near or (word >= lucky and row[token] >= hopeful) or word >= max(lucky, luckier)
    ]


def exact_share(row: Logits, temperature: float, token: int) -> float:
    logits = row.astype(np.float64)
    weights = np.exp((logits - logits.max()) / temperature)
    before = (row > row[token]) | ((row == row[token]) & (np.arange(len(row)) < token))
    return math.fsum(weights[before]) / math.fsum(weights)


@settings(deadline=None, max_examples=200)
@given(
    seed=seeds,
    length=lengths,
    step=st.sampled_from([0.0, 0.5]),
    temperature=st.one_of(st.floats(0.05, 3), st.sampled_from([2.0**-20, 2.0**20])),
    rank=st.floats(0, 1),
)
def test_a_share_is_nearer_to_the_exact_one_than_both_say(
    by_c: NativeScreens, seed: int, length: int, step: float, temperature: float, rank: float
) -> None:
    row = made_row(seed, length, step=step, forbidden=0.2)
    possible = np.argsort(-row)[: np.count_nonzero(row > -np.inf)]
    token = int(possible[int(rank * (len(possible) - 1))])
    exact, peak = exact_share(row, temperature, token), float(row.max())
    ways: list[tuple[Screens, Logits]] = [(by_c, row), (BY_NUMPY, row), (by_c, row.astype(np.float64))]
    for way, rows in ways:
        assert abs(way.share_before(rows, peak, temperature, token) - exact) < DOUBT / 4


def test_a_row_with_gaps_is_screened_as_the_closed_one(by_c: NativeScreens) -> None:
    wide = made_row(3, 2000, step=0.0, forbidden=0.0)
    gaps, closed = wide[::2], wide[::2].copy()
    bounds = Bounds(lucky=np.uint64(63 << 58), luckier=np.uint64(1023 << 54), hopeful=closed.mean(), near=closed.max())
    assert sorted_pairs(by_c.screened(gaps, None, 9, bounds)) == sorted_pairs(by_c.screened(closed, None, 9, bounds))
    shares = [by_c.share_before(row, float(closed.max()), 1.0, 5) for row in (gaps, closed)]
    assert shares[0] == pytest.approx(shares[1], abs=DOUBT)


def test_where_ours_cannot_be_built_numpy_screens_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbuilt(source: Path, folder: Path) -> Path:
        raise NotBuilt("there is no C compiler")

    monkeypatch.setattr(native, "built", unbuilt)
    chosen = screens.screens.__wrapped__()
    assert type(chosen) is NumpyScreens
    assert chosen.about == "numpy, since ours was not built: there is no C compiler"
