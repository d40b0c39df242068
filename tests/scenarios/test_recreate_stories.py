"""A pair that is taken down before the next one comes up: serving stops, status says so, what fails is taken back."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2, V3, changed
from tests.domain.simulated_world import Behaviour, Gateway, World, installed, named, push, settled
from tests.scenarios.story_views import checks, deployments, stage, weights

from tandem_operator.domain.actions import Action
from tandem_operator.domain.observed import Pod
from tandem_operator.domain.progress import Stage, Surge
from tandem_operator.domain.revision import Role
from tandem_operator.domain.samples import Scrape

RECREATE = changed(QUICK, canary__surge="Recreate")
BETTER, POORER = Behaviour(acceptance=0.85, speedup=1.7), Behaviour(acceptance=0.6, speedup=1.7)
FAILING = Behaviour(acceptance=0.85, speedup=1.7, errors=0.3)


class OneTarget(World):
    """Gateways are ready only while a target of every weighed revision is, and answer for their evidence nevertheless.

    Who asks meanwhile is an error of the revision that has the weight, as at the real gateway.
    """

    def pod(self, name: str, index: int, body: Any) -> Pod:
        found = super().pod(name, index, body)
        return replace(found, ready=found.ready and self.serves()) if found.role is Role.GATEWAY else found

    def serves(self) -> bool:
        policy = self.policy()
        ready = {pod.role_hash for pod in self.targets() if pod.ready}
        return policy is not None and all(held["target"] in ready for held in policy["revisions"] if held["weight"])

    def targets(self) -> list[Pod]:
        bodies = {name: body for (kind, name), body in self.objects.items() if kind == "Deployment"}
        named = ((name, body) for name, body in bodies.items() if "-target-" in name)
        return [self.pod(name, index, body) for name, body in named for index in range(body["spec"]["replicas"])]

    def scrape(self) -> Scrape:
        policy = self.policy()
        names = [pod.name for pod in self.pods() if pod.role is Role.GATEWAY] if policy is not None else []
        held = {name: self.gateways.setdefault(name, Gateway(name, f"boot-{name}")) for name in names}
        return Scrape(self.now, {name: self.document(gateway, policy or {}) for name, gateway in held.items()})

    def serve(self, seconds: int) -> None:
        super().serve(seconds)
        policy = self.policy()
        if policy is None or self.serves():
            return
        (turned_to,) = [held["name"] for held in policy["revisions"] if held["weight"] == 100]
        for gateway in self.gateways.values():
            stratum, lost = self.stratum(policy, gateway, turned_to), round(self.rate * seconds / 2)
            self.keep(gateway, replace(stratum, requests=stratum.requests + lost, errors=stratum.errors + lost))


def serving(**spec: Any) -> World:
    return installed(changed(RECREATE, **spec), rate=8, kind=OneTarget)


def another(world: World, behaviour: Behaviour) -> str:
    """Another target and another draft are pushed."""
    world.edit(target__model__revision=V2, draft__model__revision=V2)
    world.behaviour[named(world)] = behaviour
    return named(world)


def pods(world: World) -> dict[str, int]:
    """Target and draft pods by revision."""
    stored = world.observed().revisions
    owners = {str(part): seen.name for seen in stored for part in (seen.pair.target, seen.pair.draft)}
    found = [owners[str(pod.role_hash)] for pod in world.pods() if pod.role is not Role.GATEWAY]
    return {name: found.count(name) for name in owners.values()}


def watched(world: World, reached: Callable[[World], bool]) -> list[tuple[Stage, bool, str]]:
    """The stages, with whether somebody can be served and what Ready says; old pods never stand beside new ones."""
    walked: list[tuple[Stage, bool, str]] = []
    for _ in range(720):
        world.tick()
        if world.progress.rollout.surge is Surge.RECREATE:
            assert sum(count > 0 for count in pods(world).values()) <= 1
        now = (stage(world), isinstance(world, OneTarget) and world.serves(), world.condition("Ready")[1])
        walked += [] if walked and walked[-1] == now else [now]
        if reached(world):
            return walked
    raise AssertionError(world.progress)


def test_the_old_pair_goes_before_the_new_one_comes_and_status_says_that_nobody_is_served() -> None:
    world = serving()
    v1, v2 = world.stable, another(world, BETTER)
    walked = watched(world, lambda seen: seen.stable == v2)
    told = [(step, ready) for step, _, ready in walked if step is not Stage.STEPPING]
    assert list(dict.fromkeys(told)) == [
        (Stage.GATHERING, "Serving"),
        (Stage.CLEARING, "Serving"),  # as it was seen when its pods began to go
        (Stage.PREPARING, "Recreating"),
        (Stage.COMPLETING, "Serving"),
        (Stage.STABLE, "Serving"),
    ]
    assert walked[-1][1]
    world.run_until(settled, within=60)
    assert (weights(world), pods(world)[v1], world.verdicts()[v2]) == ({v2: 100}, 0, "Good")
    assert len([name for name in deployments(world) if "-target-" in name]) == 1  # the old one is not kept warm


def test_while_a_recreated_pair_is_on_trial_it_serves_and_is_what_status_speaks_of() -> None:
    world = serving()
    v2 = another(world, replace(BETTER, slow=0.05))
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(60)
    assert (world.condition("Ready"), world.condition("TargetReady")[0]) == (("True", "Serving"), "True")
    assert (world.message("Ready"), world.status["replicas"]) == (f"revision {v2} serves", 2)
    assert world.condition("DraftReady") == ("True", "AllReady")
    assert (weights(world)[v2], world.status["phase"]) == (100, "Canary")
    assert checks(world)["timeToFirstToken"]["verdict"] == "NotCompared"
    assert world.condition("SpeculationActive") == ("False", "GaveWay")


@pytest.mark.parametrize(("poor", "reason"), [(POORER, "AcceptanceDropFailed"), (FAILING, "ErrorsFailed")])
def test_a_recreated_pair_that_is_worse_than_the_old_ones_record_is_bad_and_the_old_one_comes_back(
    poor: Behaviour, reason: str
) -> None:
    """Those who asked while nobody was served are errors of neither."""
    world = serving()
    v1, before = world.stable, deployments(world)
    v2 = another(world, poor)
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.condition("RolledBack"), world.verdicts()[v2]) == (("True", reason), "Bad")
    world.run_until(settled, within=120)
    assert (world.stable, weights(world), deployments(world)) == (v1, {v1: 100}, before)
    assert (world.condition("Ready")[0], pods(world)) == ("True", {v1: 3, v2: 0})


def test_the_old_pair_stays_until_its_errors_are_known_though_nobody_speculates() -> None:
    world = serving(speculation__mode="Off", canary__progressDeadlineSeconds=600)
    world.rate = 0
    v1, v2 = world.stable, another(world, BETTER)
    world.run(300)
    assert (stage(world), pods(world)[v1], world.condition("Ready")[0]) == (Stage.GATHERING, 3, "True")
    world.run_until(lambda seen: seen.progress.refused == v2, within=400)
    assert "its errors are to be known from" in world.message("RolledBack")


def test_a_recreated_target_that_finds_no_node_gives_the_old_one_its_place_back() -> None:
    world = serving(canary__capacityWaitSeconds=60)
    v1, v2 = world.stable, another(world, BETTER)
    world.tick()
    world.full = {str(held.role_hash) for held in world.decisions[-1].pods if held.revision == v2}
    world.run_until(lambda seen: seen.progress.refused == v2, within=1800)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("NoCapacity", "Unknown")
    world.run_until(settled, within=60)
    assert (pods(world), world.condition("Ready")[0]) == ({v1: 3, v2: 0}, "True")


def test_a_draft_that_both_pairs_have_stays_up_while_the_target_is_recreated() -> None:
    world = serving()
    world.edit(target__model__revision=V2)
    v2 = named(world)
    while world.stable != v2:
        world.tick()
        assert [pod.ready for pod in world.pods() if pod.role is Role.DRAFT] == [True]


def test_another_draft_alone_takes_the_place_of_the_old_one_and_the_target_serves_on() -> None:
    world = serving()
    world.edit(draft__model__revision=V2)
    world.run_until(lambda seen: stage(seen) is Stage.PREPARING)
    assert (world.progress.rollout.surge, world.condition("Ready")[0]) == (Surge.IN_PLACE_DRAFT, "True")


def gone_down(world: World) -> str:
    """Another pair is pushed, for which stable's goes down; its name."""
    v2 = another(world, BETTER)
    world.run_until(lambda seen: stage(seen) is Stage.PREPARING and seen.progress.rollout.gave_way is not None)
    return v2


