"""Knows a saturated batch in virtual time, in which proposals slow everybody, and what two estimators make of it.

Refuses to know when anything is switched off. 16 clients ask again as soon as they are answered; a step computes every
row that it is given, so that a proposal of 4 beside each client's own row, 80 rows in place of 16, makes a step 3.2
times as long for the 1.94 tokens that it gives at acceptance .5: decoding plainly is faster by far.

A *request arm* compares, within the same steps, requests that may speculate with those that chance let decode plainly.
Both pay for the same long step and only one gets more tokens of it, so the arm reads what a step gives and never sees
what it costs. *Slots* compare spans of time in which everybody speculates with spans in which nobody does. Rounds are
counted by the product's own `Ledger`, in the slots that its `domain.slots` draws.
"""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.domain.simulated_specs import QUICK, changed
from tests.domain.simulated_world import Gateway, World

from benchmarks.simulator.costs import Part, StepCost, expected
from tandem_operator.domain import record, window
from tandem_operator.domain.revision import Role
from tandem_operator.domain.samples import Document
from tandem_operator.domain.spec import parse
from tandem_runtime.domain.evidence import Arm, Ledger, SlotKey, Stratum, StratumKey
from tandem_runtime.domain.policy import RevisionName, RoleHash
from tandem_runtime.domain.routing import BUCKETS
from tandem_runtime.domain.slots import counted_slot, is_off, slot_number
from tandem_runtime.domain.tokens import Round

CLIENTS, K, ALPHA = 16, 4, 0.5
ANSWER_TOKENS = 64
PLAIN_SHARE = 0.02
"""Of the requests, that a request arm lets decode plainly. They spare the others rows: the fewer, the nearer are slots
to what everybody's speculation costs."""
NOISE = 0.05
COST = StepCost(0.015, row=0.00112, free=0)


def true_speedup() -> float:
    """Of everybody speculating over nobody, in closed form: .61."""
    plain, proposing = Part(1, 1), Part(K + 1, K + 1)
    return expected(ALPHA, K) * COST.seconds([plain] * CLIENTS) / COST.seconds([proposing] * CLIENTS)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one client's request had of a step; `drawn_on`: chance lets it speculate, in a slot that is on. `ends`: it
    was its last."""

    request: int
    drawn_on: bool
    round: Round
    ends: bool


@dataclass(slots=True)
class _Client:
    request: int
    drawn_on: bool
    left: int = ANSWER_TOKENS


class Batch:
    """Goes on step by step from `began`, in seconds since 1970."""

    def __init__(self, *, seed: int, began: float) -> None:
        self._chance = random.Random(seed)
        self._asked = 0
        self._clients = [self._ask() for _ in range(CLIENTS)]
        self.now = began

    def step(self, on: bool) -> list[Turn]:
        """The next step, in which those who are drawn for it speculate where it is `on`."""
        proposed = [K if on and client.drawn_on else 0 for client in self._clients]
        noise = max(0.1, self._chance.gauss(1.0, NOISE))
        seconds = COST.seconds([Part(k + 1, k + 1) for k in proposed]) * noise
        turns = [self._turn(client, k, seconds) for client, k in zip(self._clients, proposed, strict=True)]
        self.now += seconds
        self._clients = [client if client.left > 0 else self._ask() for client in self._clients]
        return turns

    def _turn(self, client: _Client, k: int, seconds: float) -> Turn:
        accepted = next((place for place in range(k) if self._chance.random() >= ALPHA), k)
        client.left -= accepted + 1
        done = Round(k, accepted, accepted + 1, 0.0, seconds, seconds=seconds, started=self.now, rows=CLIENTS)
        return Turn(client.request, client.drawn_on, done, client.left <= 0)

    def _ask(self) -> _Client:
        self._asked += 1
        return _Client(self._asked, self._chance.random() >= PLAIN_SHARE)


@dataclass(slots=True)
class RequestArms:
    """Tokens a second of each request's decoding, by its arm, in slots that are on."""

    tokens: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})

    def add(self, turn: Turn) -> None:
        self.tokens[turn.drawn_on] += turn.round.emitted
        self.seconds[turn.drawn_on] += turn.round.seconds

    @property
    def speedup(self) -> float:
        on, off = (self.tokens[arm] / self.seconds[arm] for arm in (True, False))
        return on / off


