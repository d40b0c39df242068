"""Knows what may be wrong with a torch engine, and what may differ in one that is right: edits of the running program.

Refuses to know how they are found out.

Two faults touch the rows of verifies alone, as faults of caches do: where their keys and values stand, and at which
position they are rotated. One engine has no fault but the habit of GPU libraries: it sums the products of several rows
in halves, and that of one row in one go.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.between import TorchStep
from tandem_runtime.engines.torch_engine.fused import FusedDecoder
from tandem_runtime.engines.torch_engine.linear import Multiplier

Hidden = Callable[..., Tensor]
"""`FusedDecoder.hidden`."""


def cache_off_by_one(hidden: Hidden) -> Hidden:
    """The keys and values of a verify are stored one position late."""

    def shifted(decoder: FusedDecoder, tokens: Tensor, positions: Tensor, step: TorchStep, **layers: Any) -> Tensor:
        rows = _verified_rows(positions)

        def attend_late(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return step.attend(layer, q, *(torch.cat((part[:rows].roll(1, 0), part[rows:])) for part in (k, v)))

        return hidden(decoder, tokens, positions, replace(step, attend=attend_late), **layers)

    return shifted


def wrong_position(hidden: Hidden) -> Hidden:
    """The rows of a verify are rotated as if they stood one position further on."""

    def moved(decoder: FusedDecoder, tokens: Tensor, positions: Tensor, step: TorchStep, **layers: Any) -> Tensor:
        further = positions.clone()
        further[: _verified_rows(positions)] += 1
        return hidden(decoder, tokens, further, step, **layers)

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


def _in_halves(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T = x1 W1^T + x2 W2^T, each rounded before they are added; one row in one go."""
    if len(x) == 1:
        return functional.linear(x, weight)
    half = x.shape[1] // 2
    return functional.linear(x[:, :half], weight[:, :half]) + functional.linear(x[:, half:], weight[:, half:])


STOCK = Multiplier(functional.linear, row_invariant=False, about="torch")
BY_COMPANY = Multiplier(_in_halves, row_invariant=False, about="torch, several rows in halves")
