"""What the torch engine says of its bits is true; where it says `NearTie`, rounding is told from faults.

Real kernels and the trained pair. An engine without padding stands in for a device whose kernels round by company.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem_runtime.domain import sampling
from tandem_runtime.domain.certificate import (
    Calibration,
    Certificate,
    Doubt,
    LogitRow,
    calibrate,
    certify,
    doubt,
    first_split,
    lead,
)
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.engines.near_ties import VerifiedText, plain_text, rows_both_ways, split_at, verified_text
from tandem_runtime.engines.torch_engine import engine
from tandem_runtime.engines.torch_engine.cache import Attention, padded_keys
from tandem_runtime.engines.torch_engine.engine import TorchModel, load_torch_model
from tandem_runtime.ports import Logits, Row

TARGET = Path(__file__).parents[2] / "examples" / "pairs" / "target"
VOCAB, LENGTH, K = 1024, 640, 5
TEXTS, COUNT = 4, 32
TEMPERATURES = (0.0, 1.0)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def sound(dtype: str) -> TorchModel:
    return load_torch_model(TARGET, dtype=dtype, threads=1, max_sessions=3, max_length=LENGTH)


def unpadded(dtype: str) -> TorchModel:
    """An engine whose bits depend on how many rows share a step, and which says so."""
    model = load_torch_model(TARGET, dtype=dtype, threads=1, max_sessions=3, max_length=64)
    model._padding, model.determinism = 1, "NearTie"
    return model


@cache
def trusted(dtype: str) -> TorchModel:
    return unpadded(dtype)


def tokens_of(seed: int, count: int) -> tuple[TokenId, ...]:
    return tuple(np.random.default_rng(seed).integers(1, VOCAB, count).tolist())


def in_pieces(model: TorchModel, tokens: Sequence[TokenId], size: int, company: tuple[TokenId, ...] = ()) -> Logits:
    """The logits after every token, `size` at a time, beside a step of another session."""
    slot, other = model.allocate(), model.allocate()
    beside = [Row(other, 0, company, 1)] if company else []
    pieces = [(at, tuple(tokens[at : at + size])) for at in range(0, len(tokens), size)]
    logits = [model.forward([Row(slot, at, piece, len(piece)), *beside])[0] for at, piece in pieces]
    model.release(slot)
    model.release(other)
    return np.concatenate(logits)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_engine_that_says_bitwise_is_so_as_far_as_sessions_go(dtype: str) -> None:
    model, tokens = sound(dtype), tokens_of(1, 600)
    assert model.determinism == "Bitwise"
    in_chunks = in_pieces(model, tokens, 256)
    assert np.array_equal(in_pieces(model, tokens, K + 1), in_chunks)
    assert np.array_equal(in_pieces(model, tokens, 23, company=tokens_of(2, 7)), in_chunks)
    for at in (0, 191, 192, 255, 256, 319, 320, 384, 512, 599):
        alone, _ = rows_both_ways(model, tokens[: at + 1], at, (tokens[at],))
        assert np.array_equal(alone, in_chunks[at]), at


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_texts_with_and_without_proposals_are_equal_where_the_engine_says_bitwise(dtype: str) -> None:
    """Across the 192nd position, where padding changes."""
    asked, prompt = asked_of(3, 1.0), tokens_of(3, 175)
    plain = plain_text(sound(dtype), prompt, asked, 30)
    guesses = [(token + 1) % VOCAB if at % 5 == 4 else token for at, token in enumerate(plain)]
    assert verified_text(sound(dtype), prompt, asked, guesses=guesses, k=K).tokens == plain


def test_an_engine_that_sums_some_keys_in_halves_does_not_say_bitwise(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.nn.functional.scaled_dot_product_attention

    def in_halves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, attn_mask: torch.Tensor) -> torch.Tensor:
        if k.shape[2] != 384:
            return whole(q, k, v, attn_mask=attn_mask)
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + attn_mask, dim=-1)
        return weights[..., :100] @ v[:, :, :100] + weights[..., 100:] @ v[:, :, 100:]

    monkeypatch.setattr("tandem_runtime.engines.torch_engine.cache.functional.scaled_dot_product_attention", in_halves)
    assert load_torch_model(TARGET, dtype="fp32", threads=1, max_sessions=1).determinism == "NearTie"


@pytest.mark.parametrize(
    ("count", "padded"),
    [
        (1, 64),
        (64, 64),
        (65, 128),
        (192, 192),
        (193, 384),
        (385, 512),
        (512, 512),
        (513, 576),
        (705, 896),
        (1024, 1024),
    ],
)
def test_keys_are_padded_to_few_counts(count: int, padded: int) -> None:
    assert padded_keys(count) == padded


@cache
def calibrated_rows(dtype: str) -> tuple[tuple[LogitRow, LogitRow], ...]:
    """Rows of other texts than those that are judged, computed both ways."""
    pairs: list[tuple[LogitRow, LogitRow]] = []
    for seed in (100, 101):
        prompt = tokens_of(seed, 9)
        known = prompt + plain_text(trusted(dtype), prompt, asked_of(seed, 1.0), 40)
        for last in range(9, len(known) - K):
            start = last - last % (K + 1)
            plain, verified = rows_both_ways(trusted(dtype), known[: last + 1], start, known[start : start + K + 1])
            pairs.append((plain.tolist(), verified.tolist()))
    return tuple(pairs)


@cache
def calibration(dtype: str, temperature: float) -> Calibration:
    return calibrate(calibrated_rows(dtype), asked_of(77, temperature))


Run = tuple[int, tuple[TokenId, ...], VerifiedText]
"""A seed, and the texts without and with proposals."""


def asked_of(seed: int, temperature: float) -> SamplingParameters:
    return SamplingParameters(seed=seed, temperature=temperature)


@cache
def plain_of(dtype: str, seed: int, temperature: float) -> tuple[TokenId, ...]:
    return plain_text(trusted(dtype), tokens_of(seed, 12), asked_of(seed, temperature), COUNT)


def runs_of(model: TorchModel, dtype: str, temperature: float) -> list[Run]:
    """With proposals of which every seventh is wrong, so that rounds end in the middle and are rolled back."""
    runs: list[Run] = []
    for seed in range(TEXTS):
        plain = plain_of(dtype, seed, temperature)
        guesses = [(token + 1) % VOCAB if at % 7 == 6 else token for at, token in enumerate(plain)]
        asked = asked_of(seed, temperature)
        runs.append((seed, plain, verified_text(model, tokens_of(seed, 12), asked, guesses=guesses, k=K)))
    return runs


def judged(anew: TorchModel, runs: Sequence[Run], temperature: float) -> Certificate:
    """The certificate of the first splits in bf16, whose rows `anew` computes again."""
    limits, compared, doubts = calibration("bf16", temperature), 0, list[tuple[int, Doubt | None]]()
    for seed, plain, verified in runs:
        at = first_split(plain, verified.tokens)
        compared += COUNT if at is None else at + 1
        if at is not None:
            split = split_at(anew, tokens_of(seed, 12), plain, verified, at)
            choose = partial(choice_at, asked_of(seed, temperature), at)
            doubts.append((at, doubt(split, choose=choose, bound=limits.bound)))
    return certify(doubts, positions=compared, calibration=limits)


def choice_at(asked: SamplingParameters, position: int, row: LogitRow) -> TokenId:
    return sampling.coupled_choice(row, asked, position)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_an_engine_that_rounds_by_company_splits_at_near_ties_only(temperature: float) -> None:
    assert calibration("bf16", temperature).bound > 0
    found = judged(trusted("bf16"), runs_of(trusted("bf16"), "bf16", temperature), temperature)
    assert found.holds, found


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_in_fp32_nothing_splits(temperature: float) -> None:
    assert all(plain == verified.tokens for _, plain, verified in runs_of(trusted("fp32"), "fp32", temperature))


class CacheOffByOne(Attention):
    """The keys and values of a verify's rows are stored one position too early."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        right = self._positions
        if 1 < len(right) <= K + 1:
            self._positions = (right - 1).clamp(min=0)
        mixed = super().__call__(layer, q, k, v)
        self._positions = right
        return mixed


