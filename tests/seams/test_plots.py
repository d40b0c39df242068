"""Figures are drawn from results alone, the same each time, and what is recorded stands apart."""

from pathlib import Path

import pytest
from benchmarks.record import RESULTS
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


def test_what_the_trained_pair_drafts_ahead_stands_apart(tmp_path: Path) -> None:
    figures = {"speedup_flat_0.8": 2.25, "sequential_flat_0.8": 1.43, "hit_rate_flat_0.8": 0.951}
    pair = {name.replace("0.8", "pair"): value for name, value in figures.items()}
    for name, both in (("alone.svg", figures), ("both.svg", figures | pair)):
        plots.rig_overlap({key.removeprefix("speedup_"): {} for key in both if "speedup" in key}, both, tmp_path / name)
    alone, beside = ((tmp_path / name).read_text() for name in ("alone.svg", "both.svg"))
    assert "flat 0.8, ahead (95% ready)" in alone
    assert "trained pair" not in alone
    assert "trained pair" in beside


def test_shares_by_turns_are_drawn_beside_those_of_whoever_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "fairness.svg"
    plots.fairness({"verify": {}}, {"verify_share": 0.5004, "verify_share_first_come": 0.1328}, path)
    assert "whoever comes first" in path.read_text()
    assert "0.133" in path.read_text()


def test_every_result_that_has_a_plot_is_committed_with_it() -> None:
    drawn = {source.with_suffix(".svg") for source in RESULTS.glob("*.json") if source.stem in plots.PLOTS}
    assert [path.name for path in drawn if not path.exists()] == [], "run python -m benchmarks.plots"
