"""One object in an in-memory cluster, in the hands of a story: looks, restarts, edits, and writes whose answer is lost.

Shared by the operator's scenarios; nothing here is under test.
"""

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tests.domain.simulated_specs import BASE, TERMS, changed

from tandem_operator.domain.decision import Decision
from tandem_operator.domain.errors import ClusterError
from tandem_operator.observe import Sources
from tandem_operator.ports import Json, Key, Kind
from tandem_operator.reconcile import StoppedShort, reconcile
from tandem_operator.testing import Controllers, FixedClock, MemoryCluster, ScriptedTelemetry

KEY = Key("llm", "chat")
ADDRESS = (Kind.SPECULATIVE_DEPLOYMENT, "llm", "chat")
V2 = "2" * 40
CHILDREN = [
    (Kind.CONTROLLER_REVISION, "chat-"),
    (Kind.SERVICE_ACCOUNT, "chat-gateway"),
    (Kind.ROLE, "chat-gateway"),
    (Kind.ROLE_BINDING, "chat-gateway"),
    (Kind.CONFIG_MAP, "chat-policy"),
    (Kind.DEPLOYMENT, "chat-target-"),
    (Kind.DEPLOYMENT, "chat-draft-"),
    (Kind.DEPLOYMENT, "chat-gateway"),
    (Kind.SERVICE, "chat"),
    (Kind.POD_DISRUPTION_BUDGET, "chat-gateway"),
    (Kind.POD_DISRUPTION_BUDGET, "chat-target-"),
]
"""Of a first look, in the order of writing."""
ONCE_STABLE = [(Kind.CONFIG_MAP, "chat-revisions")]


class KilledError(Exception):
    """The operator's process ended here."""


@dataclass
class Told:
    """An observer that remembers."""

    reasons: list[str] = field(default_factory=list)

    async def decided(self, key: Key, uid: str, decision: Decision) -> None:
        self.reasons += [event.reason for event in decision.events]


class ForgetfulCluster(MemoryCluster):
    """Does the n-th write and then loses the answer, with an error of the test's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: Callable[[], Exception | None] = lambda: None

    def put(self, kind: Kind, body: Json) -> Json:
        held, self.lost = self.lost, lambda: None
        try:
            return super().put(kind, body)
        finally:
            self.lost = held

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        await super().delete(kind, namespace, name, uid=uid)
        self._answer()

    def _store(self, kind: Kind, body: dict[str, Any]) -> Json:
        stored = super()._store(kind, body)
        self._answer()
        return stored

    def _answer(self) -> None:
        error = self.lost()
        if error is not None:
            raise error


class Stage:
    """One object in one cluster, looked at as often as the operator would."""

    def __init__(self, spec: Mapping[str, Any] | None = None) -> None:
        self.cluster, self.telemetry, self.clock = ForgetfulCluster(), ScriptedTelemetry(), FixedClock()
        self.world = Controllers(self.cluster, self.telemetry)
        self.told = Told()
        self.terms = TERMS
        metadata = {"namespace": "llm", "name": "chat", "uid": "uid-chat"}
        self.cluster.put(ADDRESS[0], {"metadata": metadata, "spec": copy.deepcopy(dict(spec or BASE))})
        self.restart()

    def restart(self) -> None:
        """Another process of the operator: nothing is remembered but what is in the cluster."""
        self.sources = Sources(self.cluster, self.telemetry, self.clock, self.terms)

    async def look(self) -> float | None:
        """One look, the time it asks for, and what the rest of the cluster does meanwhile."""
        wish = await reconcile(KEY, self.sources, self.told)
        self.pass_time(wish or 1.0)
        return wish

    def pass_time(self, seconds: float) -> None:
        self.world.step()
        self.clock.advance(seconds)

    async def settle(self, *, within: int = 60) -> Self:
        """Looks until nothing is left to wait for; failed looks come back after a second."""
        for _ in range(within):
            try:
                await self.look()
            except (StoppedShort, ClusterError):
                self.pass_time(1.0)
            except KilledError:
                self.restart()
                self.pass_time(1.0)
            if self.condition("Reconciling") == ("False", "Settled"):
                return self
        raise AssertionError(f"not settled: {self.status}")

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.objects[ADDRESS].get("status", {})
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        found = {item["type"]: (item["status"], item["reason"]) for item in self.status.get("conditions", [])}
        return found.get(kind, ("", ""))

    def message(self, kind: str) -> str:
        return next(str(item["message"]) for item in self.status["conditions"] if item["type"] == kind)

    def edit(self, **paths: Any) -> None:
        body = copy.deepcopy(self.cluster.objects[ADDRESS])
        self.cluster.put(ADDRESS[0], {**body, "spec": changed(body["spec"], **paths)})

    def children(self, kind: Kind) -> list[str]:
        return sorted(name for k, _, name in self.cluster.objects if k is kind)


async def look_until(stage: Stage, reached: Callable[[], bool]) -> None:
    """Looks, across kills, until something is so."""
    for _ in range(40):
        try:
            await stage.look()
        except KilledError:
            stage.restart()
            stage.pass_time(1.0)
        if reached():
            return
    raise AssertionError(f"not reached: {stage.status}")


def command(stage: Stage, name: str, value: str) -> None:
    """What a person annotates."""
    body = copy.deepcopy(stage.cluster.objects[ADDRESS])
    body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), f"tandem.dev/{name}": value}
    stage.cluster.put(ADDRESS[0], body)


def family(kind: Kind, name: str) -> tuple[Kind, str]:
    """A child's name without its hash."""
    every = (*CHILDREN, *ONCE_STABLE)
    return next((known for known in every if known[0] is kind and name == known[1]), None) or next(
        known for known in every if known[0] is kind and name.startswith(known[1])
    )


def nth(number: int, error: Callable[[], Exception]) -> Callable[[], Exception | None]:
    """Fails at the n-th call only."""
    calls = itertools.count()
    return lambda: error() if next(calls) == number else None


def final(stage: Stage) -> dict[str, Any]:
    """Everything that stands at the end, without what counts writes and moments."""
    return {
        f"{kind} {name}": _timeless(body) for (kind, _, name), body in stage.cluster.objects.items() if kind != Kind.POD
    }


TIMES = (
    "uid",
    "resourceVersion",
    "generation",
    "observedGeneration",
    "lastTransitionTime",
    "since",
    "at",
    "draftReadySince",
)
STAMPS = ("tandem.dev/changed-at", "tandem.dev/stable-since", "tandem.dev/applied")
JSON = ("tandem.dev/record", "revisions.json")
"""Texts that are compared as what they say."""


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        read = {key: json.loads(held) if key in JSON else held for key, held in value.items()}
        return {key: _timeless(held) for key, held in read.items() if key not in (*TIMES, *STAMPS)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value
