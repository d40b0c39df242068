"""A decoder as a step model: the same logits as the whole sequence gives, bit for bit, however a step is made up."""

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tandem_runtime.domain.blocks import BlockId, Blocks, Table, root_key
from tandem_runtime.domain.errors import ModelRefused, Overloaded
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine import engine
from tandem_runtime.engines.torch_engine.cache import BLOCK_TOKENS, block_bytes, blocks_within
from tandem_runtime.engines.torch_engine.engine import TorchModel, load_torch_model
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig, causal_attention
from tandem_runtime.ports import Logits, Row

LENGTH = 200
SLOTS = 3


def shape(**changes: int) -> DecoderConfig:
    plain = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": LENGTH,
    }
    return DecoderConfig(**(plain | changes))  # type: ignore[arg-type]  # all of these are whole numbers


def decoder_of(config: DecoderConfig) -> Decoder:
    torch.manual_seed(5)
    decoder = Decoder(config).requires_grad_(False)
    for weight in decoder.parameters():
        if weight.dim() > 1:
            weight.mul_(2.0)
    return decoder


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 96, count).tolist())


def whole_logits(model: TorchModel, tokens: tuple[int, ...]) -> Logits:
    """The logits after every token, computed at once in blocks that are given back."""
    table = Table(None)
    assert model.blocks.extend(table, len(tokens)) == ()
    [logits] = model.forward([Row(tuple(table.blocks), 0, tokens, len(tokens))])
    model.blocks.roll_back(table, 0)
    return logits


def extended(model: TorchModel, table: Table, length: int) -> tuple[BlockId, ...]:
    """The table's blocks, its own up to `length`."""
    copies = model.blocks.extend(table, length)
    assert copies is not None
    model.copy(copies)
    return tuple(table.blocks)


GROUPED = TorchModel(decoder_of(shape()), max_sessions=SLOTS, max_length=LENGTH)


@cache
def expected_logits(seed: int) -> Logits:
    return whole_logits(GROUPED, tokens_of(seed, LENGTH))


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_logits_are_those_of_the_decoder_over_the_whole_sequence(key_heads: int) -> None:
    decoder = decoder_of(shape(num_key_value_heads=key_heads))
    model = TorchModel(decoder, max_sessions=1, max_length=LENGTH)
    tokens = tokens_of(1, 150)
    expected = decoder(torch.tensor([tokens]), torch.arange(150)[None], causal_attention)[0]
    assert whole_logits(model, tokens) == pytest.approx(expected.numpy(), abs=1e-4)
    assert model.determinism == "Bitwise"


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_company_and_any_pieces(data: st.DataObject) -> None:
    """Sessions of their own lengths, stepped together in random pieces with random roll-backs, forks and evictions."""
    model = GROUPED
    model.blocks = Blocks(model.blocks.count, block_tokens=BLOCK_TOKENS)  # that know nothing of earlier examples
    sequences = [tokens_of(seed, LENGTH) for seed in range(SLOTS)]
    tables = [Table(root_key(tenant="a", adapter=None)) for _ in sequences]
    try:
        for _ in range(data.draw(st.integers(1, 12))):
            rows, spans = [], []
            for session in data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True)):
                tokens, table = sequences[session], tables[session]
                model.blocks.roll_back(table, max(0, table.length - data.draw(st.integers(0, 9))))
                if data.draw(st.integers(0, 5)) == 0:
                    model.blocks.roll_back(table, 0)
                start = model.blocks.adopt(table, tokens[: data.draw(st.integers(0, LENGTH - 1))])
                size = min(data.draw(st.sampled_from([1, 1, 2, 4, 6, 9, 17, 64, 90])), LENGTH - start)
                if size == 0:
                    continue
                outputs = data.draw(st.integers(0, size))
                blocks = extended(model, table, start + size)
                rows.append(Row(blocks, start, tokens[start : start + size], outputs))
                spans.append((session, start + size - outputs, start + size))
            if not rows:
                continue
            for (session, first, end), logits in zip(spans, model.forward(rows), strict=True):
                assert np.array_equal(logits, expected_logits(session)[first:end])
            for tokens, table in zip(sequences, tables, strict=True):
                model.blocks.settle(table, tokens[: data.draw(st.integers(0, LENGTH))])
    finally:
        for table in tables:
            model.blocks.roll_back(table, 0)
    assert model.blocks.used == 0


def test_a_roll_back_forgets_what_stood_beyond() -> None:
    tokens, other = tokens_of(1, 80), tokens_of(2, 80)
    table = Table(None)
    blocks = extended(GROUPED, table, 80)
    GROUPED.forward([Row(blocks, 0, tokens, 0)])
    [logits] = GROUPED.forward([Row(blocks, 50, other[50:], 30)])
    GROUPED.blocks.roll_back(table, 0)
    assert np.array_equal(logits, whole_logits(GROUPED, tokens[:50] + other[50:])[50:])


def test_a_fork_goes_on_from_a_copy_and_leaves_the_other_as_it_was() -> None:
    tokens, other = tokens_of(1, 60), tokens_of(2, 60)
    table = Table(None)
    GROUPED.forward([Row(extended(GROUPED, table, 40), 0, tokens[:40], 0)])
    fork = GROUPED.blocks.fork(table)
    [forked] = GROUPED.forward([Row(extended(GROUPED, fork, 60), 40, other[40:], 20)])
    [logits] = GROUPED.forward([Row(extended(GROUPED, table, 60), 40, tokens[40:], 20)])
    for ended in (fork, table):
        GROUPED.blocks.roll_back(ended, 0)
    assert np.array_equal(forked, whole_logits(GROUPED, tokens[:40] + other[40:])[40:])
    assert np.array_equal(logits, whole_logits(GROUPED, tokens)[40:])


