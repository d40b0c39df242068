"""Knows a decoder's weights as serving wants them: the arithmetic of `model` in fewer and larger operations.

Refuses to know caches, batching and files, as `model` does; training stays there.

With a handful of rows, a step of a small model is spent on starting operations, not in them. So products that share
their input become one, at load: Q, K and V, and the two halves of the feed-forward. The rotation is a table over
positions, and turns the heads of queries and keys together: for a pair (a, b) of a head at angle t

    (a, b) cos t + (b, a) (-sin t, sin t)

Adapters come in by a callback, as attention does: after a product, and before anything else sees what it made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from tandem_runtime.engines.torch_engine.model import Attend, Decoder, DecoderConfig, Linear, rotation_at

__all__ = ["JOINED", "Adapt", "FusedDecoder", "Place"]

JOINED: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q", "self_attn.k", "self_attn.v"),
    "out": ("self_attn.o",),
    "gate_up": ("mlp.gate", "mlp.up"),
    "down": ("mlp.down",),
}
"""The products of a layer, and the projections of `model` whose outputs each gives, one after the other."""

Place: TypeAlias = tuple[int, str]
"""A layer's number and one of its products by its name in `JOINED`."""

Adapt = Callable[[Place, Tensor, Tensor], Tensor]
"""``adapt(place, x, y) -> y + what adapters add``: ``x`` [n, inputs] is what the product at ``place`` was given, ``y``
[n, outputs] what it made, and the callee's to write into."""


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """`weight` [outputs, inputs] and, where the model has it, `bias` [outputs]."""

    place: Place
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """`qkv` [(heads + 2 kv_heads) x d, hidden] and `gate_up` [2 x intermediate, hidden] are several weights in one.

    `head_norms` [heads + kv_heads, d], where the model has them, norm the heads of queries and keys before they turn.
    """

    attention_norm: Tensor
    qkv: _Product
    head_norms: Tensor | None
    out: _Product
    feed_norm: Tensor
    gate_up: _Product
    down: _Product


class FusedDecoder:
    """`Decoder.hidden` and `Decoder.logits` over rows [n], at positions below `length`, every product by `linear`.

    The weights of `decoder` become views of the joined ones: it computes as before, and nothing is held twice.
    """

    def __init__(self, decoder: Decoder, *, length: int, linear: Linear) -> None:
        weights = dict(decoder.named_parameters())
        self.config = decoder.config
        self._linear = linear
        self.embedding: Tensor = weights["model.embed_tokens.weight"]
        self._head = weights.get("lm_head.weight", self.embedding)
        self._norm = weights["model.norm.weight"]
        self._epsilon = torch.tensor(self.config.rms_norm_eps, device=self.embedding.device)
        self._layers = [_layer(weights, index, self.config) for index in range(self.config.num_hidden_layers)]
        self._table = _rotation_table(self.config, length, like=self.embedding)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        adapt: Adapt | None = None,
        layers: int | None = None,
    ) -> Tensor:
        """As `Decoder.hidden`, for `tokens` and `positions` [n], by the first `layers` only; None: by all."""
        x = functional.embedding(tokens, self.embedding)
        turns = self._table[positions]
        for index, layer in enumerate(self._layers[:layers]):
            queries, keys, values = self._heads(self._normed(x, layer.attention_norm), layer, turns, adapt)
            x = x + self._product(attend(index, queries, keys, values).flatten(1), layer.out, adapt)
            gate, up = self._product(self._normed(x, layer.feed_norm), layer.gate_up, adapt).chunk(2, dim=-1)
            x = x + self._product(functional.silu(gate) * up, layer.down, adapt)
        return self._normed(x, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`."""
        return self._linear(hidden, self._head)

    def _product(self, x: Tensor, product: _Product, adapt: Adapt | None) -> Tensor:
        out = self._linear(x, product.weight)
        biased = out if product.bias is None else out + product.bias
        return biased if adapt is None else adapt(product.place, x, biased)

    def _heads(self, x: Tensor, layer: _Layer, turns: Tensor, adapt: Adapt | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [n, hidden] -> turned queries, turned keys, values, each [n, its heads, d]."""
        heads, key_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        by_head = self._product(x, layer.qkv, adapt).view(len(x), -1, self.config.head_dim)
        turning, values = torch.split(by_head, [heads + key_heads, key_heads], dim=1)
        if layer.head_norms is not None:
            turning = self._normed(turning, layer.head_norms)
        cosine, sine = turns.chunk(2, dim=-1)
        turned = torch.addcmul(turning * cosine, turning.roll(self.config.head_dim // 2, dims=-1), sine)
        queries, keys = torch.split(turned, [heads, key_heads], dim=1)
        return queries, keys, values

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """`functional.rms_norm`, by the length of each row: half as many operations on a CPU."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon, length, length, value=1 / x.shape[-1]).rsqrt_()
        return (x * scale).to(x.dtype) * weight


def _layer(weights: Mapping[str, nn.Parameter], index: int, config: DecoderConfig) -> _Layer:
    name = f"model.layers.{index}"

    def joined(product: str) -> _Product:
        parts = JOINED[product]
        biases = [weights[bias] for part in parts if (bias := f"{name}.{part}_proj.bias") in weights]
        weight = _joined([weights[f"{name}.{part}_proj.weight"] for part in parts])
        return _Product((index, product), weight, torch.cat([bias.detach() for bias in biases]) if biases else None)

    return _Layer(
        attention_norm=weights[f"{name}.input_layernorm.weight"],
        qkv=joined("qkv"),
        head_norms=_head_norms(weights, name, config) if config.head_norms else None,
        out=joined("out"),
        feed_norm=weights[f"{name}.post_attention_layernorm.weight"],
        gate_up=joined("gate_up"),
        down=joined("down"),
    )


def _head_norms(weights: Mapping[str, nn.Parameter], name: str, config: DecoderConfig) -> Tensor:
    query, key = (weights[f"{name}.self_attn.{part}_norm.weight"].detach() for part in "qk")
    return torch.cat((query.expand(config.num_attention_heads, -1), key.expand(config.num_key_value_heads, -1)))


def _joined(weights: Sequence[nn.Parameter]) -> Tensor:
    """Weights [outputs, inputs] as one of [all outputs, inputs], of which they become views."""
    whole = torch.cat([weight.detach() for weight in weights])
    parts = torch.split(whole, [len(weight) for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.data = part
    return whole


def _rotation_table(config: DecoderConfig, length: int, *, like: Tensor) -> Tensor:
    """[length, 1, 2 d]: for each position cos, cos, -sin, sin of the angles of a head's d / 2 pairs."""
    cosine, sine = rotation_at(torch.arange(length, device=like.device), config, like.dtype)
    return torch.cat((cosine, cosine, -sine, sine), dim=-1)
