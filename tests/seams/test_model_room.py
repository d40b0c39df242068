"""A model that does not fit is refused before anything of it is read, and told by which numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.seams.model_folders import reference_model

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine import engine
from tandem_runtime.engines.torch_engine.architectures import read_config
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.engines.torch_engine.model import DecoderConfig
from tandem_runtime.engines.torch_engine.room import lent_blocks, weight_bytes

CONFIG = DecoderConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
)
BLOCK = 2 * 2 * 16 * 2 * 16 * 2
"""Keys and values x layers x positions x heads x numbers x bytes."""
WEIGHTS = weight_bytes(CONFIG, torch.bfloat16)
ASKED = EngineOptions(model="folder", dtype="bf16")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_take_what_the_files_hold(name: str, tied: bool, tmp_path: Path) -> None:
    reference = reference_model(name, tie_word_embeddings=tied)
    reference.save_pretrained(tmp_path)
    held = sum(parameter.numel() for parameter in reference.parameters())
    assert weight_bytes(read_config(tmp_path), torch.float32) == 4 * held


@pytest.mark.parametrize(
    ("asked", "left", "blocks"),
    [
        (ASKED, 2 * 10_000 * BLOCK, 64 * 32),
        (ASKED, 2 * 100 * BLOCK, 99),
        (ASKED, 2 * 33 * BLOCK, 32),
        (replace(ASKED, max_sessions=3), 2 * 97 * BLOCK, 96),
        (replace(ASKED, kv_bytes=34 * BLOCK), 34 * BLOCK, 33),
    ],
    ids=["enough for all", "for some", "for one", "for all of three", "to the last byte, as asked"],
)
def test_keys_and_values_get_what_sessions_need_and_half_of_what_weights_leave_at_most(
    asked: EngineOptions, left: int, blocks: int
) -> None:
    assert lent_blocks(asked, CONFIG, dtype=torch.bfloat16, length=512, available=WEIGHTS + left) == blocks


@pytest.mark.parametrize(
    ("asked", "left", "told"),
    [
        (ASKED, 0, "take a smaller model, a narrower --dtype or a larger machine"),
        (
            ASKED,
            65 * BLOCK,
            f"one session .* needs {33 * BLOCK} bytes: lower --max-length, or give --kv-bytes {65 * BLOCK}",
        ),
        (ASKED, 20 * BLOCK, f"needs {33 * BLOCK} bytes: lower --max-length$"),
        (replace(ASKED, kv_bytes=34 * BLOCK), 34 * BLOCK - 9, f"give --kv-bytes {34 * BLOCK - 9} at most"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers_and_what_to_do(asked: EngineOptions, left: int, told: str) -> None:
    with pytest.raises(ModelRefused, match=f"folder: its weights take .* GB as bf16.* {told}"):
        lent_blocks(asked, CONFIG, dtype=torch.bfloat16, length=512, available=WEIGHTS + left)


def test_a_folder_that_does_not_fit_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference_model("LlamaForCausalLM").save_pretrained(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"what would be refused if it were read")
    monkeypatch.setattr(engine, "available_bytes", lambda: 100_000)
    with pytest.raises(ModelRefused, match=r"its weights take .* GB as fp32, but 0\.0001 GB are available"):
        load_torch_model(EngineOptions(model=str(tmp_path), device="cpu"))
