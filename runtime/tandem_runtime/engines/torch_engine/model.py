"""A decoder of the Llama family as plain tensor algebra: token ids and positions in, logits out.

Refuses to know caches, masks, batching, files and sampling: whoever calls it says how rows attend to each other.

One layer, with RMS norm N (Zhang & Sennrich 2019), rotary positions R (Su et al. 2021), grouped queries (Ainslie et al.
2023) and a SwiGLU feed-forward (Shazeer 2020):

    x <- x + O . attend(R(Q N x), R(K N x), V N x)
    x <- x + D . (silu(G N x) * U N x)

Attention is a callback, so that one forward pass serves training and serving alike. Leading dimensions are free:
``[batch, time]`` with :func:`causal_attention` trains, a ragged flat ``[n]`` with the engine's own callback serves.
Modules carry the names of the Hugging Face layout, so that a safetensors file maps onto them without translation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Attend", "Decoder", "DecoderConfig", "Linear", "causal_attention", "rotation_at"]

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
    """The shape of a decoder; the names are those of Hugging Face's ``config.json``."""

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
    tie_word_embeddings: bool = True


class Decoder(nn.Module):
    """A whole model: trunk and head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Trunk(config)
        self.lm_head = None if config.tie_word_embeddings else _linear(config.hidden_size, config.vocab_size)

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
        self.norm = _norm(config)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.embed_tokens(tokens)
        rotation = rotation_at(positions, self.config, x.dtype)
        for layer in self.layers:
            x = layer(x, rotation, attend)
        normed: Tensor = self.norm(x)
        return normed


class _Layer(nn.Module):
    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.self_attn = _Attention(config, index)
        self.post_attention_layernorm = _norm(config)
        self.mlp = _FeedForward(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, attend)
        fed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return fed


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.head_dim = config.head_dim
        self.q_proj = _linear(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.k_proj = _linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.v_proj = _linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = _linear(config.num_attention_heads * config.head_dim, config.hidden_size)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        q, k, v = (self._by_head(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = attend(self.index, _rotate(q, rotation), _rotate(k, rotation), v)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.head_dim)


class _FeedForward(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return fed


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _norm(config: DecoderConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


def rotation_at(positions: Tensor, config: DecoderConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., 1, head_dim / 2] of the angles position x theta^(-2i/d), which need float32."""
    exponents = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
    angles = positions[..., None, None].float() * config.rope_theta**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(rows: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + d/2) of each head by their angles: the half-split order of the Hugging Face weights."""
    cosine, sine = rotation
    left, right = rows.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
