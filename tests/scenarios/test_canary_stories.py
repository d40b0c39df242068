"""Whole canaries: what walks through the steps, what is refused, what only waits, and what people may do to them.

Sources of the numbered cases: Flagger #1035 (C33), Argo Rollouts #1466 (C34).
"""

from datetime import timedelta
from typing import Any

from tests.domain.simulated_specs import BASE, QUICK, V1, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, push, settled
from tests.scenarios.story_views import checks, deployments, served, stage, weights

from tandem_operator.domain.actions import Verb
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse


def test_a_better_draft_walks_through_the_steps_and_becomes_stable() -> None:
    world = installed(QUICK, rate=5)
    v1, targets = world.stable, {name for name in deployments(world) if "-target-" in name}
    v2 = push(world, V2, Behaviour(acceptance=0.85, speedup=1.7))
    seen: list[int] = []
    while world.stable != v2:
        world.tick()
        seen.append(weights(world)[v2])
        assert {name for name in deployments(world) if "-target-" in name} == targets  # a draft costs no target
    assert sorted(set(seen)) == [0, 10, 50, 100]
    assert seen == sorted(seen)
    world.run_until(settled, within=60)
    assert weights(world) == {v2: 100}
    assert world.verdicts() == {v1: "Good", v2: "Good"}
    assert world.status["previousRevision"] == v1
    assert world.reasons() == ["Installed", "CanaryStarted", "CanaryStep", "CanaryStep", "Promoted"]


def test_a_poor_draft_is_refused_with_its_numbers_and_stable_is_untouched() -> None:
    world = installed(QUICK, rate=5)
    v1, before = world.stable, deployments(world)
    v2 = push(world, V2, Behaviour(acceptance=0.4, speedup=0.9))
    world.run_until(lambda seen: seen.progress.refused == v2)
    world.run_until(settled, within=60)
    assert (world.stable, weights(world), deployments(world)) == (v1, {v1: 100}, before)
    assert world.verdicts() == {v1: "Good", v2: "Bad"}
    assert world.condition("RolledBack")[0] == "True"
    note = next(event.note for event in world.events if event.reason == "CanaryAborted")
    assert "wanted >" in note
    assert v2 in note
    writes = len(world.writes)
    world.run(600)
    assert [action for action in world.writes[writes:] if action.verb is not Verb.PERSIST] == []  # never tried again


def test_a_shadow_step_refuses_a_poor_draft_before_anyone_is_served() -> None:
    steps = [{"percent": 0, "shadow": True, "holdSeconds": 60}, *BASE["canary"]["steps"]]
    world = installed(changed(QUICK, canary__steps=steps), rate=5)
    v2 = push(world, V2, Behaviour(acceptance=0.2))
    world.run_until(lambda seen: seen.progress.refused == v2, within=600)
    assert all(share.weight == 0 for decision in world.decisions for share in decision.shares if share.revision == v2)
    assert world.condition("RolledBack") == ("True", "AcceptanceFailed")


def test_a_paused_step_waits_for_promote() -> None:
    steps = [{"percent": 10, "holdSeconds": 60, "pause": True}, {"percent": 50, "holdSeconds": 60}]
    world = installed(changed(QUICK, canary__steps=steps), rate=8)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.PAUSED)
    deadline = world.progress.rollout.deadline_at
    world.run(600, every=60)
    assert (stage(world), weights(world)[v2]) == (Stage.PAUSED, 10)
    world.annotations["tandem.dev/promote"] = f"@{v2}#1"
    world.tick()
    assert stage(world) is not Stage.PAUSED
    assert deadline is not None
    assert world.progress.rollout.deadline_at is not None
    assert world.progress.rollout.deadline_at >= deadline + timedelta(seconds=600)
    world.run_until(lambda seen: seen.stable == v2)


def test_a_new_target_stands_beside_stable_until_it_is_promoted() -> None:
    world = installed(changed(QUICK, target__replicas=4), rate=8)
    v1 = world.stable
    world.edit(target__model__revision=V2)
    v2 = named(world)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    replicas = {
        body["spec"]["replicas"]
        for (kind, name), body in world.objects.items()
        if "-target-" in name and kind == "Deployment"
    }
    assert replicas == {4, 1}  # ceil(4 x 10 %)
    world.run_until(lambda seen: seen.stable == v2)
    policy = world.policy()
    assert policy is not None
    world.tick()
    kept = [name for name in deployments(world) if "-target-" in name]
    assert len(kept) == 2  # the old one stays for the rollback window
    assert world.status["previousRevision"] == v1


def test_what_a_promotion_leaves_goes_budgets_first_so_that_a_kill_between_leaves_none_behind() -> None:
    at_once = changed(QUICK, canary__rollbackWindowSeconds=0, rollback__windowSeconds=0)
    world = installed(at_once, rate=8)
    world.edit(target__model__revision=V2)
    v2 = named(world)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    gone = [action for action in world.writes if action.verb is Verb.DELETE]
    assert [action.kind for action in gone] == ["PodDisruptionBudget", "Deployment"]
    assert gone[0].name == gone[1].name


