"""An untrained model, small enough to be made and loaded by each test that needs engines of torch."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.seams.tokenizer_folders import byte_level_folder

from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig


def write_model(folder: Path) -> None:
    """An untrained model in the Hugging Face layout; the same for target and draft."""
    torch.manual_seed(1)
    shape = DecoderConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    byte_level_folder(folder)
    written = asdict(shape) | {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(written))
    save_file(Decoder(shape).state_dict(), folder / "model.safetensors")
