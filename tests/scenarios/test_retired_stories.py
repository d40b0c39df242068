"""Answers outlive the share of the traffic under which they began: those of a revision that was ended propose no more,
however long they take."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from tests.domain.simulated_specs import QUICK, V1, V2, V3
from tests.domain.simulated_world import Behaviour, World, installed, push, settled
from tests.scenarios.story_views import stage, weights

from tandem_operator.domain.observed import Pod
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.retired import MOST


class Draining(World):
    """Pods that nobody wants any more stay until their grace is over; for ever where their node is lost."""

    grace = timedelta(seconds=60)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.lost = False
        self.known: dict[str, Pod] = {}
        self.left: dict[str, Pod] = {}

    def pods(self) -> tuple[Pod, ...]:
        found = super().pods()
        names = {pod.name for pod in found}
        for name in self.known.keys() - names:
            self.left[name] = replace(self.known[name], leaving=True, ready=False, gone_by=self.now + self.grace)
        self.known = {pod.name: pod for pod in found}
        self.left = {
            name: pod for name, pod in self.left.items() if self.lost or (pod.gone_by and self.now < pod.gone_by)
        }
        return (*found, *self.left.values())


def stepping() -> tuple[Draining, str]:
    world = Draining(QUICK)
    world.run_until(settled, within=120, every=5)
    world.rate = 5
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    return world, v2


def is_stepping(revision: str, world: World) -> bool:
    return (stage(world), world.progress.rollout.revision) == (Stage.STEPPING, revision)


def may_propose(world: World, revision: str) -> bool | None:
    """What gateways are told; None where they are told nothing."""
    policy = world.policy()
    assert policy is not None
    return {held["name"]: held["speculate"] for held in policy["revisions"]}.get(revision)


def told_of(world: World, revision: str, seconds: int) -> set[bool | None]:
    """What gateways were told over a span."""
    found = set()
    for _ in range(seconds // 2):
        world.tick(2)
        found.add(may_propose(world, revision))
    return found


def test_answers_of_a_canary_that_was_silenced_for_memory_do_not_propose_again_when_it_is_aborted() -> None:
    world, v2 = stepping()
    world.memory = 9500
    world.tick()
    assert may_propose(world, v2) is False
    world.run_until(lambda seen: seen.progress.refused == v2, within=60)
    assert told_of(world, v2, 50) == {False}
    world.run_until(settled, within=60)
    assert (may_propose(world, v2), weights(world)) == (None, {world.stable: 100})


def test_answers_of_a_canary_that_failed_for_its_draft_propose_no_more() -> None:
    world = installed(QUICK, rate=5, kind=Draining)
    v2 = push(world, V2, Behaviour(acceptance=0.3, speedup=0.8))
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert told_of(world, v2, 50) == {False}


def test_answers_of_a_revision_that_is_taken_back_propose_no_more_until_its_pods_are_gone() -> None:
    world = installed(QUICK, rate=20, kind=Draining)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.run(60)
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    assert told_of(world, v2, 50) == {False}
    assert (world.stable, world.condition("Reconciling")) == (v1, ("True", "Retiring"))
    world.run_until(settled, within=60)
    assert may_propose(world, v2) is None


def test_answers_of_a_canary_that_a_rollback_went_to_and_gave_up_propose_no_more() -> None:
    world, v2 = stepping()
    v1 = world.stable
    world.gateways[sorted(world.gateways)[0]].reachable = False  # nobody knows whether it can serve
    world.annotations["tandem.dev/rollback-to"] = f"{v2}@{v1}#1"
    world.tick(2)
    assert (stage(world), world.progress.rollout.revision) == (Stage.RETURNING, v2)
    world.edit(draft__model__revision=V1)  # nor does the spec mean it any more
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v1}#2"
    assert told_of(world, v2, 20) == {False}


def test_a_pod_that_outlives_its_grace_on_a_lost_node_holds_up_nobody() -> None:
    world, v2 = stepping()
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.lost = True
    world.run(20)
    assert may_propose(world, v2) is False
    world.run_until(settled, within=90)
    assert [pod.name for pod in world.pods() if pod.leaving]


def test_a_canary_that_an_edit_superseded_twice_leaves_both_behind_until_they_are_gone() -> None:
    world, v2 = stepping()
    push(world, V3)
    world.tick(2)
    assert (may_propose(world, v2), sum(weights(world).values())) == (False, 100)
    world.edit(draft__model__revision="4" * 40)
    world.tick(2)
    assert set(world.progress.retired) >= {v2}
    world.run_until(settled)
    assert weights(world) == {world.stable: 100}


def test_of_many_that_ended_in_a_short_time_the_latest_are_told_of_and_the_others_were() -> None:
    world, _ = stepping()
    world.lost, world.grace = True, timedelta(hours=1)
    ended = []
    for number in range(MOST + 4):
        ended.append(push(world, f"a{number:x}" * 20))
        world.run_until(partial(is_stepping, ended[-1]), within=120, every=5)
        world.annotations["tandem.dev/abort"] = f"@{ended[-1]}#{number + 1}"
        world.run_until(lambda seen: seen.progress.refused == ended[-1], within=20, every=2)
        assert may_propose(world, ended[-1]) is False
    world.tick(2)
    assert world.progress.retired == tuple(ended[-MOST:])


def test_a_retired_revision_that_is_tried_again_is_a_canary_as_any() -> None:
    world, v2 = stepping()
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.tick(2)
    world.annotations["tandem.dev/retry"] = f"@{v2}#1"
    world.tick(2)
    assert (world.progress.rollout.revision, may_propose(world, v2), world.progress.retired) == (v2, True, ())


def test_what_a_promotion_replaced_is_left_to_finish_with_its_draft() -> None:
    world = installed(QUICK, rate=5, kind=Draining)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: seen.stable == v2)
    assert told_of(world, v1, 60) == {None}


def no_policy(world: World) -> None:
    """From now on the operator is killed before it writes one."""
    world.stop_at = lambda action: action.name == "chat-policy"


def lose_the_status(world: World) -> None:
    world.stop_at = lambda action: False
    world.status = {}


def test_answers_of_a_canary_whose_status_was_lost_propose_no_more_where_it_may_not_go_on() -> None:
    world, v2 = stepping()
    world.edit(paused=True)
    world.status = {}
    world.tick(2)
    assert (may_propose(world, v2), weights(world)[world.stable]) == (False, 100)


def test_answers_of_a_canary_that_was_aborted_before_the_status_was_lost_propose_no_more() -> None:
    world, v2 = stepping()
    no_policy(world)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.tick(2)
    assert may_propose(world, v2) is True, "the policy was not to be written yet"
    world.edit(paused=True)
    lose_the_status(world)
    world.tick(2)
    assert may_propose(world, v2) is False


def test_what_a_promotion_replaced_propose_on_though_the_status_was_lost_before_a_policy_told_of_it() -> None:
    world = installed(QUICK, rate=5, kind=Draining)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.COMPLETING)
    no_policy(world)
    world.run_until(lambda seen: stage(seen) is Stage.STABLE)
    assert v1 in weights(world)
    lose_the_status(world)
    assert told_of(world, v1, 10) == {None}
    assert world.stable == v2


def test_a_rollback_to_a_revision_whose_record_is_deleted_on_the_way_ends_and_stable_serves_on() -> None:
    world = installed(QUICK, rate=5)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.tick(2)
    assert stage(world) is Stage.RETURNING
    del world.objects[("ControllerRevision", f"chat-{v1}")], world.objects[("ConfigMap", "chat-revisions")]
    world.run_until(settled, within=120)
    assert (world.stable, stage(world)) == (v2, Stage.STABLE)
    assert "RollbackEnded" in [event.reason for event in world.events]
