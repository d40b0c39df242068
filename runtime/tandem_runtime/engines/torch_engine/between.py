"""Knows what lies between the products of a layer - norms, rotation, attention, gating - by torch's operations.

Refuses to know weights of products, and which layers there are.

This is the reference, and what a GPU computes by. `native_between` does the same on a CPU in four calls per layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.attention import Attention
from tandem_runtime.engines.torch_engine.cache import KeyValueCache
from tandem_runtime.engines.torch_engine.model import Attend, DecoderConfig
from tandem_runtime.ports import Row

__all__ = ["Between", "Step", "TorchBetween"]


class Step(Protocol):
    """One step over rows [n, ...]. What a method returns holds until the next call of the same one."""

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """The RMS norm of rows [n, width], by `weight` [width]."""
        ...

    def added(self, x: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """x + delta, and its norm. `x` may be written into."""
        ...

    def mixed(self, layer: int, qkv: Tensor, norms: Tensor | None, table: Tensor, positions: Tensor) -> Tensor:
        """What queries of `qkv` [n, (heads + 2 kv_heads) d] at `positions` [n] find in their sequences, [n, heads d].

        Queries and keys are normed by `norms` [heads + kv_heads, d], if there are, and turned: `table` [positions, 1,
        2 d] has cos, cos, -sin, sin of the angles of d / 2 pairs. `qkv` may be written into.
        """
        ...

    def gated(self, gate_up: Tensor) -> Tensor:
        """[n, 2 width] -> silu(gate) up [n, width]"""
        ...


class Between(Protocol):
    def step(self, cache: KeyValueCache, rows: Sequence[Row]) -> Step:
        """A step of `rows`, one after the other, which attend to their own sequences in `cache`."""
        ...


class TorchBetween:
    """`Between` on any device."""

    def __init__(self, config: DecoderConfig, *, device: torch.device) -> None:
        self._config = config
        self._epsilon = torch.tensor(config.rms_norm_eps, device=device)

    def step(self, cache: KeyValueCache, rows: Sequence[Row]) -> "TorchStep":
        return TorchStep(self._config, self._epsilon, Attention(cache, rows))


@dataclass(frozen=True, slots=True, eq=False)
class TorchStep:
    """`Step` by torch's operations."""

    config: DecoderConfig
    epsilon: Tensor
    attend: Attend

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """`functional.rms_norm`, by the length of each row: half as many operations."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self.epsilon, length, length, value=1 / x.shape[-1]).rsqrt_()
        return (x * scale).to(x.dtype) * weight

    def added(self, x: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x = x + delta
        return x, self.normed(x, weight)

    def mixed(self, layer: int, qkv: Tensor, norms: Tensor | None, table: Tensor, positions: Tensor) -> Tensor:
        heads, key_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        by_head = qkv.view(len(qkv), -1, self.config.head_dim)
        turning, values = torch.split(by_head, [heads + key_heads, key_heads], dim=1)
        if norms is not None:
            turning = self.normed(turning, norms)
        cosine, sine = table[positions].chunk(2, dim=-1)
        turned = torch.addcmul(turning * cosine, turning.roll(self.config.head_dim // 2, dims=-1), sine)
        queries, keys = torch.split(turned, [heads, key_heads], dim=1)
        return self.attend(layer, queries, keys, values).flatten(1)

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up
