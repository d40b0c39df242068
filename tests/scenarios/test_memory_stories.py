"""What an operator remembers: across restarts, kills and edits, and when what it wrote down was lost or damaged.

Sources of the numbered cases: KubeAI #383 (C31), Flagger #30 and Argo Rollouts #1690 (C32).
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from unittest.mock import ANY

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import BASE, QUICK, V2, V3, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, push, settled
from tests.scenarios.story_views import checks, deployments, stage, weights

from tandem_operator.domain.actions import Action, Verb
from tandem_operator.domain.decide import decide
from tandem_operator.domain.observed import dump, load
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.samples import Document, Scrape


def test_c31_a_restarted_operator_goes_on_where_it_stood() -> None:
    world = installed(changed(BASE, canary__steps=[{"percent": 50, "holdSeconds": 60}]), rate=10)
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING, every=5)
    world.run(40)
    before, status = world.progress.rollout, world.status
    held = {check["name"]: check["samples"] for check in checks(world).values()}
    world.rate = 0
    world.now += timedelta(seconds=120)
    world.scrapes.clear()  # what the operator had in memory is gone
    world.tick()
    assert (world.progress.rollout, stage(world)) == (before, Stage.STEPPING)
    assert weights(world) == {world.stable: 50, before.revision: 50}
    counted = sum(
        stratum.requests
        for gateway in world.gateways.values()
        for key, stratum in gateway.strata.items()
        if key[1] == before.revision
    )
    assert checks(world)["errors"]["samples"].split("/")[1].startswith(f"{counted} ")
    assert held.keys() == checks(world).keys()
    assert status["canaryRevision"] == world.status["canaryRevision"]


def test_c31_evidence_of_a_gateway_that_died_is_neither_lost_nor_counted_twice() -> None:
    world = installed(BASE, rate=10)
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(120)
    world.rate = 0
    world.run(60)
    before = checks(world)["acceptance"]["samples"]
    name = next(iter(world.gateways))
    world.gateways[name].boot, world.gateways[name].strata = "another-life", {}
    world.run(120)
    assert checks(world)["acceptance"]["samples"] == before


def test_c32_a_revision_pushed_during_a_canary_starts_with_nothing() -> None:
    world = installed(BASE, rate=10)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(200)
    v3 = push(world, V3)
    world.tick()
    assert (world.progress.rollout.revision, world.progress.rollout.step) == (v3, 0)
    assert (world.progress.refused, world.verdicts()[v2], world.stable) == ("", "Unknown", v1)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(60)
    samples = int(checks(world)["acceptance"]["samples"].split()[0])
    counted = sum(
        sum(stratum.acceptance.requests)
        for gateway in world.gateways.values()
        for (_, revision), stratum in gateway.strata.items()
        if revision == v3 and stratum.acceptance is not None
    )
    assert samples <= counted < 200
    evidence = json.loads(world.objects[("ConfigMap", "chat-evidence")]["data"]["evidence.json"])
    assert (evidence["canary"], evidence["stable"]) == (v3, v1)
    assert evidence["since"] == world.progress.rollout.first_policy


COPIES = ("ConfigMap", "chat-revisions")


def test_a_record_of_what_serves_that_was_deleted_is_written_again_and_no_pod_is_touched() -> None:
    world = installed(QUICK, rate=5)
    key, pods = ("ControllerRevision", f"chat-{world.stable}"), {pod.uid for pod in world.pods()}
    before, held = copy.deepcopy(world.objects), deployments(world)
    del world.objects[key]
    world.run(20)
    assert world.objects[key] == before[key]
    assert ({pod.uid for pod in world.pods()}, deployments(world)) == (pods, held)
    assert world.condition("Stalled")[0] == "False"
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)


def test_a_canary_goes_on_when_records_of_both_pairs_are_deleted_and_commands_act_in_the_same_look() -> None:
    world = installed(QUICK, rate=5)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    for name in (v1, v2):
        del world.objects[("ControllerRevision", f"chat-{name}")]
    world.annotations["tandem.dev/speculation"] = f"off@{v1}#1"
    world.tick(2)
    assert world.condition("SpeculationActive") == ("False", "Commanded")
    assert (stage(world), world.progress.rollout.revision) == (Stage.STEPPING, v2)
    assert {("ControllerRevision", f"chat-{name}") for name in (v1, v2)} <= world.objects.keys()


def test_a_promotion_is_in_the_second_copy_as_soon_as_on_the_record() -> None:
    world = installed(QUICK, rate=20)
    v1, v2 = world.stable, push(world, V2)
    world.run_until(lambda seen: seen.stable not in ("", v1), within=3600)
    del world.objects[("ControllerRevision", f"chat-{v2}")]
    world.run(20)
    assert (world.stable, stage(world)) == (v2, Stage.STABLE)


def test_records_lost_in_both_copies_of_what_serves_stall_and_collect_nothing() -> None:
    world = installed(QUICK, rate=5)
    before = deployments(world)
    del world.objects[("ControllerRevision", f"chat-{world.stable}")], world.objects[COPIES]
    world.run(60)
    assert (deployments(world), world.condition("Stalled")) == (before, ("True", "RevisionLost"))


def test_a_lost_record_beside_an_older_one_does_not_send_anybody_back() -> None:
    world = installed(QUICK, rate=20)
    v1 = world.stable
    push(world, V2)
    world.run_until(lambda seen: seen.stable not in ("", v1), within=3600)
    world.run(120)
    before = (deployments(world), world.policy())
    del world.objects[("ControllerRevision", f"chat-{world.stable}")], world.objects[COPIES]
    world.run(60)
    assert (deployments(world), world.policy()) == before
    assert world.condition("Stalled") == ("True", "RevisionLost")


def test_a_status_that_a_backup_dropped_changes_nothing_that_serves() -> None:
    world = installed(QUICK, rate=5)
    v1, before = world.stable, dict(world.objects)
    world.status = {}
    world.run(30)
    assert (world.stable, dict(world.objects)) == (v1, before)
    assert stage(world) is Stage.STABLE


def test_a_damaged_status_is_no_more_than_a_lost_one() -> None:
    world = installed(QUICK, rate=5)
    v1 = world.stable
    world.status = {**world.status, "progress": {"rollout": {"stage": "Elsewhere"}}}
    world.run(30)
    assert (world.stable, stage(world)) == (v1, Stage.STABLE)


def test_a_policy_that_was_deleted_comes_back_under_a_new_number() -> None:
    world = installed(QUICK, rate=5)
    before = world.policy()
    assert before is not None
    for gateway in (pod.name for pod in world.pods() if pod.role == "gateway"):
        world.gateways[gateway].policy = before["number"]
    kept = world.objects.pop(("ConfigMap", "chat-policy"))
    seen = world.observed()
    documents = {name: Document(boot=name, policy=before["number"], serving=True) for name in world.gateways}
    world.objects[("ConfigMap", "chat-policy")] = kept
    again = decide(replace(seen, scrape=Scrape(seen.now, documents))).policy
    assert again == {**before, "number": before["number"] + 1}


@pytest.mark.parametrize("lost", ["", "progress"])
def test_a_policy_that_was_deleted_while_no_gateway_answers_gets_no_number_that_was_given(lost: str) -> None:
    world = installed(QUICK, rate=5)
    for gain in (200, 300):
        world.edit(speculation__minGainBasisPoints=gain)
        world.run(20)
    before = world.policy()
    assert before is not None
    for gateway in world.gateways.values():
        gateway.reachable = False
    world.objects.pop(("ConfigMap", "chat-policy"))
    world.status = {name: value for name, value in world.status.items() if name != lost}
    world.tick()
    again = world.policy()
    assert again is not None
    assert again["number"] == before["number"] + 1


def test_a_policy_that_could_not_be_written_takes_no_number() -> None:
    world = installed(QUICK, rate=5)
    before = world.policy()
    assert before is not None
    world.stop_at = lambda action: action.name == "chat-policy"
    world.edit(speculation__minGainBasisPoints=200)
    world.run(60)
    world.stop_at = lambda action: False
    world.tick()
    assert world.policy() == {**before, "number": before["number"] + 1, "speculation": ANY}


def outcome_of(world: World) -> tuple[str, str, dict[str, str], dict[str, int], set[str]]:
    return world.stable, world.progress.refused, world.verdicts(), weights(world), deployments(world)


def refused_canary(world: World) -> World:
    push(world, V2, Behaviour(acceptance=0.3, speedup=0.8))
    world.run_until(lambda seen: seen.progress.refused != "" and settled(seen))
    return world


def promoted_canary(world: World) -> World:
    push(world, V2)
    world.run_until(lambda seen: seen.stable == named(seen) and settled(seen))
    return world


def rolled_back_by_alert(world: World) -> World:
    promoted_canary(world)
    starts_at = world.now
    world.run(30)
    alert(world, starts_at)
    world.run_until(lambda seen: seen.stable != named(seen) and settled(seen), within=300)
    return world


@pytest.mark.parametrize("story", [refused_canary, promoted_canary, rolled_back_by_alert])
def test_a_kill_at_any_write_boundary_ends_in_the_same_state(story: Callable[[World], World]) -> None:
    spec = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10}])
    whole = story(installed(spec, rate=20))
    expected, ends = outcome_of(whole), whole.reasons()
    kinds = {(action.verb, action.kind) for action in whole.writes[12:]}
    for verb, kind in sorted(kinds):
        world = installed(spec, rate=20)
        world.stop_at = _every_other((verb, kind))
        assert outcome_of(story(world)) == expected, (verb, kind)
        for reason in ("Promoted", "RollingBack", "RolledBack", "CanaryAborted"):
            assert world.reasons().count(reason) == ends.count(reason), (verb, kind)
        assert len([name for name in world.annotations if name.startswith("alert.")]) == 0


def _every_other(chosen: tuple[Verb, str]) -> Callable[[Action], bool]:
    """Kills before every second of the chosen writes, so that each is met and then gets through."""
    state = {"killed": False}

    def stop(action: Action) -> bool:
        if (action.verb, action.kind) != chosen:
            return False
        state["killed"] = not state["killed"]
        return state["killed"]

    return stop


def test_a_recorded_look_gives_the_same_decision() -> None:
    world = installed(QUICK, rate=5)
    push(world, V2)
    for _ in range(12):
        world.tick(20)
        seen = world.observed()
        again = load(json.loads(json.dumps(dump(seen))))
        assert again == seen
        assert decide(again) == decide(seen)
