"""The whole command `benchmarks.engine_cpu`, between engines that count, with the steps of no model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import engine_cpu, engine_cpu_entrants, engine_cpu_turns, engine_processes, record
from benchmarks.engine_cpu_entrants import Entrant
from benchmarks.engine_cpu_figures import figures_of
from benchmarks.engine_processes import Kind

pytestmark = pytest.mark.timeout(300)  # a dozen processes start, one after the other

KIND = Kind("tests.seams.benchmark_peer", Path(sys.executable), Path("nowhere"), {}, of_one_way=False)
ENTRANTS = (
    Entrant("tandem", lambda: KIND, ("bf16",), ("off",), ("suffix",)),
    Entrant("transformers", lambda: KIND, ("bf16",), ("plain",), ("other", "wrong")),
    Entrant("vllm", lambda: KIND, ("absent",), ("eager",), ("{plain}-ngram-4",)),
)


class Letters:
    """A tokenizer: an id for each letter."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing."""

    def encode(self, text: str) -> Sequence[int]:
        return [ord(letter) for letter in text]


def steps_of_no_model(folder: Path, *, threads: tuple[int, ...], turns: int) -> dict[str, Any]:
    settings = [f"bf16 x{count}" for count in threads]
    return {
        "read_gb_per_s": {str(count): 10.0 for count in threads},
        "weight_bytes": {"bf16": 270_000_000},
        "milliseconds": {name: {"0": [30.0], "4": [33.0], "8": [36.0]} for name in settings},
    }


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["engine_cpu", "--quick"])
    monkeypatch.setattr(engine_processes, "CALM_SECONDS", 0.0)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(engine_cpu, "CACHE", tmp_path)
    monkeypatch.setattr(engine_cpu, "LOG", tmp_path / "engines.log")
    monkeypatch.setattr(engine_cpu, "needed_folder", lambda: Path("nowhere"))
    monkeypatch.setattr(engine_cpu, "FolderTokenizer", Letters)
    monkeypatch.setattr(engine_cpu, "measured_steps", steps_of_no_model)
    for module in (engine_cpu, engine_cpu_entrants, engine_cpu_turns):
        monkeypatch.setattr(module, "ENTRANTS", ENTRANTS)
    engine_cpu.main()
    written: dict[str, Any] = json.loads((tmp_path / "engine_cpu_quick.json").read_text())
    return written


def test_the_command_writes_a_result_whose_figures_follow_from_its_samples(result: dict[str, Any]) -> None:
    samples = result["samples"]
    assert result["figures"] == figures_of(samples)
    wanted = {"plain_ratio_1", "plain_ratio_4", "plain_ratio_16", "best_ratio_1", "on_over_off_1", "tv4_over_tb"}
    assert wanted <= result["figures"].keys()
    assert samples["absent"] == {"vllm": "this machine lacks it"}
    whys = {trial["configuration"]["way"]: trial["why"] for trial in samples["trials"] if trial["why"]}
    assert whys == {"wrong": "ValueError: no such way", "eager": "this machine lacks it"}
    threads = {trial["configuration"]["threads"] for trial in samples["trials"]}
    plain, other = (
        sum(result["figures"].get(f"texts_differing transformers {way} bf16 x{count}", 0) for count in threads)
        for way in ("plain", "other")
    )
    assert (plain, other) == (0, 2)
