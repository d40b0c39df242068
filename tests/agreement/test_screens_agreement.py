"""What C says of a row is true: a winner has the best of all scores by the domain's noise, a share is near enough."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_runtime import native
from tandem_runtime.domain.noise import bits, gumbel
from tandem_runtime.engines import screens
from tandem_runtime.engines.coupling import SLACK
from tandem_runtime.engines.screens import DOUBT, Bounds, Contest, NativeScreens, NumpyScreens, Screens
from tandem_runtime.native import NotBuilt
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


def bounds_of(lucky: int, luckier: int) -> Bounds:
    """By the upper 31 bits of each word."""
    lucky, luckier = lucky << 33, luckier << 33
    return Bounds(lucky, luckier, gumbel(lucky) + 0.01, gumbel(luckier) + 0.01, SLACK)


@settings(deadline=None, max_examples=300)
@given(
    seed=seeds,
    length=lengths,
    step=st.sampled_from([0.0, 0.5]),
    temperature=st.floats(0.05, 30),
    position_key=st.integers(0, 2**64 - 1),
    words=st.lists(st.integers(1, 2**31 - 1), min_size=2, max_size=2),
    share=st.sampled_from([0.3, 1.0]),
    spare=st.sampled_from([0.0, 40.0, math.inf]),
)
def test_the_winner_is_the_best_of_all_scores_or_is_not_told_where_another_comes_near(
    by_c: NativeScreens,
    seed: int,
    length: int,
    step: float,
    temperature: float,
    position_key: int,
    words: list[int],
    share: float,
    spare: float,
) -> None:
    row = made_row(seed, length, step=step, forbidden=0.2)
    likeliest = int(row.argmax())
    chosen = (np.random.default_rng(seed).random(length) < share) | (np.arange(length) == likeliest)
    tokens = np.flatnonzero(chosen)
    scores = {token: float(row[token]) / temperature + gumbel(bits(position_key, token)) for token in tokens.tolist()}
    floor = float(row[max(scores, key=scores.__getitem__)]) - spare
    contest = Contest(
        position_key=position_key,
        temperature=temperature,
        likeliest=likeliest,
        beaten=scores[likeliest],
        floor=floor,
    )
    found = by_c.winner(row, None if share == 1 else tokens, contest, bounds_of(*sorted(words)))
    best, *others = sorted(scores, key=scores.__getitem__, reverse=True)
    rivals = [token for token in others if row[token] >= floor and scores[token] >= scores[best] - SLACK]
    assert found == (None if rivals else best)


def test_scores_that_tie_are_not_told_and_logits_that_tie_are(by_c: NativeScreens) -> None:
    noise = [gumbel(bits(5, token)) for token in range(2)]
    level, tied = np.float32(64), np.float32(64 + noise[0] - noise[1])
    temperature = (float(tied) - float(level)) / (noise[0] - noise[1])
    told = []
    for row in (np.array([level, tied]), np.array([level, level])):
        likeliest = int(row.argmax())
        beaten = float(row[likeliest]) / temperature + noise[likeliest]
        contest = Contest(position_key=5, temperature=temperature, likeliest=likeliest, beaten=beaten, floor=-math.inf)
        told.append(by_c.winner(row, None, contest, bounds_of(63 << 25, 1023 << 21)))
    assert told == [None, noise.index(max(noise))]


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


def test_rows_with_gaps_or_of_another_type_are_left_to_numpy(by_c: NativeScreens) -> None:
    wide = made_row(3, 2000, step=0.0, forbidden=0.0)
    closed, likeliest = wide[::2].copy(), int(wide[::2].argmax())
    peak, beaten = float(closed.max()), float(closed.max()) + gumbel(bits(9, likeliest))
    contest = Contest(position_key=9, temperature=1.0, likeliest=likeliest, beaten=beaten, floor=-math.inf)
    told = [
        by_c.winner(row, None, contest, bounds_of(63 << 25, 1023 << 21)) for row in (wide[::2], closed.astype("f8"))
    ]
    assert told == [None, None]
    shares = [by_c.share_before(row, peak, 1.0, 5) for row in (wide[::2], closed.astype("f8"), closed)]
    assert shares == pytest.approx([exact_share(closed, 1.0, 5)] * 3, abs=DOUBT / 4)


def test_where_ours_cannot_be_built_numpy_screens_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbuilt(source: Path, folder: Path) -> Path:
        raise NotBuilt("there is no C compiler")

    monkeypatch.setattr(native, "built", unbuilt)
    chosen = screens.screens.__wrapped__()
    assert type(chosen) is NumpyScreens
    assert chosen.about == "numpy, since ours was not built: there is no C compiler"