@pytest.mark.parametrize("when", [Stage.CLEARING, Stage.PREPARING])
def test_a_pause_while_nobody_is_served_holds_the_verdict_and_not_the_pair_that_serves_again(when: Stage) -> None:
    world = serving()
    v1, v2 = world.stable, another(world, BETTER)
    world.run_until(lambda seen: stage(seen) is when and seen.progress.rollout.gave_way is not None)
    world.edit(paused=True)
    world.run(900)
    assert (stage(world), weights(world)[v2], world.condition("Ready")) == (Stage.STEPPING, 100, ("True", "Serving"))
    assert (world.stable, world.condition("Progressing")) == (v1, ("False", "Paused"))
    world.edit(paused=False)
    world.run_until(lambda seen: seen.stable == v2, within=1800)


def test_a_pause_before_anything_has_gone_keeps_what_serves() -> None:
    world = serving()
    world.edit(paused=True)
    v1, v2 = world.stable, another(world, BETTER)
    world.run(600)
    assert (stage(world), pods(world).get(v2, 0), weights(world)) == (Stage.STABLE, 0, {v1: 100})


@pytest.mark.parametrize("when", [Stage.GATHERING, Stage.PREPARING, Stage.STEPPING])
def test_a_pair_that_is_scaled_to_zero_while_it_is_recreated_sets_out_again_and_nothing_is_held_against_it(
    when: Stage,
) -> None:
    world = serving()
    v1, v2 = world.stable, another(world, BETTER)
    if when is Stage.GATHERING:
        world.rate = 0
        world.run(30)
    else:
        world.run_until(lambda seen: stage(seen) is when and seen.progress.rollout.gave_way is not None)
    world.edit(target__replicas=0)
    world.rate = 8
    world.run(600)
    assert (stage(world), world.progress.refused, pods(world)[v2]) == (Stage.STABLE, "", 0)
    assert world.reasons().count("CanaryStarted") == 1
    assert (world.condition("Ready"), world.stable) == (("False", "ScaledToZero"), v1)
    world.edit(target__replicas=2)
    world.run_until(lambda seen: v2 in (seen.stable, seen.progress.refused))
    assert (world.stable, world.verdicts()[v2]) == (v2, "Good")


