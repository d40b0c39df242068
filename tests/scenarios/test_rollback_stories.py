"""Alerts and commands that take a promoted pair back: once, never forward, and not before the old pair can serve.

Source of the numbered case: xdlc-agent #40 (C35).
"""

from datetime import timedelta
from typing import Any

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2, V3, changed
from tests.domain.simulated_world import World, installed, named, settled
from tests.scenarios.story_views import served, stage, weights

from tandem_operator.domain.progress import Stage


def promoting_pair(**terms: Any) -> tuple[World, str, str]:
    """v1 was Good; v2, with another target and draft, has passed and is coming up to full size."""
    quick = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10}], **terms)
    world = installed(quick, rate=20)
    v1 = world.stable
    world.edit(target__model__revision=V2, draft__model__revision=V2)
    v2 = named(world)
    world.run_until(lambda seen: stage(seen) is Stage.COMPLETING)
    return world, v1, v2


def promoted_pair(*, rate: float = 0.0, **terms: Any) -> tuple[World, str, str]:
    """v2 was promoted and is active."""
    world, v1, v2 = promoting_pair(**terms)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.rate = rate
    return world, v1, v2


def test_c35_one_alert_causes_one_rollback() -> None:
    world, v1, v2 = promoted_pair()
    spec, starts_at = world.spec, world.now
    world.run(60)
    for _ in range(3):
        alert(world, starts_at)
        world.tick(2)
    assert served(world) == {v1: 100}  # the old pair is warm: within seconds
    for _ in range(30):
        alert(world, starts_at)
        world.tick(120)
    world.run_until(settled, within=60)
    assert (world.stable, world.progress.refused, world.verdicts()[v2]) == (v1, v2, "Bad")
    alerts = world.status["alerts"]
    assert isinstance(alerts, list)
    assert [entry["action"] for entry in alerts] == ["RolledBack"]
    assert [name for name in world.annotations if name.startswith("alert.")] == []
    assert world.reasons().count("RollingBack") == 1
    assert (world.condition("RolledBack"), world.spec) == (("True", "Alert"), spec)
    world.edit(target__replicas=3)
    world.run(120)
    assert (world.stable, stage(world)) == (v1, Stage.STABLE)
    assert world.status["replicas"] == 3


def test_a_second_alert_within_a_day_stalls_and_keeps_serving() -> None:
    world, v1, v2 = promoted_pair()
    world.run(60)
    alert(world, world.now)
    world.run(60)
    world.edit(draft__model__revision=V3)
    v3 = named(world)
    world.rate = 20
    world.run_until(lambda seen: seen.stable == v3 and settled(seen))
    world.run(60)
    alert(world, world.now, key="1" * 32)
    world.run(60)
    assert (world.stable, world.condition("Stalled")) == (v3, ("True", "RollbackImpossible"))
    assert {v1, v2} < set(world.verdicts())


def test_a_dry_run_records_what_it_would_have_done() -> None:
    world, v1, v2 = promoted_pair()
    world.edit(rollback__dryRun=True)
    world.run(60)
    alert(world, world.now)
    world.run(30)
    (entry,) = world.progress.alerts
    assert (entry.action, entry.note) == ("WouldRollBack", f"dry run: would return to revision {v1}")
    assert world.stable == v2


def test_an_alert_from_before_the_promotion_is_recorded_and_ignored() -> None:
    world, _, v2 = promoted_pair()
    alert(world, world.now - timedelta(hours=2))
    world.run(30)
    assert (world.stable, [entry.action for entry in world.progress.alerts]) == (v2, ["Ignored"])


def wanted(world: World, revision: str) -> dict[str, int]:
    """Pods of a revision by role."""
    pair = next(seen.pair for seen in world.observed().revisions if seen.name == revision)
    found = {seen.role_hash: seen.wanted for seen in world.observed().workloads}
    return {"target": found.get(pair.target, 0), "draft": found.get(pair.draft, 0)}


def test_after_a_promotion_one_old_pod_of_each_role_stays_up_for_an_hour_and_then_none() -> None:
    world, v1, v2 = promoted_pair()
    assert (wanted(world, v1), wanted(world, v2)) == ({"target": 1, "draft": 1}, {"target": 2, "draft": 1})
    world.run(3300, every=60)
    assert wanted(world, v1)["target"] == 1
    world.run(360, every=60)
    assert wanted(world, v1) == {"target": 0, "draft": 0}
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.tick(2)
    assert (weights(world)[v2], world.condition("Progressing")) == (100, ("True", "RollingBackCold"))
    world.run_until(lambda seen: seen.stable == v1, within=60)


