"""A decoder of the Llama family as plain tensor algebra: token ids and positions in, logits out.

Refuses to know caches, masks, batching, files and sampling: whoever calls it says how rows attend to each other.

One layer, with RMS norm N (Zhang & Sennrich 2019), rotary positions R (Su et al. 2021), grouped queries (Ainslie et al.
2023) and a SwiGLU feed-forward (Shazeer 2020):

    x <- x + O . attend(R(Q N x), R(K N x), V N x)
    x <- x + D . (silu(G N x) * U N x)

All of the family is this, with additions that `DecoderConfig` switches on: biases on Q, K and V, on O, on the
feed-forward, and a norm of each head of Q and K before it turns (Henry et al. 2020). `architectures` says which model
has which.

Attention is a callback, so that one forward pass serves training and serving alike. Leading dimensions are free:
``[batch, time]`` with :func:`causal_attention` trains, a ragged flat ``[n]`` with the engine's own callback serves.
Modules carry the names of the Hugging Face layout, so that a safetensors file maps onto them without translation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tandem_runtime.engines.torch_engine.rotary import Scaling, frequencies, rotate, rotation

__all__ = [
    "Attend",
    "Decoder",
    "DecoderConfig",
    "Linear",
    "NothingDrawn",
    "causal_attention",
    "rotation_at",
    "shape_of",
]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v) -> mixed``.

``q`` is [..., heads, head_dim], ``k`` and ``v`` are [..., kv_heads, head_dim], positions already rotated in; the result
has the shape of ``q``. An engine stores ``k`` and ``v`` in its cache here, under the number of the layer.
"""

Linear = Callable[[Tensor, Tensor], Tensor]
"""``linear(x, weight) -> x weight^T``.

``x`` is [rows, inputs] and ``weight`` [outputs, inputs], as Hugging Face stores it; the result is [rows, outputs] in
the type of ``x``. Training multiplies by torch's own; an engine chooses one when it loads. Biases are the caller's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder; where Hugging Face's ``config.json`` has a field for it, the name is the same."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Scaling | None = None
    tie_word_embeddings: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    sliding_window: int | None = None

    @property
    def max_length(self) -> int:
        """Positions at which this arithmetic is the model's: within a sliding window every layer still sees all."""
        return min(self.max_position_embeddings, self.sliding_window or self.max_position_embeddings)


class Decoder(nn.Module):
    """A whole model: trunk and head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Trunk(config)
        untied = not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if untied else None

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Logits [..., vocab] of the token that follows each of ``tokens`` [...] int64 at ``positions`` [...] int64."""
        return self.logits(self.hidden(tokens, positions, attend))

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Normed last hidden rows [..., hidden]: an engine picks those whose logits it needs, then calls `logits`."""
        rows: Tensor = self.model(tokens, positions, attend)
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows [..., hidden] to logits [..., vocab]."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(hidden, head.weight)


def shape_of(config: DecoderConfig) -> Decoder:
    """The decoder of `config` on torch's device "meta": names, shapes and no numbers."""
    with torch.device("meta"), NothingDrawn():
        return Decoder(config)


class NothingDrawn(TorchFunctionMode):
    """Weights of modules made within stay as memory is: to draw them on "meta", torch imports its compiler, in 3 s."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


def causal_attention(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in whole sequences, no cache: ``q`` [batch, time, heads, d], ``k`` and ``v`` [batch, time, kv, d]."""
    mixed = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=q.shape[2] != k.shape[2]
    )
    return mixed.transpose(1, 2)


class _Trunk(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.embed_tokens(tokens)
        turns = rotation_at(positions, self.config, x.dtype)
        for layer in self.layers:
            x = layer(x, turns, attend)
        normed: Tensor = self.norm(x)
        return normed


class _Layer(nn.Module):
    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = _Attention(config, index)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = _FeedForward(config)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns, attend)
        fed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return fed


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.head_dim = config.head_dim
        wide, narrow = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, wide, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, narrow, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, narrow, bias=config.qkv_bias)
        self.o_proj = nn.Linear(wide, config.hidden_size, bias=config.out_bias)
        self.q_norm = _head_norm(config)
        self.k_norm = _head_norm(config)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        q, k, v = (self._by_head(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = attend(self.index, rotate(self.q_norm(q), turns), rotate(self.k_norm(k), turns), v)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.head_dim)


class _FeedForward(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return fed


def _head_norm(config: DecoderConfig) -> nn.Module:
    return nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if config.head_norms else nn.Identity()


def rotation_at(positions: Tensor, config: DecoderConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., 1, head_dim / 2] of the angles by which heads turn at ``positions`` [...]."""
    turning = frequencies(config.head_dim, config.rope_theta, config.rope_scaling, device=positions.device)
    return rotation(positions, turning, dtype)