def test_another_pair_that_is_meant_while_everything_is_scaled_to_zero_waits_for_pods_too() -> None:
    world = serving()
    v1 = world.stable
    v2 = gone_down(world)
    world.edit(target__replicas=0, target__model__revision=V3)
    v3 = named(world)
    world.run(300)
    assert (stage(world), world.stable, world.progress.refused) == (Stage.STABLE, v1, "")
    world.behaviour[v3] = BETTER
    world.edit(target__replicas=2)
    world.run_until(lambda seen: seen.stable == v3)
    assert v2 not in (world.progress.refused, world.stable)


def test_a_target_that_the_revision_before_has_too_goes_though_that_one_is_kept_warm() -> None:
    world = serving()
    v2 = push(world, V3, BETTER)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    v3 = another(world, BETTER)
    world.run_until(lambda seen: seen.stable == v3, within=2400)


def whole(world: World, v1: str) -> bool:
    return stage(world) is Stage.STABLE and world.stable == v1 and settled(world)


@pytest.mark.parametrize("when", [Stage.PREPARING, Stage.STABLE], ids=["an edit meanwhile", "the next one"])
def test_errors_of_the_time_without_a_target_are_not_in_the_record_of_the_old_pair(when: Stage) -> None:
    world = serving()
    world.run(60)
    world.starts_after = timedelta(seconds=60)
    v1, v2 = world.stable, another(world, FAILING)
    world.run_until(lambda seen: stage(seen) is Stage.PREPARING and seen.progress.rollout.gave_way is not None)
    world.run(30)
    if when is Stage.STABLE:
        world.run_until(lambda seen: seen.progress.refused == v2 and whole(seen, v1))
    world.edit(target__model__revision=V3)
    v3 = named(world)
    world.behaviour[v3] = replace(BETTER, errors=0.1)
    world.run_until(lambda seen: v3 in (seen.stable, seen.progress.refused))
    assert (world.stable, world.condition("RolledBack")) == (v1, ("True", "ErrorsFailed"))


