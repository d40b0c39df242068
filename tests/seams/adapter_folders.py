"""Small LoRA adapters with random weights, in folders as PEFT writes them."""

import json
from collections.abc import Iterable
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
    for layer in range(layers_of(weights)):
        for module in settings["target_modules"]:
            outputs, inputs = weights[f"model.layers.{layer}.{MODULES[module]}.weight"].shape
            for which, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                spread = torch.randn(shape, generator=generator) / inputs**0.25
                made[tensor_name(layer, module, which)] = (spread * 0.3).to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(made, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def layers_of(weights: Iterable[str]) -> int:
    return 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers."))


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
    for layer in range(layers_of(weights)):
        for module in settings["target_modules"]:
            a, b = (held[tensor_name(layer, module, which)].double() for which in "AB")
            name = f"model.layers.{layer}.{MODULES[module]}.weight"
            whole[name] = (weights[name].double() + scale * (b @ a)).to(weights[name].dtype)
    return whole
