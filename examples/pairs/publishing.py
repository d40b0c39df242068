"""A decoder -> a folder in the Hugging Face layout, which transformers, vLLM and Tandem read alike.

Refuses to know how the decoder was made.
"""

import json
from pathlib import Path
from typing import Any

import torch
from examples.pairs.vocabulary import END_ID, write_vocabulary
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.model_folder import digests_of


def publish(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights in bfloat16, configuration and vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in decoder.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(decoder.config), indent=2) + "\n", encoding="utf-8")
    write_vocabulary(tokenizer, folder)


def write_manifest(draft: Path, *, of: Path) -> None:
    """Beside a draft, ``tandem.json``: the digests of the target it was taught by and of their common vocabulary."""
    digests = digests_of(of)
    manifest = {"target": digests.model, "tokenizer": digests.tokenizer}
    (draft / "tandem.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def rounded(decoder: Decoder) -> Decoder:
    """The decoder as it will be read back: its weights are rounded to bfloat16, in place, and fixed."""
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.copy_(weight.to(torch.bfloat16))
    return decoder.eval().requires_grad_(False)


def _config(shape: DecoderConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": END_ID,
        "torch_dtype": "bfloat16",
    }
