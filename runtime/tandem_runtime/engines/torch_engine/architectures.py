"""Knows which architectures this engine runs, what sets each apart, and how a `config.json` becomes a `DecoderConfig`.

Refuses to know weights. A model that this decoder would compute wrongly is refused, never approximated.

Everything that differs is one row of `ARCHITECTURES`; the arithmetic itself is one class (`model`). A field that is
absent from a file means what transformers takes it to mean, which differs by architecture too (`absent`).

**Sliding windows.** A layer with a window of w tokens sees all of a text of w tokens or fewer. So such a model is
served exactly, up to the window (`DecoderConfig.max_length`), and not beyond. **Dynamic scaling** of rotations begins
beyond `max_position_embeddings`, where nothing is served either.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.model import DecoderConfig
from tandem_runtime.engines.torch_engine.rotary import LinearScaling, Llama3Scaling, Scaling
from tandem_runtime.model_folder import read_object

__all__ = ["ARCHITECTURES", "SCALINGS", "Architecture", "Biases", "Fields", "Window", "read_config"]

LARGEST_SIZE = 10_000_000
MOST_LAYERS = 10_000
"""Far above any model; beyond them a broken file would have us build shapes for minutes, or overflow them."""

ACTIVATIONS = ("silu", "swish")
"""Two names of x sigmoid(x)."""


class Biases(StrEnum):
    """Whether products add a bias: never, always, or as the field of this name says."""

    NEVER = "never"
    ALWAYS = "always"
    ATTENTION_BIAS = "attention_bias"
    MLP_BIAS = "mlp_bias"


class Window(StrEnum):
    """Whether `sliding_window`, where it is a number, limits what layers see."""

    NEVER = "never"
    ALL_LAYERS = "in all layers"
    SOME_LAYERS = "in some layers, if use_sliding_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row. `absent` says what fields mean that the file leaves out, where that is not what Llama takes them for."""

    qkv_bias: Biases = Biases.NEVER
    out_bias: Biases = Biases.NEVER
    mlp_bias: Biases = Biases.NEVER
    head_norms: bool = False
    window: Window = Window.NEVER
    absent: Mapping[str, int] = field(default_factory=dict)


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        qkv_bias=Biases.ATTENTION_BIAS, out_bias=Biases.ATTENTION_BIAS, mlp_bias=Biases.MLP_BIAS
    ),
    "MistralForCausalLM": Architecture(
        window=Window.ALL_LAYERS, absent={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "Qwen2ForCausalLM": Architecture(
        qkv_bias=Biases.ALWAYS,
        window=Window.SOME_LAYERS,
        absent={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    ),
    "Qwen3ForCausalLM": Architecture(
        qkv_bias=Biases.ATTENTION_BIAS,
        out_bias=Biases.ATTENTION_BIAS,
        head_norms=True,
        window=Window.SOME_LAYERS,
        absent={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    ),
}

SCALINGS = ("default", "linear", "dynamic", "llama3")
"""Kinds of `rope_type` that are computed."""


def read_config(folder: Path) -> DecoderConfig:
    """`config.json` of `folder` as the decoder's shape. Raises ModelRefused naming the field and its value."""
    path = folder / "config.json"
    written = read_object(path)
    architecture = _architecture(path, written)
    return _shape(Fields(path, {**architecture.absent, **written}), architecture)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one file, or of one object in it, whose names then begin with `within`."""

    path: Path
    values: Mapping[str, Any]
    within: str = ""

    def refused(self, name: str, what: str) -> ModelRefused:
        return ModelRefused(f"{self.path}: {self.within}{name} = {self.values.get(name)!r}: {what}")

    def whole(self, name: str, *, absent: int | None = None, least: int = 1, most: int = LARGEST_SIZE) -> int:
        value = self.values.get(name)
        if value is None and absent is not None:
            return absent
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refused(name, f"give a whole number from {least} to {most}")
        return value

    def real(self, name: str, *, absent: float | None = None) -> float:
        value = self.values.get(name)
        if value is None and absent is not None:
            return absent
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.refused(name, "give a number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and type(value) is not bool:
            raise self.refused(name, "give true or false")
        return bool(value)

    def object(self, name: str) -> Mapping[str, Any]:
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.refused(name, "give an object")
        return value or {}


def _architecture(path: Path, written: Mapping[str, Any]) -> Architecture:
    fields, named = Fields(path, written), written.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in list(ARCHITECTURES):
        raise fields.refused("architectures", f"this engine runs one of {', '.join(ARCHITECTURES)}")
    if written.get("hidden_act", ACTIVATIONS[0]) not in ACTIVATIONS:
        raise fields.refused("hidden_act", f"this engine computes {' or '.join(ACTIVATIONS)} only")
    if written.get("quantization_config") is not None:
        raise fields.refused(
            "quantization_config", "this engine reads plain weights; name a folder in F32, F16 or BF16"
        )
    if "AutoModelForCausalLM" in fields.object("auto_map"):
        raise fields.refused(
            "auto_map", "this engine runs no code of a model folder; remove it if the code adds nothing"
        )
    return ARCHITECTURES[named[0]]


def _shape(fields: Fields, architecture: Architecture) -> DecoderConfig:
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    theta, scaling = _rotation(fields)
    config = DecoderConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.whole("intermediate_size"),
        num_hidden_layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=fields.whole("num_key_value_heads", absent=heads),
        head_dim=fields.whole("head_dim", absent=hidden // heads),
        max_position_embeddings=fields.whole("max_position_embeddings"),
        rms_norm_eps=fields.real("rms_norm_eps", absent=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=_has_bias(fields, architecture.qkv_bias),
        out_bias=_has_bias(fields, architecture.out_bias),
        mlp_bias=_has_bias(fields, architecture.mlp_bias),
        head_norms=architecture.head_norms,
        sliding_window=_window(fields, architecture.window),
    )
    _check_heads(fields, config)
    return config


def _check_heads(fields: Fields, config: DecoderConfig) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise fields.refused("num_key_value_heads", f"must divide num_attention_heads = {config.num_attention_heads}")
    if config.head_dim < 2 or config.head_dim % 2:
        what = f"rotary positions turn pairs: give an even number (it is {config.head_dim} here)"
        raise fields.refused("head_dim", what)


def _has_bias(fields: Fields, biases: Biases) -> bool:
    if biases in (Biases.NEVER, Biases.ALWAYS):
        return biases is Biases.ALWAYS
    return fields.flag(biases.value)


def _window(fields: Fields, window: Window) -> int | None:
    switched_off = window is Window.SOME_LAYERS and not fields.flag("use_sliding_window")
    if window is Window.NEVER or switched_off or fields.values.get("sliding_window") is None:
        return None
    return fields.whole("sliding_window") if window is Window.ALL_LAYERS or _any_layer_slides(fields) else None


def _any_layer_slides(fields: Fields) -> bool:
    """Without `layer_types` the layers from `max_window_layers` on do."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return fields.whole("max_window_layers", least=0) < fields.whole("num_hidden_layers")
    if not isinstance(kinds, list) or not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.refused("layer_types", "give a list of full_attention and sliding_attention")
    return "sliding_attention" in kinds


def _rotation(fields: Fields) -> tuple[float, Scaling | None]:
    """Base and scaling, as written by transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`)."""
    where = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    inner = fields.object(where)
    theta = Fields(fields.path, {"rope_theta": fields.values.get("rope_theta"), **inner}).real("rope_theta", absent=1e4)
    return theta, _scaling(Fields(fields.path, inner, within=f"{where}."), fields)


def _scaling(inner: Fields, fields: Fields) -> Scaling | None:
    name = "rope_type" if "rope_type" in inner.values else "type"
    kind = inner.values.get(name, "default")
    if inner.values.get("partial_rotary_factor", fields.values.get("partial_rotary_factor")) not in (None, 1):
        raise inner.refused("partial_rotary_factor", "this engine turns whole heads only")
    match kind:
        case "default" | "dynamic":
            return None
        case "linear":
            return LinearScaling(factor=inner.real("factor"))
        case "llama3":
            return _llama3(inner, fields)
        case _:
            raise inner.refused(name, f"this engine computes {', '.join(SCALINGS)}")


def _llama3(inner: Fields, fields: Fields) -> Llama3Scaling:
    context = "original_max_position_embeddings"
    scaling = Llama3Scaling(
        factor=inner.real("factor"),
        low_freq_factor=inner.real("low_freq_factor"),
        high_freq_factor=inner.real("high_freq_factor"),
        original_max_position_embeddings=(fields if context in fields.values else inner).whole(
            context, absent=fields.whole("max_position_embeddings")
        ),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise inner.refused("high_freq_factor", f"must be above low_freq_factor = {scaling.low_freq_factor}")
    return scaling
