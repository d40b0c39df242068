"""Knows where the keys and values of every session stand.

Refuses to know models, sampling, how queries attend, and which session a slot belongs to.

The cache of one layer is [slots, kv_heads, length, head_dim]. Rolling back is writing again from an earlier position:
what stands beyond a query's position is masked, so it never needs to be erased.
"""

import torch

from tandem_runtime.engines.torch_engine.model import DecoderConfig

__all__ = ["KeyValueCache", "padded_keys"]

_KEY_COUNTS, _KEYS_AT_ONCE = (64, 128, 192, 384, 512), 512


def padded_keys(count: int) -> int:
    """padded_keys(64) = 64, padded_keys(193) = 384, padded_keys(520) = 512 + 64."""
    whole, rest = divmod(count, _KEYS_AT_ONCE)
    return whole * _KEYS_AT_ONCE + (next(allowed for allowed in _KEY_COUNTS if allowed >= rest) if rest else 0)


class KeyValueCache:
    """Keys and values of `slots` sessions, and one slot more in which the filling rows of a step may write."""

    def __init__(
        self, config: DecoderConfig, *, slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.spare = slots
        self.length = padded_keys(length)
        shape = (slots + 1, config.num_key_value_heads, self.length, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]

    def clear(self, slot: int) -> None:
        """A masked key weighs 0, and 0 times a number is 0: so no NaN of an earlier session may stay behind."""
        for layer in (*self.keys, *self.values):
            layer[slot].zero_()
