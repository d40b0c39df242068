"""Knows how `between.c` computes what lies between the products of a layer, for the rows of a step, on a CPU.

Refuses to know weights of products, and what a block holds: its order inside is for C (`attention.h`) to know.

A step of few rows would spend more time in starting torch's operations than in reading weights: each takes some 25
microseconds to start, and there are 22 in a layer. Here four calls do the same, into rows that a step allocates once.
Each row is treated apart, so its bits do not depend on its company. Attention goes straight over the blocks of a
session: a query meets the keys 0..t of its own sequence by itself, one after the other; nothing is gathered, padded or
masked. Queries of one row that stand after each other share a tile, so that a block is fetched once for all of them.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tandem_runtime import native
from tandem_runtime.engines.torch_engine.cache import BLOCK_TOKENS, KeyValueCache
from tandem_runtime.engines.torch_engine.model import DecoderConfig
from tandem_runtime.ports import Row

__all__ = ["NativeBetween", "built"]

SOURCE = Path(__file__).with_name("between.c")
FLAGS = ("-fopenmp", "-lm")
TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

TILE_QUERIES = 24
"""Of one key head: more would not share much more, and their scores would leave the cache."""

ALIGNED = 16
"""Numbers: what one thread writes into shares no cache line with what another does."""

NUMBERS_OF_ADDRESS = 2
"""An address takes as many bytes."""

KEYS_AT_ONCE, MOST_QUERIES = 32, 6
"""What is computed together at most: `COLUMNS` of `vectors.h`, and as `attention.h` names it."""

Native: TypeAlias = Callable[..., None]


class _Attention(ctypes.Structure):
    """`Attention` of `attention.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "out", "keys", "values", "head_norms", "table", "positions")),
        *((name, ctypes.c_void_p) for name in ("tiles", "tables", "scratch")),
        *((name, ctypes.c_int64) for name in ("tile_count", "heads", "kv_heads", "d", "each", "threads")),
        ("epsilon", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class _Functions:
    norm: Native
    gate: Native
    attend: Native


class NativeBetween:
    """`between.Between` for a decoder of `dtype`, float32 or bfloat16, on as many threads as torch has."""

    def __init__(self, library: Path, config: DecoderConfig, *, dtype: torch.dtype) -> None:
        """Raises NotBuilt where `library` does not load."""
        loaded = native.loaded(library)

        def taking(name: str, *types: Any) -> Native:
            function: Native = getattr(loaded, f"{name}_{TYPES[dtype]}")
            function.argtypes, function.restype = types, None  # type: ignore[attr-defined]  # as ctypes has it
            return function

        pointer, count, threads = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self._config = config
        self._functions = _Functions(
            norm=taking("norm", *[pointer] * 4, count, count, ctypes.c_float, threads),
            gate=taking("gated", pointer, pointer, count, count, threads),
            attend=taking("attend", ctypes.POINTER(_Attention)),
        )

    def step(self, cache: KeyValueCache, rows: Sequence[Row]) -> "NativeStep":
        return NativeStep(self._functions, self._config, cache, rows)


class NativeStep:
    """`between.Step`: its methods give the same rows again and again, and write into what they are given."""

    def __init__(self, functions: _Functions, config: DecoderConfig, cache: KeyValueCache, rows: Sequence[Row]) -> None:
        self._functions, self._cache, self._config = functions, cache, config
        self._rows, self._threads = sum(len(row.tokens) for row in rows), torch.get_num_threads()
        self._norms = cache.like.new_empty(self._rows, config.hidden_size)
        self._mixed = cache.like.new_empty(self._rows, config.num_attention_heads * config.head_dim)
        self._gated = cache.like.new_empty(self._rows, config.intermediate_size)
        self._to_norms, self._to_gated = self._norms.data_ptr(), self._gated.data_ptr()
        self._tiles, self._tables = _tiles(rows, height=max(1, TILE_QUERIES // _groups(config)))
        each = _scratch_numbers(rows, config)
        self._scratch = torch.empty(self._threads * each)
        self._call = _Attention(
            out=self._mixed.data_ptr(),
            tiles=self._tiles.buffer_info()[0],
            tables=self._tables.buffer_info()[0],
            scratch=self._scratch.data_ptr(),
            tile_count=len(self._tiles) // 4,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            d=config.head_dim,
            each=each,
            threads=self._threads,
            epsilon=config.rms_norm_eps,
        )

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        self._norm(x, None, weight)
        return self._norms

    def added(self, x: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        self._norm(x, delta.data_ptr(), weight)
        return x, self._norms

    def mixed(self, layer: int, qkv: Tensor, norms: Tensor | None, table: Tensor, positions: Tensor) -> Tensor:
        call = self._call
        call.qkv, call.table, call.positions = qkv.data_ptr(), table.data_ptr(), positions.data_ptr()
        call.head_norms = None if norms is None else norms.data_ptr()
        call.keys, call.values = self._cache.addresses(layer)
        self._functions.attend(call)
        return self._mixed

    def gated(self, gate_up: Tensor) -> Tensor:
        self._functions.gate(
            gate_up.data_ptr(), self._to_gated, self._rows, self._config.intermediate_size, self._threads
        )
        return self._gated

    def _norm(self, x: Tensor, delta: int | None, weight: Tensor) -> None:
        config = self._config
        at = (x.data_ptr(), delta, weight.data_ptr(), self._to_norms)
        self._functions.norm(*at, self._rows, config.hidden_size, config.rms_norm_eps, self._threads)


def built() -> Path:
    """The library of `between.c`. Raises NotBuilt."""
    return native.built(SOURCE, native.cache_folder(), flags=FLAGS)


def _tiles(rows: Sequence[Row], *, height: int) -> tuple["array[int]", "array[int]"]:
    """Each tile's first flat row, rows, start and place in the second: the blocks of all rows, one after the other."""
    tiles, tables, first = array("q"), array("i"), 0
    for row in rows:
        table, count = len(tables), len(row.tokens)
        tables.extend(row.blocks[: _blocks_seen(row)])
        for begin in range(0, count, height):
            tiles.extend((first + begin, min(height, count - begin), row.start + begin, table))
        first += count
    return tiles, tables


def _scratch_numbers(rows: Sequence[Row], config: DecoderConfig) -> int:
    """What one thread needs for a tile, or for a smaller one with all of its key heads: for each query a score for each
    key, itself, what they add up to, and sums; and the addresses of keys and values of each block."""
    keys = _whole(max(map(_blocks_seen, rows)) * BLOCK_TOKENS, KEYS_AT_ONCE)
    at_once = MOST_QUERIES * config.num_key_value_heads
    queries = max(TILE_QUERIES, _groups(config), at_once)
    sums = at_once * _whole(config.head_dim, KEYS_AT_ONCE)
    addresses = 2 * NUMBERS_OF_ADDRESS * keys // BLOCK_TOKENS
    return _whole(queries * (keys + config.head_dim + 1) + sums + addresses, ALIGNED)


def _whole(count: int, step: int) -> int:
    """The least multiple of `step` that is no less."""
    return -(-count // step) * step


def _groups(config: DecoderConfig) -> int:
    return config.num_attention_heads // config.num_key_value_heads


def _blocks_seen(row: Row) -> int:
    return -(-(row.start + len(row.tokens)) // BLOCK_TOKENS)
