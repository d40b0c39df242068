"""Rows of a head beyond the tokenizer's ids: whatever they say, no token without a text is drawn, at the target or the
draft."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tests.seams.model_folders import saved_reference
from tests.seams.test_serve import served
from tests.seams.tokenizer_folders import byte_level_folder

from tandem_runtime.domain.blocks import BlockId
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.main import SystemClock
from tandem_runtime.ports import Row
from tandem_runtime.role_server import load_model
from tandem_runtime.tokenizer import FolderTokenizer

PADDING = 40
LOUD = 50.0
PROMPT = "the quick fox"


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def padded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model whose padded rows speak louder than all others, and transformers' own of it."""
    folder = byte_level_folder(tmp_path_factory.mktemp("padded"))
    size = FolderTokenizer(folder).size
    made = saved_reference(folder, "Qwen2ForCausalLM", vocab_size=size + PADDING, tie_word_embeddings=request.param)
    made.lm_head.weight[size:] *= LOUD
    made.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')  # transformers has written over ours
    return folder, made


@pytest.fixture(scope="module")
def address(padded: tuple[Path, Any]) -> Iterator[str]:
    """Of the model beside a rounded copy of it that drafts."""
    folder = str(padded[0])
    options = ("--target", folder, "--draft", folder, "--draft-weights", "int8", "--mode", "Always", "--name", "chat")
    with served(*options, "--device", "cpu", "--max-sessions", "4") as (said, _):
        yield re.findall(r"^serving chat at (http://\S+)$", said, re.MULTILINE)[0]


def test_logits_end_where_the_tokenizer_does(padded: tuple[Path, Any]) -> None:
    folder, made = padded
    tokenizer = FolderTokenizer(folder)
    model = load_model(EngineOptions(model=str(folder), device="cpu", max_sessions=1), clock=SystemClock())[0]
    prompt = tokenizer.encode(PROMPT)
    (found,) = model.forward([Row(tuple(map(BlockId, range(model.blocks.count))), 0, prompt, outputs=len(prompt))])
    with torch.inference_mode():
        wanted = made(torch.tensor([prompt])).logits[0].numpy()
    assert model.vocab_size == tokenizer.size
    assert wanted.argmax(axis=1).max() >= tokenizer.size, "the padding is not loud, so this shows nothing"
    np.testing.assert_allclose(found, wanted[:, : tokenizer.size], atol=1e-3)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("grammar", [{}, {"response_format": {"type": "json_object"}}], ids=["free", "grammar"])
def test_an_answer_has_only_tokens_that_have_a_text(address: str, temperature: float, grammar: dict[str, Any]) -> None:
    asked = {"model": "chat", "prompt": PROMPT, "max_tokens": 24, "seed": 3, "logprobs": 1, "temperature": temperature}
    on, off = (
        httpx.post(f"{address}/completions", json=asked | grammar | {"speculation": {"off": off}}, timeout=60).json()
        for off in (False, True)
    )
    (choice,) = on["choices"]
    assert choice["text"] == off["choices"][0]["text"] != ""
    assert choice["logprobs"]["token_logprobs"]
    assert all(value > -9999 for value in choice["logprobs"]["token_logprobs"])


@pytest.mark.parametrize("field", ["logit_bias", "prompt", "allowed_token_ids"])
def test_an_id_beyond_the_tokenizer_is_refused_by_its_field(padded: tuple[Path, Any], address: str, field: str) -> None:
    size = FolderTokenizer(padded[0]).size
    value = {"logit_bias": {str(size): 100}, "prompt": [size], "allowed_token_ids": [size]}[field]
    reply = httpx.post(f"{address}/completions", json={"model": "chat", "prompt": PROMPT, field: value})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field
    assert str(size) in reply.json()["error"]["message"]
