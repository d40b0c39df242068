"""Text from a decoder, a token at a time, for many sequences of equal length at once.

Refuses to know how a token is chosen: that is a function of the logits and of the offset.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.model import Decoder

Choose = Callable[[Tensor, int], Tensor]
"""Logits [batch, vocab] and the offset in the output -> token ids [batch]."""


class GrowingCache:
    """Keys and values of all earlier tokens: [batch, time, kv_heads, head_dim] per layer."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The whole prompt at once, then one token after another."""
        if layer in self._held:
            earlier_k, earlier_v = self._held[layer]
            k, v = torch.cat((earlier_k, k), dim=1), torch.cat((earlier_v, v), dim=1)
        self._held[layer] = k, v
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        return mixed.transpose(1, 2)


@torch.inference_mode()
def continue_text(decoder: Decoder, prompts: Tensor, tokens: int, choose: Choose) -> Tensor:
    """``prompts`` [batch, n] int64 followed by ``tokens`` chosen ones: [batch, n + tokens]."""
    cache, text = GrowingCache(), prompts
    fresh = prompts
    for offset in range(tokens):
        positions = torch.arange(text.shape[1] - fresh.shape[1], text.shape[1])
        rows = decoder.hidden(fresh, positions, cache.attend)[:, -1]
        fresh = choose(decoder.logits(rows), offset)[:, None]
        text = torch.cat((text, fresh), dim=1)
    return text


def greedy(logits: Tensor, _offset: int) -> Tensor:
    """The likeliest token of each row."""
    return logits.argmax(-1)


def drawn(chance: torch.Generator) -> Choose:
    """A token from each row's law at temperature 1."""
    return lambda logits, _offset: torch.multinomial(logits.softmax(-1), 1, generator=chance)[:, 0]
