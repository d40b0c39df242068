"""LoRA in the bundled engine: merged weights' logits, a row's bits in any company, and folders that are refused."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.seams.adapter_folders import merged, rewrite_settings, rewrite_weights, saved_adapter, tensor_name
from tests.seams.kv_tables import lent_blocks
from tests.seams.model_folders import REFERENCES, VOCAB, reference_model, saved_reference

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine import adapters
from tandem_runtime.engines.torch_engine.engine import TorchModel, load_torch_model
from tandem_runtime.engines.torch_engine.linear import multiplier_for
from tandem_runtime.ports import Logits, Row

TOKENS = tuple(int(token) for token in torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(5)))


def needs_own_product() -> None:
    here = multiplier_for(torch.device("cpu"))
    if not here.row_invariant:
        pytest.skip(f"without our product rows depend on their company, and here is {here.about}")


def loaded(folder: Path, *, dtype: str = "fp32") -> TorchModel:
    needs_own_product()
    return load_torch_model(EngineOptions(model=str(folder), device="cpu", dtype=dtype, max_sessions=4))


def installed(model: TorchModel, folder: Path) -> AdapterDigest:
    read = model.read_adapter(folder)
    read.install()
    return read.digest


def logits_of(model: TorchModel, tokens: tuple[int, ...], adapter: AdapterDigest | None) -> Logits:
    with lent_blocks(model) as blocks:
        [rows] = model.forward([Row(blocks, 0, tokens, len(tokens), adapter)])
    return rows


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 5},
        {"target_modules": ["up_proj", "o_proj"], "use_rslora": True},
        {"target_modules": ["k_proj", "down_proj", "gate_proj"], "dtype": torch.bfloat16},
        {"target_modules": ["model.layers.0.self_attn.v_proj", "mlp.up_proj", "1.self_attn.q_proj"]},
    ],
    ids=["all modules", "queries and values", "scaled by the root of the rank", "stored in bf16", "by whole names"],
)
def test_logits_equal_those_of_transformers_with_merged_weights(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    reference = saved_reference(tmp_path / "model", name)
    folder = saved_adapter(tmp_path / "adapter", reference.state_dict(), **changes)
    model = loaded(tmp_path / "model")
    given = logits_of(model, TOKENS, installed(model, folder))
    plain = reference(torch.tensor([TOKENS])).logits[0].numpy()
    reference.load_state_dict(merged(reference.state_dict(), folder))
    wanted = reference(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(given, wanted, rtol=2e-4, atol=2e-4)
    assert np.abs(wanted - plain).max() > 0.5


def test_bf16_logits_are_near_those_of_merged_weights(tmp_path: Path) -> None:
    reference = saved_reference(tmp_path / "model", "LlamaForCausalLM")
    folder = saved_adapter(tmp_path / "adapter", reference.state_dict())
    model = loaded(tmp_path / "model", dtype="bf16")
    given = logits_of(model, TOKENS, installed(model, folder))
    reference.load_state_dict(merged(reference.state_dict(), folder))
    wanted = reference(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(given - wanted).mean() < 0.02 * np.abs(wanted).max()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and two adapters for it of unlike ranks and targets."""
    folder = tmp_path_factory.mktemp("adapted")
    weights = saved_reference(folder / "model", "Qwen2ForCausalLM").state_dict()
    saved_adapter(folder / "one", weights, seed=1)
    saved_adapter(folder / "two", weights, seed=2, r=5, target_modules=["q_proj", "down_proj"])
    return folder


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_rows_bits_depend_on_its_own_adapter_and_on_no_company(folders: Path, dtype: str) -> None:
    model = loaded(folders / "model", dtype=dtype)
    choices = (None, installed(model, folders / "one"), installed(model, folders / "two"))
    alone = [logits_of(model, TOKENS, adapter) for adapter in choices]
    assert model.determinism == "Bitwise"
    assert all(not np.array_equal(alone[a], alone[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    which, at = (1, 0, 2, 1), [0, 0, 0, 0]
    with ExitStack() as lent:
        tables = [lent.enter_context(lent_blocks(model)) for _ in which]
        for sizes in ((1, 7, 3, 2), (5, 1, 1, 1), (1, 1, 20, 6), (33, 31, 16, 31)):
            rows = [
                Row(tables[i], at[i], TOKENS[at[i] : at[i] + size], size, choices[which[i]])
                for i, size in enumerate(sizes)
            ]
            for i, logits in enumerate(model.forward(rows)):
                assert np.array_equal(logits, alone[which[i]][at[i] : at[i] + sizes[i]])
                at[i] += sizes[i]
    assert at == [40] * 4


def test_a_dropped_adapter_leaves_the_model_as_it_was(folders: Path) -> None:
    model = loaded(folders / "model")
    before = logits_of(model, TOKENS, None)
    digest = installed(model, folders / "one")
    changed = logits_of(model, TOKENS, digest)
    model.drop_adapter(digest)
    assert np.array_equal(logits_of(model, TOKENS, None), before)
    assert installed(model, folders / "one") == digest
    assert np.array_equal(logits_of(model, TOKENS, digest), changed)


def test_what_an_adapter_takes_is_told(folders: Path) -> None:
    """[4, 64] and [128 or 64, 4] numbers and so on; the joined products keep zeros where A's are apart."""
    read = loaded(folders / "model").read_adapter(folders / "two")
    qkv, down = 5 * 64 + (64 + 32 + 32) * 5, 5 * 112 + 64 * 5
    assert (read.rank, read.bytes) == (5, 2 * 4 * (qkv + down))


Spoil = Callable[[Path], object]
A = tensor_name(0, "q_proj", "A")
B = tensor_name(1, "down_proj", "B")


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    os.truncate(path, path.stat().st_size - 10)


def pipe(folder: Path) -> None:
    """Whoever opened it would wait for ever."""
    path = folder / "adapter_model.safetensors"
    path.unlink()
    os.mkfifo(path)


SPOILT: dict[str, tuple[Spoil, str]] = {
    **{
        f"{field} = {value!r}": (
            partial(rewrite_settings, changes={field: value}),
            rf"{field} = .*{why}",
        )
        for field, value, why in [
            ("peft_type", "IA3", "LORA only"),
            ("task_type", "SEQ_CLS", "CAUSAL_LM"),
            ("bias", "all", "no biases"),
            ("use_dora", True, "does not compute"),
            ("fan_in_fan_out", True, "does not compute"),
            ("modules_to_save", ["lm_head"], "does not compute"),
            ("rank_pattern", {"q_proj": 8}, "does not compute"),
            ("layers_to_transform", [0], "does not compute"),
            ("layers_to_transform", 0, "does not compute"),
            ("some_new_kind", {"of": 1}, "does not compute"),
            ("init_lora_weights", "pissa", "changed the base model"),
            ("r", 0, "whole number from 1"),
            ("r", True, "whole number from 1"),
            ("r", 1 << 40, "whole number from 1"),
            ("lora_alpha", "16", "number above 0"),
            ("lora_alpha", float("nan"), "number above 0"),
            ("use_rslora", "yes", "true or false"),
            ("target_modules", "all-linear", "give a list"),
            ("target_modules", [], "give a list"),
        ]
    },
    "the head": (
        lambda folder: rewrite_settings(folder, {"target_modules": ["q_proj", "lm_head"]}),
        r"target_modules holds 'lm_head': this engine adapts self_attn\.q_proj, .*, mlp\.down_proj of layers 0 to 1;",
    ),
    "another layer": (
        lambda folder: rewrite_settings(folder, {"target_modules": ["model.layers.2.self_attn.q_proj"]}),
        r"target_modules holds 'model\.layers\.2\.self_attn\.q_proj'",
    ),
    "no name": (
        lambda folder: rewrite_settings(folder, {"target_modules": [["q_proj"]]}),
        r"target_modules holds \['q_proj'\]",
    ),
    "no object": (lambda folder: (folder / "adapter_config.json").write_text("[]"), "give a JSON object"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "is no adapter folder: it lacks"),
    "a pipe": (pipe, "is no adapter folder: it lacks"),
    "cut short": (cut, "cut short"),
    "another r": (lambda folder: rewrite_settings(folder, {"r": 8}), r"has shape \[4, 112\].* ask for \[8, 112\]"),
    "of another model": (
        lambda folder: rewrite_weights(folder, {A: torch.zeros(4, 32)}),
        r"has shape \[4, 32\].*of another base model",
    ),
    "a tensor less": (lambda folder: rewrite_weights(folder, {B: None}), f"{B} of shape .* is missing"),
    "a tensor more": (
        lambda folder: rewrite_weights(folder, {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)}),
        "base_model.model.lm_head.lora_A.weight is none of the tensors",
    ),
    "whole numbers": (lambda folder: rewrite_weights(folder, {A: torch.zeros(4, 64).int()}), "is stored as I32"),
    "not a number": (lambda folder: rewrite_weights(folder, {A: torch.full((4, 64), torch.nan)}), "NaN or infinity"),
}


@pytest.fixture(scope="module")
def model(folders: Path) -> TorchModel:
    return loaded(folders / "model")


@pytest.mark.parametrize(("spoil", "why"), SPOILT.values(), ids=SPOILT)
def test_what_is_wrong_with_a_folder_is_said(spoil: Spoil, why: str, model: TorchModel, tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path / "adapter", reference_model("Qwen2ForCausalLM").state_dict())
    spoil(folder)
    with pytest.raises(ModelRefused, match=why) as refused:
        model.read_adapter(folder)
    assert str(folder) in str(refused.value)


def test_a_folder_that_changes_while_it_is_read_is_refused(
    model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = reference_model("Qwen2ForCausalLM").state_dict()
    folder = saved_adapter(tmp_path / "adapter", weights)

    def read_and_changed(wanted: Any) -> Any:
        taken = real(wanted)
        saved_adapter(folder, weights, seed=9)
        return taken

    real = adapters._read
    monkeypatch.setattr(adapters, "_read", read_and_changed)
    with pytest.raises(ModelRefused, match="changed while it was read"):
        model.read_adapter(folder)
