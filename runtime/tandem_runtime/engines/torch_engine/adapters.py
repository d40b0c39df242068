"""Knows LoRA adapters: PEFT's folders -> updates of a decoder's products, and which rows of a step get which.

Refuses to know names, sessions, and which adapters may be asked for.

An adapter (Hu et al. 2021) leaves a weight W [outputs, inputs] as it is and adds a product of two thin ones:

    y = W x + s B A x,    A [r, inputs],    B [outputs, r],    s = alpha / r,  or alpha / sqrt(r) (Kalajdzievski 2023)

Where `fused` joins several W into one, their A stand below each other and their B along a diagonal, so that there is
one pair for each product. The scale goes into B in float32, before B is rounded to the type of the weights.

Rows of several adapters and of none share a step: W x is one product for all of them, and each adapter's update is made
of its own rows, by the engine's own product. Where that treats rows apart, a row's bits do not depend on its company
here either.

As with models, all that can be checked is checked on the headers: every tensor that config and base model ask for is
there, in its shape, and no other. What would change the arithmetic and is not computed here is refused by name.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.architectures import Fields
from tandem_runtime.engines.torch_engine.fused import JOINED, Adapt, Place
from tandem_runtime.engines.torch_engine.model import DecoderConfig, Linear, shape_of
from tandem_runtime.engines.torch_engine.shards import READ_TYPES, Stored, read_header, tensors
from tandem_runtime.model_folder import adapter_digest_of, read_object
from tandem_runtime.ports import Row

__all__ = ["TARGETS", "Adapter", "LowRank", "adapted_by", "read_adapter"]

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What PEFT puts before the name of a module of the base model."""

TARGETS = tuple(f"{part}_proj" for parts in JOINED.values() for part in parts)
"""The modules of a layer that may be adapted."""

MOST_RANK = 1024
"""Beyond this an update is no longer thin, and costs what the weight itself does."""

KNOWN = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        *("bias", "init_lora_weights", "lora_alpha", "peft_type", "r", "target_modules", "task_type", "use_rslora"),
    }
)
"""Fields that shape no arithmetic, and those that are read. Any other one must say nothing."""