def test_a_paused_object_starts_nothing_but_still_aborts() -> None:
    world = installed(QUICK, rate=5)
    world.edit(paused=True)
    v2 = push(world, V2)
    world.run(120)
    assert (stage(world), named(world)) == (Stage.STABLE, v2)
    world.edit(paused=False)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.edit(paused=True)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.tick()
    assert (world.progress.refused, stage(world)) == (v2, Stage.STABLE)
    assert world.status["handledCommands"] == {"tandem.dev/abort": f"@{v2}#1"}


def test_an_old_command_does_not_act_on_a_new_state() -> None:
    world = installed(QUICK, rate=5)
    world.annotations["tandem.dev/abort"] = "@0badf00d#1"
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    assert world.reasons().count("CommandIgnored") == 1


def test_an_inconclusive_refusal_ends_with_retry() -> None:
    world = installed(QUICK)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.run(30)
    assert stage(world) is Stage.STABLE
    world.annotations["tandem.dev/retry"] = f"@{v2}#1"
    world.run(30)
    assert world.progress.rollout.revision == v2


def test_a_spec_that_goes_back_to_stable_ends_the_canary_without_pointless_work() -> None:
    world = installed(QUICK, rate=5)
    v1 = world.stable
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.edit(draft__model__revision=V1)
    world.tick()
    assert (stage(world), served(world), world.progress.refused) == (Stage.STABLE, {v1: 100}, "")
    world.run_until(settled, within=60)
    assert len([name for name in deployments(world) if "-draft-" in name]) == 1


def test_c33_without_requests_a_canary_holds_and_is_aborted_at_its_deadline_but_not_bad() -> None:
    world = installed(changed(BASE, canary__progressDeadlineSeconds=3600))
    v1, v2 = world.stable, push(world, V2)
    world.run(1800, every=30)
    assert (stage(world), weights(world)[v2]) == (Stage.STEPPING, 10)
    assert world.condition("CanaryHealthy") == ("Unknown", "NoData")
    world.run(1860, every=30)
    assert (stage(world), world.progress.refused, world.verdicts()[v2]) == (Stage.STABLE, v2, "Unknown")
    assert world.condition("RolledBack") == ("True", "Inconclusive")
    world.run(600, every=30)
    assert (stage(world), world.stable) == (Stage.STABLE, v1)


def test_c34_sums_that_are_not_there_yet_are_no_data_and_are_named() -> None:
    world = installed(BASE)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(90)
    assert checks(world)["acceptance"]["verdict"] == "NoData"
    missing = f"the gateways hold no acceptance sums of revision {v2} yet"
    assert checks(world)["acceptance"]["message"] == missing
    conditions: Any = world.status["conditions"]
    (canary,) = [item for item in conditions if item["type"] == "CanaryHealthy"]
    assert canary["message"].startswith(f"acceptance: {missing}; acceptanceDrop: ")
    assert stage(world) is Stage.STEPPING


def test_gateways_that_do_not_answer_hold_a_canary_and_stop_no_abort() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2, Behaviour(acceptance=0.8))
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(60)
    for gateway in world.gateways.values():
        gateway.reachable = False
    world.run(120)
    assert world.condition("CanaryHealthy") == ("Unknown", "ProviderError")
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.tick()
    assert (stage(world), served(world)) == (Stage.STABLE, {world.stable: 100})


def test_a_canary_without_room_waits_and_is_never_called_bad() -> None:
    world = installed(changed(QUICK, canary__progressDeadlineSeconds=900))
    world.edit(draft__model__revision=V2)
    v2 = named(world)
    world.full = {str(revision_of(parse(world.spec)).draft)}
    world.run(300)
    assert world.condition("CapacityAvailable") == ("False", "Unschedulable")
    assert stage(world) is Stage.PREPARING
    world.run(700)
    assert (world.progress.refused, world.verdicts()[v2]) == (v2, "Unknown")
    assert world.condition("RolledBack") == ("True", "NoCapacity")


def speaking(world: World) -> dict[str, bool]:
    """Which revisions may speculate."""
    policy = world.policy()
    assert policy is not None
    return {revision["name"]: revision["speculate"] for revision in policy["revisions"]}


def under_pressure() -> tuple[World, str]:
    """A canary that serves 10 %, and a target whose memory has just risen above its mark."""
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.memory = 9500
    world.tick()
    return world, v2


def test_memory_pressure_takes_the_canarys_speculation_first_and_nobody_elses() -> None:
    world, v2 = under_pressure()
    assert (stage(world), speaking(world)) == (Stage.STEPPING, {world.stable: True, v2: False})
    assert world.condition("MemoryPressure") == ("True", "CanaryQuiet")
    assert [event.note for event in world.events if event.reason == "CanaryQuiet"] == [
        f"revision {v2}: a target's working set is 95 % of its limit, mark 92 %; "
        "its speculation is off until that is over"
    ]


