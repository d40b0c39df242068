"""What never comes up, comes up without its draft, or is up and not reached: what waits, what is refused, and what
serves all the same."""

from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, named, push, settled
from tests.scenarios.story_views import served, stage

from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse


def draft_of(world: World) -> str:
    """The hash of the draft that the spec means."""
    return str(revision_of(parse(world.spec)).draft)


def test_a_canary_whose_pods_crash_again_and_again_is_bad() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.crashing = {draft_of(world)}
    world.run(60)
    assert (stage(world), world.progress.refused, world.verdicts()[v2]) == (Stage.STABLE, v2, "Bad")
    assert world.condition("RolledBack") == ("True", "CrashLooping")
    assert "restarted 5 times" in world.message("RolledBack")


def test_a_canary_that_is_not_ready_by_its_deadline_is_refused_and_not_bad() -> None:
    world = installed(changed(QUICK, canary__progressDeadlineSeconds=600), rate=5)
    v1, v2 = world.stable, push(world, V2)
    world.broken = {draft_of(world)}
    world.run(590)
    assert (stage(world), served(world)) == (Stage.PREPARING, {v1: 100})
    world.run(30)
    assert (stage(world), world.progress.refused, world.verdicts()[v2]) == (Stage.STABLE, v2, "Unknown")
    assert world.condition("RolledBack") == ("True", "NotReadyInTime")


def test_a_first_rollout_that_does_not_come_up_is_replaced_by_an_edit_without_a_canary() -> None:
    world = World(QUICK)
    world.tick()
    world.broken = {str(revision_of(parse(world.spec)).target)}
    world.run(120)
    assert (world.stable, stage(world), world.condition("Ready")[0]) == ("", Stage.INSTALLING, "False")
    world.edit(target__model__revision=V2)
    world.run_until(settled, within=120)
    assert (world.stable, served(world)) == (named(world), {named(world): 100})
    assert "CanaryStarted" not in world.reasons()


def test_a_first_rollout_with_a_dead_draft_is_ready() -> None:
    world = World(QUICK)
    world.broken = {draft_of(world)}
    world.run(60)
    assert (world.stable, world.condition("Ready")) == (named(world), ("True", "Serving"))
    assert (world.condition("SpeculationActive")[0], world.condition("DraftReady")[0]) == ("False", "False")


def test_a_step_waits_until_every_gateway_reaches_the_canarys_pods() -> None:
    world = installed(QUICK, rate=5)
    v1, v2 = world.stable, push(world, V2)
    world.unreached = {draft_of(world)}
    world.run(120)
    assert [pod.ready for pod in world.pods() if pod.role_hash == draft_of(world)] == [True]
    assert (stage(world), served(world)) == (Stage.PREPARING, {v1: 100})
    world.unreached = set()
    world.run(20)
    assert (stage(world), served(world)[v2]) == (Stage.STEPPING, 10)
