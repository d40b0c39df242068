"""A canary in the place of stable's draft: when it comes to that, what it is held against, and that text is never at
stake: target pods serve throughout, and the old draft comes back."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.domain.simulated_specs import QUICK, V2, V3, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, push, settled
from tests.scenarios.story_views import checks, deployments, served, stage, weights

from tandem_operator.domain.actions import Action
from tandem_operator.domain.progress import Stage, Surge
from tandem_operator.domain.revision import Role

IN_PLACE = changed(QUICK, canary__surge="InPlaceDraft")
CROWDED = changed(QUICK, canary__capacityWaitSeconds=120)
BETTER, SLOWER = Behaviour(acceptance=0.85, speedup=1.7), Behaviour(acceptance=0.8, speedup=1.3)
POORER = Behaviour(acceptance=0.65, speedup=1.6)


class OneDraft(World):
    """Nodes have room for the draft pods of one revision; those that came first keep it until they go."""

    holder = ""
    room = 1

    def pods(self) -> Any:
        wanted = {
            body["metadata"]["labels"]["tandem.dev/role-hash"]: body["spec"]["replicas"]
            for (kind, name), body in self.objects.items()
            if kind == "Deployment" and "-draft-" in name
        }
        if not wanted.get(self.holder):
            self.holder = next((role_hash for role_hash, replicas in wanted.items() if replicas), "")
        self.full = {role_hash for role_hash in wanted if role_hash != self.holder} if self.room == 1 else set()
        return super().pods()


def drafts(world: World) -> dict[str, int]:
    """Draft pods by revision."""
    named = {str(seen.pair.draft): seen.name for seen in world.observed().revisions}
    found = [pod for pod in world.pods() if pod.role is Role.DRAFT]
    return {name: sum(pod.role_hash == draft for pod in found) for draft, name in named.items()}


def watched(world: World, reached: Callable[[World], bool], *, within: int = 7200) -> list[tuple[Stage, int, bool]]:
    """The stages with the canary's weight and whether stable may speculate; what always holds is asserted as well."""
    walked: list[tuple[Stage, int, bool]] = []
    stable = world.stable
    while not reached(world):
        within -= 10
        assert within > 0, world.progress
        world.tick()
        policy = world.policy()
        assert policy is not None
        held = {revision["name"]: revision for revision in policy["revisions"]}
        assert sum(revision["weight"] for revision in held.values()) == 100
        ready = {pod.role_hash for pod in world.ready_pods(Role.TARGET)}
        assert all(revision["target"] in ready for revision in held.values() if revision["weight"])
        if world.progress.rollout.surge.in_turn:
            assert sum(count > 0 for count in drafts(world).values()) <= 1, "old draft pods go before new ones come"
        told = held.get(stable)
        canary = sum(revision["weight"] for name, revision in held.items() if name != stable)
        now = (stage(world), canary, told is not None and told["speculate"])
        walked += [] if walked and walked[-1] == now else [now]
    return walked


def test_asked_for_in_place_a_better_draft_takes_the_place_of_the_old_one_and_is_promoted() -> None:
    world = installed(IN_PLACE, rate=8)
    v1, v2 = world.stable, push(world, V2, BETTER)
    walked = watched(world, lambda seen: seen.stable == v2)
    assert walked == [
        (Stage.GATHERING, 0, True),
        (Stage.CLEARING, 0, False),
        (Stage.PREPARING, 0, False),
        (Stage.STEPPING, 90, False),
        (Stage.COMPLETING, 90, False),
        (Stage.STABLE, 100, False),
    ]
    world.run_until(settled, within=60)
    assert (weights(world), world.verdicts()[v2], drafts(world)) == ({v2: 100}, "Good", {v1: 0, v2: 1})
    assert len([name for name in deployments(world) if "-draft-" in name]) == 1
    assert {"SpeculationDisabled", "CanaryWaitsForRoom", "CanaryInPlace"}.isdisjoint(world.reasons())
    promoted = next(event.note for event in world.events if event.reason == "Promoted")
    assert "acceptanceDrop 0.0" in promoted
    assert "speedupDrop 1." in promoted


@pytest.mark.parametrize(
    ("poor", "reason"), [(POORER, "AcceptanceDropFailed"), (SLOWER, "SpeedupDropFailed")], ids=["acceptance", "speed"]
)
def test_a_draft_in_place_that_is_worse_than_the_old_ones_record_is_bad_and_the_old_one_comes_back(
    poor: Behaviour, reason: str
) -> None:
    world = installed(IN_PLACE, rate=8)
    v1, before = world.stable, deployments(world)
    v2 = push(world, V2, poor)
    watched(world, lambda seen: seen.progress.refused == v2)
    assert (world.condition("RolledBack"), world.verdicts()[v2]) == (("True", reason), "Bad")
    world.run_until(settled, within=60)
    assert (world.stable, weights(world), deployments(world)) == (v1, {v1: 100}, before)
    assert drafts(world) == {v1: 1, v2: 0}
    world.run(120)
    assert (world.progress.breaker.state, world.progress.breaker.flips) == ("Active", ())


