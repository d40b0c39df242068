"""Small model folders with random weights, made by transformers itself."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

REFERENCES: dict[str, tuple[Any, Any]] = {
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "MistralForCausalLM": (MistralConfig, MistralForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
}

VOCAB = 96
LONGEST = 128


def reference_model(name: str, **changes: Any) -> Any:
    """A model with lively logits; its biases and norms are random too, which transformers would leave at 0 and 1."""
    generator = torch.Generator().manual_seed(3)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LONGEST,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config, model = REFERENCES[name]
    made = model(config(**(shape | changes))).eval().requires_grad_(False)
    for weight in made.parameters():
        spread = torch.randn(weight.shape, generator=generator)
        weight.copy_(spread * 0.2 if weight.dim() > 1 else weight + spread * 0.3)
    return made


def saved_reference(folder: Path, name: str, *, max_shard_size: str = "1GB", **changes: Any) -> Any:
    """Write the model to `folder`, and return it."""
    made = reference_model(name, **changes)
    made.save_pretrained(folder, max_shard_size=max_shard_size)
    return made


def rewrite_config(folder: Path, *, without: tuple[str, ...] = (), **changes: Any) -> None:
    path = folder / "config.json"
    kept = {field: value for field, value in json.loads(path.read_text()).items() if field not in without}
    path.write_text(json.dumps(kept | changes))