def plant_cache_off_by_one(monkeypatch: pytest.MonkeyPatch, _model: TorchModel) -> None:
    monkeypatch.setattr(engine, "Attention", CacheOffByOne)


def plant_wrong_positions(monkeypatch: pytest.MonkeyPatch, model: TorchModel) -> None:
    """A verify's rows are rotated as if they stood one position further on."""
    hidden = model._decoder.hidden

    def moved(tokens: torch.Tensor, positions: torch.Tensor, attend: Attention) -> torch.Tensor:
        return hidden(tokens, positions + int(1 < len(tokens) <= K + 1), attend)

    monkeypatch.setattr(model._decoder, "hidden", moved)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("plant", [plant_cache_off_by_one, plant_wrong_positions])
def test_a_fault_of_the_cache_cannot_certify_itself(
    plant: Callable[[pytest.MonkeyPatch, TorchModel], None], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the rows are computed anew by the engine that has the fault, or by one that has not."""
    assert judged(trusted("bf16"), runs_of(trusted("bf16"), "bf16", temperature), temperature).holds
    faulty = unpadded("bf16")
    with monkeypatch.context() as planted:
        plant(planted, faulty)
        faulty_runs = runs_of(faulty, "bf16", temperature)
        by_itself = judged(faulty, faulty_runs, temperature)
    by_a_sound_one = judged(trusted("bf16"), faulty_runs, temperature)
    assert by_itself.unexplained, by_itself
    assert by_a_sound_one.unexplained, by_a_sound_one


def test_a_bound_on_gaps_alone_would_excuse_many_positions() -> None:
    """Of greedy positions in bf16, a share of texts' positions have the two best within twice the bound."""
    bound, rows = calibration("bf16", 0.0).bound, calibrated_rows("bf16")
    excused = [lead(plain, asked_of(1, 0.0), 0).gap <= 2 * bound for plain, _ in rows]
    assert sum(excused) > 0.2 * len(rows), (sum(excused), len(rows), bound)
