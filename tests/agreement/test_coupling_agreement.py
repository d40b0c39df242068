"""The fast coupled choice is the domain's choice on every row: large, flat, tied, peaked, forbidden, denormal.

Rows are longer than what is scored whole, so that the screens are at work.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.verify_cost import made_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_runtime.domain import sampling
from tandem_runtime.domain.noise import Salt, bits, gumbel, key, uniform
from tandem_runtime.domain.tokens import SamplingParameters
from tandem_runtime.engines import coupling, noise_words, sampler
from tandem_runtime.engines.ranking import first_ranked
from tandem_runtime.engines.screens import NumpyScreens
from tandem_runtime.ports import Logits

VOCAB = 1500
assert VOCAB > coupling.SCORED_WHOLE

Generator = np.random.Generator


def bf16(row: Logits) -> npt.NDArray[np.float32]:
    """float32 numbers that bfloat16 holds: rows become plateaus of equal logits."""
    return (row.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def mostly_forbidden(chance: Generator) -> Logits:
    row = np.full(VOCAB, -np.inf)
    row[chance.integers(0, VOCAB, 5)] = chance.normal(0, 3, 5)
    return row


def half_forbidden(chance: Generator) -> Logits:
    return np.where(chance.random(VOCAB) < 0.5, -np.inf, chance.normal(0, 3, VOCAB))


def one_huge(chance: Generator) -> Logits:
    row = chance.normal(0, 3, VOCAB)
    row[chance.integers(0, VOCAB)] = 1e5
    return row


ROWS: dict[str, Callable[[Generator], Logits]] = {
    "normal": lambda chance: chance.normal(0, 3, VOCAB),
    "wide": lambda chance: chance.normal(0, 30, VOCAB),
    "all equal": lambda _: np.full(VOCAB, -7.25),
    "all zero": lambda _: np.zeros(VOCAB),
    "two levels": lambda chance: chance.integers(0, 2, VOCAB) * 3.0,
    "plateaus": lambda chance: bf16(chance.normal(0, 3, VOCAB)),
    "far from zero": lambda chance: chance.normal(-3e4, 3, VOCAB),
    "one huge": one_huge,
    "mostly forbidden": mostly_forbidden,
    "half forbidden": half_forbidden,
    "denormal": lambda chance: chance.integers(-9, 9, VOCAB) * 1e-44,
    "noise absorbed": lambda chance: chance.integers(-3, 3, VOCAB) * 1e20,
    "largest numbers": lambda chance: chance.choice([-3e38, 3e38, 2.9e38], VOCAB),
}

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top-k": {"top_k": 50},
    "a top-k of nearly all": {"top_k": VOCAB - 1},
    "a top-k of more": {"top_k": 10**6},
    "top-p": {"top_p": 0.9},
    "a small top-p": {"top_p": 1e-12},
    "a round top-p": {"top_p": 0.5},
    "min-p": {"min_p": 0.05},
    "a min-p of one": {"min_p": 1.0},
    "all": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
    "top-p and min-p": {"top_p": 0.7, "min_p": 0.01},
}

TEMPERATURES = [0.0, 1e-300, 1e-7, 1e-5, 0.3, 1.0, 1.5, 40.0]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
@pytest.mark.parametrize("made", ROWS.values(), ids=ROWS.keys())
def test_every_kind_of_row_gives_the_choice_of_the_domain(
    made: Callable[[Generator], Logits], filters: dict[str, Any], kind: type[np.floating]
) -> None:
    chance = np.random.default_rng(5)
    for position, temperature in enumerate(TEMPERATURES):
        row = made(chance).astype(kind)
        asked = SamplingParameters(seed=position, temperature=temperature, **filters)
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)


@pytest.mark.parametrize("name", ROWS)
def test_where_there_is_no_compiler_the_choice_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coupling, "screens", lambda: NumpyScreens("by numpy"))
    chance = np.random.default_rng(6)
    for position, name_of_filters in enumerate(("none", "top-p", "top-p and min-p")):
        row = ROWS[name](chance).astype(np.float32)
        asked = SamplingParameters(seed=position, temperature=1.2, **FILTERS[name_of_filters])
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)


@pytest.mark.parametrize("temperature", [1e7, 1e37, 1e39, 1e300])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_temperature_that_flattens_all_gives_the_choice_of_the_domain(
    temperature: float, kind: type[np.floating]
) -> None:
    chance = np.random.default_rng(7)
    for position in range(6):
        row = ROWS["largest numbers"](chance).astype(kind)
        asked = SamplingParameters(seed=position, temperature=temperature, top_p=0.6)
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}], ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_a_row_as_of_a_model_gives_the_choice_of_the_domain(temperature: float, filters: dict[str, Any]) -> None:
    """As `benchmarks.verify_cost` makes them: a wide bulk under a head, at the vocabulary that is measured."""
    for position, dtype in enumerate(("fp32", "bf16")):
        row = made_rows(49_152, dtype)[position]
        asked = SamplingParameters(seed=4, temperature=temperature, **filters)
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**64 - 1),
    spread=st.floats(0, 20),
    step=st.sampled_from([0.0, 0.125, 1.0]),
    temperature=st.floats(0.05, 3),
    filters=st.sampled_from(list(FILTERS.values())),
)
def test_random_rows_give_the_choice_of_the_domain(
    seed: int, spread: float, step: float, temperature: float, filters: dict[str, Any]
) -> None:
    row = np.random.default_rng(seed).normal(0, spread, VOCAB).astype(np.float32)
    row = np.round(row / step).astype(np.float32) * np.float32(step) if step else row
    asked = SamplingParameters(seed=seed, temperature=temperature, **filters)
    assert sampler.coupled_choice(row, asked, 3) == sampling.coupled_choice(row.tolist(), asked, 3)


@pytest.mark.parametrize("vocab", [40, VOCAB])
def test_scores_that_tie_or_differ_in_the_last_bit_are_told_apart_as_the_domain_does(vocab: int) -> None:
    asked = SamplingParameters(seed=9, temperature=1.0)
    ties = 0
    for position in range(60):
        position_key = key(asked.seed, asked.choice, Salt.COUPLED, position)
        first, second = sorted(np.random.default_rng(position).choice(vocab, 2, replace=False).tolist())
        row = np.full(vocab, -200.0)
        noise = [gumbel(bits(position_key, token)) for token in (first, second)]
        row[first], row[second] = 50.0, 50.0 + noise[0] - noise[1]
        for nudged in (row[second], np.nextafter(row[second], 99), np.nextafter(row[second], -99)):
            row[second] = nudged
            ties += row[first] + noise[0] == row[second] + noise[1]
            expected = sampling.coupled_choice(row.tolist(), asked, position)
            assert sampler.coupled_choice(row, asked, position) == expected
            [found] = sampler.coupled_choices(row[None], asked, position)
            assert found == expected
    assert ties > 30


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75, 0.875])
def test_mass_that_meets_top_p_exactly_is_cut_as_the_domain_cuts_it(top_p: float) -> None:
    row = np.log(np.array([0.125, 0.5, 0.125, 0.25]))
    for position in range(40):
        asked = SamplingParameters(seed=2, temperature=1.0, top_p=top_p)
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)


@pytest.mark.parametrize("off", [-1e-7, -3e-9, 3e-9, 1e-7])
def test_a_top_p_next_to_a_mass_cuts_float32_rows_as_the_domain_does(off: float) -> None:
    """Nearer to the mass before the choice than float32 can tell."""
    for position in range(12):
        row = np.random.default_rng(position).normal(0, 3, VOCAB).astype(np.float32)
        free = sampling.coupled_choice(row.tolist(), SamplingParameters(seed=3), position)
        weights = np.exp(row.astype(np.float64) - float(row.max()))
        share = float(weights[row > row[free]].sum() / weights.sum())
        asked = SamplingParameters(seed=3, top_p=max(share + off, 1e-9))
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)


def test_words_below_a_threshold_have_less_noise_than_its_reach() -> None:
    assert gumbel(int(coupling.LUCKY) - 1) < coupling.REACH
    assert gumbel(int(coupling.LUCKIER) - 1) < coupling.FURTHER_REACH
    assert gumbel(2**64 - 1) < coupling.NOISE_MOST


@given(word=st.integers(0, 2**64 - 1), score=st.floats(-50, 50), best=st.floats(-50, 50))
def test_a_token_that_beats_a_score_passes_the_bound(word: int, score: float, best: float) -> None:
    """1 - u <= exp(s - b), from -ln u >= 1 - u."""
    if score + gumbel(word) >= best:
        assert 1 - uniform(word) <= math.exp(score - best) * (1 + 1e-12)


@pytest.mark.parametrize("name", ["normal", "all equal", "two levels", "plateaus", "one huge", "half forbidden"])
def test_few_tokens_get_logarithms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    whole = noise_words.gumbels

    def counting(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        scored.append(len(words))
        return whole(words)

    monkeypatch.setattr(coupling, "gumbels", counting)
    monkeypatch.setattr(coupling, "screens", lambda: NumpyScreens("by numpy"))
    chance = np.random.default_rng(8)
    for position in range(50):
        rows = [ROWS[name](chance) for _ in range(20)]
        sampler.coupled_choice(np.concatenate(rows), SamplingParameters(seed=1, temperature=1.0), position)
    assert sum(scored) / 50 < 20 * VOCAB / 25


@pytest.mark.parametrize("count", [0, 1, 7, 50, 700, 10**6])
@pytest.mark.parametrize("name", ["normal", "all equal", "plateaus", "half forbidden"])
def test_the_first_of_a_row_are_those_of_a_whole_sort(name: str, count: int) -> None:
    row = np.concatenate([ROWS[name](np.random.default_rng(at)) for at in range(5)])
    expected = sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]
    assert first_ranked(row, count).tolist() == expected
