"""Canaries that a metric of the user's own decides: it passes, fails, is missing, or nobody answers for it."""

import json
import re
from collections.abc import Callable

from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push
from tests.scenarios.story_views import checks, served, stage, weights

from tandem_operator.domain.progress import Stage

REFUSALS = {
    "name": "refusals",
    "query": 'sum(rate(refusals_total{namespace="{{namespace}}", specdep="{{name}}", revision="{{revision}}"}[5m]))'
    ' / sum(rate(refusals_total{revision="{{stable}}"}[5m]))',
    "operator": "LessThan",
    "thresholdBasisPoints": 15_000,
}
STEPS = [
    {"percent": 0, "shadow": True, "holdSeconds": 60},
    {"percent": 10, "holdSeconds": 60},
    {"percent": 50, "holdSeconds": 60},
]


def watched(answer: Callable[[str], bytes]) -> World:
    """A world with the check, whose Prometheus answers so."""
    analysis = {**QUICK["canary"]["analysis"], "metrics": [REFUSALS]}
    canary = {"steps": STEPS, "analysis": analysis, "progressDeadlineSeconds": 1200}
    world = installed(changed(QUICK, canary=canary), rate=8)
    world.prometheus = answer
    return world


def number(value: str) -> bytes:
    data = {"resultType": "vector", "result": [{"metric": {}, "value": [1767225600.0, value]}]}
    return json.dumps({"status": "success", "data": data}).encode()


def test_a_metric_as_wanted_lets_the_canary_through_and_stands_in_status_with_its_number() -> None:
    world = watched(lambda query: number("0.8"))
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING and checks(seen).get("metrics.refusals") is not None)
    world.run_until(lambda seen: checks(seen)["metrics.refusals"]["verdict"] == "Pass")
    shown = checks(world)["metrics.refusals"]
    assert (shown["value"], shown["threshold"], shown["message"]) == ("0.8", "< 1.5", "as wanted")
    assert re.fullmatch(r"\d+ requests", shown["samples"])
    world.run_until(lambda seen: seen.stable == v2)


def test_the_query_names_the_object_and_both_revisions_and_is_asked_at_the_pace_of_the_analysis() -> None:
    world = watched(lambda query: number("0.8"))
    v1 = world.stable
    world.run(600)
    assert world.asked == []  # without a canary nobody is asked
    v2 = push(world, V2)
    world.run_until(lambda seen: bool(seen.asked))
    assert weights(world)[v2] == 10  # nor while nobody is served by it
    (query,) = world.asked
    assert f'namespace="llm", specdep="chat", revision="{v2}"' in query
    assert f'revision="{v1}"' in query
    assert "{{" not in query
    world.run(120, every=10)
    assert len(world.asked) == 5  # every 30 of 120 s


def test_a_metric_that_is_not_as_wanted_ends_the_canary_with_its_number() -> None:
    world = watched(lambda query: number("1.75"))
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.stable, served(world)) == (v1, {v1: 100})
    assert world.verdicts()[v2] == "Bad"
    assert world.condition("RolledBack") == ("True", "MetricsFailed")
    note = next(event.note for event in world.events if event.reason == "CanaryAborted")
    assert re.search(r"MetricsFailed: metrics.refusals 1.75, wanted < 1.5, \d+ requests", note)


def test_the_first_refusals_of_a_handful_of_requests_end_nothing() -> None:
    world = watched(lambda query: number("9"))
    world.rate = 1.0
    v2 = push(world, V2)
    world.run_until(lambda seen: bool(seen.asked))
    world.run(60)
    assert checks(world)["metrics.refusals"]["verdict"] == "Inconclusive"
    assert world.progress.refused != v2


def test_no_data_and_no_answer_hold_the_step_and_name_what_is_missing() -> None:
    world = watched(lambda query: number("NaN"))
    v2 = push(world, V2)
    world.run_until(lambda seen: bool(seen.asked))
    world.run(600)
    assert (stage(world), weights(world)[v2]) == (Stage.STEPPING, 10)
    assert world.condition("CanaryHealthy") == ("Unknown", "NoData")
    world.prometheus = lambda query: b'{"status": "error", "errorType": "timeout", "error": "query timed out"}'
    world.run(60)
    assert world.condition("CanaryHealthy") == ("Unknown", "ProviderError")
    assert checks(world)["metrics.refusals"]["message"] == "timeout: query timed out"
    world.prometheus = lambda query: number("0.8")
    world.run_until(lambda seen: seen.stable == v2)


def test_a_canary_whose_metric_never_comes_is_refused_at_the_deadline_but_is_not_bad() -> None:
    world = watched(lambda query: number("NaN"))
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.progress.refused == v2, within=1_300)
    assert world.verdicts()[v2] == "Unknown"
    assert world.condition("RolledBack") == ("True", "Inconclusive")


def test_a_failed_check_outweighs_a_provider_that_does_not_answer() -> None:
    world = watched(lambda query: b"")
    v2 = push(world, V2)
    world.behaviour[v2].acceptance = 0.2
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert world.verdicts()[v2] == "Bad"
