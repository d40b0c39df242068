"""How `segments` compares beliefs: over the same requests, in the same order, within wider segments of the product."""

from benchmarks.recorded import Outcomes, Trace
from benchmarks.segments import CLIENTS, DIVISIONS, comparisons, measure, mixed, serve


def trace(*tasks: str, temperatures: tuple[float, ...] = (0.0,)) -> Trace:
    texts = tuple(
        Outcomes(task, f"{task}-{number}", temperature, 20, "1101" if task == "code" else "0010")
        for task in tasks
        for temperature in temperatures
        for number in range(2 * CLIENTS)
    )
    return Trace("pair-good", "recorded", "pair", "good", "Coupled", "t", dict.fromkeys(tasks, "made"), texts)


def test_a_trace_is_divided_by_what_differs_in_it() -> None:
    assert comparisons(trace("code")) == [("temperature", "lot")]
    assert comparisons(trace("code", "prose")) == [("temperature", "task"), ("temperature", "lot")]
    both = comparisons(trace("code", "prose", temperatures=(0.0, 1.0)))
    assert both == [("one", "temperature"), ("temperature", "task"), ("temperature", "lot")]


def test_every_way_serves_the_same_tokens_and_is_the_same_each_time() -> None:
    mixture = trace("code", "prose")
    served = {kind: serve(mixture, division, order=1) for kind, division in DIVISIONS.items()}
    assert {each["tokens"] for each in served.values()} == {4 * 4 * CLIENTS}
    assert serve(mixture, DIVISIONS["task"], order=1) == served["task"]
    assert served["one"] == served["temperature"]


def test_an_order_of_chance_mixes_the_tasks() -> None:
    texts = mixed(trace("code", "prose"), 1).texts
    assert texts != trace("code", "prose").sequences
    assert sorted(each.prompt for each in texts) == sorted(each.prompt for each in trace("code", "prose").sequences)


def test_a_gain_is_seconds_over_seconds() -> None:
    gains, samples = measure(trace("code", "prose"), orders=1)
    assert gains["task"] == samples["temperature"][0]["seconds"] / samples["task"][0]["seconds"]
    assert set(gains) == {"task", "lot"}