def test_a_block_used_again_holds_nothing_of_its_former_session() -> None:
    model = TorchModel(decoder_of(shape()), max_sessions=1, max_length=LENGTH)
    expected = whole_logits(model, tokens_of(3, 20))
    for layer in range(2):
        for memory in model._cache.gather(layer, torch.arange(model.blocks.count)[None]):
            assert memory.any()
    model._cache._memory[:, : model.blocks.count] = torch.nan
    assert np.array_equal(whole_logits(model, tokens_of(3, 20)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spare_bytes", [0, 1, 2047])
def test_keys_and_values_take_the_budget_and_not_a_byte_more(dtype: torch.dtype, spare_bytes: int) -> None:
    config = shape(head_dim=16)
    budget = 20 * block_bytes(config, dtype) + spare_bytes
    blocks = blocks_within(budget, config, dtype)
    model = TorchModel(decoder_of(config).to(dtype), max_sessions=9, max_length=LENGTH, kv_blocks=blocks)
    assert budget - model.block_bytes < model._cache.nbytes <= budget
    assert model.blocks.count == 19


def test_a_model_of_a_single_block_is_served() -> None:
    model = TorchModel(decoder_of(shape()), max_sessions=1, max_length=2)
    [logits] = model.forward([Row((BlockId(0),), 0, (1, 2), 2)])
    assert np.array_equal(logits, whole_logits(GROUPED, (1, 2)))


def test_a_device_without_memory_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchModel(decoder_of(shape()), max_sessions=1, max_length=LENGTH)

    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model._decoder, "hidden", exhausted)
    with pytest.raises(Overloaded, match="memory"):
        model.forward([Row((BlockId(0),), 0, (1,), 1)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in the Hugging Face layout."""
    config = shape()
    written = asdict(config) | {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(written))
    save_file(decoder_of(config).state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_becomes_an_engine(folder: Path) -> None:
    model = load_torch_model(EngineOptions(model=str(folder), dtype="fp32", threads=1, max_sessions=2))
    assert (model.vocab_size, model.max_length) == (96, LENGTH)
    if not torch.cuda.is_available():
        assert np.array_equal(whole_logits(model, tokens_of(1, 40)), whole_logits(GROUPED, tokens_of(1, 40)))


def test_the_device_that_is_asked_for_is_taken_whatever_else_is_there(folder: Path) -> None:
    model = load_torch_model(EngineOptions(model=str(folder), device="cpu", dtype="fp32", threads=1, max_sessions=2))
    assert np.array_equal(whole_logits(model, tokens_of(1, 40)), whole_logits(GROUPED, tokens_of(1, 40)))


def test_bf16_computes_nearly_the_same(folder: Path) -> None:
    model = load_torch_model(EngineOptions(model=str(folder), dtype="bf16", threads=1, max_sessions=1, max_length=64))
    near = whole_logits(model, tokens_of(1, 40))
    exact = whole_logits(GROUPED, tokens_of(1, 40))
    assert near.dtype == np.float32
    assert np.abs(near - exact).max() < 0.1 * np.abs(exact).max()


def test_weights_that_memory_does_not_hold_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine, "load_decoder", exhausted)
    with pytest.raises(ModelRefused, match=f"{folder}: .* has no memory for its weights as torch.float32"):
        load_torch_model(EngineOptions(model=str(folder), dtype="fp32", threads=1, max_sessions=1))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "int3"}, "--dtype int3.*fp32 or bf16"),
        ({"device": "tpu"}, "--device tpu: give cpu, cuda, cuda:N or auto"),
        ({"device": "cuda:9999"}, "--device cuda:9999: torch sees [0-9]+ CUDA devices here; give another, or cpu"),
        ({"max_length": 4000}, "--max-length 4000.*200"),
        ({"max_length": 0}, "--max-length 0"),
        ({"max_sessions": 0}, "--max-sessions 0"),
        ({"threads": 0}, "--threads 0"),
        ({"kv_bytes": 57343}, "--kv-bytes 57343: one session of --max-length 200 needs 57344 bytes"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused_by_name(folder: Path, options: dict[str, object], named: str) -> None:
    with pytest.raises(ModelRefused, match=named):
        load_torch_model(EngineOptions(model=str(folder), **options))  # type: ignore[arg-type]  # rows of a table


@pytest.mark.parametrize("tied", [True, False])
def test_what_a_step_needs_is_counted_from_the_shape(tied: bool) -> None:
    config = replace(shape(), tie_word_embeddings=tied)
    decoder = decoder_of(config)
    toll = TorchModel(decoder, max_sessions=1, max_length=LENGTH).toll
    layer = 32 * (4 + 2 + 2) * 8 + 4 * 8 * 32 + 3 * 32 * 48
    norms = sum(weight.numel() for weight in decoder.parameters() if weight.dim() == 1)
    assert (toll.layer_weights, toll.head_weights) == (2 * layer, 96 * 32)
    assert toll.weight_bytes == 4 * (2 * layer + 96 * 32 + norms)
    assert toll.position_bytes == 4 * 2 * 2 * 2 * 8
    assert toll.position_products == 2 * 2 * 4 * 8
