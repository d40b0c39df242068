"""Planning in the simulator: what drafting elsewhere frees, how many drafts are enough, what is drawn of it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.simulator.__main__ import arguments, crowd_of, main
from benchmarks.simulator.capacity import Crowd, Load, clients_at, measure
from benchmarks.simulator.costs import FLAT
from benchmarks.simulator.planning import Choice, advised
from benchmarks.simulator.regimes import COURSES, CYCLES

from tandem_runtime.domain.lookahead import Bounds, Mode

CROWD = Crowd(
    clients=6,
    rig=replace(FLAT, network=0.0, noise=0.0),
    alpha=0.8,
    seed=1,
    drafts=3,
    sessions=2,
    requests=2,
    bounds=Bounds(5, 5, Mode.ALWAYS),
)


def load(speed: float, clients: int = 10) -> Load:
    return Load(clients, speed, target_busy=1.0, draft_busy=0.5, mean_k=4.0)


def test_a_verifier_that_does_not_draft_says_what_its_rounds_without_drafting_leave_time_for() -> None:
    offloaded, colocated = measure(CROWD), measure(replace(CROWD, drafts=1, colocated=True))
    assert offloaded.speed / colocated.speed == pytest.approx((5 * 4 + 18) / 18, rel=0.05)
    assert offloaded.target_busy > 0.95
    assert colocated.target_busy + colocated.draft_busy == pytest.approx(1.0, abs=0.01)


def test_clients_at_a_speed_lie_on_the_line_of_seconds_per_token() -> None:
    saturated = {120: load(100 / 120), 140: load(100 / 140)}
    assert clients_at(100 / 126, saturated.__getitem__, 120, 140) == pytest.approx(126)


def test_the_fewest_drafts_that_bring_nearly_the_most_are_advised() -> None:
    found = [Choice(drafts, load(speed)) for drafts, speed in enumerate([10.0, 25.0, 29.6, 30.0, 29.9])]
    assert advised(found).drafts == 2


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--alpha", "1.5"], "--alpha 1.5 is no share; give one from 0 to 1"),
        (["--verify-ms", "10"], "--verify-ms 10 is less than --plain-ms 15; measure both again"),
    ],
)
def test_numbers_that_are_no_costs_are_refused_by_name(words: list[str], fault: str) -> None:
    with pytest.raises(SystemExit) as refused:
        crowd_of(arguments().parse_args(["plan", *words]))
    assert str(refused.value) == fault


@pytest.mark.parametrize(("option", "value"), [("--draft-ms", "-1"), ("--clients", "0"), ("--network-ms", "inf")])
def test_a_number_out_of_range_names_its_option(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments().parse_args(["plan", option, value])
    assert f"argument {option}: {value} is" in capsys.readouterr().err


def test_a_plan_is_a_table_with_its_advice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulator", "plan", "--clients", "2", "--batch", "1", "--most", "1"]
    monkeypatch.setattr(sys, "argv", words)
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == ["drafts", "0", "1", "Enough:"]


def test_the_same_points_are_drawn_as_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the dependency group `bench`")
    from benchmarks.plots import plan_plot  # noqa: PLC0415  (only where it can be had)

    drawn = []
    for name in ("first.svg", "second.svg"):
        plan_plot([(0, 532.0), (1, 1372.0), (2, 1480.0)], tmp_path / name)
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) < 40_000


@pytest.mark.parametrize(
    ("name", "cycle", "alpha"),
    [
        ("constant_0.8", CYCLES - 1, 0.8),
        ("constant_0.3", 0, 0.3),
        ("every_300", 299, 0.9),
        ("every_300", 300, 0.5),
        ("every_40", 40, 0.5),
        ("every_40", 80, 0.9),
        ("four_regimes", 950, 0.95),
        ("ramp", CYCLES // 2, 0.625),
        ("ramp", CYCLES, 0.9),
    ],
)
def test_a_course_of_acceptance_is_where_its_name_says(name: str, cycle: int, alpha: float) -> None:
    assert COURSES[name](cycle) == pytest.approx(alpha)