UNTOUCHED = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` under which training began from the base model's own weights."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

Module: TypeAlias = tuple[int, str]
"""A layer's number and one of `TARGETS`."""


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The update `up (down x)` of a product: `down` [ranks, inputs], `up` [outputs, ranks]."""

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """`rank` is that of one projection; a joined product has as many of them as it has projections."""

    digest: AdapterDigest
    rank: int
    updates: Mapping[Place, LowRank]

    @property
    def nbytes(self) -> int:
        return sum(update.down.nbytes + update.up.nbytes for update in self.updates.values())


@dataclass(frozen=True, slots=True)
class _Settings:
    """What adapter_config.json says."""

    rank: int
    scale: float
    targets: frozenset[Module]


def read_adapter(folder: Path, config: DecoderConfig, *, like: Tensor) -> Adapter:
    """The adapter of `folder` for a decoder of that shape, in the type and on the device of `like`.

    Raises ModelRefused, naming the file and the field or tensor, before memory for weights is taken.
    """
    digest = adapter_digest_of(folder)
    settings = _read_settings(folder / SETTINGS, layers=config.num_hidden_layers)
    held = read_header(folder / WEIGHTS)
    modules = _module_shapes(config)
    _check(_wanted(settings, modules), held, folder / WEIGHTS)
    taken = _read(held.values())
    updates = {
        (layer, product): _update(parts, layer, settings, taken, modules)
        for layer in range(config.num_hidden_layers)
        for product, parts in JOINED.items()
        if any((layer, f"{part}_proj") in settings.targets for part in parts)
    }
    if adapter_digest_of(folder) != digest:
        raise ModelRefused(f"{folder} changed while it was read; load it again once it is complete")
    settled = {place: LowRank(update.down.to(like), update.up.to(like)) for place, update in updates.items()}
    return Adapter(AdapterDigest(digest), settings.rank, settled)


def adapted_by(
    adapters: Mapping[AdapterDigest, Adapter], rows: Sequence[Row], *, linear: Linear, device: torch.device
) -> Adapt | None:
    """What the rows of a step, one after the other, get of their adapters; None where none has one."""
    places: dict[AdapterDigest, list[int]] = {}
    end = 0
    for row in rows:
        begin, end = end, end + len(row.tokens)
        if row.adapter is not None:
            places.setdefault(row.adapter, []).extend(range(begin, end))
    parts = [(adapters[digest].updates, _selection(own, device)) for digest, own in places.items()]

    def adapt(place: Place, x: Tensor, y: Tensor) -> Tensor:
        for updates, own in parts:
            if (update := updates.get(place)) is not None:
                y[own] += linear(linear(x[own], update.down), update.up)
        return y

    return adapt if parts else None


def _selection(rows: Sequence[int], device: torch.device) -> slice | Tensor:
    """As a slice where rows stand together, which costs no copy."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


def _read_settings(path: Path, *, layers: int) -> _Settings:
    fields = Fields(path, read_object(path))
    _refuse_other_kinds(fields)
    rank = fields.whole("r", most=MOST_RANK)
    scale = fields.real("lora_alpha", absent=8) / (math.sqrt(rank) if fields.flag("use_rslora") else rank)
    return _Settings(rank, scale, _targets(fields, layers))


def _refuse_other_kinds(fields: Fields) -> None:
    values = fields.values
    if values.get("peft_type") != "LORA":
        raise fields.refused("peft_type", "this engine applies LORA only")
    if values.get("task_type") not in (None, "CAUSAL_LM"):
        raise fields.refused("task_type", "give an adapter that was trained for CAUSAL_LM")
    if values.get("bias", "none") != "none":
        raise fields.refused("bias", "this engine applies no biases of adapters: train it with none")
    if values.get("init_lora_weights") not in UNTOUCHED:
        raise fields.refused(
            "init_lora_weights", "it changed the base model's weights: save it converted to plain LoRA"
        )
    for name in sorted(values.keys() - KNOWN):
        if not _says_nothing(values[name]):
            raise fields.refused(name, "this engine does not compute what it asks for; train the adapter without it")


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})


def _targets(fields: Fields, layers: int) -> frozenset[Module]:
    """What `target_modules` names: q_proj is the one of each layer, layers.1.mlp.up_proj that of one."""
    known = _by_ending(layers)
    named = fields.values.get("target_modules")
    if not isinstance(named, list) or not named:
        raise fields.refused("target_modules", "give a list of names of modules")
    if strange := next((name for name in named if not isinstance(name, str) or name not in known), None):
        what = f"this engine adapts {', '.join(TARGETS)} of layers 0 to {layers - 1}; train the adapter without"
        raise ModelRefused(f"{fields.path}: target_modules holds {strange!r}: {what}")
    return frozenset(module for name in named for module in known[name])


def _by_ending(layers: int) -> Mapping[str, list[Module]]:
    """The modules by every ending of their names that begins at a dot."""
    known: dict[str, list[Module]] = {}
    for layer in range(layers):
        for module in TARGETS:
            parts = f"model.layers.{layer}.{module}".split(".")
            for first in range(len(parts)):
                known.setdefault(".".join(parts[first:]), []).append((layer, module))
    return known


def _module_shapes(config: DecoderConfig) -> Shapes:
    """[outputs, inputs] of each module of a layer; all layers are alike."""
    weights = dict(shape_of(config).model.layers[0].named_parameters())
    return {module: tuple(weights[f"{module}.weight"].shape) for module in TARGETS}


def _wanted(settings: _Settings, modules: Shapes) -> dict[str, tuple[int, ...]]:
    wanted: dict[str, tuple[int, ...]] = {}
    for layer, module in sorted(settings.targets):
        outputs, inputs = modules[module]
        wanted[_name(layer, module, "A")] = (settings.rank, inputs)
        wanted[_name(layer, module, "B")] = (outputs, settings.rank)
    return wanted


def _name(layer: int, module: str, which: str) -> str:
    return f"{PREFIX}model.layers.{layer}.{module}.lora_{which}.weight"


def _check(wanted: Mapping[str, tuple[int, ...]], held: Mapping[str, Stored], path: Path) -> None:
    asking = f"{SETTINGS} and the base model ask for"
    for name, shape in wanted.items():
        if name not in held:
            raise ModelRefused(f"{path}: {name} of shape {list(shape)} is missing, which {asking}; fetch it again")
        stored = held[name]
        if stored.shape != shape:
            what = f"has shape {list(stored.shape)}, but {asking} {list(shape)}"
            raise ModelRefused(f"{path}: {name} {what}: the adapter is of another base model, or r is another")
        if stored.type not in READ_TYPES:
            raise ModelRefused(f"{path}: {name} is stored as {stored.type}; store one of {sorted(READ_TYPES)}")
    if strange := sorted(held.keys() - wanted.keys()):
        what = f"is none of the tensors that {asking}; this engine applies A and B of {', '.join(TARGETS)} only"
        raise ModelRefused(f"{path}: {strange[0]} {what}")


def _read(wanted: Iterable[Stored]) -> dict[str, Tensor]:
    """In float32. Raises ModelRefused for a number that is none."""
    taken: dict[str, Tensor] = {}
    for stored, weight in tensors(wanted):
        taken[stored.name] = weight.to(torch.float32, copy=True)
        if not taken[stored.name].isfinite().all():
            raise ModelRefused(f"{stored.file}: {stored.name} holds NaN or infinity: train the adapter again")
    return taken


def _update(
    parts: Sequence[str], layer: int, settings: _Settings, taken: Mapping[str, Tensor], modules: Shapes
) -> LowRank:
    """The pair of a joined product; rows of `up` that belong to no target are 0."""
    downs: list[Tensor] = []
    ups: list[Tensor] = []
    for module in (f"{part}_proj" for part in parts):
        if (layer, module) in settings.targets:
            downs.append(taken[_name(layer, module, "A")])
            ups.append(settings.scale * taken[_name(layer, module, "B")])
        else:
            ups.append(torch.zeros(modules[module][0], 0))
    return LowRank(torch.cat(downs), _diagonal(ups))


def _diagonal(blocks: Sequence[Tensor]) -> Tensor:
    whole: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]  # torch leaves it so
    return whole
