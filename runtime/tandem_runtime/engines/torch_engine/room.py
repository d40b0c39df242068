"""Knows what a model's weights, keys and values take, and whether there is room for them: asked before any is taken.

Refuses to know whose room it is, and where numbers of it come from.

An operating system lends memory that it does not have, and kills a process for it later. So whether there is room is
asked before a model is loaded; its keys and values are then taken whole, and the next to ask sees what is left.
"""

import torch

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.options import AS_IS, EngineOptions
from tandem_runtime.engines.torch_engine.cache import BLOCK_TOKENS, block_bytes, blocks_of, blocks_within
from tandem_runtime.engines.torch_engine.model import DecoderConfig, shape_of
from tandem_runtime.engines.torch_engine.quantised import BITS, packed_bytes
from tandem_runtime.ports import Toll

__all__ = ["DEFAULT_SHARE", "gigabytes", "lent_blocks", "logits_bytes", "toll_of", "weight_bytes"]

DEFAULT_SHARE = 0.5
"""The rest is for what steps need in passing, and for another engine in the same process."""


def weight_bytes(config: DecoderConfig, dtype: torch.dtype, *, weights: str = AS_IS) -> int:
    """What all weights take, a tied head counted once unless it is rounded."""
    decoder = shape_of(config)
    if weights != AS_IS:
        return packed_bytes(decoder, bits=BITS[weights], dtype=dtype)
    return sum(weight.numel() for weight in decoder.parameters()) * dtype.itemsize


def logits_bytes(options: EngineOptions, config: DecoderConfig, dtype: torch.dtype) -> int:
    """Of the largest step: as they are computed, and beside that as fp32 where they are not."""
    rows = min(options.max_sessions * options.outputs, options.step_rows)
    widened = 0 if dtype == torch.float32 else torch.float32.itemsize
    return rows * config.vocab_size * (dtype.itemsize + widened)


def toll_of(config: DecoderConfig, dtype: torch.dtype, *, outputs: int, weights: str = AS_IS) -> Toll:
    """What a step costs at the least. A head that is no embedding too leaves the embedding unread, but for its rows."""
    decoder = shape_of(config)
    embedding = decoder.model.embed_tokens.weight.numel()
    layers = sum(weight.numel() for weight in decoder.model.parameters() if weight.dim() > 1) - embedding
    unread = 0 if decoder.lm_head is None else embedding * dtype.itemsize
    heads = config.num_attention_heads * config.head_dim
    return Toll(
        weight_bytes=weight_bytes(config, dtype, weights=weights) - unread,
        position_bytes=block_bytes(config, dtype) // BLOCK_TOKENS,
        layer_weights=layers,
        head_weights=outputs * config.hidden_size,
        position_products=2 * config.num_hidden_layers * heads,
    )


def lent_blocks(
    options: EngineOptions, config: DecoderConfig, *, dtype: torch.dtype, length: int, available: int
) -> int:
    """How many blocks of keys and values sessions of up to `length` positions get of `available` bytes.

    `kv_bytes` says it. Left out, they get what all of them need at full length, but no more than DEFAULT_SHARE of what
    the weights and a step's logits leave: then sessions wait for each other. Raises ModelRefused where one session
    would not fit, and where more is asked for than there is.
    """
    weights, one = weight_bytes(config, dtype, weights=options.weights), blocks_of(length)
    kind = options.dtype if options.weights == AS_IS else options.weights
    logits = logits_bytes(options, config, dtype)
    held = (
        f"{options.model}: its weights take {gigabytes(weights)} as {kind}, but {gigabytes(available)} are available, "
        f"and logits of a full step take {gigabytes(logits)}"
    )
    left = available - weights - logits
    if left <= 0:
        smaller = "a smaller model, a narrower --dtype or a larger machine"
        raise ModelRefused(f"{held}; take {smaller}, or lower --max-sessions")
    if options.kv_bytes is not None and options.kv_bytes > left:
        raise ModelRefused(f"{held}; give --kv-bytes {left} at most")
    budget = int(left * DEFAULT_SHARE) if options.kv_bytes is None else options.kv_bytes
    blocks, needed = blocks_within(budget, config, dtype), (one + 1) * block_bytes(config, dtype)
    if blocks >= one:
        return blocks if options.kv_bytes is not None else min(blocks, options.max_sessions * one)
    asked = f"one session of --max-length {length} needs {needed} bytes"
    if options.kv_bytes is None:
        more = f", or give --kv-bytes {left} at most" if needed <= left else ""
        raise ModelRefused(f"{held}; {asked}: lower --max-length{more}")
    raise ModelRefused(f"--kv-bytes {options.kv_bytes}: {asked}; give as much, or lower --max-length")


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
