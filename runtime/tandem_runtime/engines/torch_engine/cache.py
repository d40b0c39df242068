"""Knows where the keys and values of every session stand, and how ragged queries attend to them.

Refuses to know models, sampling, and which session a slot belongs to.

The cache of one layer is [slots, kv_heads, length, head_dim]. A step writes its new keys and values first and attends
afterwards, so a query at position t sees the keys 0..t of its own slot. Rolling back is writing again from an earlier
position: what stands beyond a query's position is masked, so it never needs to be erased.

Queries of one slot are packed into tiles of equal height, so that all slots attend in a few calls however ragged the
step is: single queries, short runs and prompt chunks each have a height of their own. With g query heads per key head
a tile of m queries is a matrix of m x g rows against the keys of one head (grouped queries need no copies then).

What makes a query's bits independent of its company: keys are padded to whole blocks of `KEY_BLOCK` positions, where
masked ones weigh exactly 0, and a matrix has at least `least_rows` rows, because libraries multiply fewer rows by
another order of summation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.model import DecoderConfig
from tandem_runtime.ports import Row

__all__ = ["KEY_BLOCK", "Attention", "KeyValueCache"]

KEY_BLOCK = 64
"""Keys per padded block: a multiple of every vector width in use."""

_RUN_TILE, _RUN_LONGEST = 8, 16
_CHUNK_TILE = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """Tiles of one height m. `source` [t, m] says which flat row each place holds (0 where it is filling), `rows` and
    `places` which of all t x m places are real and whose they are; `mask` [t, 1, m x g, keys] is added to scores."""

    slots: Tensor
    source: Tensor
    rows: Tensor
    places: Tensor
    mask: Tensor


class KeyValueCache:
    """Keys and values of `slots` sessions, and one slot more in which the filling rows of a step may write."""

    def __init__(
        self, config: DecoderConfig, *, slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.spare = slots
        self.length = -(-length // KEY_BLOCK) * KEY_BLOCK
        shape = (slots + 1, config.num_key_value_heads, self.length, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]

    def clear(self, slot: int) -> None:
        """A masked key weighs 0, and 0 times a number is 0: so no NaN of an earlier session may stay behind."""
        for layer in (*self.keys, *self.values):
            layer[slot].zero_()


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
        self._tiles = [
            _tiles(cache, members, height, groups=self._groups)
            for height, members in _by_height(rows, single=-(-least_rows // self._groups)).items()
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` [n, heads, d], `k` and `v` [n, kv_heads, d] -> [n, heads, d]; see `model.Attend`."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._slots, :, self._positions] = k
        values[self._slots, :, self._positions] = v
        mixed = torch.zeros_like(q)
        for tiles in self._tiles:
            seen = tiles.mask.shape[-1]
            out = functional.scaled_dot_product_attention(
                self._packed(q[tiles.source]),
                keys[tiles.slots, :, :seen],
                values[tiles.slots, :, :seen],
                attn_mask=tiles.mask,
            )
            mixed[tiles.rows] = self._unpacked(out)[tiles.places]
        return mixed

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


def _tiles(cache: KeyValueCache, members: Sequence[tuple[int, Row]], height: int, *, groups: int) -> _Tiles:
    slots: list[int] = []
    source: list[int] = []
    at: list[int] = []
    real: list[bool] = []
    for first, row in members:
        for begin in range(0, len(row.tokens), height):
            count = min(height, len(row.tokens) - begin)
            filling = height - count
            slots.append(row.slot)
            source += [*range(first + begin, first + begin + count), *[first + begin] * filling]
            at += [*range(row.start + begin, row.start + begin + count), *[row.start + begin] * filling]
            real += [True] * count + [False] * filling
    return _as_tensors(cache, slots=slots, source=source, at=at, real=real, groups=groups)


def _as_tensors(
    cache: KeyValueCache, *, slots: list[int], source: list[int], at: list[int], real: list[bool], groups: int
) -> _Tiles:
    like = cache.keys[0]
    sources = torch.tensor(source, device=like.device)
    places = torch.tensor(real, device=like.device).nonzero().squeeze(1)
    seen = (max(at) // KEY_BLOCK + 1) * KEY_BLOCK
    hidden = torch.arange(seen, device=like.device) > torch.tensor(at, device=like.device).unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
    return _Tiles(
        slots=torch.tensor(slots, device=like.device),
        source=sources.view(len(slots), -1),
        rows=sources[places],
        places=places,
        mask=mask.view(len(slots), 1, -1, seen).repeat_interleave(groups, dim=2),
    )
