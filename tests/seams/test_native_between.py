"""What lies between products, in C: torch's numbers within rounding, and one row's bits in any company."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seams.processors import LESSER
from torch import Tensor

from tandem_runtime import native as native_code
from tandem_runtime.domain.blocks import BlockId
from tandem_runtime.engines.torch_engine import engine, native_between
from tandem_runtime.engines.torch_engine.between import Between, TorchBetween
from tandem_runtime.engines.torch_engine.cache import BLOCK_TOKENS, KeyValueCache
from tandem_runtime.engines.torch_engine.engine import TorchModel
from tandem_runtime.engines.torch_engine.linear import multiplier_for
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.engines.torch_engine.native_between import NativeBetween
from tandem_runtime.native import NotBuilt
from tandem_runtime.ports import Row

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CLOSE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (0.02, 0.1)}
"""Relative and absolute."""
CPU = torch.device("cpu")


@cache
def native(config: DecoderConfig, dtype: torch.dtype, processor: str = "its own") -> NativeBetween:
    try:
        folder, flags = native_code.cache_folder(), (*native_between.FLAGS, *LESSER[processor])
        return NativeBetween(native_code.built(native_between.SOURCE, folder, flags=flags), config, dtype=dtype)
    except NotBuilt as reason:
        pytest.skip(f"this machine cannot build it: {reason}")


def shaped(*, head_dim: int = 8, groups: int = 1, key_heads: int = 1, width: int = 24) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=97,
        hidden_size=width,
        intermediate_size=width + 13,
        num_hidden_layers=2,
        num_attention_heads=groups * key_heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        max_position_embeddings=4096,
    )


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(given: Tensor, wanted: Tensor) -> None:
    relative, absolute = CLOSE[given.dtype]
    torch.testing.assert_close(given, wanted, rtol=relative, atol=absolute)


def bits(rows: Tensor) -> bytes:
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


def rows_of(count: int) -> list[Row]:
    return [Row((BlockId(0),), 0, (0,) * count, 0)]


def memory(config: DecoderConfig, dtype: torch.dtype, *, blocks: int = 1) -> KeyValueCache:
    return KeyValueCache(config, blocks=blocks, dtype=dtype, device=CPU)


@pytest.mark.parametrize("processor", LESSER)
@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 9),
    width=st.one_of(st.integers(1, 70), st.just(576)),
    dtype=st.sampled_from(list(TYPES.values())),
    seed=st.integers(0, 2**32),
)
def test_norms_sums_and_gates_are_torchs_and_each_row_is_by_itself(
    processor: str, count: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    config = replace(shaped(), hidden_size=width, intermediate_size=width)
    ours, theirs = native(config, dtype, processor), TorchBetween(config, device=CPU)
    x, delta, gate_up = (
        numbers(seed + i, count, size, dtype=dtype) for i, size in enumerate((width, width, 2 * width))
    )
    weight, kept = numbers(seed + 3, width, dtype=dtype), memory(config, dtype)

    def found(between: Between, of: slice) -> list[Tensor]:
        step = between.step(kept, rows_of(len(x[of])))
        normed = step.normed(x[of].clone(), weight).clone()
        added, after = step.added(x[of].clone(), delta[of], weight)
        return [normed, added, after.clone(), step.gated(gate_up[of])]

    together = found(ours, slice(None))
    for row in range(count):
        alone = found(ours, slice(row, row + 1))
        assert [bits(part[row]) for part in together] == [bits(part[0]) for part in alone]
    for given_, wanted in zip(together, found(theirs, slice(None)), strict=True):
        assert_near(given_, wanted)


@dataclass(frozen=True)
class Session:
    """A sequence: what its heads are at each position, and where its blocks stand."""

    qkv: Tensor
    blocks: tuple[BlockId, ...]

    def row(self, start: int, count: int) -> Row:
        return Row(self.blocks, start, (0,) * count, 0)


Piece = tuple[Session, int, int]
"""A session's positions from a start on, so many."""


def mixed(
    between: Between, kept: KeyValueCache, pieces: Sequence[Piece], turns: Tensor, norms: Tensor | None
) -> list[Tensor]:
    """What the pieces of one step find, in layer 1."""
    step = between.step(kept, [session.row(start, count) for session, start, count in pieces])
    qkv = torch.cat([session.qkv[start : start + count] for session, start, count in pieces])
    positions = torch.cat([torch.arange(start, start + count) for _, start, count in pieces])
    out = step.mixed(1, qkv.clone(), norms, turns, positions)
    return [part.clone() for part in torch.split(out, [count for _, _, count in pieces])]


