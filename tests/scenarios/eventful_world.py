"""A world in which anything may happen at any moment, and what must hold after each look whatever did.

Shared by the tests of sequences of events; the rules that are checked here are those of docs/canary.md and breaker.md.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from tests.domain.simulated_specs import QUICK, changed
from tests.domain.simulated_world import Gateway, World, named, settled

from tandem_operator.domain.actions import Action, Plan, Verb
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.progress import SpeculationState, Stage
from tandem_operator.domain.revision import Role

SPEC = changed(
    QUICK,
    canary__progressDeadlineSeconds=1200,
    canary__capacityWaitSeconds=60,
    rollback__keepWarm={"replicas": 1, "seconds": 300},
)
LOOK_SECONDS = 10
GONE_AFTER_LOOKS = 6
"""A gateway that is mute or deaf for good is gone within a minute in which nothing else happens."""
FLIPS_PER_DAY = 6
SHOWN = 14
"""Looks in which figures of the last window of a minute are shown, of which status has new ones once a minute."""
CALM = 5
"""Looks without traffic after everything has settled, in which nothing is written."""


class Eventful(World):
    """Checks itself after each look; `calm` counts the looks since something last happened."""

    def __init__(self, spec: Mapping[str, Any] | None = None, *, seed: int = 7) -> None:
        super().__init__(spec or SPEC, seed=seed)
        self.calm = 0
        self.killed = False
        self.switched_on = 0
        self.told = 0
        self.newest = 0
        self.before: dict[str, dict[str, Any]] = {}
        self.served = ""
        self.stuck: dict[str, int] = {}
        self.turns: list[Decision] = []

    # What an operator does

    def carry_out(self, steps: Plan) -> Any:
        outcome = super().carry_out(steps)
        self.killed = outcome.failed is not None
        return outcome

    def do(self, action: Action) -> None:
        """No write is without a reason, and none says what is there already."""
        held = copy.deepcopy((self.objects.get((action.kind, action.name)), self.annotations, self.status))
        super().do(action)
        assert action.why, f"{action.verb} {action.name} without a reason"
        now = (self.objects.get((action.kind, action.name)), self.annotations, self.status)
        gateway = action.kind == "Pod" and action.verb is Verb.DELETE
        assert gateway or held != now, f"{action.verb} {action.kind} {action.name} changed nothing: {action.why}"

    def tick(self, seconds: int = LOOK_SECONDS) -> Decision:
        aborted = self.to_be_aborted()
        decision = super().tick(seconds)
        del self.decisions[:-1], self.scrapes[:-40]
        if not self.killed:
            self.check(decision)
            if aborted:
                self.check_abort(decision, aborted)
        # Of one that was killed the next look is held against what was written.
        self.before = {held["name"]: held for held in (self.policy() or {"revisions": ()})["revisions"]} or self.before
        self.calm += 1
        return decision

    def to_be_aborted(self) -> str:
        """The canary that a command names which nobody has heeded yet."""
        if not self.decisions or self.progress.rollout.stage is Stage.RETURNING:
            return ""
        asked, canary = self.annotations.get("tandem.dev/abort", ""), self.progress.rollout.revision
        heeded = asked == self.progress.handled.get("tandem.dev/abort")
        return canary if canary and asked.startswith(f"@{canary}#") and not heeded else ""

    # What must hold

    def check(self, decision: Decision) -> None:
        policy = self.policy()
        if policy is not None:
            self.check_weights(decision, policy)
            self.check_lookups(policy)
        self.check_choice(decision)
        self.check_promotions()
        self.check_stuck(policy)
        self.served = self.stable
        lately = [flip for flip in decision.progress.breaker.flips if (self.now - flip).days < 1]
        assert len(lately) <= FLIPS_PER_DAY + self.switched_on, lately

    def check_weights(self, decision: Decision, policy: Mapping[str, Any]) -> None:
        shares = policy["revisions"]
        assert sum(held["weight"] for held in shares) == 100, shares
        assert policy["number"] >= self.newest, f"policy {policy['number']} after {self.newest}"
        self.newest = policy["number"]
        stored = {name.removeprefix("chat-") for kind, name in self.objects if kind == "ControllerRevision"}
        moving = decision.progress.rollout.revision
        for held in shares:
            assert decision.hold or held["name"] in stored, f"{held['name']} is listed and not stored"
            if not held["weight"] and not held["shadow"] and held["name"] != moving:
                assert not held["speculate"], f"{held['name']} gets nobody, and its open answers may propose"
            if held["weight"] > self.before.get(held["name"], {"weight": 0})["weight"]:
                self.check_more(held, decision)

        gone = self.before.keys() - {held["name"] for held in shares}
        for name in gone & stored - {self.served} if self.served else ():
            assert not self.before[name]["speculate"], f"open answers of {name}, which was ended, propose on"

    def check_more(self, held: Mapping[str, Any], decision: Decision) -> None:
        """Nobody is sent anew to a revision without a ready target pod, unless it is stable or the first, or unless
        there are to be none."""
        first = decision.progress.rollout.stage is Stage.INSTALLING
        if held["name"] in (decision.stable, self.served) or first or not self.spec["target"]["replicas"]:
            return
        ready = [pod.name for pod in self.ready_pods(Role.TARGET) if pod.role_hash == held["target"]]
        assert ready, f"{held['name']} gets {held['weight']} % and has no ready target pod"

    def check_lookups(self, policy: Mapping[str, Any]) -> None:
        """What serves keeps the lookup with which it served, unless the spec says another of just this revision."""
        for held in policy["revisions"]:
            known = self.before.get(held["name"])
            if known is not None and held.get("lookups") != known.get("lookups"):
                assert named(self) == held["name"], f"{held['name']} proposes by {held.get('lookups')}"
                assert held.get("lookups", ["None"]) == [self.spec["draft"].get("method", "Model")]

    def check_choice(self, decision: Decision) -> None:
        """Neither what is Bad nor what is refused is on its way, unless a person sent for it."""
        moved = decision.progress.rollout
        if moved.stage in (Stage.STABLE, Stage.INSTALLING, Stage.RETURNING):
            return
        assert moved.revision != decision.progress.refused, "a refused revision is a canary"
        record = self.objects.get(("ControllerRevision", f"chat-{moved.revision}"), {"metadata": {}})
        verdict = record["metadata"].get("annotations", {}).get("tandem.dev/verdict")
        assert verdict != "Bad", "a Bad revision is a canary"

    def check_promotions(self) -> None:
        for event in self.events:
            if event.reason == "Promoted":
                record = self.objects[("ControllerRevision", f"chat-{self.stable}")]["metadata"]["annotations"]
                story = json.loads(record["tandem.dev/record"])
                assert {check["verdict"] for check in story["checks"]} <= {"Pass", "NotCompared"}, story
        self.events.clear()

    def check_abort(self, decision: Decision, aborted: str) -> None:
        weights = {held["name"]: held["weight"] for held in (self.policy() or {"revisions": []})["revisions"]}
        moved = decision.progress.rollout
        assert moved.revision != aborted or moved.stage is Stage.RETURNING, f"{aborted} goes on: {moved}"
        assert aborted == self.stable or not weights.get(aborted), weights

    def check_stuck(self, policy: Mapping[str, Any] | None) -> None:
        """Who does not answer for good is replaced where another one does, and who does not hear in any case."""
        ready = {pod.name for pod in self.ready_pods(Role.GATEWAY)} & self.gateways.keys()
        answers = {name for name in ready if self.gateways[name].reachable}
        acts = policy is not None and not self.decisions[-1].hold and self.calm
        for name in ready:
            mute = name not in answers and bool(answers)
            waits = mute or (name in answers and self.is_deaf(name, policy))
            self.stuck[name] = self.stuck.get(name, 0) + 1 if waits and acts else 0
            assert self.stuck[name] <= GONE_AFTER_LOOKS, f"{name} has been stuck for {self.stuck[name]} looks"

    def is_deaf(self, name: str, policy: Mapping[str, Any] | None) -> bool:
        follows = self.gateways[name].policy
        return follows is not None and policy is not None and follows < policy["number"]

    # How it ends

    def heal(self) -> None:
        """Whatever broke is mended; people ask for what can be had, and there is traffic."""
        self.broken, self.full, self.memory, self.rate = set(), set(), None, 8
        self.stop_at = lambda action: False
        for gateway in self.gateways.values():
            gateway.reachable, gateway.policy = True, None
        self.edit(target__replicas=2, gateway__replicas=2, paused=False, canary__surge="Auto", speculation__mode="Auto")
        self.calm = 0

    def settle(self, *, looks: int = 300) -> None:
        """It comes to rest, and at rest nothing is written; a breaker that tries again is not at rest."""
        for _ in range(looks):
            self.tick()
            if settled(self):
                break
        else:
            raise AssertionError(f"not settled: {self.message('Reconciling')} {self.progress.rollout}")
        self.rate = 0
        for _ in range(SHOWN):
            self.tick()
        if self.progress.breaker.state in (SpeculationState.DISABLED, SpeculationState.PROBING):
            return
        quiet, status = len(self.writes), self.status
        for _ in range(CALM):
            self.tick()
        assert self.writes[quiet:] == []
        assert self.status == status

    def restart_gateway(self, name: str) -> None:
        self.gateways[name] = Gateway(name, f"boot-{self.chance.random()}")
