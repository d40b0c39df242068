"""A folder in the Hugging Face layout -> a ready decoder, or an error that says what is wrong with which file.

Refuses to know engines and devices' memory beyond the request it is given.

Everything that can be checked is checked on the headers, before a weight is read: the architecture, each option of
``config.json`` that would change the arithmetic, the name, shape and type of every tensor. A model this decoder would
compute wrongly is refused, never approximated.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.model_folder import read_object

__all__ = ["load_decoder", "read_config"]

ARCHITECTURE = "LlamaForCausalLM"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"
LARGEST_SIZE = 10_000_000
MOST_LAYERS = 10_000
"""Far above any model; beyond them a broken file would have us build shapes for minutes, or overflow them."""
STORED_TYPES = frozenset({"F32", "F16", "BF16"})

_PLAIN: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
}
"""Options of config.json that must have this value, or be absent: any other means arithmetic we do not do."""


def load_decoder(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Decoder:
    """The model of ``folder``, in evaluation mode, its weights converted to ``dtype``.

    Raises ModelRefused, naming the file and the field or tensor, before memory for weights is taken.
    """
    with torch.device("meta"):
        decoder = Decoder(read_config(folder))
    wanted = {name: tuple(weight.shape) for name, weight in decoder.state_dict().items()}
    homes = _homes(folder)
    _check(wanted, homes)
    weights = {name: _read(homes[name], name).to(device=device, dtype=dtype) for name in wanted}
    decoder.load_state_dict(weights, assign=True)
    return decoder.eval().requires_grad_(False)


def read_config(folder: Path) -> DecoderConfig:
    """``config.json`` of ``folder`` as the decoder's shape."""
    path = folder / "config.json"
    written = read_object(path)
    _check_architecture(path, written)
    heads = _whole(path, written, "num_attention_heads")
    hidden = _whole(path, written, "hidden_size")
    config = DecoderConfig(
        vocab_size=_whole(path, written, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_whole(path, written, "intermediate_size"),
        num_hidden_layers=_whole(path, written, "num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=_whole(path, written, "num_key_value_heads", absent=heads),
        head_dim=_whole(path, written, "head_dim", absent=hidden // heads),
        max_position_embeddings=_whole(path, written, "max_position_embeddings"),
        rms_norm_eps=_real(path, written, "rms_norm_eps", absent=1e-6),
        rope_theta=_rope_theta(path, written),
        tie_word_embeddings=bool(written.get("tie_word_embeddings", False)),
    )
    _check_heads(path, config)
    return config


def _refused(path: Path, field: str | None, value: object, what: str) -> ModelRefused:
    """One line: the file, the field or tensor and its value where there is one, and what is wanted."""
    return ModelRefused(f"{path}: {what}" if field is None else f"{path}: {field} = {value!r}: {what}")


def _check_architecture(path: Path, written: Mapping[str, Any]) -> None:
    named = written.get("architectures") or []
    if named != [ARCHITECTURE]:
        raise _refused(path, "architectures", named, f"this engine runs [{ARCHITECTURE!r}]")
    for option, plain in _PLAIN.items():
        value = written.get(option)
        if value is not None and value != plain:
            raise _refused(path, option, value, f"this engine computes {option} = {plain!r} only")


def _check_heads(path: Path, config: DecoderConfig) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        refusal = f"must divide num_attention_heads = {config.num_attention_heads}"
        raise _refused(path, "num_key_value_heads", config.num_key_value_heads, refusal)
    if config.head_dim % 2:
        raise _refused(path, "head_dim", config.head_dim, "rotary positions turn pairs: give an even number")


def _rope_theta(path: Path, written: Mapping[str, Any]) -> float:
    """The base of the rotary angles, at the top level (transformers 4) or under rope_parameters (transformers 5)."""
    nested = written.get("rope_parameters") or {}
    if not isinstance(nested, dict):
        raise _refused(path, "rope_parameters", nested, "give an object")
    kind = nested.get("rope_type", "default")
    if kind != "default":
        raise _refused(path, "rope_parameters.rope_type", kind, "this engine computes 'default' only")
    return _real(path, {"rope_theta": 10_000.0, **written, **nested}, "rope_theta", absent=10_000.0)


def _whole(
    path: Path, written: Mapping[str, Any], field: str, *, absent: int | None = None, most: int = LARGEST_SIZE
) -> int:
    value = written.get(field)
    if value is None and absent is not None:
        return absent
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _refused(path, field, value, f"give a whole number from 1 to {most}")
    return value


def _real(path: Path, written: Mapping[str, Any], field: str, *, absent: float) -> float:
    value = written.get(field)
    if value is None:
        return absent
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise _refused(path, field, value, "give a number above 0")
    return float(value)


def _homes(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor: the index says so, or the one file holds them all."""
    index = folder / WEIGHTS_INDEX
    if index.exists():
        placed = read_object(index).get("weight_map")
        if not isinstance(placed, dict):
            raise _refused(index, "weight_map", placed, "give a map of tensor names to files")
        return {str(name): folder / str(file) for name, file in placed.items()}
    with _opened(folder / WEIGHTS) as file:
        return dict.fromkeys(file.keys(), folder / WEIGHTS)


def _check(wanted: Mapping[str, tuple[int, ...]], homes: Mapping[str, Path]) -> None:
    """Each wanted tensor is there, with its shape and a type we read; nothing else is there but a tied head's copy."""
    somewhere = next(iter(homes.values()), Path(WEIGHTS))
    for name, shape in wanted.items():
        if name not in homes:
            raise _refused(somewhere, name, None, f"a tensor of shape {list(shape)} is missing")
        with _opened(homes[name]) as file:
            if name not in file.keys():  # noqa: SIM118  # a handle of safetensors is no mapping
                raise _refused(homes[name], name, None, "the index places this tensor here, but it is not")
            stored = file.get_slice(name)
            if tuple(stored.get_shape()) != shape:
                raise _refused(homes[name], name, stored.get_shape(), f"config.json asks for shape {list(shape)}")
            if stored.get_dtype() not in STORED_TYPES:
                raise _refused(homes[name], name, stored.get_dtype(), f"store one of {sorted(STORED_TYPES)}")
    for name in sorted(homes.keys() - wanted.keys() - {HEAD}):
        raise _refused(homes[name], name, None, "this tensor has no place in the architecture of config.json")


def _read(path: Path, name: str) -> Tensor:
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _opened(path: Path) -> Any:  # safetensors ships no types
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as missing:
        raise _refused(path, None, None, "this file is missing") from missing
    except (SafetensorError, OSError) as broken:
        raise _refused(path, None, None, f"no readable safetensors file: {broken}") from broken