def test_a_draft_without_room_beside_the_old_one_takes_its_place_after_the_wait() -> None:
    world = installed(CROWDED, rate=8, kind=OneDraft)
    v2 = push(world, V2, BETTER)
    world.run(120)
    assert (stage(world), world.condition("CapacityAvailable")[0]) == (Stage.PREPARING, "False")
    assert world.status["canary"]["surge"] == "SharedTarget"  # type: ignore[index] # a mapping
    walked = watched(world, lambda seen: seen.stable == v2)
    assert [step[0] for step in walked][:2] == [Stage.PREPARING, Stage.GATHERING]
    assert world.reasons()[:4] == ["Installed", "CanaryStarted", "CanaryWaitsForRoom", "CanaryInPlace"]
    assert world.reasons()[-1] == "Promoted"
    world.run_until(settled, within=60)
    assert world.condition("CapacityAvailable")[0] == "True"


@pytest.mark.parametrize("asked", ["SharedTarget", "SideBySide"])
def test_who_forbids_it_gets_no_swap_for_want_of_room(asked: str) -> None:
    spec = changed(CROWDED, canary__surge=asked, canary__progressDeadlineSeconds=600)
    world = installed(spec, rate=8, kind=OneDraft)
    v1, v2 = world.stable, push(world, V2, BETTER)
    walked = watched(world, lambda seen: seen.progress.refused == v2)
    assert {step[0] for step in walked} == {Stage.PREPARING, Stage.STABLE}
    assert (world.condition("RolledBack")[1], world.verdicts()[v2], drafts(world)[v1]) == ("NoCapacity", "Unknown", 1)


def test_the_previous_revisions_draft_makes_room_before_stables_does() -> None:
    """v1's draft was kept for a rollback; without it there is room for v3's, and v2's stays."""
    world = installed(CROWDED, rate=8, kind=OneDraft)
    assert isinstance(world, OneDraft)
    world.room = 2
    v1, v2 = world.stable, push(world, V2, BETTER)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    assert drafts(world) == {v1: 1, v2: 1}
    v3 = push(world, V3, BETTER)
    full = str(next(pods.role_hash for pods in world.tick().pods if pods.revision == v3 and pods.role == "draft"))

    def scarce(seen: World) -> bool:
        seen.full = {full} if drafts(seen)[v1] else set()
        return stage(seen) is Stage.STEPPING

    world.pods = lambda: World.pods(world)  # type: ignore[method-assign] # room is counted here
    world.run_until(scarce, within=600)
    assert (world.progress.rollout.surge, drafts(world)[v2]) == (Surge.SHARED_TARGET, 1)
    assert "CanaryInPlace" not in world.reasons()


def test_a_draft_that_stable_shares_with_the_revision_before_goes_though_that_one_is_kept_warm() -> None:
    world = installed(IN_PLACE, rate=8)
    world.edit(target__model__revision=V2, canary__surge="Auto")
    v2 = named(world)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.edit(canary__surge="InPlaceDraft")
    v3 = push(world, V3, BETTER)
    watched(world, lambda seen: seen.stable == v3, within=2400)


def test_a_draft_that_finds_no_room_even_in_place_is_not_bad_and_the_old_one_comes_back() -> None:
    world = installed(changed(IN_PLACE, canary__capacityWaitSeconds=120), rate=8)
    v1, v2 = world.stable, push(world, V2, BETTER)
    world.tick()
    world.full = {str(pods.role_hash) for pods in world.decisions[-1].pods if pods.revision == v2}
    watched(world, lambda seen: seen.progress.refused == v2, within=1800)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("NoCapacity", "Unknown")
    assert "though stable's pods gave way" in world.message("RolledBack")
    world.run_until(settled, within=60)
    assert drafts(world) == {v1: 1, v2: 0}


def test_the_old_draft_stays_until_enough_is_known_of_it_and_no_traffic_ends_at_the_deadline() -> None:
    world = installed(changed(IN_PLACE, canary__progressDeadlineSeconds=900))
    v1, v2 = world.stable, push(world, V2, BETTER)
    world.run(600)
    assert (stage(world), drafts(world)[v1], weights(world)[v1]) == (Stage.GATHERING, 1, 100)
    world.run_until(lambda seen: seen.progress.refused == v2, within=400)
    assert (world.condition("RolledBack")[1], world.verdicts()[v2]) == ("Inconclusive", "Unknown")
    assert f"no acceptance sums of revision {v1} yet" in world.message("RolledBack")


