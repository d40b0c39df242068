"""A world for decisions, in dictionaries: an API server without rules, Deployments whose pods come up, gateways that
count. Shared by the stories; nothing here is under test."""

import copy
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.domain.simulated_counts import drafts, plus, with_segment
from tests.domain.simulated_specs import BASE, TERMS, changed
from tests.domain.switchback import is_off

from tandem_operator.apply import progress_is_kept
from tandem_operator.domain import queries, readings
from tandem_operator.domain.actions import Action, Failure, Outcome, Plan, Verb
from tandem_operator.domain.conditions import report
from tandem_operator.domain.decide import decide
from tandem_operator.domain.decision import Decision, Event
from tandem_operator.domain.observed import Child, Fetched, Observed, Pod, Resource, newest_before
from tandem_operator.domain.plan import plan
from tandem_operator.domain.progress import Progress
from tandem_operator.domain.revision import Role, RoleHash, revision_of
from tandem_operator.domain.samples import (
    BUCKETS,
    NO_BUCKETS,
    Admitted,
    Arm,
    Buckets,
    Document,
    FirstTokens,
    Scrape,
    Shadow,
    Slot,
    Stratum,
)
from tandem_operator.domain.spec import parse

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@dataclass
class Behaviour:
    """How a revision does: P(accept) per examined token, speed-up, P(error), share of rounds with K > 0, P(a first
    token takes 400 ms and not 70), where gateways time them; by what part its rows slow plain ones beside them;
    P(accept) in segments where it is another; P(a stretch takes 1,001 ms and not 498), where gateways time them."""

    acceptance: float = 0.8
    speedup: float = 1.6
    errors: float = 0.0
    speculating: float = 1.0
    slow: float | None = None
    burden: float = 0.0
    within: Mapping[str, float] = field(default_factory=dict)
    stutters: float | None = None


@dataclass
class Gateway:
    """One life of a gateway's process."""

    name: str
    boot: str
    strata: dict[tuple[int, str], Stratum] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    reachable: bool = True
    policy: int | None = None