def test_a_change_of_policy_while_the_old_pair_comes_back_puts_no_errors_of_that_time_into_its_record() -> None:
    world = serving()
    v1, v2 = world.stable, gone_down(world)
    world.starts_after = timedelta(seconds=300)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    for gain in (200, 300, 400):
        world.run(20)
        world.edit(speculation__minGainBasisPoints=gain)
    world.run(20)
    assert (stage(world), world.condition("Ready")[0]) == (Stage.STABLE, "False")
    world.edit(target__model__revision=V3)
    v3 = named(world)
    world.behaviour[v3] = replace(BETTER, errors=0.1)
    world.tick()
    assert stage(world) is Stage.STABLE
    world.run_until(lambda seen: v3 in (seen.stable, seen.progress.refused))
    assert (world.stable, world.condition("RolledBack")) == (v1, ("True", "ErrorsFailed"))


def test_a_rollback_takes_down_what_is_there_before_the_old_pair_can_be_back() -> None:
    world = serving()
    v1, v2 = world.stable, another(world, BETTER)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.run(30)
    alert(world, world.now)
    world.run(6, every=2)
    assert (world.progress.rollout.stage, world.condition("Ready")) == (Stage.RETURNING, ("False", "Recreating"))
    world.run_until(lambda seen: seen.stable == v1 and settled(seen), within=120)
    assert (pods(world), weights(world), world.verdicts()[v2]) == ({v1: 3, v2: 0}, {v1: 100}, "Bad")


def test_who_asks_for_a_recreation_no_more_before_anything_went_keeps_what_serves() -> None:
    world = serving()
    world.rate = 0
    v1, v2 = world.stable, another(world, BETTER)
    world.run(60)
    assert stage(world) is Stage.GATHERING
    world.edit(canary__surge="Auto")
    world.rate = 8
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    assert (world.progress.rollout.surge, world.progress.rollout.revision) == (Surge.SIDE_BY_SIDE, v2)
    assert (pods(world)[v1], world.condition("Ready")) == (3, ("True", "Serving"))


@pytest.mark.parametrize("until", [Stage.PREPARING, Stage.STEPPING])
def test_an_alert_about_requests_that_nobody_could_serve_does_not_end_the_recreation_that_it_is_part_of(
    until: Stage,
) -> None:
    world = serving()
    v1, v2 = world.stable, another(world, BETTER)
    world.run_until(lambda seen: stage(seen) is until and seen.progress.rollout.gave_way is not None)
    alert(world, world.now, revision=v1)
    world.tick()
    assert [entry.action for entry in world.progress.alerts] == ["Ignored"]
    alert(world, world.now, revision=v2, key="1" * 32)
    world.run(20)
    assert (world.progress.refused, world.verdicts()[v2]) == (v2, "Bad")


