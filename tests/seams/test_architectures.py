"""Every architecture of the table against transformers' own model of it, on random weights: the same folder, the same
logits, for the decoder over whole texts and for the engine through its cache."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seams.kv_tables import lent_blocks
from tests.seams.model_folders import LONGEST, REFERENCES, VOCAB, rewrite_config, saved_reference

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine.architectures import ARCHITECTURES, read_config
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import causal_attention
from tandem_runtime.ports import Row, StepModel

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "Llama 2, linear scaling": ("LlamaForCausalLM", {"rope_parameters": LINEAR}),
    "Llama 2, dynamic scaling": ("LlamaForCausalLM", {"rope_parameters": DYNAMIC}),
    "Llama 3.2": ("LlamaForCausalLM", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "SmolLM2": ("LlamaForCausalLM", {"num_attention_heads": 3, "hidden_size": 48, "num_key_value_heads": 1}),
    "Llama with every bias": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "Mistral 0.1": ("MistralForCausalLM", {"sliding_window": LONGEST}),
    "Mistral 0.3": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 32}),
    "Qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "Qwen2, window in the upper layers": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": LONGEST, "max_window_layers": 1},
    ),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    "Qwen3 with biases": ("Qwen3ForCausalLM", {"head_dim": 8, "attention_bias": True}),
}


def engine_logits(model: StepModel, tokens: list[int], pieces: list[int]) -> torch.Tensor:
    """[len(tokens), vocab]: the text in pieces of these sizes, then one token at a time, through the cache."""
    at, rows = 0, []
    with lent_blocks(model) as blocks:
        for size in [*pieces, *[1] * (len(tokens) - sum(pieces))]:
            rows += model.forward([Row(blocks, at, tuple(tokens[at : at + size]), size)])
            at += size
    return torch.from_numpy(np.concatenate(rows))


def random_tokens(count: int) -> list[int]:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(5)).tolist()


def assert_logits_equal(folder: Path, reference: Any, *, count: int, pieces: list[int]) -> StepModel:
    tokens = random_tokens(count)
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokens])).logits[0]
        whole = load_decoder(folder)(torch.tensor([tokens]), torch.arange(count), causal_attention)[0]
    torch.testing.assert_close(whole, wanted, rtol=1e-4, atol=1e-4)
    model = load_torch_model(
        EngineOptions(model=str(folder), dtype="fp32", threads=1, max_sessions=1, max_length=count)
    )
    torch.testing.assert_close(engine_logits(model, tokens, pieces), wanted, rtol=1e-4, atol=1e-4)
    return model


@pytest.mark.parametrize(("name", "changes"), MODELS.values(), ids=MODELS.keys())
def test_logits_equal_those_of_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    reference = saved_reference(tmp_path, name, **changes)
    model = assert_logits_equal(tmp_path, reference, count=LONGEST, pieces=[40, 1, 7, 20])
    assert model.determinism == ("NearTie" if torch.cuda.is_available() else "Bitwise")


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_logits_equal_those_of_transformers_in_any_shape(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = data.draw(st.sampled_from(sorted(ARCHITECTURES)))
    key_heads = data.draw(st.sampled_from([1, 2, 3]))
    heads = key_heads * data.draw(st.sampled_from([1, 2, 3]))
    changes: dict[str, Any] = {
        "num_key_value_heads": key_heads,
        "num_attention_heads": heads,
        "hidden_size": heads * data.draw(st.sampled_from([4, 8])),
        "num_hidden_layers": data.draw(st.integers(1, 3)),
        "tie_word_embeddings": data.draw(st.booleans()),
        "rms_norm_eps": data.draw(st.sampled_from([1e-6, 1e-5])),
        "rope_parameters": data.draw(
            st.sampled_from([{"rope_type": "default", "rope_theta": 1e6}, LLAMA3, LINEAR, DYNAMIC])
        ),
    }
    if name != "Qwen2ForCausalLM":
        changes["head_dim"] = data.draw(st.sampled_from([4, 8, 16]))
    if name in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
        changes["attention_bias"] = data.draw(st.booleans())
    folder = tmp_path_factory.mktemp("model")
    reference = saved_reference(folder, name, **changes)
    count = data.draw(st.integers(2, LONGEST))
    pieces = [data.draw(st.integers(1, count))]
    assert_logits_equal(folder, reference, count=count, pieces=pieces)


def test_the_head_may_have_rows_beyond_the_tokenizer(tmp_path: Path) -> None:
    """To the arithmetic a padded vocabulary is only a larger one; who loads a folder says how many ids are known."""
    reference = saved_reference(tmp_path, "Qwen2ForCausalLM", vocab_size=128)
    assert_logits_equal(tmp_path, reference, count=20, pieces=[10])


OLD_STYLE = {
    "no scaling": (None, {"rope_theta": 500_000.0}),
    "linear": ({"type": "linear", "factor": 4.0}, {"rope_theta": 10_000.0}),
    "llama3": ({key: value for key, value in LLAMA3.items() if key != "rope_theta"}, {"rope_theta": 500_000.0}),
}


@pytest.mark.parametrize(("scaling", "base"), OLD_STYLE.values(), ids=OLD_STYLE.keys())
def test_the_rotation_may_be_written_as_transformers_4_did(
    scaling: dict[str, Any] | None, base: dict[str, Any], tmp_path: Path
) -> None:
    new = {"rope_type": "default", **(scaling or {}), **base}
    new["rope_type"] = new.pop("type", new["rope_type"])
    reference = saved_reference(tmp_path, "LlamaForCausalLM", rope_parameters=new)
    rewrite_config(tmp_path, rope_parameters=None, rope_scaling=scaling, **base)
    assert_logits_equal(tmp_path, reference, count=50, pieces=[30])


def test_bfloat16_is_as_near_as_that_of_transformers(tmp_path: Path) -> None:
    """Both round at other places; neither may be much further from float32 than the other."""
    for name in ARCHITECTURES:
        exact = saved_reference(tmp_path / name, name)
        tokens = torch.tensor([random_tokens(60)])
        with torch.inference_mode():
            wanted = exact(tokens).logits
            theirs = exact.to(torch.bfloat16)(tokens).logits.float()
            decoder = load_decoder(tmp_path / name, dtype=torch.bfloat16)
            ours = decoder(tokens, torch.arange(60), causal_attention).float()
        assert (ours - wanted).abs().mean() < 1.5 * (theirs - wanted).abs().mean()


def test_a_text_longer_than_the_window_is_refused_by_its_field(tmp_path: Path) -> None:
    saved_reference(tmp_path, "MistralForCausalLM", sliding_window=64)
    assert (
        load_torch_model(EngineOptions(model=str(tmp_path), dtype="fp32", threads=1, max_sessions=1)).max_length == 64
    )
    with pytest.raises(ModelRefused, match=r"--max-length 65: sliding_window of .*config\.json allows 64"):
        load_torch_model(EngineOptions(model=str(tmp_path), dtype="fp32", threads=1, max_sessions=1, max_length=65))


WINDOWS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "Mistral, left out": ("MistralForCausalLM", {}, 4096),
    "Mistral, none": ("MistralForCausalLM", {"sliding_window": None}, None),
    "Qwen2, switched off": ("Qwen2ForCausalLM", {"sliding_window": 64}, None),
    "Qwen2, in no layer": ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 28}, None),
    "Qwen2, in every layer": ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 0}, 4096),
    "Qwen3, in a layer named": (
        "Qwen3ForCausalLM",
        {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64},
        64,
    ),
    "Qwen3, in no layer named": (
        "Qwen3ForCausalLM",
        {"use_sliding_window": True, "layer_types": ["full_attention"]},
        None,
    ),
    "Llama has none": ("LlamaForCausalLM", {"sliding_window": 64}, None),
}


@pytest.mark.parametrize(("name", "changes", "window"), WINDOWS.values(), ids=WINDOWS.keys())
def test_a_window_counts_where_a_layer_has_it(
    name: str, changes: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    saved_reference(tmp_path, name)
    rewrite_config(tmp_path, without=("sliding_window", "max_window_layers", "layer_types"), **changes)
    assert read_config(tmp_path).sliding_window == window


ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 0.5, 1e308, float("inf"), float("nan"), 2**40, 2**70, "", "64", [], [1], [None]),
    *(["full_attention"], {}, LLAMA3 | {"factor": 0}, LINEAR | {"rope_theta": -3.0}, {"rope_type": "linear"}),
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_whatever_a_field_says_it_is_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    saved_reference(tmp_path, name)
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    refusals = []
    for field in (*plain, "quantization_config", "rope_scaling", "rope_theta", "sliding_window", "use_sliding_window"):
        for value in ODD:
            path.write_text(json.dumps(plain | {field: value}))
            try:
                read_config(tmp_path)
            except ModelRefused as refusal:
                refusals.append(str(refusal))
    assert len(refusals) > 200
    assert [told for told in refusals if "\n" in told] == []


def test_every_architecture_has_its_reference() -> None:
    assert set(REFERENCES) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_field_left_out_means_what_transformers_takes_it_for(name: str) -> None:
    default = REFERENCES[name][0]().to_dict()
    unlike = {"use_sliding_window": True} if "use_sliding_window" in default else {}
    default = REFERENCES[name][0](**unlike).to_dict()
    absent = dict(ARCHITECTURES[name].absent)
    assert absent == {field: default[field] for field in absent}
    assert default["rope_parameters"] == {"rope_theta": 10_000.0, "rope_type": "default"}
    assert (default["rms_norm_eps"], default["hidden_act"], default["tie_word_embeddings"]) == (1e-6, "silu", False)
    if "head_dim" not in absent:
        assert default.get("head_dim", 128) == default["hidden_size"] // default["num_attention_heads"]
