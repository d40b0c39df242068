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
from tandem_runtime.engines.torch_engine.engine import load_torch_model, pair_sums
from tandem_runtime.engines.torch_engine.model import DecoderConfig
from tandem_runtime.engines.torch_engine.pair_room import Part, left_for_both, shares
from tandem_runtime.engines.torch_engine.room import lent_blocks, logits_bytes, weight_bytes

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
UNIT = 10**9


def taken(asked: EngineOptions) -> int:
    return WEIGHTS + logits_bytes(asked, CONFIG, torch.bfloat16)


def part(name: str, weights: int, *, logits: int, block: int) -> Part:
    return Part(name=name, weights=weights, logits=logits, block=block, one=8, sessions=16)


VERIFY = 16 * 17 * 128 * 4
DRAFT = 16 * 128 * 4
PARTS = (part("target", 15 * UNIT, logits=VERIFY, block=3000), part("draft", 3 * UNIT // 2, logits=DRAFT, block=1000))
BUDGET = 24 * UNIT * 9 // 10


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
    assert lent_blocks(asked, CONFIG, dtype=torch.bfloat16, length=512, available=taken(asked) + left) == blocks


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
        lent_blocks(asked, CONFIG, dtype=torch.bfloat16, length=512, available=taken(asked) + left)


def test_a_folder_that_does_not_fit_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference_model("LlamaForCausalLM").save_pretrained(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"what would be refused if it were read")
    monkeypatch.setattr(engine, "available_bytes", lambda: 100_000)
    with pytest.raises(ModelRefused, match=r"its weights take .* GB as fp32, but 0\.0001 GB are available"):
        load_torch_model(EngineOptions(model=str(tmp_path), device="cpu"))


def test_keys_and_values_of_both_come_of_what_both_models_weights_and_logits_leave() -> None:
    assert left_for_both(BUDGET, PARTS) == 51 * UNIT // 10 - VERIFY - DRAFT


@pytest.mark.parametrize(
    ("available", "asked", "lent"),
    [
        (BUDGET, None, [129 * 3000, 129 * 1000]),
        (BUDGET, 4 * UNIT, [3 * UNIT, UNIT]),
        (BUDGET, 9 * 4000, [9 * 3000, 9 * 1000]),
    ],
    ids=["what all sessions need", "as asked, by bytes of a position", "one request"],
)
def test_a_pair_shares_its_memory_by_what_a_position_takes(available: int, asked: int | None, lent: list[int]) -> None:
    assert shares(available, PARTS, length=128, asked=asked) == lent


@pytest.mark.parametrize(
    ("left", "asked", "told"),
    [
        (0, None, "take smaller models"),
        (50_000, None, "one request of --max-length 128 needs 36000: lower --max-length, or give --kv-bytes 36000 to"),
        (35_999, None, "35999 bytes are left .* needs 36000: lower --max-length$"),
        (50_000, 50_001, "give --kv-bytes 50000 at most"),
        (50_000, 35_999, "needs 36000: lower --max-length, or give --kv-bytes 36000 to 50000"),
    ],
)
def test_a_pair_that_cannot_hold_one_request_is_told_the_sum(left: int, asked: int | None, told: str) -> None:
    available = 33 * UNIT // 2 + VERIFY + DRAFT + left
    with pytest.raises(ModelRefused, match=f"target takes 15 GB .* draft takes 1.5 GB .*{told}"):
        shares(available, PARTS, length=128, asked=asked)


def test_a_full_step_of_a_target_has_logits_for_every_guess_and_one_more() -> None:
    asked = replace(ASKED, max_sessions=16, outputs=17)
    assert logits_bytes(asked, replace(CONFIG, vocab_size=128), torch.float32) == VERIFY
    assert logits_bytes(replace(asked, step_rows=100), CONFIG, torch.bfloat16) == 100 * 1000 * 6


def test_a_pair_that_does_not_fit_is_refused_before_a_weight_of_either_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_model("LlamaForCausalLM")
    reference.save_pretrained(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"what would be refused if it were read")
    one = EngineOptions(model=str(tmp_path), device="cpu", max_sessions=2)
    needed = weight_bytes(read_config(tmp_path), torch.float32)
    monkeypatch.setattr(engine, "available_bytes", lambda: 3 * needed // 2)
    with pytest.raises(ModelRefused, match=r"--target .* --draft .* left for keys and values of both; take smaller"):
        pair_sums(replace(one, outputs=9), one)
    monkeypatch.setattr(engine, "available_bytes", lambda: 1000 * needed)
    target, draft, told = pair_sums(replace(one, outputs=9), one)
    assert target.kv_bytes == draft.kv_bytes
    assert f"{target.kv_bytes} for the target's" in told
