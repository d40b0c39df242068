"""Knows a decoder's weights as serving wants them: the arithmetic of `model` in fewer and larger operations.

Refuses to know caches, batching and files, as `model` does; training stays there.

With a handful of rows, a step of a small model is spent on starting operations, not in them. So products that share
their input become one, at load: Q, K and V, and the two halves of the feed-forward. What lies between products is a
`Step`'s. The rotation is a table over positions, and turns the heads of queries and keys together: for a pair (a, b) of
a head at angle t

    (a, b) cos t + (b, a) (-sin t, sin t)

Adapters come in by a callback, as attention does: after a product, and before anything else sees what it made.

Whoever loads a model gives its weights their places here (`place`) and writes each one there: weights that a product
joins then stand behind each other, so that joining them moves nothing, and nothing is ever held twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from tandem_runtime.engines.torch_engine.between import Step
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig, Linear, rotation_at
from tandem_runtime.engines.torch_engine.shelf import Shelf, adjoining

__all__ = ["JOINED", "Adapt", "Form", "FusedDecoder", "Place", "place"]

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

Form: TypeAlias = tuple[int, torch.dtype]
"""How the weight of a product is held: so many numbers of that type for each output."""

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


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

    Weights of `decoder` that do not stand together yet are copied, and become views of the joined ones. Of the head the
    first `ids` rows are used, all where it has fewer: the logits have that many columns.
    """

    def __init__(self, decoder: Decoder, *, length: int, linear: Linear, ids: int | None = None) -> None:
        weights = dict(decoder.named_parameters())
        self.config = decoder.config
        self._linear = linear
        self.embedding: Tensor = weights[EMBEDDING].detach()
        self._head = (weights[HEAD].detach() if HEAD in weights else self.embedding)[:ids]
        self._norm = weights["model.norm.weight"]
        self._layers = [_layer(weights, index, self.config) for index in range(self.config.num_hidden_layers)]
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

    @property
    def ids(self) -> int:
        return len(self._head)

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`, of the first `ids`."""
        return self._linear(hidden, self._head)

    def _product(self, x: Tensor, product: _Product, adapt: Adapt | None) -> Tensor:
        out = self._linear(x, product.weight)
        biased = out if product.bias is None else out + product.bias
        return biased if adapt is None else adapt(product.place, x, biased)

    def _norms_after(self, layers: Sequence[_Layer]) -> list[Tensor]:
        """What norms the rows that each of `layers` makes."""
        return [*(layer.attention_norm for layer in layers[1:]), self._norm]


def place(decoder: Decoder, forms: Mapping[str, Form], *, dtype: torch.dtype, device: torch.device) -> None:
    """Memory on `device` for all weights of `decoder`, which has none (`shape_of`); it holds anything until it is
    written. Weights are of `dtype`, but for those of products that have a form of their own, by name."""
    empty = dict(decoder.named_parameters())
    lines = {name: forms.get(name, (weight.shape[-1], dtype)) for name, weight in empty.items() if weight.dim() > 1}
    size = sum(len(empty[name]) * width * kind.itemsize for name, (width, kind) in lines.items())
    shelf = Shelf(size, count=len(lines), device=device)
    for names in _together(decoder):
        rows = [len(empty[name]) for name in names]
        for name, part in zip(names, torch.split(shelf.take(sum(rows), *lines[names[0]]), rows), strict=True):
            _settle(decoder, name, part)
    for name in empty.keys() - lines.keys():
        _settle(decoder, name, torch.empty(empty[name].shape, dtype=dtype, device=device))


def _together(decoder: Decoder) -> list[list[str]]:
    """The names of all weights [outputs, inputs], those of one product together."""
    layers = [
        [_weight_name(index, part) for part in parts]
        for index in range(decoder.config.num_hidden_layers)
        for parts in JOINED.values()
    ]
    return [[EMBEDDING], *([] if decoder.lm_head is None else [[HEAD]]), *layers]


def _weight_name(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{part}_proj.weight"


def _settle(decoder: Decoder, name: str, memory: Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(decoder.get_submodule(module), leaf, nn.Parameter(memory, requires_grad=False))


def _layer(weights: Mapping[str, nn.Parameter], index: int, config: DecoderConfig) -> _Layer:
    name = f"model.layers.{index}"

    def joined(product: str) -> _Product:
        parts = JOINED[product]
        biases = [weights[bias] for part in parts if (bias := f"{name}.{part}_proj.bias") in weights]
        weight = _joined([weights[_weight_name(index, part)] for part in parts])
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
    """Weights [outputs, inputs] as one of [all outputs, inputs], of which they are, or become, views."""
    whole = adjoining(weights)
    if whole is None:
        whole = torch.cat([weight.detach() for weight in weights])
        for weight, part in zip(weights, torch.split(whole, [len(weight) for weight in weights]), strict=True):
            weight.data = part
    return whole


def _rotation_table(config: DecoderConfig, length: int, *, like: Tensor) -> Tensor:
    """[length, 1, 2 d]: for each position cos, cos, -sin, sin of the angles of a head's d / 2 pairs."""
    cosine, sine = rotation_at(torch.arange(length, device=like.device), config, like.dtype)
    return torch.cat((cosine, cosine, -sine, sine), dim=-1)
