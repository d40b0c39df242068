"""Knows how the ragged queries of a step attend to the keys and values of their sessions, by torch's operations.

Refuses to know models, sampling, and what a block of the cache is made of.

A step writes its new keys and values first and attends afterwards, so a query at position t sees the keys 0..t of its
own sequence.

Queries of one row are packed into tiles of equal height, so that all rows attend in a few calls however ragged the
step is: single queries, short runs and prompt chunks each have a height of their own. With g query heads per key head
a tile of m queries is a matrix of m x g rows against the keys of one head (grouped queries need no copies then). Keys
are padded to a multiple of `KEYS_AT_ONCE`, where masked ones weigh exactly 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.cache import BLOCK_TOKENS, KeyValueCache, begun_by, places_of
from tandem_runtime.ports import Row

__all__ = ["Attention"]

KEYS_AT_ONCE = 64
_RUN_TILE, _RUN_LONGEST = 8, 16
_CHUNK_TILE = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """Tiles of one height m. `tables` [t, b] are the blocks of their keys, `source` [t, m] says which flat row each
    place holds (its tile's first where it is filling), and `mask` [t, 1, m x g, keys] is added to scores."""

    tables: Tensor
    source: Tensor
    mask: Tensor


class Attention:
    """`model.Attend` for the rows of one step: made once per step, called once per layer."""

    def __init__(self, cache: KeyValueCache, rows: Sequence[Row]) -> None:
        self._cache = cache
        if begun := begun_by(rows):
            cache.clear(begun)
        device = cache.like.device
        self._places = torch.tensor([place for row in rows for place in places_of(row)], device=device)
        self._groups = cache.config.num_attention_heads // cache.config.num_key_value_heads
        members = _by_height(rows)
        self._tiles = [_tiles(cache, rows, height, groups=self._groups) for height, rows in members.items()]
        self._homes = torch.tensor(_homes(members, len(self._places)), device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` [n, heads, d], `k` and `v` [n, kv_heads, d] -> [n, heads, d]; see `model.Attend`."""
        self._cache.write(layer, self._places, k, v)
        mixed = [self._mixed(layer, tiles, q) for tiles in self._tiles]
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed))[self._homes]

    def _mixed(self, layer: int, tiles: _Tiles, q: Tensor) -> Tensor:
        keys, values = self._cache.gather(layer, tiles.tables)
        packed = self._packed(q[tiles.source])
        return self._unpacked(functional.scaled_dot_product_attention(packed, keys, values, attn_mask=tiles.mask))

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


def _by_height(rows: Sequence[Row]) -> dict[int, list[tuple[int, Row]]]:
    """The rows by the height of their tiles, each with the flat index of its first token."""
    members: dict[int, list[tuple[int, Row]]] = {}
    first = 0
    for row in rows:
        count = len(row.tokens)
        height = 1 if count == 1 else _RUN_TILE if count <= _RUN_LONGEST else _CHUNK_TILE
        members.setdefault(height, []).append((first, row))
        first += count
    return members


def _homes(members: Mapping[int, Sequence[tuple[int, Row]]], count: int) -> list[int]:
    """Where each of `count` flat rows stands among the places of all tiles."""
    homes = [0] * count
    place = 0
    for height, rows in members.items():
        for first, row in rows:
            size = len(row.tokens)
            homes[first : first + size] = range(place, place + size)
            place += -(-size // height) * height
    return homes


def _tiles(cache: KeyValueCache, members: Sequence[tuple[int, Row]], height: int, *, groups: int) -> _Tiles:
    owners: list[Row] = []
    places: list[tuple[int, int]] = []
    for first, row in members:
        for begin in range(0, len(row.tokens), height):
            count = min(height, len(row.tokens) - begin)
            owners.append(row)
            places += [(first + i, row.start + i) for i in range(begin, begin + count)]
            places += [(first + begin, row.start + begin)] * (height - count)
    device = cache.like.device
    seen = -(-(max(at for _, at in places) + 1) // KEYS_AT_ONCE) * KEYS_AT_ONCE
    source, at = torch.tensor(places, device=device).view(len(owners), height, 2).unbind(-1)
    tables = torch.tensor([_table(row, seen, cache.zeros) for row in owners], device=device)
    return _Tiles(tables, source, _mask(at, cache.like.dtype, seen=seen, groups=groups))


def _table(row: Row, seen: int, zeros: int) -> list[int]:
    """The blocks of a row's first `seen` positions, zeros where it has none."""
    wanted = seen // BLOCK_TOKENS
    held = row.blocks[:wanted]
    return [*held, *[zeros] * (wanted - len(held))]


def _mask(at: Tensor, dtype: torch.dtype, *, seen: int, groups: int) -> Tensor:
    """[t, 1, m x groups, seen] for queries at `at` [t, m]: -inf over the keys that stand beyond."""
    hidden = torch.arange(seen, device=at.device) > at.repeat_interleave(groups, dim=1)[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=at.device).masked_fill_(hidden, -torch.inf)
