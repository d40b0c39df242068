"""Speculation that is switched off and comes back: by traffic, a lost draft, a command. Serving goes on throughout."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.domain.simulated_specs import QUICK, changed
from tests.domain.simulated_world import Behaviour, World, installed
from tests.domain.switchback import is_off

from tandem_operator.domain.revision import Role


class Switched(World):
    """A world in which requests speculate in the on slots of the first target pod, and in no others."""

    def is_on(self, policy: Mapping[str, Any]) -> bool:
        pod, length = self.ready_pods(Role.TARGET)[0], policy["control"]["slotSeconds"]
        return not is_off(policy, pod.uid, (int(self.now.timestamp()) - 1) // length)


def test_traffic_that_the_draft_cannot_predict_disables_speculation_and_it_comes_back() -> None:
    world = installed(QUICK, rate=5)
    v1 = world.stable
    world.behaviour[v1] = Behaviour(acceptance=0.8)
    world.run(120)
    assert world.condition("SpeculationActive")[0] == "True"
    world.behaviour[v1] = Behaviour(acceptance=0.1)
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=300)
    policy = world.policy()
    assert policy is not None
    assert policy["speculation"]["state"] == "Off"
    assert world.condition("SpeculationActive") == ("False", "AcceptanceLow")
    assert world.condition("Ready")[0] == "True"
    world.run(300)
    assert world.progress.breaker.state == "Disabled"  # the shadow estimate says that it would not pay
    world.behaviour[v1] = Behaviour(acceptance=0.8)
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=900)
    assert world.reasons() == ["Installed", "SpeculationDisabled", "SpeculationProbing", "SpeculationActive"]


def test_a_probe_whose_window_never_holds_enough_requests_ends_all_the_same() -> None:
    """2 requests a second, one in five with proposals: 24 in a window of 60 s, of 50 that are needed."""
    world = installed(QUICK, rate=2)
    world.behaviour[world.stable] = Behaviour(acceptance=0.1)
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=600)
    world.behaviour[world.stable] = Behaviour()
    world.run_until(lambda seen: seen.progress.breaker.state == "Probing", within=600)
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=300)


def test_off_slots_are_no_sign_that_the_runtime_gave_up() -> None:
    """It proposes in 16 % of the rounds in which it may: more than a tenth, though of all rounds less."""
    spec = changed(QUICK, target__replicas=1, speculation__control={"percent": 50, "slotSeconds": 10})
    world = installed(spec, rate=10, kind=Switched)
    world.behaviour[world.stable] = Behaviour(speculating=0.16)
    world.run(600)
    assert "SpeculationDisabled" not in world.reasons()


@pytest.mark.parametrize("slot_seconds", [10, 20, 60])
def test_a_probe_is_not_ended_because_its_first_slots_are_off(slot_seconds: int) -> None:
    """One target pod, busy: four slots in five are off, and the first of them hold enough requests to conclude."""
    spec = changed(QUICK, target__replicas=1, speculation__control={"percent": 20, "slotSeconds": slot_seconds})
    world = installed(spec, rate=10, kind=Switched)
    world.behaviour[world.stable] = Behaviour(acceptance=0.1)
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=600)
    world.behaviour[world.stable] = Behaviour()
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=1800)
    world.run(600)
    assert world.reasons() == ["Installed", "SpeculationDisabled", "SpeculationProbing", "SpeculationActive"]


def test_a_runtime_that_gives_up_on_one_pod_is_still_seen() -> None:
    world = installed(changed(QUICK, target__replicas=1), rate=10, kind=Switched)
    world.behaviour[world.stable] = Behaviour(speculating=0.0)
    world.run_until(lambda seen: seen.progress.breaker.reason == "RuntimeAtZero", within=300)
    world.run_until(lambda seen: seen.progress.breaker.state == "Probing", within=600)
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=600)
    assert world.progress.breaker.reason == "RuntimeAtZero"


def test_a_lost_draft_leaves_serving_ready_and_returns_when_it_does() -> None:
    world = installed(QUICK, rate=5)
    (draft,) = (pods.role_hash for pods in world.decisions[-1].pods if pods.role == "draft")
    world.broken = {draft}
    world.run(60)
    assert world.condition("SpeculationActive") == ("False", "DraftUnavailable")
    assert (world.condition("Ready")[0], world.condition("DraftReady")[0]) == ("True", "False")
    world.broken = set()
    world.run_until(lambda seen: seen.progress.breaker.state == "Active", within=600)


def test_the_command_off_holds_across_revisions_until_on() -> None:
    world = installed(changed(QUICK, speculation__mode="Auto"), rate=5)
    v1 = world.stable
    world.annotations["tandem.dev/speculation"] = f"off@{v1}#1"
    world.tick()
    assert (world.progress.breaker.state, world.progress.breaker.reason) == ("Off", "Commanded")
    world.run(60)
    world.annotations["tandem.dev/speculation"] = f"on@{v1}#2"
    world.tick()
    assert world.progress.breaker.state == "Active"
