"""The page about benchmarks tells the committed figures, and has a word for every benchmark."""

import json
from pathlib import Path

import pytest
from benchmarks.page import HEADLINES, PAGE, drawn, results

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if '\nif __name__ == "' in path.read_text())


def test_the_page_tells_the_figures_that_are_committed() -> None:
    page = PAGE.read_text()
    assert page == drawn(page), "run python -m benchmarks.page"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_says_what_each_benchmark_measures(name: str) -> None:
    page = PAGE.read_text()
    assert f"\n## {name}\n" in page or f"\n| `{name}` |" in page


def test_every_committed_result_has_its_headlines() -> None:
    names = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert names <= HEADLINES.keys()


def test_what_was_not_measured_is_told_as_such(tmp_path: Path) -> None:
    machine = {"cpu": "C"}
    result = {
        "name": "drafters",
        "when": "2030-01-02T03:04:05",
        "machine": machine,
        "figures": {"rig_speedup": 3.14159},
    }
    (tmp_path / "drafters.json").write_text(json.dumps(result))
    _, _, rig, cpu, _, absent = results(tmp_path).splitlines()
    assert rig.endswith("| 3.14 | ≥ 3 | 2030-01-02, C |")
    assert cpu.endswith("| not measured | ≥ 1.5 | 2030-01-02, C |")
    assert "`engine_cpu`" in absent
    assert "`drafters`" not in absent
