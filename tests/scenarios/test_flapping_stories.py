"""The twelfth of the operators' traps (`tests/cluster/test_fifteen_traps`): what goes up and down, and what was taken
back again and again, comes to rest and waits for a human."""

from datetime import timedelta

from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2, V3, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, settled
from tests.scenarios.story_views import weights

from tandem_operator.domain.spec import AutoDisable

HALF_WAVE_SECONDS = 300
CAP = AutoDisable().max_flips_per_day


def wave(world: World, halves: int) -> None:
    """Acceptance above both marks and below both, by turns; over once speculation is off for good."""
    for half in range(halves):
        world.behaviour[world.stable] = Behaviour(acceptance=0.8 if half % 2 else 0.1)
        world.run(HALF_WAVE_SECONDS)
        if world.progress.breaker.reason == "TooManyFlips":
            return


def test_trap_12_a_square_wave_of_acceptance_flips_speculation_up_to_the_cap_and_no_further() -> None:
    world = installed(QUICK, rate=2)
    wave(world, 6 * CAP)
    assert world.reasons().count("SpeculationDisabled") == CAP
    assert (world.progress.breaker.state, world.progress.breaker.reason) == ("Off", "TooManyFlips")
    assert world.condition("SpeculationActive") == ("False", "TooManyFlips")
    before, policy = len(world.events), world.policy()
    world.run(4 * HALF_WAVE_SECONDS)
    assert (len(world.events), world.policy()) == (before, policy)
    assert world.condition("Ready")[0] == "True"


def promoted(world: World, commit: str) -> str:
    world.edit(target__model__revision=commit)
    name = named(world)
    world.run_until(lambda seen: seen.stable == name and settled(seen))
    world.run(60)
    return name


def test_trap_12_when_every_revision_is_bad_the_object_stalls_and_what_serves_serves_on() -> None:
    quick = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10}])
    world = installed(quick, rate=20)
    v1, v2 = world.stable, promoted(world, V2)
    alert(world, world.now)
    world.run_until(lambda seen: seen.stable == v1 and settled(seen), within=600)
    assert world.verdicts()[v2] == "Bad"
    world.rate = 0
    world.run(25 * 3600, every=600)  # one rollback in a day is an alert's
    world.rate = 20
    v3 = promoted(world, V3)
    world.objects["ControllerRevision", f"chat-{v1}"]["metadata"]["annotations"]["tandem.dev/verdict"] = "Bad"
    alert(world, world.now + timedelta(seconds=1), key="1" * 32)
    world.run(60)
    assert (world.stable, weights(world)) == (v3, {v3: 100})
    assert world.condition("Stalled") == ("True", "RollbackImpossible")
    assert "no earlier revision that is not Bad" in world.message("Stalled")
    assert world.condition("Ready")[0] == "True"
    world.run(600)
    assert (world.stable, world.reasons().count("RollingBack")) == (v3, 1)
