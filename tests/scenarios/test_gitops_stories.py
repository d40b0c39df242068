"""What Flux, kpt and Argo CD say of an object: never done too early, never waiting for what will not come."""

from datetime import timedelta
from typing import Any

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V1, V2, V3, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, push, settled
from tests.scenarios.gitops import Read, argocd, body, kstatus, life, read
from tests.scenarios.story_views import stage

from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse

MOVES, DONE = Read("InProgress", "Progressing"), Read("Current", "Healthy")
FAILED, WAITS = Read("Failed", "Degraded"), Read("InProgress", "Suspended")
BRIEF = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10}])
PAUSING = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10, "pause": True}])


def message(world: World) -> str:
    return argocd(body(world))[1]


def test_an_object_is_done_when_it_serves_and_again_when_an_edit_does() -> None:
    world = World(BRIEF)
    world.rate = 20
    assert life(world, 120) == [MOVES, DONE]
    v1 = world.stable
    assert message(world) == f"revision {v1} serves"
    push(world, V2)
    told = life(world, 600)
    assert (told, world.stable != v1) == ([MOVES, DONE], True)


def test_a_change_in_place_is_done_when_the_new_pods_are_ready() -> None:
    world = installed(BRIEF)
    world.edit(target__resources={"limits": {"cpu": "2", "memory": "4Gi"}})
    assert life(world, 60, every=1) == [MOVES, DONE]


def test_a_step_that_waits_for_promote_is_suspended_and_names_the_command() -> None:
    world = installed(PAUSING, rate=20)
    v2 = push(world, V2)
    assert life(world, 600)[-1] == WAITS
    assert message(world) == f"revision {v2}: step 0 waits for tandem.dev/promote"
    world.annotations["tandem.dev/promote"] = f"@{v2}#1"
    assert life(world, 120) == [WAITS, MOVES, DONE]


def test_a_paused_object_with_an_edit_ahead_is_suspended_and_without_one_it_is_healthy() -> None:
    world = installed(BRIEF)
    world.edit(paused=True)
    assert life(world, 30)[-1] == DONE
    v2 = push(world, V2)
    assert life(world, 60) == [MOVES, WAITS]
    assert message(world) == f"spec.paused is true: revision {v2} is next"


def test_a_refused_revision_is_failed_though_stable_serves_until_the_spec_asks_for_what_serves() -> None:
    world = installed(QUICK, rate=20)
    v2 = push(world, V2, Behaviour(acceptance=0.3))
    told = life(world, 900)
    assert (told, world.condition("Ready")[0]) == ([MOVES, FAILED], "True")
    refused = f"RevisionRefused: revision {v2}, which the spec means, is refused, and {world.stable} serves; "
    assert message(world).startswith(refused)
    assert f"tandem.dev/retry: @{v2}#NONCE" in message(world)
    world.edit(draft__model__revision=V1)
    assert life(world, 60) == [MOVES, DONE]
    push(world, V2)
    assert life(world, 60) == [MOVES, FAILED]  # Bad, and not tried again by itself


def test_a_retry_is_no_failure_any_more() -> None:
    world = installed(QUICK)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    assert life(world, 60)[-1] == FAILED
    world.annotations["tandem.dev/retry"] = f"@{v2}#1"
    assert life(world, 60) == [FAILED, MOVES]


def test_a_bad_revision_that_is_asked_for_again_after_another_was_promoted_is_not_awaited() -> None:
    world = installed(BRIEF, rate=20)
    v2 = push(world, V2, Behaviour(errors=0.5))
    world.run_until(lambda seen: seen.progress.refused == v2 and settled(seen))
    v3 = push(world, V3)
    world.run_until(lambda seen: seen.stable == v3 and settled(seen))
    world.edit(draft__model__revision=V2)
    assert (named(world), life(world, 120)) == (v2, [MOVES, FAILED])
    assert "it was found Bad before" in message(world)


def test_a_first_rollout_past_its_deadline_is_failed_and_may_yet_be_done() -> None:
    world = World(changed(BRIEF, progressDeadlineSeconds=300))
    world.starts_after = timedelta(seconds=900)
    assert life(world, 1200, every=10) == [MOVES, FAILED, MOVES, DONE]


@pytest.mark.parametrize("wrong", [{"draft__placement__accelerator": "L5"}, {"target__replicas": "two"}])
def test_a_spec_that_cannot_be_followed_is_failed_whether_something_serves_or_not(wrong: dict[str, Any]) -> None:
    assert life(World(changed(BRIEF, **wrong)), 60) == [MOVES, FAILED]
    world = installed(BRIEF)
    world.edit(**wrong)
    assert (life(world, 60), world.condition("Ready")[0]) == ([MOVES, FAILED], "True")


def test_a_lost_record_of_what_serves_is_failed_also_in_the_middle_of_a_canary() -> None:
    world = installed(BRIEF)
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    del world.objects["ControllerRevision", f"chat-{world.stable}"], world.objects["ConfigMap", "chat-revisions"]
    assert life(world, 60) == [MOVES, FAILED]


def test_an_alert_without_a_way_back_is_failed_and_does_not_hide_the_canary_of_its_cure() -> None:
    world = installed(BRIEF, rate=20)
    alert(world, world.now)
    assert (life(world, 60)[-1], world.condition("Stalled")) == (FAILED, ("True", "RollbackImpossible"))
    push(world, V2)
    assert life(world, 600) == [MOVES, DONE]


def test_a_rollback_by_an_alert_ends_as_refused() -> None:
    world = installed(BRIEF, rate=20)
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.run(60)
    alert(world, world.now)
    assert life(world, 120) == [DONE, MOVES, FAILED]
    assert message(world).startswith(f"RevisionRefused: revision {v2}, which the spec means, is refused")


def test_what_is_scaled_to_nothing_is_suspended_and_not_current() -> None:
    world = installed(BRIEF)
    world.edit(target__replicas=0)
    assert life(world, 60)[-1] == WAITS


def test_speculation_that_is_off_is_no_failure() -> None:
    world = installed(QUICK, rate=20)
    world.behaviour[world.stable] = Behaviour(acceptance=0.1, speedup=0.8)
    world.run_until(lambda seen: seen.condition("SpeculationActive")[0] == "False" and settled(seen))
    assert read(world) == DONE


def test_lost_target_pods_are_awaited() -> None:
    world = installed(BRIEF)
    world.broken = {str(revision_of(parse(BRIEF)).target)}
    assert life(world, 60) == [DONE, MOVES]


def test_a_deleted_object_is_terminating_whatever_its_status_says() -> None:
    found = body(installed(BRIEF))
    found["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert kstatus(found) == "Terminating"


def test_a_status_without_conditions_is_awaited() -> None:
    assert argocd({"metadata": {"generation": 1}, "spec": {}})[0] == "Progressing"
    assert argocd({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1}})[0] == "Progressing"
