"""Knows what may be wrong with a torch engine, and what may differ in one that is right: edits of the running program.

Refuses to know how they are found out.

Two faults touch the rows of verifies alone, as faults of caches do: where their keys and values stand, and at which
position they are rotated. One engine has no fault but the habit of GPU libraries: it sums the products of several rows
in halves, and that of one row in one go.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tandem_runtime.engines.torch_engine import engine
from tandem_runtime.engines.torch_engine.engine import TorchModel
from tandem_runtime.engines.torch_engine.fused import FusedDecoder
from tandem_runtime.engines.torch_engine.model import Attend, Decoder
from tandem_runtime.ports import Logits, Row

Hidden = Callable[[FusedDecoder, Tensor, Tensor, Attend], Tensor]


def cache_off_by_one(hidden: Hidden) -> Hidden:
    """The keys and values of a verify are stored one position late."""

    def shifted(decoder: FusedDecoder, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        rows = _verified_rows(positions)

        def attend_late(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(layer, q, *(torch.cat((part[:rows].roll(1, 0), part[rows:])) for part in (k, v)))

        return hidden(decoder, tokens, positions, attend_late)

    return shifted


def wrong_position(hidden: Hidden) -> Hidden:
    """The rows of a verify are rotated as if they stood one position further on."""

    def moved(decoder: FusedDecoder, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        further = positions.clone()
        further[: _verified_rows(positions)] += 1
        return hidden(decoder, tokens, further, attend)

    return moved


FAULTS = {"cache off by one": cache_off_by_one, "wrong position": wrong_position}


@contextmanager
def planted(fault: Callable[[Hidden], Hidden]) -> Iterator[None]:
    with patch.object(FusedDecoder, "hidden", fault(FusedDecoder.hidden)):
        yield


def _verified_rows(positions: Tensor) -> int:
    """How many of the first rows are those of one verify; 0 for a prompt and for a single row."""
    at = positions.tolist()
    count = next((i for i in range(1, len(at)) if at[i] != at[0] + i), len(at))
    return count if at[0] > 0 and count > 1 else 0


@contextmanager
def stock_kernels() -> Iterator[None]:
    """Engines that are made here pad nothing: their bits are those of the libraries."""
    with patch.object(engine, "PADDINGS", (1,)):
        yield


class SumsByCompany(TorchModel):
    """Right, and no `Bitwise` engine: products of several rows are summed in halves."""

    def __init__(self, decoder: Decoder, *, max_sessions: int, max_length: int) -> None:
        super().__init__(decoder, max_sessions=max_sessions, max_length=max_length)
        self.determinism = "NearTie"

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        if sum(len(row.tokens) for row in rows) == 1:
            return super().forward(rows)
        with _HalfSums(), patch.object(FusedDecoder, "logits", _by_halves(FusedDecoder.logits)):
            return super().forward(rows)


def _by_halves(logits: Callable[[FusedDecoder, Tensor], Tensor]) -> Callable[[FusedDecoder, Tensor], Tensor]:
    """The head, whatever multiplies there: one half of each row, then the other."""

    def halved(decoder: FusedDecoder, hidden: Tensor) -> Tensor:
        left = torch.arange(hidden.shape[-1], device=hidden.device) < hidden.shape[-1] // 2
        return logits(decoder, hidden * left) + logits(decoder, hidden * ~left)

    return halved


class _HalfSums(TorchFunctionMode):
    """Products that are torch's own: x W^T = x1 W1^T + x2 W2^T, each part rounded before they are added."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.linear and func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        x, weight = args[:2]
        half = x.shape[-1] // 2
        left, right = (weight[:half], weight[half:]) if func in _PRODUCTS else (weight[:, :half], weight[:, half:])
        return func(x[..., :half], left) + func(x[..., half:], right)


_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