def test_memory_pressure_that_lasts_aborts_a_canary_that_is_not_to_blame() -> None:
    world, v2 = under_pressure()
    world.run(40)
    assert stage(world) is Stage.STEPPING
    world.tick()
    assert (stage(world), world.progress.refused, world.condition("MemoryPressure")[0]) == (Stage.STABLE, v2, "True")
    assert (world.condition("RolledBack"), world.verdicts()[v2]) == (("True", "MemoryPressure"), "Unknown")


def test_a_silenced_canary_is_not_ended_for_a_preemption_from_before_it_fell_silent() -> None:
    """The cache stays fuller than its low mark, as a busy server's does; targets tell of a preemption for 30 s."""
    world, v2 = under_pressure()
    world.memory, world.kv, world.preempting = 5000, 8500, True
    world.run(30)
    assert (stage(world), speaking(world)[v2]) == (Stage.STEPPING, False)
    world.preempting = False
    world.tick()
    assert (stage(world), speaking(world)[v2]) == (Stage.STEPPING, True)
    assert "CanaryHeardAgain" in world.reasons()


def test_a_canary_that_is_silenced_for_memory_speaks_again_once_it_is_over_and_is_promoted() -> None:
    world, v2 = under_pressure()
    world.memory = 7000
    world.tick()
    assert (stage(world), speaking(world)) == (Stage.STEPPING, {world.stable: True, v2: True})
    assert "CanaryHeardAgain" in world.reasons()
    world.run_until(lambda seen: seen.stable == v2)


def test_memory_pressure_for_the_second_time_aborts_the_canary_and_takes_nothing_from_stable() -> None:
    """Twice it was above the mark with the canary's speculation, and below without: stable has no part in it."""
    world, v2 = under_pressure()
    v1 = world.stable
    world.memory = 7000
    world.tick()
    world.memory = 9500
    world.tick()
    assert speaking(world) == {v1: True, v2: False}
    world.memory = 7000
    world.tick()
    assert (speaking(world), world.condition("SpeculationActive")[0]) == ({v1: True, v2: False}, "True")
    assert (stage(world), world.progress.refused, world.verdicts()[v2]) == (Stage.STABLE, v2, "Unknown")
    assert "for the second time" in world.message("RolledBack")


def test_a_silenced_canary_passes_no_step() -> None:
    world, v2 = under_pressure()
    world.memory = 8500  # between the marks: it is not pressed any more, and may not speak
    world.run(20)
    assert (world.progress.rollout.step, speaking(world)[v2]) == (0, False)


def test_a_silenced_canary_is_waited_for_where_what_is_inconclusive_is_aborted() -> None:
    """It passes all checks, and its hold ends while it is silent."""
    steps = [{"percent": 10, "holdSeconds": 400}, {"percent": 50, "holdSeconds": 60}]
    patient = changed(QUICK, canary__analysis__onInconclusive="Abort", canary__steps=steps)
    world = installed(patient, rate=20)
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.condition("CanaryHealthy") == ("True", "Pass"))
    began = world.progress.rollout.step_started_at
    world.run_until(lambda seen: began is not None and seen.now >= began + timedelta(seconds=390))
    world.memory = 9500
    world.run(20)
    assert (stage(world), speaking(world)[v2]) == (Stage.STEPPING, False)
    world.memory = 7000
    world.run_until(lambda seen: seen.progress.rollout.step == 1)


def test_a_silenced_canary_stays_silent_while_nobody_says_how_full_the_memory_is() -> None:
    world, v2 = under_pressure()
    world.memory = None
    world.run(60)
    assert (stage(world), speaking(world)[v2]) == (Stage.STEPPING, False)
    world.memory = 7000
    world.tick()
    assert speaking(world)[v2]


def test_a_silenced_canary_is_not_promoted_though_it_passed_every_step() -> None:
    world = installed(changed(QUICK, draft__replicas=4), rate=20)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING and seen.progress.rollout.step == 1)
    world.starts_after = timedelta(seconds=60)
    world.run_until(lambda seen: stage(seen) is Stage.COMPLETING)
    world.memory = 9500
    world.tick()
    assert (stage(world), speaking(world)[v2]) == (Stage.COMPLETING, False)
    world.starts_after = timedelta(seconds=0)
    world.memory = 8500
    world.run(20)
    assert world.stable != v2
    world.memory = 7000
    world.run_until(lambda seen: seen.stable == v2, within=60)


def test_memory_pressure_while_a_canary_serves_nobody_is_the_breakers_matter() -> None:
    world = installed(changed(QUICK, canary__steps=[{"percent": 0, "shadow": True}, {"percent": 50}]), rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.memory = 9500
    world.tick()
    assert (stage(world), world.progress.refused, world.condition("MemoryPressure")[0]) == (Stage.STABLE, v2, "True")


def test_a_gateway_that_follows_an_old_policy_is_replaced_so_that_an_abort_has_a_bound() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    deaf = sorted(world.gateways)[0]
    policy = world.policy()
    assert policy is not None
    world.gateways[deaf].policy = policy["number"]
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.tick()
    kept = deployments(world)
    world.run(60)
    assert [action.name for action in world.writes if action.kind == "Pod"] == [deaf]
    assert deployments(world) < kept
