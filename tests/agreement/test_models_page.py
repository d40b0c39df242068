"""docs/models.md says of each architecture, of scalings and of refusals what the code does."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.seams.model_folders import rewrite_config, saved_reference

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.architectures import ARCHITECTURES, SCALINGS, Biases
from tandem_runtime.engines.torch_engine.engine import DTYPES
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.shards import READ_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def cell(biases: Biases) -> str:
    return biases.value if biases in (Biases.NEVER, Biases.ALWAYS) else f"`{biases.value}`"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_row_of_an_architecture_says_what_the_table_says(name: str) -> None:
    row = ARCHITECTURES[name]
    biases = " | ".join(cell(each) for each in (row.qkv_bias, row.out_bias, row.mlp_bias))
    assert f"\n| `{name}` | {biases} | {'yes' if row.head_norms else 'no'} | {row.window.value} | " in PAGE


def test_there_is_no_row_but_of_an_architecture() -> None:
    assert re.findall(r"^\| `(\w+ForCausalLM)` \|", PAGE, flags=re.MULTILINE) == list(ARCHITECTURES)


def test_kinds_of_scaling_and_types_are_named() -> None:
    assert all(f"`{kind}`" in PAGE for kind in SCALINGS)
    assert f"computes {', '.join(SCALINGS)}`" in PAGE
    assert all(kind in PAGE for kind in READ_TYPES)
    assert f"`--dtype {'` or `'.join(DTYPES)}`" in PAGE
    assert str(sorted(READ_TYPES)) in PAGE


def shortened(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def retyped(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": torch.ones(64, dtype=torch.int32)}, path)


FAULTS: dict[str, Callable[[Path], object]] = {
    "another architecture": lambda folder: rewrite_config(folder, architectures=["GPT2LMHeadModel"]),
    "another activation": lambda folder: rewrite_config(folder, hidden_act="gelu"),
    "another scaling": lambda folder: rewrite_config(folder, rope_parameters={"rope_type": "yarn"}),
    "a size that is no number": lambda folder: rewrite_config(folder, hidden_size="64"),
    "a missing shard": lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(),
    "a missing tensor": lambda folder: rewrite_config(folder, num_hidden_layers=3),
    "a wrong shape": lambda folder: rewrite_config(folder, intermediate_size=100),
    "a wrong type": retyped,
    "a file cut short": shortened,
    "a lying header": lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}"),
}


def test_the_page_has_a_row_for_every_fault_shown() -> None:
    table = PAGE.split("| what is wrong |")[1].split("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]] == list(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refusal_says_what_the_page_says(fault: str, tmp_path: Path) -> None:
    size = "200KB" if "shard" in fault else "1GB"
    saved_reference(tmp_path, "LlamaForCausalLM", tie_word_embeddings=True, max_shard_size=size)
    FAULTS[fault](tmp_path)
    with pytest.raises(ModelRefused) as caught:
        load_decoder(tmp_path)
    said = re.sub(rf"^{re.escape(str(tmp_path))}(/|: )", "", str(caught.value))
    assert f"| {fault} | `{said}` |" in PAGE
