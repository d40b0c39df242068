"""Small LoRA adapters with random weights, in folders as PEFT writes them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

MODULES = {
    **{f"{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"{name}_proj": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
SETTINGS: dict[str, Any] = {
    "auto_mapping": None,
    "base_model_name_or_path": "some/model",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": 4,
    "rank_pattern": {},
    "target_modules": sorted(MODULES),
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}


def tensor_name(layer: int, module: str, which: str) -> str:
    return f"base_model.model.model.layers.{layer}.{MODULES[module]}.lora_{which}.weight"


def saved_adapter(
    folder: Path, weights: dict[str, torch.Tensor], *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """An adapter for the decoder with those `weights` (by Hugging Face's names), and a visible effect."""
    settings = SETTINGS | changes
    generator = torch.Generator().manual_seed(seed)
    rank, made = settings["r"], {}
    for name in targeted(weights, settings["target_modules"]):
        outputs, inputs = weights[f"{name}.weight"].shape
        for which, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            spread = torch.randn(shape, generator=generator) / inputs**0.25
            made[f"base_model.model.{name}.lora_{which}.weight"] = (spread * 0.3).to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(made, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def targeted(weights: Iterable[str], targets: Sequence[str]) -> list[str]:
    """The modules whose names are one of `targets`, or end in one behind a dot."""
    modules = [name.removesuffix(".weight") for name in weights if name.endswith("_proj.weight")]
    return [name for name in modules if any(f".{name}".endswith(f".{target}") for target in targets)]


def rewrite_settings(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite_weights(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Tensors in place of those of their names; None: gone."""
    path = folder / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in (load_file(path) | changes).items() if tensor is not None}
    save_file(kept, path)


def merged(weights: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """The `weights` with the adapter's updates in them, W + s B A: an independent way to the same numbers."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    rank = settings["r"]
    scale = settings["lora_alpha"] / (rank**0.5 if settings["use_rslora"] else rank)
    held = load_file(folder / "adapter_model.safetensors")
    whole = dict(weights)
    for module in targeted(weights, settings["target_modules"]):
        a, b = (held[f"base_model.model.{module}.lora_{which}.weight"].double() for which in "AB")
        name = f"{module}.weight"
        whole[name] = (weights[name].double() + scale * (b @ a)).to(weights[name].dtype)
    return whole
