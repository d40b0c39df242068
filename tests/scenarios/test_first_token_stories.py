"""Canaries whose requests wait for their first token: as long as stable's, longer, or in too few to tell."""

from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, push
from tests.scenarios.story_views import checks, served


def timed(rate: float, **more: object) -> World:
    """A world whose gateways time first tokens; 8 in 100 of stable's take 400 ms, the others 70."""
    world = installed(changed(QUICK, **more), rate=rate)
    world.behaviour[world.stable] = Behaviour(slow=0.08)
    return world


def test_a_canary_that_is_as_fast_passes_and_says_of_how_many_requests() -> None:
    world = timed(10)
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, slow=0.08))
    world.run_until(lambda seen: seen.stable == v2)
    (record,) = [event.note for event in world.events if event.reason == "Promoted"]
    assert "timeToFirstToken" in record


def test_a_canary_that_keeps_people_waiting_is_refused_though_it_decodes_faster() -> None:
    world = timed(10)
    v1, v2 = world.stable, push(world, V2, Behaviour(acceptance=0.9, speedup=2.0, slow=0.3))
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.stable, served(world), world.verdicts()[v2]) == (v1, {v1: 100}, "Bad")
    assert world.condition("RolledBack") == ("True", "TimeToFirstTokenFailed")
    note = next(event.note for event in world.events if event.reason == "CanaryAborted")
    assert "wanted < 0.050 more than stable" in note


def test_a_new_target_that_starts_slower_is_refused_too() -> None:
    world = timed(10)
    world.edit(target__model__revision=V2)
    v2 = named(world)
    world.behaviour[v2] = Behaviour(slow=0.3)
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert world.condition("RolledBack") == ("True", "TimeToFirstTokenFailed")


def test_what_slows_both_alike_fails_nobody() -> None:
    world = timed(10)
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, slow=0.08))
    world.run(120)
    for name in (world.stable, v2):
        world.behaviour[name].slow = 0.4
    world.run_until(lambda seen: seen.stable == v2)


def test_too_few_requests_hold_the_step_and_are_counted_in_status() -> None:
    world = timed(1.5)
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, slow=0.08))
    world.run(600)
    shown = checks(world)["timeToFirstToken"]
    assert (shown["verdict"], world.stable != v2) == ("Inconclusive", True)
    assert shown["samples"].startswith(f"{shown['samples'].split()[0]} requests, stable ")


def test_a_wide_bound_leaves_the_check_out() -> None:
    analysis = {**QUICK["canary"]["analysis"], "timeToFirstToken": {"maxSlowShareIncreaseBasisPoints": 10_000}}
    world = timed(10, canary__analysis=analysis)
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7, slow=0.9))
    world.run_until(lambda seen: "errors" in checks(seen))
    assert "timeToFirstToken" not in checks(world)
    world.run_until(lambda seen: seen.stable == v2)