def test_an_alert_about_the_old_pair_that_is_still_coming_back_does_not_roll_that_back_too() -> None:
    world = serving()
    v1 = another(world, BETTER)
    world.run_until(lambda seen: seen.stable == v1 and settled(seen))
    world.run(60)
    world.edit(target__model__revision=V3)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.starts_after = timedelta(seconds=300)
    world.annotations["tandem.dev/abort"] = f"@{world.progress.rollout.revision}#1"
    world.run(60)
    assert (stage(world), world.condition("Ready")[0]) == (Stage.STABLE, "False")
    alert(world, world.now, revision=v1)
    world.run_until(lambda seen: seen.condition("Ready")[0] == "True", within=400)
    assert (world.stable, world.verdicts()[v1], stage(world)) == (v1, "Good", Stage.STABLE)
    alert(world, world.now, revision=v1, key="1" * 32)
    world.tick()
    assert world.progress.rollout.stage is Stage.RETURNING


def test_a_canary_that_is_to_come_in_place_after_all_keeps_its_pods_until_gateways_send_nobody_there() -> None:
    world = installed(changed(QUICK, target__replicas=4), rate=8)
    v2 = another(world, BETTER)
    world.run_until(lambda seen: (stage(seen), seen.progress.rollout.step) == (Stage.PREPARING, 1))
    deaf, policy = sorted(world.gateways)[0], world.policy()
    assert policy is not None
    world.gateways[deaf].policy = policy["number"]
    world.edit(canary__surge="Recreate")
    world.tick(2)
    assert (stage(world), weights(world)[v2]) == (Stage.CLEARING, 0)
    assert pods(world)[v2] > 0
    world.gateways[deaf].policy = None
    world.tick(2)
    assert (stage(world), pods(world)[v2]) == (Stage.CLEARING, 0)


def test_a_rollback_to_a_target_that_never_comes_back_is_given_up_by_command_and_serving_goes_on() -> None:
    world = serving()
    v1, v2 = world.stable, another(world, BETTER)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.run(30)
    world.broken = {str(seen.pair.target) for seen in world.observed().revisions if seen.name == v1}
    alert(world, world.now)
    world.run(600)
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.run(20)
    assert (world.progress.rollout.stage, world.condition("Ready")) == (Stage.RETURNING, ("False", "Recreating"))
    world.annotations["tandem.dev/rollback-to"] = f"{v2}@{v2}#2"
    world.run_until(lambda seen: whole(seen, v2), within=120)
    assert (pods(world), weights(world), world.progress.refused) == ({v1: 0, v2: 3}, {v2: 100}, "")


@pytest.mark.parametrize("outcome", [BETTER, FAILING], ids=["promoted", "refused"])
def test_a_kill_at_any_write_of_a_recreation_ends_in_the_same_state(outcome: Behaviour) -> None:
    def end(stop: int | None) -> tuple[list[Action], Any]:
        world = serving()
        v2, start, killed = another(world, outcome), len(world.writes), list[Action]()

        def stops(action: Action) -> bool:
            now = not killed and len(world.writes) - start == stop
            killed.extend([action] if now else [])
            return now

        world.stop_at = stops
        watched(world, lambda seen: v2 in (seen.stable, seen.progress.refused) and settled(seen))
        assert killed or stop is None
        return world.writes[start:], (world.stable, weights(world), pods(world), deployments(world), world.verdicts())

    writes, expected = end(None)
    saved = [stop for stop, action in enumerate(writes) if action.name.endswith("-evidence")]
    for stop in [*saved[:2], *(stop for stop in range(len(writes)) if stop not in saved)]:
        assert end(stop)[1] == expected, writes[stop]
