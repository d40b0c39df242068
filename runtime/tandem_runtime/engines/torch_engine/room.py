"""Knows what a model's weights, keys and values take, and whether there is room for them: asked before any is taken.

Refuses to know whose room it is, and where numbers of it come from.

An operating system lends memory that it does not have: keys and values that are all zeros take none, and the process
is killed when they fill up, in the middle of other people's requests. So room is asked for when a model is loaded.
"""

import torch

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.options import AS_IS, EngineOptions
from tandem_runtime.engines.torch_engine.cache import block_bytes
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.engines.torch_engine.quantised import BITS, packed_bytes

__all__ = ["refuse_without_room", "weight_bytes"]


def weight_bytes(config: DecoderConfig, dtype: torch.dtype, *, weights: str = AS_IS) -> int:
    """What all weights take, a tied head counted once unless it is rounded."""
    with torch.device("meta"):
        decoder = Decoder(config)
    if weights != AS_IS:
        return packed_bytes(decoder, bits=BITS[weights], dtype=dtype)
    return sum(weight.numel() for weight in decoder.parameters()) * dtype.itemsize


def refuse_without_room(
    options: EngineOptions, config: DecoderConfig, *, dtype: torch.dtype, blocks: int, available: int
) -> None:
    """Raises ModelRefused where weights, and keys and values of `blocks`, take more than `available` bytes."""
    weights, memory = weight_bytes(config, dtype, weights=options.weights), (blocks + 1) * block_bytes(config, dtype)
    if weights + memory <= available:
        return
    kind = options.dtype if options.weights == AS_IS else options.weights
    held = f"{options.model}: its weights take {_gigabytes(weights)} as {kind}"
    there = f"but {_gigabytes(available)} are available"
    if weights >= available:
        raise ModelRefused(f"{held}, {there}; take a smaller model, a narrower --dtype or a larger machine")
    if options.kv_bytes is not None:
        raise ModelRefused(f"{held}, {there}; give --kv-bytes {available - weights} at most")
    length = "as long as the model allows" if options.max_length is None else f"of --max-length {options.max_length}"
    raise ModelRefused(
        f"{held}, and the keys and values of --max-sessions {options.max_sessions}, {length}, {_gigabytes(memory)},"
        f" {there}; lower --max-sessions or --max-length, or give --kv-bytes {available - weights} at most"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
