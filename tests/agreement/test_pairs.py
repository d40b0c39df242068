"""The example pairs: what the files say of themselves, what the README says of them, and what they really do."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from examples.pairs.measure import (
    DRAFTS,
    HERE,
    KINDS,
    TARGET,
    TEMPERATURES,
    Count,
    Pairs,
    as_table,
    count_rounds,
    load_pairs,
    write_continuations,
)
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import causal_attention
from tandem_runtime.model_folder import digests_of

MODELS = (TARGET, *DRAFTS)
MODEL_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
LARGEST_PAIRS_BYTES = 20_000_000

BOUNDS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("prose", "draft-good"): (0.70, 1.0),
    ("prose", "draft-poor"): (0.0, 0.30),
    ("other", "draft-good"): (0.0, 0.25),
    ("other", "draft-poor"): (0.0, 0.25),
}
"""(kind of traffic, draft) -> the least and the most conditional acceptance, greedy and sampled alike."""

MEASURED: dict[str, Any] = json.loads((HERE / "measured.json").read_text())


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return load_pairs(HERE)


def prompts(kind: str) -> list[str]:
    texts: list[str] = json.loads((HERE / "prompts.json").read_text())[kind]
    return texts


@pytest.mark.parametrize("name", MODELS)
def test_a_model_folder_holds_the_files_of_the_ordinary_layout(name: str) -> None:
    assert {path.name for path in (HERE / name).iterdir()} >= MODEL_FILES


def test_all_three_models_fit_into_the_repository() -> None:
    sizes = {path: path.stat().st_size for name in MODELS for path in (HERE / name).rglob("*")}
    assert sum(sizes.values()) <= LARGEST_PAIRS_BYTES


@pytest.mark.parametrize("draft", DRAFTS)
def test_draft_and_target_share_every_byte_of_their_vocabulary(draft: str) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (HERE / draft / file).read_bytes() == (HERE / TARGET / file).read_bytes()
    assert read_config(HERE / draft).vocab_size == read_config(HERE / TARGET).vocab_size


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_draft_names_the_target_it_was_taught_by(draft: str) -> None:
    digests = digests_of(HERE / TARGET)
    manifest = json.loads((HERE / draft / "tandem.json").read_text())
    assert manifest == {"target": digests.model, "tokenizer": digests.tokenizer}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_stored_in_half_the_bytes(name: str) -> None:
    with safe_open(HERE / name / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(tensor).get_dtype() for tensor in file.keys()} == {"BF16"}  # noqa: SIM118  # no mapping


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same_logits(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(HERE / name)
    reference = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
    tokens = torch.tensor([tokenizer.encode(prompts("prose")[0] + prompts("other")[0])])
    with torch.inference_mode():
        given = load_decoder(HERE / name)(tokens, torch.arange(tokens.shape[1]), causal_attention)
        torch.testing.assert_close(given, reference(tokens).logits, rtol=1e-4, atol=1e-4)


def test_the_chat_template_ends_where_the_assistant_begins() -> None:
    tokenizer = AutoTokenizer.from_pretrained(HERE / TARGET)
    exchange = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "C"},
    ]
    text = tokenizer.apply_chat_template(exchange, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>A<|assistant|>B<|end|><|user|>C<|assistant|>"


@pytest.mark.parametrize("text", ["naïve café", "\t\n  spaces", "汉字 and 🙂", "<|end|>"])
def test_any_text_survives_the_vocabulary(text: str, pairs: Pairs) -> None:
    assert pairs.tokenizer.decode(pairs.tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_fifty_different_prompts_of_a_kind(kind: str) -> None:
    assert len(set(prompts(kind))) == len(prompts(kind)) >= 50


def test_the_readme_shows_the_recorded_figures() -> None:
    assert as_table(MEASURED["rows"]) in (HERE / "README.md").read_text()


def test_every_pair_was_measured_on_every_traffic() -> None:
    measured = {(row["kind"], row["temperature"], row["draft"]) for row in MEASURED["rows"]}
    assert measured == {(kind, heat, draft) for kind in KINDS for heat in TEMPERATURES for draft in DRAFTS}


@pytest.mark.parametrize("row", MEASURED["rows"], ids=lambda row: f"{row['kind']}-{row['temperature']}-{row['draft']}")
def test_recorded_acceptance_is_within_its_bounds(row: dict[str, Any]) -> None:
    least, most = BOUNDS[row["kind"], row["draft"]]
    assert least <= row["conditional_acceptance"] <= most
    assert row["conditional_acceptance"] == round(row["accepted"] / (row["accepted"] + row["rejected"]), 4)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_few_prompts_show_what_the_record_says(kind: str, temperature: float, pairs: Pairs) -> None:
    texts = list(write_continuations(pairs, prompts(kind)[:8], temperature))
    for name, draft in pairs.drafts.items():
        least, most = BOUNDS[kind, name]
        seen = sum((count_rounds(draft, text) for text in texts), start=Count()).conditional
        assert least - 0.05 <= seen <= most + 0.05, f"{name} on {kind} at {temperature}: {seen:.3f}"


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 1.0), (1.0, 0.9)])
def test_the_target_is_its_own_best_draft(temperature: float, least: float, pairs: Pairs) -> None:
    """What the measure says where the answer is known; a sampling draft perturbs its likeliest tokens only."""
    texts = list(write_continuations(pairs, prompts("prose")[:6], temperature))
    seen = sum((count_rounds(pairs.target, text) for text in texts), start=Count())
    assert least <= seen.conditional <= 1
