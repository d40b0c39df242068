"""Knows rotary positions: by what angle each pair of a head turns at each position, plain and scaled.

Refuses to know models and files.

Pair i of a head of d numbers turns by position x f_i, f_i = theta^(-2i/d) (Su et al. 2021). Models that were stretched
to longer texts after training turn slower: `linear` by the same factor everywhere (Chen et al. 2023), `llama3` (Dubey
et al. 2024) only where a turn takes longer than the original context could show, with a ramp between. In full turns
per original context r_i = context x f_i / 2 pi:

    r_i > high    f_i                                       r_i < low    f_i / factor
    between       (1 - s) f_i / factor + s f_i,  s = (r_i - low) / (high - low)
"""

import math
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

__all__ = ["LinearScaling", "Llama3Scaling", "Scaling", "frequencies", "rotate", "rotation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """The names are those of Hugging Face's `rope_parameters`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


Scaling = LinearScaling | Llama3Scaling


def frequencies(width: int, theta: float, scaling: Scaling | None, *, device: torch.device) -> Tensor:
    """f [width / 2] float32, by transformers' order of operations: at position 100,000 a bit of f is 0.01 of angle."""
    plain = 1.0 / theta ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    match scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling():
            return _slowed(plain, scaling)
        case _:
            assert_never(scaling)


def _slowed(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    length = 2 * math.pi / plain
    share = (scaling.original_max_position_embeddings / length - low) / (high - low)
    return torch.lerp(plain / scaling.factor, plain, share.clamp(0, 1))


def rotation(positions: Tensor, turning: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., 1, width / 2] at `positions` [...] for frequencies `turning`; the angles need float32."""
    angles = positions[..., None, None].float() * turning
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(rows: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + d/2) of each head by their angles: the half-split order of the Hugging Face weights."""
    cosine, sine = turns
    left, right = rows.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
