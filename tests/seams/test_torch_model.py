"""The bundled decoder against transformers' own, on random weights: the same folder, the same logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import DecoderConfig, causal_attention

SHAPES: dict[str, dict[str, Any]] = {
    "grouped queries, tied head": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one key head, head of its own": {"num_key_value_heads": 1, "tie_word_embeddings": False},
    "a key head for each query head": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "heads wider than the model": {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
    "another base of rotation": {"num_key_value_heads": 2, "rope_theta": 500_000.0, "tie_word_embeddings": True},
}


def reference_model(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(3)
    shape: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
    }
    model: LlamaForCausalLM = LlamaForCausalLM(LlamaConfig(**(shape | changes)))
    return model


def saved(folder: Path, **changes: Any) -> Path:
    reference_model(**({"num_key_value_heads": 2, "tie_word_embeddings": True} | changes)).save_pretrained(folder)
    return folder


def rewrite_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_logits_equal_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    reference = reference_model(**changes)
    reference.save_pretrained(tmp_path)
    tokens = torch.randint(96, (2, 40), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        wanted = reference(tokens).logits
        given = load_decoder(tmp_path)(tokens, torch.arange(40), causal_attention)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)


def test_a_flat_ragged_batch_gives_each_sequence_its_own_logits(tmp_path: Path) -> None:
    """Serving's shape: two sequences of unequal length in one row of tokens, kept apart by the attention callback."""
    decoder = load_decoder(saved(tmp_path))
    lengths = [7, 12]
    parts = [torch.randint(96, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]

    def each_by_itself(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = zip(*(torch.split(part, lengths) for part in (q, k, v)), strict=True)
        return torch.cat([causal_attention(layer, *(part[None] for part in row))[0] for row in rows])

    with torch.inference_mode():
        positions = torch.cat([torch.arange(n) for n in lengths])
        flat = decoder(torch.cat(parts), positions, each_by_itself)
        alone = torch.cat([decoder(part[None], torch.arange(len(part)), causal_attention)[0] for part in parts])
    torch.testing.assert_close(flat, alone, rtol=1e-5, atol=1e-5)


def test_a_sharded_folder_loads_as_the_whole_one(tmp_path: Path) -> None:
    whole, sharded = saved(tmp_path / "whole"), tmp_path / "sharded"
    reference_model(num_key_value_heads=2, tie_word_embeddings=True).save_pretrained(sharded, max_shard_size="60KB")
    assert (sharded / "model.safetensors.index.json").exists()
    given, wanted = load_decoder(sharded).state_dict(), load_decoder(whole).state_dict()
    assert {name: weight.tolist() for name, weight in given.items()} == {n: w.tolist() for n, w in wanted.items()}


def test_weights_take_the_type_that_was_asked_for(tmp_path: Path) -> None:
    decoder = load_decoder(saved(tmp_path), dtype=torch.bfloat16)
    assert {weight.dtype for weight in decoder.state_dict().values()} == {torch.bfloat16}


def test_the_config_of_transformers_is_read_whole(tmp_path: Path) -> None:
    assert read_config(saved(tmp_path, rope_theta=500_000.0, rms_norm_eps=1e-6)) == DecoderConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        rms_norm_eps=1e-6,
        rope_theta=500_000.0,
        tie_word_embeddings=True,
    )


REFUSED_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architectures": ["GPT2LMHeadModel"]}, "architectures = .*LlamaForCausalLM"),
    "no architecture": ({"architectures": None}, "architectures = "),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "biases that are not there": (
        {"attention_bias": True},
        r"layers\.0\..*q_proj\.bias of shape .64. is missing.*others",
    ),
    "scaled rotation, old style": ({"rope_scaling": {"type": "yarn", "factor": 2}}, r"rope_scaling\.type = 'yarn'"),
    "scaled rotation, new style": ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type = 'yarn'"),
    "a size that is no number": ({"hidden_size": "64"}, "hidden_size = '64': give a whole number"),
    "a size of nothing": ({"vocab_size": 0}, "vocab_size = 0"),
    "a size left out": ({"num_hidden_layers": None}, "num_hidden_layers = None"),
    "groups that do not divide": ({"num_key_value_heads": 3}, "num_key_value_heads = 3: must divide"),
    "an epsilon that is no number": ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
    "a base without end": ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta = inf"),
    "rotation that is no object": ({"rope_parameters": 5}, "rope_parameters = 5"),
    "a size that no tensor can have": ({"vocab_size": 10**18}, "vocab_size = 1000000000000000000: give a whole"),
    "layers without end": ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000"),
    "an odd head": ({"head_dim": 15}, "head_dim = 15"),
    "a negative epsilon": ({"rms_norm_eps": -1}, "rms_norm_eps = -1"),
    "a wrong width": ({"intermediate_size": 100}, "gate_proj.weight has shape .112, 64.*config.json asks for .100, 64"),
    "a layer too many": ({"num_hidden_layers": 4}, r"layers\.3\..* is missing"),
    "a layer too few": ({"num_hidden_layers": 2}, r"layers\.2\..* no place"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED_OPTIONS.values(), ids=REFUSED_OPTIONS.keys())
def test_a_folder_we_would_compute_wrongly_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    rewrite_config(saved(tmp_path), **changes)
    with pytest.raises(ModelRefused, match=message):
        load_decoder(tmp_path)


def test_whole_numbers_stored_as_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"model.norm.weight": torch.ones(64, dtype=torch.int64)}, path)
    with pytest.raises(ModelRefused, match=r"model\.norm\.weight is stored as I64; store one of"):
        load_decoder(tmp_path)


BROKEN_FILES = {
    "no config": ("config.json", None, "config.json: this file is missing"),
    "config that is no JSON": ("config.json", b"{", "config.json is no readable JSON"),
    "config that is a list": ("config.json", b"[]", "config.json holds list; give a JSON object"),
    "no weights": ("model.safetensors", None, "model.safetensors: this file is missing"),
    "weights that are text": (
        "model.safetensors",
        b"not a tensor in sight",
        "no safetensors file: its header would have",
    ),
    "an index of nothing": ("model.safetensors.index.json", b'{"weight_map": 3}', "weight_map = 3"),
    "an index to nowhere": (
        "model.safetensors.index.json",
        json.dumps({"weight_map": {"model.embed_tokens.weight": "gone.safetensors"}}).encode(),
        "index.json names gone.safetensors, which this folder lacks",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_a_broken_file_is_named(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ModelRefused, match=message):
        load_decoder(tmp_path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelRefused, match=r"bytes 0 to \d+, but \d+ bytes follow it; the file is cut short"):
        load_decoder(tmp_path)