def sessions(config: DecoderConfig, dtype: torch.dtype, lengths: Sequence[int]) -> list[Session]:
    """Their blocks are dealt out in turns, so that none has its own beside each other."""
    width = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    each = max(-(-length // BLOCK_TOKENS) for length in lengths)
    return [
        Session(
            numbers(i, length, width, dtype=dtype),
            tuple(BlockId(block * len(lengths) + i) for block in reversed(range(each))),
        )
        for i, length in enumerate(lengths)
    ]


def turns_of(config: DecoderConfig, dtype: torch.dtype, length: int) -> Tensor:
    angles = torch.arange(length)[:, None] * 0.9 ** torch.arange(config.head_dim // 2)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine, -sine, sine), dim=-1)[:, None].to(dtype)


HEADS = [(64, 3, 3), (80, 1, 2), (100, 3, 1), (128, 4, 1), (8, 8, 1), (6, 2, 2), (16, 7, 1), (2, 5, 1), (64, 32, 1)]


@pytest.mark.parametrize("processor", LESSER)
@pytest.mark.parametrize("with_norms", [False, True], ids=["", "head norms"])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("head_dim", "groups", "key_heads"), HEADS)
def test_attention_is_torchs_and_each_query_is_by_itself(
    head_dim: int, groups: int, key_heads: int, dtype: torch.dtype, with_norms: bool, processor: str
) -> None:
    """Whole sequences across many blocks, against torch; then in pieces of all sizes, beside each other."""
    config = shaped(head_dim=head_dim, groups=groups, key_heads=key_heads)
    lengths = (150, 37)
    both = sessions(config, dtype, lengths)
    turns = turns_of(config, dtype, max(lengths))
    norms = numbers(9, (groups + 1) * key_heads, head_dim, dtype=dtype) if with_norms else None
    kept, theirs = (memory(config, dtype, blocks=20) for _ in range(2))
    pieces = [(session, 0, length) for session, length in zip(both, lengths, strict=True)]
    ours = native(config, dtype, processor)
    whole = mixed(ours, kept, pieces, turns, norms)
    for given_, wanted in zip(
        whole, mixed(TorchBetween(config, device=CPU), theirs, pieces, turns, norms), strict=True
    ):
        assert_near(given_, wanted)
    kept = memory(config, dtype, blocks=20)
    at, sizes = [0, 0], (1, 1, 5, 16, 9, 1, 2, 40, 3, 64, 8)
    for turn in range(40):
        step = [
            (which, at[which], min(sizes[(turn + 4 * which) % len(sizes)], lengths[which] - at[which]))
            for which in (0, 1)
            if at[which] < lengths[which]
        ]
        if not step:
            break
        parts = [(both[which], start, count) for which, start, count in step]
        found = mixed(ours, kept, parts, turns, norms)
        for (which, start, count), rows in zip(step, found, strict=True):
            assert bits(rows) == bits(whole[which][start : start + count])
            at[which] += count
    assert at == list(lengths)


@pytest.mark.parametrize("processor", LESSER)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_a_late_query_sees_a_long_context_as_torch_does(dtype: torch.dtype, processor: str) -> None:
    config = shaped(head_dim=64, groups=3)
    [session] = sessions(config, dtype, [1100])
    turns, ours = turns_of(config, dtype, 1100), native(config, dtype, processor)
    kept, theirs = (memory(config, dtype, blocks=69) for _ in range(2))
    [whole] = mixed(ours, kept, [(session, 0, 1100)], turns, None)
    [wanted] = mixed(TorchBetween(config, device=CPU), theirs, [(session, 0, 1100)], turns, None)
    assert_near(whole, wanted)
    [again] = mixed(ours, kept, [(session, 1090, 5)], turns, None)
    assert bits(again) == bits(whole[1090:1095])


@pytest.mark.parametrize("processor", LESSER)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("head_dim", [64, 8])
def test_what_stood_in_memory_before_is_never_seen(dtype: torch.dtype, head_dim: int, processor: str) -> None:
    """NaN in every place that a step does not write, in its own last block too."""
    config = shaped(head_dim=head_dim, groups=2)
    [session] = sessions(config, dtype, [70])
    turns, ours = turns_of(config, dtype, 70), native(config, dtype, processor)
    clean, dirty = (memory(config, dtype, blocks=6) for _ in range(2))
    dirty.like.fill_(torch.nan)
    for start, count in ((0, 17), (17, 1), (18, 3), (21, 49)):
        [wanted] = mixed(ours, clean, [(session, start, count)], turns, None)
        [found] = mixed(ours, dirty, [(session, start, count)], turns, None)
        assert bits(found) == bits(wanted)
        assert not wanted.isnan().any()


@pytest.mark.parametrize("processor", LESSER)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_a_session_of_nan_and_infinities_hurts_no_other_and_no_earlier_position(
    dtype: torch.dtype, processor: str
) -> None:
    config = shaped(head_dim=16, groups=2)
    own, sick = sessions(config, dtype, [40, 40])
    turns, ours = turns_of(config, dtype, 40), native(config, dtype, processor)
    kept = memory(config, dtype, blocks=6)
    [wanted] = mixed(ours, kept, [(own, 0, 40)], turns, None)
    for poison in (torch.nan, torch.inf, -torch.inf):
        later = replace(own, qkv=own.qkv.clone())
        later.qkv[35:] = poison
        ill = replace(sick, qkv=torch.full_like(sick.qkv, poison))
        [found, _] = mixed(ours, kept, [(later, 0, 40), (ill, 0, 40)], turns, None)
        assert bits(found[:35]) == bits(wanted[:35])
        assert found[35:].isnan().any()


@pytest.mark.parametrize("processor", LESSER)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("head_dim", "groups"), [(64, 3), (100, 2), (8, 1)])
def test_few_queries_of_each_of_many_sessions_are_those_of_each_alone(
    head_dim: int, groups: int, dtype: torch.dtype, processor: str
) -> None:
    """So many tiles that a thread does all key heads of one, block by block; alone, head by head."""
    config = shaped(head_dim=head_dim, groups=groups, key_heads=3)
    lengths = (1, 16, 17, 31, 32, 33, 50, 2, 64, 47)
    all_of_them, turns = sessions(config, dtype, lengths), turns_of(config, dtype, max(lengths))
    ours, kept = native(config, dtype, processor), memory(config, dtype, blocks=40)
    torch.set_num_threads(2)
    wholes = [mixed(ours, kept, [(session, 0, len(session.qkv))], turns, None)[0] for session in all_of_them]
    last = [(session, max(0, length - 2), min(2, length)) for session, length in zip(all_of_them, lengths, strict=True)]
    for whole, rows in zip(wholes, mixed(ours, kept, last, turns, None), strict=True):
        assert bits(rows) == bits(whole[-2:])


def test_threads_do_not_change_bits() -> None:
    """From odd positions on, so that two threads write into the same words."""
    config = shaped(head_dim=64, groups=3, key_heads=3, width=576)
    both = sessions(config, torch.bfloat16, [91, 91])
    turns = turns_of(config, torch.bfloat16, 91)
    pieces = [(session, start, count) for start, count in ((0, 1), (1, 90)) for session in both]
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        kept = memory(config, torch.bfloat16, blocks=12)
        parts = mixed(native(config, torch.bfloat16), kept, pieces, turns, None)
        step = native(config, torch.bfloat16).step(kept, rows_of(180))
        found.append(
            bits(torch.cat(parts)) + bits(step.normed(numbers(1, 180, 576, dtype=torch.bfloat16), turns.new_ones(576)))
        )
    assert found[0] == found[1]


def decoder(dtype: torch.dtype) -> Decoder:
    torch.manual_seed(7)
    config = replace(shaped(head_dim=8, groups=2, key_heads=2), max_position_embeddings=64)
    return Decoder(config).requires_grad_(False).to(dtype)


def test_where_it_cannot_be_built_torch_computes_and_rows_are_near_ties(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = TorchModel(decoder(torch.float32), max_sessions=1, max_length=64)
    tokens = tuple(range(40))
    blocks = tuple(BlockId(block) for block in range(3))
    [ours] = model.forward([Row(blocks, 0, tokens, 40)])
    if not model.multiplier.row_invariant:
        pytest.skip("this machine builds nothing")

    def unbuilt() -> None:
        raise NotBuilt("the compiler has no threads")

    monkeypatch.setattr(engine, "built", unbuilt)
    other = TorchModel(decoder(torch.float32), max_sessions=1, max_length=64, multiplier=multiplier_for(CPU))
    [theirs] = other.forward([Row(blocks, 0, tokens, 40)])
    assert (model.determinism, other.determinism) == ("Bitwise", "NearTie")
    assert "the compiler has no threads" in caplog.text
    torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), rtol=1e-4, atol=1e-4)
