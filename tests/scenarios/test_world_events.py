"""Anything happens, in any order: edits, broken pods, gateways that hear or say nothing, full memory, commands, alerts,
kills of the operator, records that are deleted. After every look the rules hold, and healed the world comes to rest.

Hand-ordered stories show what somebody thought of. `make faults` plays many more of these.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK
from tests.domain.simulated_world import Behaviour, named, settled
from tests.scenarios.eventful_world import Eventful

from tandem_operator.domain.actions import Action
from tandem_operator.domain.revision import Role

looks = st.sampled_from([1, 1, 2, 3, 8])
commits = st.sampled_from([digit * 40 for digit in "1234"])
behaviours = st.builds(
    Behaviour,
    acceptance=st.sampled_from([0.3, 0.8, 0.9]),
    speedup=st.sampled_from([0.8, 1.6, 1.9]),
    errors=st.sampled_from([0.0, 0.0, 0.2]),
)
drafts = st.sampled_from(
    [QUICK["draft"], {"method": "NGram"}, {"method": "Suffix"}, {"method": "None"}],
)
LIVE_EDITS: tuple[dict[str, Any], ...] = (
    {"paused": True},
    {"paused": False},
    {"target__replicas": 0},
    {"target__replicas": 3, "draft__replicas": 2},
    {"target__resources": {"limits": {"memory": "2Gi"}}},
    {"gateway__replicas": 1},
    {"gateway__replicas": 3},
    {"speculation__mode": "Always"},
    {"speculation__mode": "Off"},
    {"speculation__mode": "Auto"},
    {"speculation__minGainBasisPoints": 200},
    {"canary__surge": "Auto"},
    {"canary__surge": "SideBySide"},
    {"canary__surge": "SharedTarget"},
    {"canary__surge": "InPlaceDraft"},
    {"canary__surge": "Recreate"},
)


class Events(RuleBasedStateMachine):
    """A rule is an event and the looks that follow it; the world checks itself at each."""

    world: Eventful

    @initialize(seed=st.integers(0, 999), draft=drafts)
    def a_pair_serves(self, seed: int, draft: dict[str, Any]) -> None:
        self.nonce = 0
        self.world = Eventful(seed=seed)
        self.world.spec["draft"] = draft
        for _ in range(24):
            self.world.tick(5)
            if settled(self.world):
                break
        self.world.rate = 3

    def then(self, count: int) -> None:
        for _ in range(count):
            self.world.tick()

    def happens(self, count: int) -> None:
        """Time begins to count anew."""
        self.world.calm = 0
        self.then(count)

    def command(self, name: str, value: str, revision: str, count: int) -> None:
        self.nonce += 1
        self.world.annotations[f"tandem.dev/{name}"] = f"{value}@{revision}#{self.nonce}"
        self.happens(count)

    # What people ask for

    @rule(commit=commits, how=behaviours, count=looks)
    @precondition(lambda self: "model" in self.world.spec["draft"])
    def a_draft_is_pushed(self, commit: str, how: Behaviour, count: int) -> None:
        self.world.edit(draft__model__revision=commit)
        self.world.behaviour.setdefault(named(self.world), how)
        self.happens(count)

    @rule(draft=drafts, how=behaviours, count=looks)
    def another_kind_of_draft(self, draft: dict[str, Any], how: Behaviour, count: int) -> None:
        self.world.edit(draft=draft)
        self.world.behaviour.setdefault(named(self.world), how)
        self.happens(count)

    @rule(commit=commits, how=behaviours, count=looks)
    def a_target_is_pushed(self, commit: str, how: Behaviour, count: int) -> None:
        self.world.edit(target__model__revision=commit)
        self.world.behaviour.setdefault(named(self.world), how)
        self.happens(count)

    @rule(edit=st.sampled_from(LIVE_EDITS), count=looks)
    def an_edit_that_makes_no_revision(self, edit: dict[str, Any], count: int) -> None:
        if "draft__replicas" not in edit or "model" in self.world.spec["draft"]:
            self.world.edit(**edit)
        self.happens(count)

    @rule(name=st.sampled_from(["abort", "promote"]), count=looks)
    def a_command_about_the_canary(self, name: str, count: int) -> None:
        self.command(name, "", self.world.progress.rollout.revision, count)

    @rule(name=st.sampled_from(["rollback-to", "policy-undo", "upgrade"]), count=looks)
    def a_command_about_what_serves(self, name: str, count: int) -> None:
        self.command(name, "", self.world.stable, count)

    @rule(to=st.integers(0, 9), count=looks)
    def a_rollback_to_any(self, to: int, count: int) -> None:
        stored = sorted(name for kind, name in self.world.objects if kind == "ControllerRevision")
        if stored:
            self.command("rollback-to", stored[to % len(stored)].removeprefix("chat-"), self.world.stable, count)

    @rule(count=looks)
    def a_retry(self, count: int) -> None:
        self.command("retry", "", self.world.progress.refused or named(self.world), count)

    @rule(value=st.sampled_from(["on", "off"]), count=looks)
    def speculation_is_switched(self, value: str, count: int) -> None:
        self.world.switched_on += value == "on"
        self.command("speculation", value, self.world.stable, count)

    @rule(revision=st.booleans(), count=looks)
    def an_alert(self, revision: bool, count: int) -> None:
        self.nonce += 1
        world = self.world
        alert(world, world.now, key=f"{self.nonce:032}", revision=world.stable if revision else "")
        self.happens(count)

    # What breaks

    def hashes(self, role: Role) -> list[str]:
        pods = self.world.pods()
        return sorted({str(pod.role_hash) for pod in pods if pod.role is role})

    @rule(role=st.sampled_from([Role.TARGET, Role.DRAFT]), which=st.integers(0, 3), unplaced=st.booleans(), count=looks)
    def pods_break(self, role: Role, which: int, unplaced: bool, count: int) -> None:
        found = self.hashes(role)
        if found:
            (self.world.full if unplaced else self.world.broken).add(found[which % len(found)])
        self.happens(count)

    @rule(count=looks)
    def pods_are_started_anew(self, count: int) -> None:
        self.world.born = {name: born for name, born in self.world.born.items() if "gateway" in name}
        self.happens(count)

    @rule(count=looks)
    def pods_are_mended(self, count: int) -> None:
        self.world.broken, self.world.full = set(), set()
        self.happens(count)

    @rule(which=st.integers(0, 2), mute=st.booleans(), count=st.sampled_from([1, 3, 8]))
    def a_gateway_is_stuck(self, which: int, mute: bool, count: int) -> None:
        names, policy = sorted(self.world.gateways), self.world.policy()
        if names and policy is not None:
            gateway = self.world.gateways[names[which % len(names)]]
            gateway.reachable, gateway.policy = not mute, policy["number"]
        self.happens(count)

    @rule(count=looks)
    def gateways_are_well(self, count: int) -> None:
        for gateway in self.world.gateways.values():
            gateway.reachable, gateway.policy = True, None
        self.happens(count)

    @rule(which=st.integers(0, 2), count=looks)
    def a_gateway_restarts(self, which: int, count: int) -> None:
        names = sorted(self.world.gateways)
        if names:
            self.world.restart_gateway(names[which % len(names)])
        self.happens(count)

    @rule(memory=st.sampled_from([None, 5000, 8500, 9500]), count=looks)
    def memory_fills_and_empties(self, memory: int | None, count: int) -> None:
        self.world.memory = memory
        self.happens(count)

    @rule(rate=st.sampled_from([0, 3, 8]), count=looks)
    def traffic_changes(self, rate: int, count: int) -> None:
        self.world.rate = rate
        self.happens(count)

    @rule(after=st.integers(0, 5), count=looks)
    def the_operator_is_killed(self, after: int, count: int) -> None:
        self.world.stop_at = _after(after)
        self.happens(1)
        self.world.stop_at = lambda action: False
        self.then(count)

    @rule(which=st.integers(0, 5), count=looks)
    def a_record_is_deleted(self, which: int, count: int) -> None:
        """Of any revision; of one in use there is a second copy, where the operator was not killed before that."""
        records = sorted(key for key in self.world.objects if key[0] == "ControllerRevision")
        if records and not self.world.killed:
            self.world.objects.pop(records[which % len(records)])
        self.happens(count)

    @rule(count=looks)
    def the_second_copies_are_deleted(self, count: int) -> None:
        self.world.objects.pop(("ConfigMap", "chat-revisions"), None)
        self.happens(count)

    @rule(count=looks)
    @precondition(lambda self: "gateway" in self.world.status)
    def the_policy_is_deleted(self, count: int) -> None:
        self.world.objects.pop(("ConfigMap", "chat-policy"), None)
        self.happens(count)

    @rule(count=looks)
    @precondition(lambda self: self.world.policy() is not None)
    def the_status_is_lost(self, count: int) -> None:
        self.world.status = {}
        self.happens(count)

    @rule(count=looks)
    def the_evidence_is_deleted(self, count: int) -> None:
        self.world.objects.pop(("ConfigMap", "chat-evidence"), None)
        self.happens(count)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.heal()
            self.world.settle()


def _after(count: int) -> Callable[[Action], bool]:
    """Stops at the write after so many."""
    left = [count]

    def stops(action: Action) -> bool:
        left[0] -= 1
        return left[0] < 0

    return stops


def play(examples: int, steps: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Events,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks
        ),
    )


@pytest.mark.timeout(600)
def test_whatever_happens_the_rules_hold_after_every_look_and_the_world_comes_to_rest() -> None:
    play(30, 15)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_whatever_happens_in_many_more_sequences() -> None:
    play(1000, 25)
