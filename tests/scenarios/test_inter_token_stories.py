"""Canaries whose answers stutter: 32 tokens of some take twice as long as nearly all of stable's do."""

from typing import Any

from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, push
from tests.scenarios.story_views import checks

ANALYSIS: dict[str, Any] = QUICK["canary"]["analysis"]
BOUND = {"interTokenLatency": {"maxP99IncreaseBasisPoints": 2500}}


def timed() -> World:
    world = installed(changed(QUICK, canary__analysis={**ANALYSIS, **BOUND}), rate=20)
    world.behaviour[world.stable] = Behaviour(stutters=0.002)
    return world


def test_a_canary_that_stutters_is_refused_though_it_decodes_faster_on_the_whole() -> None:
    world = timed()
    v2 = push(world, V2, Behaviour(acceptance=0.9, speedup=2.0, stutters=0.05))
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert world.condition("RolledBack") == ("True", "InterTokenLatencyFailed")
    assert "wanted < 0.010 more than stable" in world.message("RolledBack")


def test_a_canary_that_is_as_even_is_promoted() -> None:
    world = timed()
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, stutters=0.002))
    world.run_until(lambda seen: seen.stable == v2)


def test_what_makes_both_stutter_fails_nobody() -> None:
    world = timed()
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, stutters=0.002))
    world.run_until(
        lambda seen: "interTokenLatency" in checks(seen) and checks(seen)["interTokenLatency"]["value"] != ""
    )
    for name in (world.stable, v2):
        world.behaviour[name].stutters = 0.05
    world.run_until(lambda seen: seen.stable == v2)


def test_nobody_is_judged_by_it_without_a_bound() -> None:
    world = installed(QUICK, rate=20)
    world.behaviour[world.stable] = Behaviour(stutters=0.002)
    v2 = push(world, V2, Behaviour(acceptance=0.9, speedup=2.0, stutters=0.3))
    world.run_until(lambda seen: "errors" in checks(seen))
    assert "interTokenLatency" not in checks(world)
    world.run_until(lambda seen: seen.stable == v2)


def test_it_is_not_compared_with_plain_decoding() -> None:
    world = timed()
    world.behaviour[world.stable] = Behaviour(acceptance=0.05, speedup=0.8, stutters=0.002)
    world.run_until(lambda seen: seen.condition("SpeculationActive")[0] == "False")
    push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, stutters=0.3))
    world.run_until(lambda seen: "interTokenLatency" in checks(seen))
    assert checks(world)["interTokenLatency"]["verdict"] == "NotCompared"