def test_while_the_old_draft_is_away_status_says_so_and_the_breaker_is_quiet() -> None:
    world = installed(IN_PLACE, rate=8)
    v2 = push(world, V2, BETTER)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(60)
    assert world.condition("DraftReady") == ("False", "GaveWay")
    assert world.condition("SpeculationActive") == ("False", "GaveWay")
    assert world.message("SpeculationActive").endswith(f"that of revision {v2}, which serves 90 %")
    assert (world.condition("Ready")[0], world.status["phase"]) == ("True", "Canary")
    assert checks(world)["speedupDrop"]["samples"].count("stable ") == 1
    assert world.progress.breaker.state == "Active"


def test_target_pods_that_fail_beside_a_draft_in_place_are_an_outage_and_no_recreation() -> None:
    world = installed(IN_PLACE, rate=8)
    push(world, V2, BETTER)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.broken = {str(pod.role_hash) for pod in world.pods() if pod.role is Role.TARGET}
    world.tick()
    assert world.condition("Ready") == ("False", "NoTarget")


def test_stables_record_begins_anew_where_other_segments_speculate_from_now_on() -> None:
    """Hot requests speculate from this edit on, and less of what is proposed to them is accepted, whoever proposes."""
    plain = {**QUICK["speculation"], "plainSegments": [{"temperature": "Hot"}]}
    world = installed(changed(IN_PLACE, speculation=plain), rate=8)
    world.behaviour[world.stable] = Behaviour(acceptance=0.88, speedup=1.8)
    world.run(600)
    world.behaviour[world.stable] = Behaviour(acceptance=0.75, speedup=1.6)
    world.edit(speculation__plainSegments=[], draft__model__revision=V2)
    v2 = named(world)
    world.behaviour[v2] = Behaviour(acceptance=0.8, speedup=1.7)
    world.run_until(lambda seen: v2 in (seen.stable, seen.progress.refused))
    assert world.stable == v2, world.message("RolledBack")


def test_the_old_draft_goes_only_once_every_gateway_has_heard_that_nobody_speculates_with_it() -> None:
    world = installed(IN_PLACE, rate=8)
    v1 = world.stable
    push(world, V2, BETTER)
    world.run_until(lambda seen: stage(seen) is Stage.GATHERING)
    deaf, policy = sorted(world.gateways)[0], world.policy()
    assert policy is not None
    world.gateways[deaf].policy = policy["number"]
    world.run_until(lambda seen: stage(seen) is Stage.CLEARING)
    world.run(6, every=2)
    assert (stage(world), drafts(world)[v1]) == (Stage.CLEARING, 1)
    world.gateways[deaf].policy = None
    world.run(4, every=2)
    assert (stage(world), drafts(world)[v1]) == (Stage.PREPARING, 0)


def test_an_evicted_pod_of_the_old_draft_which_nobody_takes_away_holds_up_nothing() -> None:
    world = installed(IN_PLACE, rate=8)
    (draft,) = (pod for pod in world.pods() if pod.role is Role.DRAFT)
    evicted = replace(draft, name="evicted", uid="uid-evicted", phase="Failed", ready=False)
    world.pods = lambda: (*World.pods(world), evicted)  # type: ignore[method-assign] # it stays for ever
    push(world, V2, BETTER)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING, within=600)


def test_beside_a_stable_that_pays_nothing_a_draft_in_place_is_held_against_plain_decoding() -> None:
    world = installed(IN_PLACE, rate=8)
    world.behaviour[world.stable] = Behaviour(speculating=0.0)
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=600)
    v2 = push(world, V2, BETTER)
    watched(world, lambda seen: seen.stable == v2)
    promoted = next(event.note for event in world.events if event.reason == "Promoted")
    assert "acceptanceDrop NotCompared" in promoted
    assert "SpeculationProbing" not in world.reasons()


@pytest.mark.parametrize("until", [Stage.GATHERING, Stage.CLEARING, Stage.PREPARING, Stage.STEPPING])
def test_an_edit_back_to_stables_spec_ends_it_at_any_stage(until: Stage) -> None:
    world = installed(IN_PLACE, rate=8)
    v1, before, spec = world.stable, deployments(world), world.spec
    push(world, V2, BETTER)
    world.run_until(lambda seen: stage(seen) is until)
    world.edit(draft__model__revision=spec["draft"]["model"]["revision"])
    world.run_until(settled, within=120)
    assert (world.stable, weights(world), deployments(world)) == (v1, {v1: 100}, before)
    assert (drafts(world)[v1], world.progress.refused) == (1, "")