def test_a_rollback_to_a_warm_target_moves_the_weight_at_once_and_the_other_pods_come_up_behind_it() -> None:
    world, v1, v2 = promoted_pair()
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.tick(2)
    assert (weights(world)[v1], wanted(world, v1)["target"]) == (100, 2)


@pytest.mark.parametrize(
    ("terms", "left"),
    [
        ({"rollback__keepWarm": {"replicas": 5, "seconds": 600}}, {"target": 2, "draft": 1}),
        ({"rollback__keepWarm": {"seconds": 0}}, {"target": 0, "draft": 0}),
        ({"canary__rollbackWindowSeconds": 0, "rollback__windowSeconds": 0}, {"target": 0, "draft": 0}),
    ],
    ids=["never more than it had", "no time", "no window"],
)
def test_what_stays_warm_is_what_the_spec_says(terms: dict[str, Any], left: dict[str, int]) -> None:
    world, v1, _ = promoted_pair(**terms)
    assert wanted(world, v1) == left


def test_what_stays_warm_goes_when_stable_itself_finds_no_node() -> None:
    world, v1, v2 = promoted_pair(canary__capacityWaitSeconds=60)
    world.full = {str(seen.pair.draft) for seen in world.observed().revisions if seen.name == v2}
    world.born = {pod: born for pod, born in world.born.items() if "-draft-" not in pod}  # its node went
    world.run(30)
    assert wanted(world, v1) == {"target": 1, "draft": 1}
    world.run(60)
    assert wanted(world, v1) == {"target": 0, "draft": 0}
    world.full = set()
    world.run_until(settled, within=60)
    assert wanted(world, v1) == {"target": 0, "draft": 0}  # what went is not made again


def test_old_pods_stay_until_every_gateway_sends_nobody_there() -> None:
    world, v1, v2 = promoting_pair()
    deaf = sorted(world.gateways)[0]
    policy = world.policy()
    assert policy is not None
    world.gateways[deaf].policy = policy["number"]
    world.run_until(lambda seen: seen.stable == v2)
    world.run(4, every=2)
    assert wanted(world, v1)["target"] == 2
    world.gateways[deaf].policy = None
    world.run(10, every=2)
    assert wanted(world, v1)["target"] == 1
    world.gateways[deaf].reachable = False
    world.run(10, every=2)
    assert wanted(world, v1)["target"] == 1  # and who falls silent later brings none back


def test_a_rollback_to_a_cold_target_waits_for_it_with_speculation_off() -> None:
    world, v1, v2 = promoted_pair()
    old = world.decisions[-1]
    cold = next(pods.role_hash for pods in old.pods if pods.revision == v1 and pods.role == "target")
    world.broken = {cold}
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.run(30)
    policy = world.policy()
    assert policy is not None
    by_name = {revision["name"]: revision for revision in policy["revisions"]}
    assert (by_name[v2]["weight"], by_name[v2]["speculate"], by_name[v1]["weight"]) == (100, False, 0)
    assert world.condition("Progressing") == ("True", "RollingBackCold")
    world.broken = set()
    world.run_until(lambda seen: seen.stable == v1, within=120)
    assert world.verdicts()[v2] == "Good"  # a human's rollback blames nobody


def test_a_pod_that_is_kept_warm_and_is_not_ready_holds_up_nobody_who_waits_for_the_edit() -> None:
    world, v1, v2 = promoted_pair()
    world.broken = {str(seen.pair.target) for seen in world.observed().revisions if seen.name == v1}
    world.run(60)
    assert (world.stable, world.condition("Reconciling")) == (v2, ("False", "Settled"))
    world.broken = {str(seen.pair.target) for seen in world.observed().revisions if seen.name == v2}
    world.run(60)
    assert world.condition("Reconciling") == ("True", "WaitingForPods")


def test_what_is_kept_warm_does_not_grow_with_what_serves() -> None:
    world, v1, v2 = promoted_pair(rollback__keepWarm={"replicas": 5})
    world.edit(target__replicas=4)
    world.run(60)
    wanted = {str(pods.role_hash): pods.replicas for pods in world.decisions[-1].pods if pods.role == "target"}
    named_targets = {seen.name: str(seen.pair.target) for seen in world.observed().revisions}
    assert {name: wanted[role_hash] for name, role_hash in named_targets.items()} == {v1: 2, v2: 4}
