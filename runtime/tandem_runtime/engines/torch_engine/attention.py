"""Knows how the ragged queries of a step attend to the keys and values of their sessions.

Refuses to know models, sampling, and where the cache keeps what a slot holds.

A step writes its new keys and values first and attends afterwards, so a query at position t sees the keys 0..t of its
own slot.

Queries of one slot are packed into tiles of equal height, so that all slots attend in a few calls however ragged the
step is: single queries, short runs and prompt chunks each have a height of their own. With g query heads per key head
a tile of m queries is a matrix of m x g rows against the keys of one head (grouped queries need no copies then).

What makes a query's bits independent of its company: keys are padded to one of few counts, `padded_keys`, where masked
ones weigh exactly 0, and a matrix has at least `least_rows` rows, because libraries multiply fewer rows by another
order of summation. They also sum over some numbers of keys in two halves: MKL on AVX2 does so for 256 and 320 float32
keys (and torch takes 512 at a time), which is why those counts are passed over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.cache import KeyValueCache, padded_keys
from tandem_runtime.ports import Row

__all__ = ["Attention"]

_RUN_TILE, _RUN_LONGEST = 8, 16
_CHUNK_TILE = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """Tiles of one height m. `source` [t, m] says which flat row each place holds (its tile's first where it is
    filling), and `mask` [t, 1, m x g, keys] is added to scores."""

    slots: Tensor
    source: Tensor
    mask: Tensor


class Attention:
    """How the rows of one step attend: built once per step, called once per layer.

    `slots` and `positions` [n] say where each flat row stands. `rows` are the step's real rows, which come first.
    """

    def __init__(
        self, cache: KeyValueCache, rows: Sequence[Row], *, slots: Tensor, positions: Tensor, least_rows: int
    ) -> None:
        self._cache = cache
        self._slots, self._positions = slots, positions
        self._groups = cache.config.num_attention_heads // cache.config.num_key_value_heads
        members = _by_height(rows, single=-(-least_rows // self._groups))
        self._tiles = [_tiles(cache, rows, height, groups=self._groups) for height, rows in members.items()]
        self._homes = torch.tensor(_homes(members, len(positions)), device=positions.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` [n, heads, d], `k` and `v` [n, kv_heads, d] -> [n, heads, d]; see `model.Attend`."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._slots, :, self._positions] = k
        values[self._slots, :, self._positions] = v
        mixed = [self._mixed(tiles, q, keys, values) for tiles in self._tiles]
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed))[self._homes]

    def _mixed(self, tiles: _Tiles, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        seen = tiles.mask.shape[-1]
        out = functional.scaled_dot_product_attention(
            self._packed(q[tiles.source]),
            keys[tiles.slots, :, :seen],
            values[tiles.slots, :, :seen],
            attn_mask=tiles.mask,
        )
        return self._unpacked(out)

    def _packed(self, q: Tensor) -> Tensor:
        """[t, m, heads, d] -> [t, kv_heads, m x g, d]"""
        tiles, height, _, width = q.shape
        by_key_head = q.view(tiles, height, -1, self._groups, width).transpose(1, 2)
        return by_key_head.reshape(tiles, -1, height * self._groups, width)

    def _unpacked(self, out: Tensor) -> Tensor:
        """[t, kv_heads, m x g, d] -> [t x m, heads, d]"""
        tiles, key_heads, flat, width = out.shape
        by_query = out.view(tiles, key_heads, flat // self._groups, self._groups, width).transpose(1, 2)
        return by_query.reshape(-1, key_heads * self._groups, width)


def _by_height(rows: Sequence[Row], *, single: int) -> dict[int, list[tuple[int, Row]]]:
    """The rows by the height of their tiles, each with the flat index of its first token."""
    members: dict[int, list[tuple[int, Row]]] = {}
    first = 0
    for row in rows:
        count = len(row.tokens)
        height = single if count == 1 else max(single, _RUN_TILE if count <= _RUN_LONGEST else _CHUNK_TILE)
        members.setdefault(height, []).append((first, row))
        first += count
    return members


def _homes(members: Mapping[int, Sequence[tuple[int, Row]]], count: int) -> list[int]:
    """Where each of `count` flat rows stands among the places of all tiles; anywhere, for a filling row."""
    homes = [0] * count
    place = 0
    for height, rows in members.items():
        for first, row in rows:
            size = len(row.tokens)
            homes[first : first + size] = range(place, place + size)
            place += -(-size // height) * height
    return homes


def _tiles(cache: KeyValueCache, members: Sequence[tuple[int, Row]], height: int, *, groups: int) -> _Tiles:
    slots: list[int] = []
    places: list[tuple[int, int]] = []
    for first, row in members:
        for begin in range(0, len(row.tokens), height):
            count = min(height, len(row.tokens) - begin)
            slots.append(row.slot)
            places += [(first + i, row.start + i) for i in range(begin, begin + count)]
            places += [(first + begin, row.start + begin)] * (height - count)
    like = cache.keys[0]
    source, at = torch.tensor(places, device=like.device).view(len(slots), height, 2).unbind(-1)
    return _Tiles(torch.tensor(slots, device=like.device), source, _mask(at, like.dtype, groups=groups))


def _mask(at: Tensor, dtype: torch.dtype, *, groups: int) -> Tensor:
    """[t, 1, m x groups, padded keys] for queries at `at` [t, m]: -inf over the keys that stand beyond."""
    seen = padded_keys(int(at.max()) + 1)
    hidden = torch.arange(seen, device=at.device) > at.repeat_interleave(groups, dim=1)[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=at.device).masked_fill_(hidden, -torch.inf)