def test_a_draft_that_supersedes_one_in_place_is_held_against_a_stable_that_speculated() -> None:
    world = installed(IN_PLACE, rate=8)
    v1 = world.stable
    world.run(60)
    push(world, V2, BETTER)
    world.run_until(lambda seen: stage(seen) is Stage.CLEARING)
    world.starts_after = timedelta(seconds=120)
    world.born = dict.fromkeys(world.born, world.now - world.starts_after)
    world.run(60)
    assert stage(world) is Stage.PREPARING
    world.starts_after = timedelta(seconds=5)
    v3 = push(world, V3, POORER)
    world.run_until(lambda seen: v3 in (seen.stable, seen.progress.refused))
    assert (world.stable, world.condition("RolledBack")) == (v1, ("True", "AcceptanceDropFailed"))


def test_a_pause_of_the_last_step_waits_for_promote_in_place_too() -> None:
    steps = [{"percent": 10, "holdSeconds": 600}, {"percent": 50, "holdSeconds": 60, "pause": True}]
    world = installed(changed(IN_PLACE, canary__steps=steps), rate=8)
    v2 = push(world, V2, BETTER)
    watched(world, lambda seen: stage(seen) is Stage.PAUSED)
    world.run(120)
    assert (stage(world), weights(world)[v2]) == (Stage.PAUSED, 90)
    world.annotations["tandem.dev/promote"] = f"@{v2}#1"
    world.run_until(lambda seen: seen.stable == v2, within=120)


def test_a_rollback_to_a_draft_that_gave_way_brings_it_back_and_target_pods_serve_on() -> None:
    world = installed(IN_PLACE, rate=8, kind=OneDraft)
    v1, v2 = world.stable, push(world, V2, BETTER)
    watched(world, lambda seen: seen.stable == v2 and settled(seen))
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.run(20)
    assert served(world) == {v1: 100}
    world.run_until(settled, within=120)
    assert (world.stable, drafts(world)[v1]) == (v1, 1)


@pytest.mark.parametrize("surge", ["SharedTarget", "InPlaceDraft"])
def test_a_change_of_target_is_refused_where_its_pods_were_to_be_shared_and_what_serves_goes_on(surge: str) -> None:
    world = installed(changed(QUICK, canary__surge=surge), rate=8)
    v1, before = world.stable, deployments(world)
    world.edit(target__model__revision=V2)
    world.run(60)
    assert (stage(world), world.stable, deployments(world)) == (Stage.STABLE, v1, before)
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert f"spec.canary.surge is '{surge}': the target changes too" in world.message("Accepted")
    world.edit(canary__surge="Auto")
    world.run(20)
    assert (world.progress.rollout.surge, world.condition("Accepted")[0]) == (Surge.SIDE_BY_SIDE, "True")
    world.edit(canary__surge=surge)
    world.run(20)
    assert (world.progress.rollout.surge, world.condition("Accepted")[0]) == (Surge.SIDE_BY_SIDE, "True")


def test_in_place_is_refused_where_there_is_no_draft_to_give_way() -> None:
    world = installed(IN_PLACE, rate=8)
    world.edit(draft={"method": "None"})
    world.run(20)
    assert "only draft pods can take the place of draft pods" in world.message("Accepted")
    assert stage(world) is Stage.STABLE


@pytest.mark.parametrize("outcome", [BETTER, POORER], ids=["promoted", "refused"])
def test_a_kill_at_any_write_of_a_swap_ends_in_the_same_state(outcome: Behaviour) -> None:
    def end(stop: int | None) -> tuple[World, Any]:
        world = installed(IN_PLACE, rate=8)
        v1, v2 = world.stable, push(world, V2, outcome)
        start, killed = len(world.writes), list[Action]()

        def stops(action: Action) -> bool:
            now = not killed and len(world.writes) - start == stop
            killed.extend([action] if now else [])
            return now

        world.stop_at = stops
        watched(world, lambda seen: v2 in (seen.stable, seen.progress.refused) and settled(seen))
        assert killed or stop is None
        left = (world.stable, world.progress.refused, weights(world), drafts(world), deployments(world))
        return world, (*left, world.verdicts(), v1)

    world, expected = end(None)
    since = world.writes[len(installed(IN_PLACE).writes) :]
    saved = [stop for stop, action in enumerate(since) if action.name.endswith("-evidence")]
    for stop in [*saved[:2], *(stop for stop in range(len(since)) if stop not in saved)]:
        assert end(stop)[1] == expected, since[stop]
