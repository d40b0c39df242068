"""Knows a decoder's weights as serving wants them: the arithmetic of `model` in fewer and larger operations.

Refuses to know caches, batching and files, as `model` does; training stays there.

With a handful of rows, a step of a small model is spent on starting operations, not in them. So products that share
their input become one, at load: Q, K and V, and the two halves of the feed-forward. What lies between products is a
`Step`'s. The rotation is a table over positions, and turns the heads of queries and keys together: for a pair (a, b) of
a head at angle t

    (a, b) cos t + (b, a) (-sin t, sin t)

Adapters come in by a callback, as attention does: after a product, and before anything else sees what it made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from tandem_runtime.engines.torch_engine.between import Step
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig, Linear, rotation_at
from tandem_runtime.engines.torch_engine.shelf import Shelf

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
        shelf = _shelf_for([weight for weight in weights.values() if weight.dim() > 1])
        self.embedding: Tensor = _joined([weights["model.embed_tokens.weight"]], shelf)
        self._head = _joined([weights["lm_head.weight"]], shelf) if "lm_head.weight" in weights else self.embedding
        self._norm = weights["model.norm.weight"]
        self._layers = [_layer(weights, index, self.config, shelf) for index in range(self.config.num_hidden_layers)]
        self._table = _rotation_table(self.config, length, like=self.embedding)

    def hidden(
        self, tokens: Tensor, positions: Tensor, step: Step, *, adapt: Adapt | None = None, layers: int | None = None
    ) -> Tensor:
        """As `Decoder.hidden`, for `tokens` and `positions` [n], by the first `layers` only; None: by all."""
        x = functional.embedding(tokens, self.embedding)
        used = self._layers[:layers]
        normed = step.normed(x, used[0].attention_norm)
        for index, (layer, norm) in enumerate(zip(used, self._norms_after(used), strict=True)):
            qkv = self._product(normed, layer.qkv, adapt)
            mixed = step.mixed(index, qkv, layer.head_norms, self._table, positions)
            x, normed = step.added(x, self._product(mixed, layer.out, adapt), layer.feed_norm)
            gated = step.gated(self._product(normed, layer.gate_up, adapt))
            x, normed = step.added(x, self._product(gated, layer.down, adapt), norm)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`."""
        return self._linear(hidden, self._head)

    def _product(self, x: Tensor, product: _Product, adapt: Adapt | None) -> Tensor:
        out = self._linear(x, product.weight)
        biased = out if product.bias is None else out + product.bias
        return biased if adapt is None else adapt(product.place, x, biased)

    def _norms_after(self, layers: Sequence[_Layer]) -> list[Tensor]:
        """What norms the rows that each of `layers` makes."""
        return [*(layer.attention_norm for layer in layers[1:]), self._norm]


def _layer(weights: Mapping[str, nn.Parameter], index: int, config: DecoderConfig, shelf: Shelf) -> _Layer:
    name = f"model.layers.{index}"

    def joined(product: str) -> _Product:
        parts = JOINED[product]
        biases = [weights[bias] for part in parts if (bias := f"{name}.{part}_proj.bias") in weights]
        weight = _joined([weights[f"{name}.{part}_proj.weight"] for part in parts], shelf)
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


def _shelf_for(weights: Sequence[Tensor]) -> Shelf:
    return Shelf(sum(weight.nbytes for weight in weights), count=len(weights), device=weights[0].device)


def _joined(weights: Sequence[nn.Parameter], shelf: Shelf) -> Tensor:
    """Weights [outputs, inputs] as one of [all outputs, inputs], of which they become views."""
    whole = shelf.take(sum(map(len, weights)), weights[0].shape[1], weights[0].dtype)
    parts = torch.split(whole, [len(weight) for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.data = part.copy_(weight.detach())
    return whole


def _rotation_table(config: DecoderConfig, length: int, *, like: Tensor) -> Tensor:
    """[length, 1, 2 d]: for each position cos, cos, -sin, sin of the angles of a head's d / 2 pairs."""
    cosine, sine = rotation_at(torch.arange(length, device=like.device), config, like.dtype)
    return torch.cat((cosine, cosine, -sine, sine), dim=-1)
