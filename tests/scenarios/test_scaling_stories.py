"""Target and draft scale apart, or the draft follows the target: at rest, in a canary, and from nothing."""

import pytest
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push, settled
from tests.scenarios.story_views import stage, weights

from tandem_operator.domain.progress import Stage
from tandem_operator.domain.spec import parse


def replicas(world: World, role: str) -> list[int]:
    """Wanted pods of the Deployments of a role, in order of their names."""
    found = [(name, body) for (kind, name), body in world.objects.items() if kind == "Deployment"]
    return [body["spec"]["replicas"] for name, body in sorted(found, key=lambda pair: pair[0]) if f"-{role}-" in name]


@pytest.mark.parametrize(
    ("drafts", "targets", "of", "expected"),
    [(0, 0, 6, 3), (1, 2, 6, 3), (1, 2, 5, 3), (1, 4, 1, 1), (3, 2, 4, 6), (1, 1, 0, 0), (8, 1, 2, 16)],
)
def test_draft_pods_for_target_pods_are_rounded_up(drafts: int, targets: int, of: int, expected: int) -> None:
    tied = changed(
        QUICK, target__replicas=of, draft__replicas=3, draft__replicasPerTarget={"drafts": drafts, "targets": targets}
    )
    assert parse(tied).draft_replicas == expected


def test_a_draft_on_its_own_stays_when_the_target_is_scaled() -> None:
    world = installed(QUICK)
    world.edit(target__replicas=5)
    world.run_until(settled, within=120)
    assert (replicas(world, "target"), replicas(world, "draft")) == ([5], [1])


def test_a_tied_draft_follows_the_target_in_one_look_and_makes_no_revision() -> None:
    world = installed(changed(QUICK, draft__replicasPerTarget={"drafts": 1, "targets": 2}))
    assert replicas(world, "draft") == [1]
    for wanted, drafts in ((5, 3), (2, 1), (0, 0), (4, 2)):
        world.edit(target__replicas=wanted)
        world.tick()
        assert (replicas(world, "target"), replicas(world, "draft")) == ([wanted], [drafts])
    assert len(world.verdicts()) == 1


def test_tying_the_draft_to_the_target_leaves_the_revision_as_it_was() -> None:
    world = installed(QUICK)
    before = world.stable
    world.edit(draft__replicasPerTarget={"drafts": 2, "targets": 1})
    world.run_until(settled, within=120)
    assert (world.stable, replicas(world, "draft")) == (before, [4])


def test_scaling_in_the_middle_of_a_canary_moves_both_drafts_and_not_the_canarys_share() -> None:
    world = installed(changed(QUICK, draft__replicasPerTarget={"drafts": 1, "targets": 1}, target__replicas=4), rate=8)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    assert sorted(replicas(world, "draft")) == [1, 4]  # ceil(4 x 10 %) of the canary's
    world.edit(target__replicas=20)
    world.run_until(lambda seen: sorted(replicas(seen, "draft")) == [2, 20], within=60)
    assert (replicas(world, "target"), weights(world)[v2], stage(world)) == ([20], 10, Stage.STEPPING)
    world.run_until(lambda seen: seen.stable == v2)
    world.run_until(settled, within=120)
    assert world.status["replicas"] == 20


def test_a_canary_beside_a_stable_that_is_scaled_to_nothing_waits_until_it_is_scaled_up() -> None:
    world = installed(QUICK, rate=8)
    world.edit(target__replicas=0, target__model__revision="2" * 40)
    world.run(120)
    canary = world.progress.rollout.revision
    assert (stage(world), weights(world)[canary]) == (Stage.PREPARING, 0)
    world.edit(target__replicas=2)
    world.tick(1)
    assert weights(world)[canary] == 0
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING, within=300)
    assert weights(world)[canary] == 10
