"""The benchmark of the CPU engine, without engines: its figures follow from its samples, and it notices other texts."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.engine_cpu_entrants import Entrant, Stable
from benchmarks.engine_cpu_figures import figures_of, tables
from benchmarks.engine_cpu_samples import Configuration, Visit, course
from benchmarks.engine_processes import Kind
from benchmarks.peers.lines import Stream
from benchmarks.workload import KINDS, first_difference, read_prompts

OFF = Configuration("tandem", "off", "bf16", 2)
ON = Configuration("tandem", "suffix", "bf16", 2)
SLOW = Configuration("transformers", "plain", "fp32", 2)
FAST = Configuration("vllm", "eager", "fp32", 2)
LOOKUP = Configuration("transformers", "lookup-8", "fp32", 2)
SMALL = Configuration("llamacpp", "plain", "q4_1", 2)
RATES = {OFF: 40.0, ON: 90.0, SLOW: 20.0, FAST: 32.0, LOOKUP: 50.0, SMALL: 80.0}
"""Decoded tokens per second; the second turn has twice as many."""


def visit(configuration: Configuration, turn: int, *, streams: int = 1, kind: str = "edit") -> Visit:
    seconds = 100 / (RATES[configuration] * (turn + 1))
    return Visit(
        streams=streams,
        turn=turn,
        configuration=configuration.name,
        kind=kind,
        prompts=("rename-1",),
        prompt_tokens=50,
        tokens=101,
        prefill_seconds=1.0,
        decode_tokens=100,
        decode_seconds=seconds,
        seconds=1.0 + seconds,
        others_share=0.0,
        parted=(None,) if configuration.engine == "tandem" else (7,),
    )


def samples() -> dict[str, Any]:
    everyone = list(RATES)
    return {
        "weights": {
            "tandem": "16 or 32 bits",
            "vllm": "16 or 32 bits",
            "transformers": "16 or 32 bits",
            "llamacpp": "4 bits",
        },
        "absent": {},
        "left": {},
        "started": {OFF.name: {"seconds": 3.5}},
        "trials": [],
        "chosen": {"1": [asdict(each) for each in everyone], "4": [asdict(OFF), asdict(FAST)]},
        "visits": [
            *(asdict(visit(each, turn)) for each in everyone for turn in range(2)),
            *(asdict(visit(each, 0, streams=4, kind="mixed")) for each in (OFF, FAST)),
        ],
        "steps": {
            "read_gb_per_s": {"2": 20.0},
            "weight_bytes": {"bf16": 270_000_000},
            "milliseconds": {"bf16 x2": {str(k): [20.0 + k, 25.0 + k, 30.0 + k] for k in (0, 4, 8)}},
        },
        "busy_share_before": 0.01,
    }


def test_a_ratio_is_to_the_best_peer_of_the_same_weights_turn_by_turn() -> None:
    figures = figures_of(samples())
    assert {name: figures[name] for name in ("plain_ratio_1", "best_ratio_1", "plain_ratio_4", "on_over_off_1")} == {
        "plain_ratio_1": pytest.approx(40 / 32),
        "best_ratio_1": pytest.approx(90 / 50),
        "plain_ratio_4": pytest.approx(40 / 32),
        "on_over_off_1": pytest.approx(90 / 40),
    }
    assert figures["plain_ratio_1_over_4_bits"] == pytest.approx(40 / 80)


def test_a_figure_without_visits_is_absent() -> None:
    assert "plain_ratio_16" not in figures_of(samples())


def test_steps_are_told_for_the_dtype_and_threads_of_our_fastest_plain_setting() -> None:
    figures = figures_of(samples())
    assert (figures["tb_ms"], figures["tv4_over_tb"], figures["tv8_over_tb"]) == (25.0, 1.16, 1.32)
    assert figures["read_share"] == pytest.approx(270 / 20 / 25)


def test_the_same_figures_follow_from_the_file_as_it_is_written() -> None:
    written = json.loads(json.dumps(samples()))
    assert figures_of(written) == figures_of(samples())
    assert any(line.startswith("plain_ratio_1 ") for line in tables(written, figures_of(written)))


def test_texts_that_differ_are_counted() -> None:
    figures = figures_of(samples())
    counts = {name: value for name, value in figures.items() if name.startswith("texts_differing")}
    assert counts[f"texts_differing {OFF.name}"] == 0
    assert counts[f"texts_differing {FAST.name}"] == figures[f"texts_compared {FAST.name}"] == 3


@pytest.mark.parametrize(
    ("ids", "reference", "at"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 9, 3], [1, 2, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [], None)],
)
def test_a_text_parts_from_another_at_its_first_other_token(
    ids: list[int], reference: list[int], at: int | None
) -> None:
    assert first_difference(ids, reference) == at


def test_decode_begins_when_the_last_stream_has_its_first_token() -> None:
    early = Stream(ids=[1, 2, 3], events=[(1.0, 1), (2.0, 1), (3.0, 1)])
    late = Stream(ids=[1, 2, 3], events=[(2.0, 1), (3.0, 1), (4.0, 1)])
    found = course([early, late])
    assert (found.tokens, found.prefill_seconds, found.decode_tokens, found.decode_seconds) == (6, 2.0, 3, 2.0)


def counting(name: str) -> Entrant:
    kind = Kind("tests.seams.engine_that_counts", Path(sys.executable), Path("model"), {"NAME": name}, of_one_way=False)
    return Entrant(name, lambda: kind, ("fp32",), (name,), ())


def test_engines_that_are_started_alike_have_processes_of_their_own(tmp_path: Path) -> None:
    entrants = {name: counting(name) for name in ("one", "other")}
    settings = {name: Configuration(name, name, "fp32", 1) for name in entrants}
    with (tmp_path / "log").open("wb") as log, Stable(log) as stable:
        running = {name: stable.process(entrant, settings[name]) for name, entrant in entrants.items()}
        for name, process in running.items():
            assert process.ask([[1]], tokens=2, way=name, limit_seconds=20).streams[0].ids == [0, 1]
        assert stable.process(entrants["one"], settings["one"]) is running["one"]
        stable.keep(entrants, [settings["other"]])
        assert [process.is_running for process in running.values()] == [False, True]


def test_there_are_ten_prompts_of_each_kind_and_none_is_long() -> None:
    prompts = read_prompts(lambda text: list(text.encode()))
    assert [prompt.kind for prompt in prompts] == list(KINDS) * 10
    assert len({prompt.ids for prompt in prompts}) == 20
    assert max(len(prompt.ids) for prompt in prompts) < 2000
