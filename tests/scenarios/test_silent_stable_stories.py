"""A canary beside a stable whose speculation is off: what is compared then, and that it comes to an end either way."""

from typing import Any

from tests.domain.simulated_specs import QUICK, V2, V3, changed
from tests.domain.simulated_world import Behaviour, World, installed, push
from tests.scenarios.story_views import checks, stage

from tandem_operator.domain.progress import Stage

AT_ZERO = Behaviour(speculating=0.0)


def silent(*, rate: float = 5, stable: Behaviour = AT_ZERO, **spec: Any) -> World:
    """Stable serves, its pair does not pay, and the breaker has taken speculation from it."""
    world = installed(changed(QUICK, **spec), rate=rate)
    world.behaviour[world.stable] = stable
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=600)
    return world


def test_a_draft_that_pays_replaces_one_that_does_not_though_that_one_is_tried_again_meanwhile() -> None:
    world = silent()
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7))
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(60)
    told = checks(world)["acceptanceDrop"]
    assert (told["verdict"], told["value"]) == ("NotCompared", "")
    assert told["message"].startswith("stable does not speculate (RuntimeAtZero: the runtime chose K = 0 in 100% of ")
    assert "acceptanceDrop: stable does not speculate" in world.message("CanaryHealthy")
    world.run_until(lambda seen: seen.stable == v2, within=3600)
    assert "SpeculationProbing" in world.reasons()
    promoted = next(event.note for event in world.events if event.reason == "Promoted")
    assert "acceptanceDrop NotCompared" in promoted
    assert "speedup 1." in promoted
    assert "speedupDrop 1." in promoted


def test_traffic_too_thin_for_the_breaker_does_not_hide_that_stable_proposes_nothing() -> None:
    """Half a request per second: 30 in the breaker's window of 60 s, of the 50 that it needs."""
    few = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 60}], canary__analysis__minRequests=60)
    world = installed(few, rate=0.5)
    world.behaviour[world.stable] = AT_ZERO
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7))
    world.run_until(lambda seen: seen.stable == v2, within=1800)
    assert "SpeculationDisabled" not in world.reasons()


def test_a_draft_below_the_floor_is_bad_also_beside_a_silent_stable() -> None:
    world = silent()
    v2 = push(world, V2, Behaviour(acceptance=0.4, speedup=1.7))
    world.run_until(lambda seen: seen.progress.refused == v2, within=3600)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("AcceptanceFailed", "Bad")


def test_a_draft_that_makes_decoding_slower_than_plain_is_bad_also_beside_a_silent_stable() -> None:
    world = silent()
    v2 = push(world, V2, Behaviour(acceptance=0.9, speedup=0.9))
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("SpeedupFailed", "Bad")


def test_a_draft_that_pays_for_itself_by_slowing_plain_rows_beside_it_is_bad() -> None:
    """On pods short of compute: its own share reads 1.15, and all of the pod's decoding becomes slower by a fifth."""
    world = silent()
    v2 = push(world, V2, Behaviour(acceptance=0.9, speedup=1.15, burden=0.75))
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("SpeedupDropFailed", "Bad")


def test_a_canary_whose_own_runtime_proposes_nothing_is_held_to_its_deadline_and_not_bad() -> None:
    world = silent(canary__progressDeadlineSeconds=600)
    v2 = push(world, V2, AT_ZERO)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(480, every=30)
    assert (stage(world), world.condition("CanaryHealthy")[1]) == (Stage.STEPPING, "NoData")
    world.run_until(lambda seen: seen.progress.refused == v2, within=200)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("Inconclusive", "Unknown")
    assert "nothing was proposed in 100% of its" in world.message("RolledBack")
    assert "acceptanceDrop" not in world.message("RolledBack")


def test_stable_may_come_back_while_the_canary_runs_and_is_then_what_the_canary_is_held_against() -> None:
    """The canary would pay and lies above the floor, but stable is better again: it must not be replaced."""
    world = silent(stable=Behaviour(acceptance=0.1))
    v1 = world.stable
    v2 = push(world, V2, Behaviour(acceptance=0.7, speedup=1.3))
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.behaviour[v1] = Behaviour(acceptance=0.9, speedup=1.8)
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=900)
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.stable, world.verdicts()[v2]) == (v1, "Bad")
    assert world.condition("RolledBack")[1] in ("AcceptanceDropFailed", "SpeedupDropFailed")


def test_long_silence_does_not_hide_that_stable_is_back() -> None:
    """Long without proposals, stable returns within the hold, better than the canary."""
    steps = [{"percent": 50, "holdSeconds": 2400}]
    world = silent(rate=3, canary__steps=steps)
    v1 = world.stable
    v2 = push(world, V2, Behaviour(acceptance=0.7, speedup=1.3))
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(1440, every=60)
    assert stage(world) is Stage.STEPPING
    world.behaviour[v1] = Behaviour(acceptance=0.9, speedup=1.8)
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=900)
    assert checks(world)["acceptanceDrop"]["verdict"] != "NotCompared"
    world.run_until(lambda seen: seen.progress.refused == v2, within=300)
    assert (world.stable, world.verdicts()[v2]) == (v1, "Bad")


def undecided() -> tuple[World, str]:
    """A pair on pods of its own: its floors have passed, and only the comparison with stable stands in its way."""
    spec = changed(QUICK, target__replicas=1, canary__steps=[{"percent": 50, "holdSeconds": 60}])
    limits = {"canary__analysis__acceptance__maxDropBasisPoints": 100, "canary__progressDeadlineSeconds": 1200}
    world = installed(changed(spec, **limits), rate=3)
    world.edit(target__model__revision=V2)
    v2 = push(world, V2, Behaviour(acceptance=0.78, speedup=1.6))
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run_until(lambda seen: checks(seen)["speedup"]["verdict"] == "Pass", within=500)
    assert checks(world)["acceptanceDrop"]["verdict"] == "Inconclusive"
    return world, v2


def test_a_command_off_promotes_no_pair_that_may_be_worse_than_stable() -> None:
    world, v2 = undecided()
    world.annotations["tandem.dev/speculation"] = f"off@{world.stable}#1"
    world.run_until(lambda seen: stage(seen) is not Stage.STEPPING, within=7200, every=60)
    assert (world.stable == v2, world.condition("RolledBack")[1]) == (False, "Inconclusive")


def test_a_draft_of_stable_that_restarts_promotes_no_pair_that_may_be_worse() -> None:
    world, _ = undecided()
    pair = next(seen.pair for seen in world.observed().revisions if seen.name == world.stable)
    world.broken = {str(pair.draft)}
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=40)
    world.run(20)
    world.broken = set()
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=600)
    assert "SpeculationProbing" in world.reasons()
    assert stage(world) is Stage.STEPPING


def test_mode_off_promotes_no_pair_that_may_be_worse_but_one_that_never_proposed() -> None:
    world, v2 = undecided()
    world.edit(speculation__mode="Off")
    world.run_until(lambda seen: stage(seen) is not Stage.STEPPING, within=7200, every=60)
    assert (world.progress.refused, world.condition("RolledBack")[1]) == (v2, "Inconclusive")
    world.edit(target__model__revision=V3)
    v3 = push(world, V3)
    world.run_until(lambda seen: seen.stable == v3, within=1200)
