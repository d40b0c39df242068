"""Figures are drawn from results alone, the same each time, and what is recorded stands apart."""

from pathlib import Path

import pytest
from benchmarks.recorded import Outcomes, Trace

pytest.importorskip("matplotlib", reason="of the dependency group bench")

from benchmarks import plots

FIGURES = {"share_ramp": 0.95, "share_recorded_pair-good": 1.02, "changes_ramp": 3.0}


def titles(path: Path) -> list[str]:
    return [title for title in ("i.i.d. acceptance", "recorded and replayed") if title in path.read_text()]


def test_what_is_recorded_has_axes_of_its_own(tmp_path: Path) -> None:
    both, alone = tmp_path / "both.svg", tmp_path / "alone.svg"
    plots.controller({}, FIGURES, both)
    plots.controller({}, {"share_ramp": 0.95}, alone)
    assert titles(both) == ["i.i.d. acceptance", "recorded and replayed"]
    assert titles(alone) == ["i.i.d. acceptance"]
    assert "changes" not in both.read_text()


def test_the_same_figures_are_drawn_in_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        plots.segments({}, {"task_gain_pair-good": 1.02, "task_gain_most": 1.02}, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert b"most" not in (tmp_path / "one").read_bytes()


def test_a_trace_is_drawn_by_task(tmp_path: Path) -> None:
    texts = tuple(Outcomes(task, "p", 0.0, 3, bits) for task in ("prose", "code") for bits in ("01", "11"))
    path = tmp_path / "traces.svg"
    plots.traces([Trace("a-b", "recorded", "a", "b", "Coupled", "t", {"prose": "", "code": ""}, texts)], path)
    for row in ("a-b, prose", "a-b, code"):
        assert row in path.read_text()