class World:
    """`tick` lets time pass and then looks once, as the operator would."""

    def __init__(self, spec: Mapping[str, Any] | None = None, *, seed: int = 7) -> None:
        self.now = START
        self.chance = random.Random(seed)
        self.spec = copy.deepcopy(dict(spec or BASE))
        self.generation = 1
        self.annotations: dict[str, str] = {}
        self.status: Mapping[str, object] = {}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.born: dict[str, datetime] = {}
        self.behaviour: dict[str, Behaviour] = {}
        self.gateways: dict[str, Gateway] = {}
        self.silent: dict[str, datetime] = {}
        self.scrapes: list[Scrape] = []
        self.rate = 0.0
        self.segments: dict[str, float] = {}
        self.starts_after = timedelta(seconds=5)
        self.broken: set[str] = set()
        self.full: set[str] = set()
        self.crashing: set[str] = set()
        self.unreached: set[str] = set()
        self.tokenizers: dict[str, str] = {}
        self.memory: int | None = None
        self.kv: int | None = None
        self.preempting: bool | None = None
        self.asked: list[str] = []
        self.prometheus: Callable[[str], bytes] = lambda query: b'{"status": "error", "error": "nobody told me"}'
        self.events: list[Event] = []
        self.writes: list[Action] = []
        self.status_writes = 0
        self.decisions: list[Decision] = []
        self.stop_at: Callable[[Action], bool] = lambda action: False

    # What people do

    def edit(self, **paths: Any) -> None:
        self.spec = changed(self.spec, **paths)
        self.generation += 1

    # What the operator does

    def observed(self) -> Observed:
        window = timedelta(seconds=self.spec.get("autoDisable", {}).get("windowSeconds", 300))
        scrape = self.scrape()
        baseline = newest_before(tuple(self.scrapes), self.now - window)
        self.scrapes.append(scrape)
        resource = Resource(
            name="chat",
            namespace="llm",
            uid="uid-chat",
            generation=self.generation,
            annotations=dict(self.annotations),
            spec=self.spec,
            status=self.status,
        )
        seen = Observed(
            now=self.now,
            resource=resource,
            terms=TERMS,
            children=tuple(Child(dict(body)) for _, body in sorted(self.objects.items())),
            pods=self.pods(),
            scrape=scrape,
            baseline=baseline,
        )
        ready = (pod.name for pod in self.ready_pods(Role.GATEWAY))
        self.silent = {pod: self.silent.get(pod, self.now) for pod in ready if pod not in scrape.documents}
        seen = replace(seen, silent=dict(self.silent))
        return replace(seen, readings=tuple(map(self.reading, queries.due(seen))))

    def reading(self, query: queries.Query) -> readings.Reading:
        self.asked.append(query.promql)
        return replace(readings.read(query.name, self.prometheus(query.promql)), query=query.written)

    def look(self) -> Decision:
        seen = self.observed()
        decision = decide(seen)
        outcome = self.carry_out(plan(decision, seen))
        status = report(seen, decision, outcome)
        if status is not None and outcome.failed is None:
            self.status = status
            self.status_writes += 1
        if progress_is_kept(outcome):
            assert not decision.events or decision.progress != seen.progress, "told again at the next look"
            self.events.extend(decision.events)
        self.decisions.append(decision)
        return decision

    def carry_out(self, steps: Plan) -> Outcome:
        done: list[Action] = []
        for action in steps.actions:
            if self.stop_at(action):
                return Outcome(tuple(done), Failure(action, "Killed", "the operator was killed"), steps)
            self.do(action)
            self.writes.append(action)
            done.append(action)
        return Outcome(tuple(done), None, steps)

    def do(self, action: Action) -> None:
        key, body = (action.kind, action.name), copy.deepcopy(dict(action.body))
        match action.verb:
            case Verb.CREATE | Verb.APPLY:
                before = self.objects.get(key, {})
                metadata: Any = body["metadata"]
                metadata["uid"] = before.get("metadata", {}).get("uid", f"uid-{action.kind}-{action.name}")
                metadata["generation"] = before.get("metadata", {}).get("generation", 0) + 1
                self.objects[key] = body
            case Verb.ANNOTATE:
                self.annotate(key, body["metadata"]["annotations"])  # type: ignore[index] # a body of plain JSON
            case Verb.PERSIST:
                self.status = body
            case Verb.DELETE:
                self.objects.pop(key, None)
                if action.kind == "Pod":
                    self.gateways[action.name] = Gateway(action.name, f"boot-{self.chance.random()}")

    def annotate(self, key: tuple[str, str], annotations: Mapping[str, str | None]) -> None:
        if key[0] == "SpeculativeDeployment":
            held = self.annotations
        else:
            held = self.objects[key]["metadata"].setdefault("annotations", {})
        for name, value in annotations.items():
            if value is None:
                held.pop(name, None)
            else:
                held[name] = value

    # What the cluster does

    def pods(self) -> tuple[Pod, ...]:
        found = []
        for (kind, name), body in sorted(self.objects.items()):
            if kind == "Deployment":
                found += [self.pod(name, index, body) for index in range(body["spec"]["replicas"])]
        return tuple(found)

    def pod(self, name: str, index: int, body: Mapping[str, Any]) -> Pod:
        labels = body["metadata"]["labels"]
        pod, role_hash = f"{name}-{index}", labels.get("tandem.dev/role-hash")
        born = self.born.setdefault(pod, self.now)
        crashes = role_hash in self.crashing
        ready = self.now - born >= self.starts_after and role_hash not in self.broken | self.full and not crashes
        role = Role(labels["tandem.dev/role"])
        tokenizer = self.tokenizers.get(str(role_hash), "sha256:same")
        return Pod(
            name=pod,
            uid=f"uid-{pod}",
            role=role,
            role_hash=None if role_hash is None else RoleHash(role_hash),
            phase="Running" if ready else "Pending",
            ready=ready,
            started_at=born,
            restarts=5 if crashes else 0,
            waiting_reason="CrashLoopBackOff" if crashes else None,
            unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu." if role_hash in self.full else None,
            unschedulable_since=born if role_hash in self.full else None,
            fetched=None if role is Role.GATEWAY else Fetched(digest="sha256:d", tokenizer=tokenizer),
            memory_basis_points=self.memory if role is Role.TARGET else None,
            kv_basis_points=self.kv if role is Role.TARGET else None,
            preempting=self.preempting if role is Role.TARGET else None,
        )

    def settle_deployments(self) -> None:
        alive = {pod.name for pod in self.pods()}
        self.born = {name: born for name, born in self.born.items() if name in alive}
        for (kind, name), body in self.objects.items():
            if kind != "Deployment":
                continue
            wanted = body["spec"]["replicas"]
            ready = sum(self.pod(name, index, body).ready for index in range(wanted))
            body["status"] = {
                "observedGeneration": body["metadata"]["generation"],
                "replicas": wanted,
                "updatedReplicas": wanted,
                "readyReplicas": ready,
            }

    # What gateways do

    def policy(self) -> dict[str, Any] | None:
        body = self.objects.get(("ConfigMap", "chat-policy"))
        return None if body is None else json.loads(body["data"]["policy.json"])

    def ready_pods(self, role: Role) -> list[Pod]:
        return [pod for pod in self.pods() if pod.role is role and pod.ready]

    def scrape(self) -> Scrape:
        policy = self.policy()
        documents = {}
        for pod in self.ready_pods(Role.GATEWAY):
            gateway = self.gateways.setdefault(pod.name, Gateway(pod.name, f"boot-{pod.name}"))
            if gateway.reachable and policy is not None:
                documents[pod.name] = self.document(gateway, policy)
        return Scrape(self.now, documents)

    def document(self, gateway: Gateway, policy: Mapping[str, Any]) -> Document:
        targets, drafts = (self.counted(role) for role in (Role.TARGET, Role.DRAFT))
        return Document(
            boot=gateway.boot,
            policy=policy["number"] if gateway.policy is None else gateway.policy,
            admitted=Admitted(targets, drafts),
            serving=bool(targets),
            strata=tuple(gateway.strata[key] for key in sorted(gateway.strata)),
            slots=tuple(gateway.slots),
        )

    def counted(self, role: Role) -> dict[str, int]:
        counts: dict[str, int] = {}
        for pod in (pod for pod in self.ready_pods(role) if pod.role_hash not in self.unreached):
            counts[str(pod.role_hash)] = counts.get(str(pod.role_hash), 0) + 1
        return counts

    def serve(self, seconds: int) -> None:
        """Requests and slots of a span, counted under the policy in force."""
        policy, gateways = self.policy(), self.ready_pods(Role.GATEWAY)
        if policy is None or not gateways or not self.ready_pods(Role.TARGET):
            return
        for _ in range(round(self.rate * seconds)):
            self.request(policy, self.gateways[self.chance.choice(gateways).name])
        if self.rate:
            self.close_slots(policy, seconds)

    def request(self, policy: Mapping[str, Any], gateway: Gateway) -> None:
        weights = [revision["weight"] for revision in policy["revisions"]]
        (served,) = self.chance.choices(policy["revisions"], weights)
        for revision in policy["revisions"]:
            if revision["shadow"]:
                self.score(policy, gateway, revision["name"])
        if policy["speculation"]["state"] == "Off" and drafts(served):
            self.score(policy, gateway, served["name"])
        how = self.behaviour.get(served["name"], Behaviour())
        stratum = self.stratum(policy, gateway, served["name"])
        rounds = 20
        speculates = served["speculate"] and policy["speculation"]["state"] != "Off" and drafts(served)
        proposes = speculates and self.is_on(policy) and self.chance.random() < how.speculating
        segment = self.segment()
        acceptance = how.within.get(segment, how.acceptance)
        accepted = sum(self.chance.random() < acceptance for _ in range(rounds)) if proposes else 0
        bucket = self.chance.randrange(BUCKETS)
        held = stratum.acceptance or Buckets()
        self.keep(
            gateway,
            replace(
                stratum,
                requests=stratum.requests + 1,
                errors=stratum.errors + (self.chance.random() < how.errors),
                rounds=stratum.rounds + rounds,
                speculating=stratum.speculating + (rounds if proposes else 0),
                proposed=stratum.proposed + (rounds * 2 if proposes else 0),
                acceptance=Buckets(
                    accepted=plus(held.accepted, bucket, accepted),
                    examined=plus(held.examined, bucket, rounds),
                    requests=plus(held.requests, bucket, 1),
                )
                if proposes
                else stratum.acceptance,
                first_token=self.first_token(stratum.first_token, how, bucket),
                stretch=self.stretch(stratum.stretch, how, bucket) if proposes else stratum.stretch,
                segments=with_segment(policy, stratum, segment, (bucket, accepted, rounds if proposes else 0)),
            ),
        )

    def segment(self) -> str:
        """Of which a request is: by chance, in shares of all; most are of none."""
        if not self.segments:
            return ""
        names, shares = [*self.segments, ""], [*self.segments.values(), 1 - sum(self.segments.values())]
        return self.chance.choices(names, shares)[0]

    def stretch(self, held: FirstTokens | None, how: Behaviour, bucket: int) -> FirstTokens | None:
        """Four stretches of a request that was proposed to."""
        if how.stutters is None:
            return held
        known = held or FirstTokens((498, 573, 658, 757, 1001))
        for _ in range(4):
            index = "4" if self.chance.random() < how.stutters else "0"
            known = replace(known, bins={**known.bins, index: plus(known.bins.get(index, NO_BUCKETS), bucket, 1)})
        return known

    def is_on(self, policy: Mapping[str, Any]) -> bool:
        """Whether a request may speculate: by chance, as over many target pods."""
        return bool(self.chance.random() >= policy["control"]["offPercent"] / 100)

    def first_token(self, held: FirstTokens | None, how: Behaviour, bucket: int) -> FirstTokens | None:
        if how.slow is None:
            return held
        known = held or FirstTokens((70, 400))
        index = str(int(self.chance.random() < how.slow))
        return replace(known, bins={**known.bins, index: plus(known.bins.get(index, NO_BUCKETS), bucket, 1)})

    def score(self, policy: Mapping[str, Any], gateway: Gateway, revision: str) -> None:
        how = self.behaviour.get(revision, Behaviour())
        stratum, bucket = self.stratum(policy, gateway, revision), self.chance.randrange(BUCKETS)
        held = stratum.shadow or Shadow()
        matched = sum(self.chance.random() < how.acceptance for _ in range(20))
        shadow = Shadow(plus(held.matched, bucket, matched), plus(held.examined, bucket, 20))
        self.keep(gateway, replace(stratum, shadow=shadow))

    def stratum(self, policy: Mapping[str, Any], gateway: Gateway, revision: str) -> Stratum:
        key = (policy["number"], revision)
        return gateway.strata.get(key, Stratum(policy=key[0], revision=revision))

    def keep(self, gateway: Gateway, stratum: Stratum) -> None:
        gateway.strata[(stratum.policy, stratum.revision)] = stratum

    def close_slots(self, policy: Mapping[str, Any], seconds: int) -> None:
        """Slots that ended within the span; each pod decodes 1000 tokens in one, shared out by weight."""
        length = policy["control"]["slotSeconds"]
        end = int(self.now.timestamp())
        for slot in range((end - seconds) // length, end // length):
            for pod in self.ready_pods(Role.TARGET):
                self.close_slot(policy, pod, slot)

    def close_slot(self, policy: Mapping[str, Any], pod: Pod, slot: int) -> None:
        speculating, in_off_slot = policy["speculation"]["state"] != "Off", is_off(policy, pod.uid, slot)
        for revision in policy["revisions"]:
            if revision["target"] != pod.role_hash or not revision["weight"]:
                continue
            may_speculate = revision["speculate"] and drafts(revision)
            arm = Arm.OFF if in_off_slot or not speculating else Arm.ON if may_speculate else Arm.BESIDE
            how = self.behaviour.get(revision["name"], Behaviour())
            speed = {Arm.ON: how.speedup, Arm.OFF: 1.0, Arm.BESIDE: 1 / (1 + self.burden(policy))}[arm]
            tokens = max(1, round(1000 * revision["weight"] / 100))
            milliseconds = max(1, round(tokens * 20 / speed * self.chance.uniform(0.95, 1.05)))
            gateway = self.gateways[self.ready_pods(Role.GATEWAY)[0].name]
            gateway.slots.append(
                Slot(
                    pod=pod.uid,
                    target=str(pod.role_hash),
                    slot=slot,
                    arm=arm,
                    policy=policy["number"],
                    revision=revision["name"],
                    tokens=tokens,
                    milliseconds=milliseconds,
                )
            )

    def burden(self, policy: Mapping[str, Any]) -> float:
        """By what part the rows of those who speculate slow those that decode plainly beside them."""
        names = [revision["name"] for revision in policy["revisions"] if revision["weight"] and revision["speculate"]]
        return max((self.behaviour.get(name, Behaviour()).burden for name in names), default=0.0)

    # Time

    def tick(self, seconds: int = 10) -> Decision:
        self.now += timedelta(seconds=seconds)
        self.settle_deployments()
        self.scrape()
        self.serve(seconds)
        decision = self.look()
        self.settle_deployments()
        return decision

    def run(self, seconds: int, *, every: int = 10) -> None:
        for _ in range(seconds // every):
            self.tick(every)

    def run_until(self, reached: Callable[["World"], bool], *, within: int = 7200, every: int = 10) -> None:
        for _ in range(within // every):
            self.tick(every)
            if reached(self):
                return
        raise AssertionError(f"not reached within {within} s: {self.progress}")

    # What people see

    @property
    def progress(self) -> Progress:
        return self.decisions[-1].progress

    @property
    def stable(self) -> str:
        return str(self.status.get("stableRevision", ""))

    def condition(self, kind: str) -> tuple[str, str]:
        conditions: Any = self.status["conditions"]
        (found,) = [item for item in conditions if item["type"] == kind]
        return found["status"], found["reason"]

    def message(self, kind: str) -> str:
        conditions: Any = self.status["conditions"]
        return next(str(item["message"]) for item in conditions if item["type"] == kind)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def verdicts(self) -> dict[str, str]:
        revisions: Any = self.status["revisions"]
        return {item["name"]: item["verdict"] for item in revisions}


def installed(
    spec: Mapping[str, Any] | None = None, *, rate: float = 0.0, seed: int = 7, kind: type[World] = World
) -> World:
    """A world in which the first revision serves and has settled."""
    world = kind(spec, seed=seed)
    world.run_until(lambda seen: seen.condition("Reconciling")[0] == "False", within=120, every=5)
    world.rate = rate
    return world


def named(world: World) -> str:
    """The revision that the spec means."""
    return revision_of(parse(world.spec)).name


def push(world: World, commit: str, behaviour: Behaviour | None = None) -> str:
    """A new draft is pushed, which behaves so."""
    world.edit(draft__model__revision=commit)
    world.behaviour[named(world)] = behaviour or Behaviour()
    return named(world)


def settled(world: World) -> bool:
    return world.condition("Reconciling")[0] == "False"
