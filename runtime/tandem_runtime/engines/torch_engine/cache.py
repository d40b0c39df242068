"""Knows where keys and values stand: a paged memory for all layers of a decoder, within a budget of bytes.

Refuses to know which sequence a block belongs to, models, and how queries attend.

The memory is one tensor [2 x layers, blocks + 1, block_tokens, kv_heads, head_dim], keys and values of a layer after
each other. For torch a token's keys are contiguous, so a block is gathered by one copy; `native_between` keeps an order
of its own inside a block. The last block holds zeros for good: it stands in for what a sequence does not have where its
keys are padded. Rolling back is writing again from an earlier
position: what stands beyond a query's position is masked, so it never needs to be erased. Only a block that is begun
is cleared, since a masked key weighs 0, and 0 times the NaN of an earlier sequence would be NaN.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_runtime.domain.blocks import Copy
from tandem_runtime.engines.torch_engine.model import DecoderConfig
from tandem_runtime.engines.torch_engine.shelf import huge
from tandem_runtime.ports import Row

__all__ = ["BLOCK_TOKENS", "KeyValueCache", "begun_by", "block_bytes", "blocks_of", "blocks_within", "places_of"]

BLOCK_TOKENS = 16
"""Positions per block: a session wastes half of that on average, and a prefix is shared up to a multiple of it."""


def block_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Keys and values of `BLOCK_TOKENS` positions in all layers."""
    return 2 * config.num_hidden_layers * BLOCK_TOKENS * config.num_key_value_heads * config.head_dim * dtype.itemsize


def blocks_within(budget_bytes: int, config: DecoderConfig, dtype: torch.dtype) -> int:
    """How many blocks sequences can use in so many bytes, the block of zeros left out; 0 or less: there is no room."""
    return budget_bytes // block_bytes(config, dtype) - 1


def blocks_of(length: int) -> int:
    """How many blocks `length` positions stand in."""
    return -(-length // BLOCK_TOKENS)


class KeyValueCache:
    """`blocks` blocks for sequences, numbered from 0, and one of zeros, `zeros`."""

    def __init__(self, config: DecoderConfig, *, blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.zeros = blocks
        shape = (2 * config.num_hidden_layers, blocks + 1, BLOCK_TOKENS, config.num_key_value_heads, config.head_dim)
        self._memory = _zeros(shape, dtype, device)
        self._layer_bytes = self._memory[0].nbytes
        flat = self._memory.view(*shape[:1], -1, *shape[3:])
        self._by_position = list(zip(flat[0::2], flat[1::2], strict=True))
        by_block = self._memory.view(*shape[:2], -1)
        self._by_block = list(zip(by_block[0::2], by_block[1::2], strict=True))

    @property
    def like(self) -> Tensor:
        """A tensor of the memory's type and device."""
        return self._memory

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where in memory a layer's keys and values begin, for who brings an order of its own into their blocks."""
        keys = self._memory.data_ptr() + 2 * layer * self._layer_bytes
        return keys, keys + self._layer_bytes

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """`keys` and `values` [n, kv_heads, d] to the `places` [n] that `places_of` names."""
        own_keys, own_values = self._by_position[layer]
        own_keys.index_copy_(0, places, keys)
        own_values.index_copy_(0, places, values)

    def gather(self, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values in the blocks `tables` [t, b], each [t, kv_heads, b x BLOCK_TOKENS, d]."""
        keys, values = self._by_block[layer]
        return self._gathered(keys, tables), self._gathered(values, tables)

    def clear(self, blocks: Sequence[int]) -> None:
        self._memory[:, torch.tensor(blocks, device=self._memory.device)] = 0

    def copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._memory[:, copy.target] = self._memory[:, copy.source]

    def _gathered(self, own: Tensor, tables: Tensor) -> Tensor:
        heads, width = self._memory.shape[-2:]
        rows = own.index_select(0, tables.flatten()).view(len(tables), -1, heads, width)
        return rows.transpose(1, 2)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU in large pages: blocks are visited in any order, and in small pages each begins with a look-up."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape).zero_()


def places_of(row: Row) -> list[int]:
    """Where the tokens of a row stand, counted in positions from the memory's beginning."""
    positions = range(row.start, row.start + len(row.tokens))
    return [row.blocks[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS for at in positions]


def begun_by(rows: Sequence[Row]) -> list[int]:
    """The blocks that rows begin to write and do not fill."""
    begun: list[int] = []
    for row in rows:
        end = row.start + len(row.tokens)
        last = end // BLOCK_TOKENS
        if end % BLOCK_TOKENS and row.start <= last * BLOCK_TOKENS:
            begun.append(row.blocks[last])
    return begun