class Saturated(World):
    """A world whose only target pod serves such a batch; its one gateway counts as the product does."""

    def __init__(self, spec: Mapping[str, Any] | None = None, *, seed: int = 7) -> None:
        super().__init__(spec, seed=seed)
        self.batch = Batch(seed=seed, began=self.now.timestamp())
        self.ledger = Ledger(boot="saturated")
        self.arms = RequestArms()
        self.busy_since = self.now

    def serve(self, seconds: int) -> None:
        policy, pods = self.policy(), self.ready_pods(Role.TARGET)
        if policy is None or not pods or not self.rate:
            self.batch.now = self.now.timestamp()
            return
        (revision,) = policy["revisions"]
        book = Book(policy, pods[0].uid, str(pods[0].role_hash), revision["name"])
        while self.batch.now < self.now.timestamp():
            on = book.is_on(self.batch.now)
            for turn in self.batch.step(on):
                book.count(turn, self.ledger, self.arms if on else None)

    def document(self, gateway: Gateway, policy: Mapping[str, Any]) -> Document:
        admitted = {"targets": self.counted(Role.TARGET), "drafts": self.counted(Role.DRAFT)}
        told = self.ledger.document(
            wall=self.now.timestamp(), policy=policy["number"], admitted=admitted, serving=bool(admitted["targets"])
        )
        return record.read(Document, json.dumps(told))


@dataclass(frozen=True, slots=True)
class Book:
    """How a gateway enters rounds under one policy."""

    policy: Mapping[str, Any]
    pod: str
    target: str
    revision: str

    def is_on(self, now: float) -> bool:
        control = self.policy["control"]
        off = is_off(self.pod, slot_number(now, self.seconds), self.policy["salt"], control["offPercent"])
        return self.policy["speculation"]["state"] != "Off" and not off

    @property
    def seconds(self) -> int:
        return int(self.policy["control"]["slotSeconds"])

    def count(self, turn: Turn, ledger: Ledger, arms: RequestArms | None) -> None:
        """`arms` is None in slots that are off: a request arm has no use for them."""
        self._count_whole(turn, ledger.stratum(StratumKey(self.policy["number"], RevisionName(self.revision))))
        if arms is not None:
            arms.add(turn)
        slot = counted_slot(turn.round.started, turn.round.started + turn.round.seconds, self.seconds)
        if slot is not None:
            arm = Arm.OFF if arms is None else Arm.ON if turn.drawn_on else Arm.BESIDE
            ends_at = float((slot + 1) * self.seconds)
            ledger.add_decode(
                self._key(slot, arm), ends_at=ends_at, tokens=turn.round.emitted, seconds=turn.round.seconds
            )

    def _count_whole(self, turn: Turn, sums: Stratum) -> None:
        bucket = turn.request % BUCKETS
        sums.add(turn.round, bucket=bucket)
        if turn.ends:
            sums.requests += 1
            sums.bucket_requests[bucket] += bool(turn.round.proposed)

    def _key(self, slot: int, arm: Arm) -> SlotKey:
        number, revision = self.policy["number"], RevisionName(self.revision)
        return SlotKey(self.pod, RoleHash(self.target), slot, arm, number, revision)


SPEC = changed(QUICK, target__replicas=1, gateway__replicas=1)
"""One slot in five is off, of 10 s each: with few off slots an hour passes where here minutes do."""


def switched_off(seed: int) -> Saturated:
    """A world that was busy until the operator switched speculation off."""
    world = Saturated(SPEC, seed=seed)
    world.run_until(lambda seen: seen.condition("Reconciling")[0] == "False", within=120, every=5)
    world.rate, world.busy_since = 1.0, world.now
    world.run_until(lambda seen: seen.progress.breaker.state == "Disabled", within=3600)
    return world


def by_slots(world: Saturated) -> float:
    """The speed-up that the product's own window reads. Raises ValueError without one."""
    seen, spec = world.observed(), parse(world.spec)
    (pair,) = (stored.pair for stored in seen.revisions if stored.name == world.stable)
    found = window.look(seen, world.stable, pair, slot_seconds=spec.speculation.control.slot_seconds)
    if found.speedup is None:
        raise ValueError("too few slots of either kind")
    return math.exp(found.speedup.value)
