"""Our own product of rows and weights: torch's numbers within rounding, and one row's bits in any company."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seams.kv_tables import lent_blocks, own_blocks
from tests.seams.processors import LESSER
from torch.nn import functional

from tandem_runtime import native as native_code
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine import linear
from tandem_runtime.engines.torch_engine.engine import TorchModel, load_torch_model
from tandem_runtime.engines.torch_engine.linear import Multiplier, NativeProduct, multiplier_for
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.native import NotBuilt
from tandem_runtime.ports import Row
from tandem_runtime.tokenizer import FolderTokenizer

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTH, TOKENS = 96, 24
PAIRS = Path(__file__).parents[2] / "examples" / "pairs"


@cache
def native(processor: str = "its own") -> NativeProduct:
    try:
        folder = native_code.cache_folder()
        return NativeProduct(native_code.built(linear.SOURCE, folder, flags=(*linear.FLAGS, *LESSER[processor])))
    except NotBuilt as reason:
        pytest.skip(f"this machine cannot build our product: {reason}")


def numbers(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def bits(rows: torch.Tensor) -> bytes:
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("processor", LESSER)
@settings(deadline=None, max_examples=150)
@given(
    rows=st.integers(1, 40),
    inputs=st.one_of(st.integers(1, 80), st.sampled_from([576, 1536, 1000])),
    outputs=st.one_of(st.integers(1, 120), st.sampled_from([960, 961])),
    dtype=st.sampled_from(list(TYPES.values())),
    seed=st.integers(0, 2**32),
)
def test_a_row_has_the_same_bits_among_any_number_of_rows_and_torchs_value(
    processor: str, rows: int, inputs: int, outputs: int, dtype: torch.dtype, seed: int
) -> None:
    product = native(processor)
    x, weight = numbers(seed, rows, inputs, dtype=dtype), numbers(seed + 1, outputs, inputs, dtype=dtype)
    together = product(x, weight)
    assert bits(together) == b"".join(bits(product(row[None], weight)) for row in x)
    exact = functional.linear(x.double(), weight.double())
    scale = functional.linear(x.double().abs(), weight.double().abs())
    unit = torch.finfo(torch.float32).eps * (inputs + 1) * scale + torch.finfo(dtype).eps * exact.abs()
    assert ((together.double() - exact).abs() <= unit).all()


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_threads_do_not_change_bits(dtype: torch.dtype) -> None:
    x, weight = numbers(1, 7, 100, dtype=dtype), numbers(2, 500, 100, dtype=dtype)
    alone = native()(x, weight)
    torch.set_num_threads(3)
    assert bits(native()(x, weight)) == bits(alone)


def test_an_output_takes_the_nearest_bfloat16_and_the_even_one_of_two() -> None:
    step = 2.0**-7
    weight = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
    x = torch.tensor([[1.0, step / 2], [1.0 + step, step / 2], [1.0, step / 4]], dtype=torch.bfloat16)
    assert native()(x, weight).flatten().tolist() == [1.0, 1.0 + 2 * step, 1.0]


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_infinities_and_nan_stay_what_they_are_and_in_their_row(dtype: torch.dtype) -> None:
    x = torch.tensor([[torch.inf, 1], [torch.nan, 1], [-torch.inf, torch.inf], [1, 1]], dtype=dtype)
    given = native()(x, torch.tensor([[1.0, 1.0]], dtype=dtype)).flatten().float().numpy()
    assert np.array_equal(given, np.array([np.inf, np.nan, np.nan, 2]), equal_nan=True)


def test_rows_with_gaps_are_closed_and_a_weight_that_does_not_suit_is_refused() -> None:
    x, weight = numbers(1, 5, 32, dtype=torch.float32), numbers(2, 9, 16, dtype=torch.float32)
    assert bits(native()(x[:, ::2], weight)) == bits(native()(x[:, ::2].contiguous(), weight))
    for unsuited in (weight[:, :8], weight.bfloat16(), weight[:, :8].repeat(1, 4)[:, ::2]):
        with pytest.raises(ValueError, match="does not suit"):
            native()(x[:, :16], unsuited)


def test_where_ours_cannot_be_built_torch_multiplies_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbuilt() -> Path:
        raise NotBuilt("there is no C compiler")

    monkeypatch.setattr(linear, "built", unbuilt)
    chosen = multiplier_for(torch.device("cpu"))
    assert (chosen.linear, chosen.row_invariant) == (functional.linear, False)
    assert chosen.about == "torch, since ours was not built: there is no C compiler"


def decoder(dtype: torch.dtype, *, hidden: int) -> Decoder:
    torch.manual_seed(hidden)
    config = DecoderConfig(
        vocab_size=97,
        hidden_size=hidden,
        intermediate_size=hidden + 13,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=LENGTH,
    )
    return Decoder(config).requires_grad_(False).to(dtype)


@pytest.mark.parametrize("hidden", [24, 33])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_an_engine_of_our_product_is_bitwise_in_either_type(dtype: torch.dtype, hidden: int) -> None:
    """A sequence whole, token by token, and as verifies of 1 to 9 rows beside a stranger."""
    mine = Multiplier(native(), row_invariant=True, about="ours")
    model = TorchModel(decoder(dtype, hidden=hidden), max_sessions=3, max_length=LENGTH, multiplier=mine)
    assert model.determinism == "Bitwise"
    tokens = tuple(np.random.default_rng(hidden).integers(0, 97, LENGTH).tolist())
    own, strange = own_blocks(model), own_blocks(model)
    [whole] = model.forward([Row(own, 0, tokens, LENGTH)])
    alone = [model.forward([Row(own, at, tokens[at : at + 1], 1)])[0] for at in range(LENGTH)]
    assert np.array_equal(np.concatenate(alone), whole)
    for count in range(1, 10):
        for at in range(0, LENGTH - count, count):
            beside = Row(strange, 0, tokens[5 : 6 + at // 2], 1)
            [verified, _] = model.forward([Row(own, at, tokens[at : at + count], count), beside])
            assert np.array_equal(verified, whole[at : at + count])


def test_an_engine_without_our_product_computes_nearly_the_same() -> None:
    tokens = tuple(np.random.default_rng(1).integers(0, 97, LENGTH).tolist())
    rows = []
    for chosen in (Multiplier(native(), True, "ours"), Multiplier(functional.linear, False, "torch")):
        model = TorchModel(decoder(torch.float32, hidden=32), max_sessions=1, max_length=LENGTH, multiplier=chosen)
        rows += model.forward([Row(own_blocks(model), 0, tokens, LENGTH)])
    assert np.abs(rows[0] - rows[1]).max() < 1e-4


@pytest.mark.parametrize("dtype", TYPES)
def test_texts_of_the_shipped_target_are_the_same_alone_and_together(dtype: str) -> None:
    """Greedy, in float32 and bfloat16: one by one, then all in shared steps of prompts, single rows and verifies."""
    native()
    model = load_torch_model(
        EngineOptions(model=str(PAIRS / "target"), dtype=dtype, threads=1, max_sessions=4, max_length=64)
    )
    assert (model.determinism, model.multiplier.row_invariant) == ("Bitwise", True)
    encode = FolderTokenizer(PAIRS / "target").encode
    prompts = [encode(text)[:20] for text in json.loads((PAIRS / "prompts.json").read_text())["prose"][:4]]
    alone = [continued(model, prompt) for prompt in prompts]
    tables = [own_blocks(model) for _ in prompts]
    at, found = [0] * len(prompts), [list[int]() for _ in prompts]
    for step in range(TOKENS):
        rows = []
        for which, (prompt, text) in enumerate(zip(prompts, alone, strict=True)):
            size = len(prompt) if step == 0 else (step * (which + 1)) % 7 + 1
            piece = (*prompt, *text)[at[which] : at[which] + size]
            rows.append(Row(tables[which], at[which], piece, 1 if step == 0 else len(piece)))
            at[which] += len(piece)
        rows = [row for row in rows if row.tokens]
        for row, logits in zip(rows, model.forward(rows) if rows else [], strict=True):
            found[tables.index(row.blocks)] += logits.argmax(axis=-1).tolist()
    assert [text[:TOKENS] for text in found] == alone


def continued(model: TorchModel, prompt: tuple[TokenId, ...]) -> list[int]:
    at, piece = 0, prompt
    text: list[int] = []
    with lent_blocks(model) as blocks:
        while len(text) < TOKENS:
            [logits] = model.forward([Row(blocks, at, piece, 1)])
            at, piece = at + len(piece), (TokenId(int(logits[0].argmax())),)
            text += piece
    return text
