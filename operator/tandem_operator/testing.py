"""Knows how to stand in for a cluster, for gateways and for time, in memory, under the same promises as the real ones.

Refuses to know kopf and any client library. Shipped, because examples and simulations use it too. What the API server
does and this does not: admission, defaults. `Controllers` does what a cluster's own controllers and our pods do.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from typing import Any

from tandem_operator.domain import record
from tandem_operator.domain.errors import ClusterError, Conflict
from tandem_operator.domain.nested import items, text, texts
from tandem_operator.domain.observed import Fetched, owner_uids
from tandem_operator.domain.samples import Admitted, Document
from tandem_operator.ports import Json, Key, Kind, Pressure

Address = tuple[Kind, str | None, str]
Fault = Callable[[str, Kind, str], ClusterError | None]
"""(verb, kind, name) -> the error that this call shall meet, or None."""


def no_fault(_verb: str, _kind: Kind, _name: str) -> None:
    """Every call succeeds."""


@dataclass(slots=True)
class FixedClock:
    """Time that moves only when told to."""

    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    elapsed: float = 0.0

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.elapsed

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.elapsed += seconds


@dataclass(slots=True)
class ScriptedTelemetry:
    """Answers from mappings of pod address to answer; an address that is not there does not answer."""

    documents: dict[str, Json] = field(default_factory=dict)
    pressures: dict[str, Pressure] = field(default_factory=dict)
    loaded: dict[str, dict[str, str]] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    """Digests of the adapters that may be loaded, by uri."""
    deaf: set[str] = field(default_factory=set)
    """Addresses that do not say which they hold."""

    async def evidence(self, address: str) -> bytes | None:
        found = self.documents.get(address)
        return None if found is None else json.dumps(found).encode()

    async def pressure(self, address: str) -> Pressure | None:
        return self.pressures.get(address)

    async def adapters(self, address: str) -> Mapping[str, str] | None:
        return None if address in self.deaf else dict(self.loaded.get(address, {}))

    async def load_adapter(self, address: str, content: str, source: Mapping[str, str]) -> str | None:
        digest = self.folders.get(source["uri"])
        if digest is None:
            return f"{source['uri']} does not exist"
        if source.get("digest", digest) != digest:
            return f"digest of {source['uri']} is {digest}, not {source['digest']} as asked"
        self.loaded.setdefault(address, {})[content] = digest
        return None

    async def unload_adapter(self, address: str, content: str) -> str | None:
        self.loaded.get(address, {}).pop(content, None)
        return None


def merged(live: Any, patch: Any) -> Any:
    """JSON merge of `patch` into `live`: mappings merge, None removes, everything else replaces."""
    if not isinstance(live, Mapping) or not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(live)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class MemoryCluster:
    """`Cluster` over a dict: resourceVersions, conflicts, a status subresource, deletes by uid, and planted faults."""

    def __init__(self) -> None:
        self.objects: dict[Address, dict[str, Any]] = {}
        self.writes: list[tuple[str, Kind, str]] = []
        self.fault: Fault = no_fault
        self._versions = count(1)

    def put(self, kind: Kind, body: Json) -> Json:
        """Place an object as another actor would (no fault, no record among the operator's writes)."""
        return self._store(kind, copy.deepcopy(dict(body)))

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Calls inside meet `fault` first."""
        before, self.fault = self.fault, fault
        try:
            yield
        finally:
            self.fault = before

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        self._meet("get", kind, name)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: Kind, namespace: str | None, *, labels: Mapping[str, str]) -> tuple[Json, ...]:
        self._meet("list", kind, "")
        found = [
            copy.deepcopy(body)
            for (k, n, _), body in sorted(self.objects.items(), key=lambda item: item[0][2])
            if k is kind and namespace in (None, n) and labels.items() <= body["metadata"].get("labels", {}).items()
        ]
        return tuple(found)

    async def create(self, kind: Kind, body: Json) -> Json:
        address = self._write("create", kind, body)
        if address in self.objects:
            raise Conflict(f"create {kind} {address[2]}", "already exists")
        return self._store(kind, copy.deepcopy(dict(body)))

    async def apply(self, kind: Kind, body: Json) -> Json:
        address = self._write("apply", kind, body)
        return self._store(kind, merged(self.objects.get(address, {}), body))

    async def replace(self, kind: Kind, body: Json) -> Json:
        live = self._under_version("replace", kind, body)
        changed = copy.deepcopy(dict(body))
        if "status" in live:
            changed["status"] = live["status"]
        return self._store(kind, changed)

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        live = self._under_version("replace_status", kind, body)
        return self._store(kind, {**live, "status": copy.deepcopy(body.get("status"))})

    async def annotate(self, kind: Kind, key: Key, annotations: Mapping[str, str | None]) -> Json:
        self._meet("annotate", kind, key.name)
        self.writes.append(("annotate", kind, key.name))
        live = self.objects.get((kind, key.namespace, key.name))
        if live is None:
            raise Conflict(f"annotate {kind} {key}", "is gone")
        return self._store(kind, merged(live, {"metadata": {"annotations": dict(annotations)}}))

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        self._meet("delete", kind, name)
        self.writes.append(("delete", kind, name))
        live = self.objects.get((kind, namespace, name))
        if live is not None and uid in (None, live["metadata"]["uid"]):
            del self.objects[kind, namespace, name]

    def _meet(self, verb: str, kind: Kind, name: str) -> None:
        error = self.fault(verb, kind, name)
        if error is not None:
            raise error

    def _write(self, verb: str, kind: Kind, body: Json) -> Address:
        metadata: Any = body["metadata"]
        self._meet(verb, kind, metadata["name"])
        self.writes.append((verb, kind, metadata["name"]))
        return kind, metadata.get("namespace"), metadata["name"]

    def _under_version(self, verb: str, kind: Kind, body: Json) -> dict[str, Any]:
        address = self._write(verb, kind, body)
        live = self.objects.get(address)
        metadata: Any = body["metadata"]
        if live is None or metadata.get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise Conflict(f"{verb} {kind} {address[2]}", "was changed by somebody else")
        return live

    def _store(self, kind: Kind, body: dict[str, Any]) -> Json:
        metadata = body["metadata"]
        address = (kind, metadata.get("namespace"), metadata["name"])
        live = self.objects.get(address)
        metadata.setdefault("uid", live["metadata"]["uid"] if live else f"uid-{next(self._versions)}")
        if live is None or live.get("spec") != body.get("spec"):
            metadata["generation"] = (live["metadata"].get("generation", 0) if live else 0) + 1
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[address] = body
        return copy.deepcopy(body)


class Controllers:
    """One step of the rest of a cluster: Deployments get their pods, which are ready at once and answer; what lost its
    owner goes. `broken` role hashes get pods that never become ready."""

    def __init__(self, cluster: MemoryCluster, telemetry: ScriptedTelemetry) -> None:
        self.broken: set[str] = set()
        self._cluster = cluster
        self._telemetry = telemetry

    def step(self) -> None:
        self._collect()
        for address, body in list(self._cluster.objects.items()):
            if address[0] is Kind.DEPLOYMENT:
                self._run(body)
        self._collect()
        self._answer()

    def _collect(self) -> None:
        """Garbage collection, owner by owner."""
        objects = self._cluster.objects
        alive = {body["metadata"]["uid"] for body in objects.values()}
        owned = {key: owner_uids(body) for key, body in objects.items()}
        lost = [key for key, owners in owned.items() if owners and alive.isdisjoint(owners)]
        for key in lost:
            del objects[key]
        if lost:
            self._collect()

    def _run(self, deployment: dict[str, Any]) -> None:
        template, wanted = deployment["spec"]["template"], deployment["spec"]["replicas"]
        digest = sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        names = [f"{deployment['metadata']['name']}-{digest}-{index}" for index in range(wanted)]
        held = [body for (kind, _, _), body in self._cluster.objects.items() if kind is Kind.POD]
        ours = [body for body in held if deployment["metadata"]["uid"] in owner_uids(body)]
        for body in ours:
            if body["metadata"]["name"] not in names:
                del self._cluster.objects[Kind.POD, body["metadata"]["namespace"], body["metadata"]["name"]]
        kept = {body["metadata"]["name"] for body in ours}
        for name in names:
            if name not in kept:
                self._cluster.put(Kind.POD, _pod(deployment, digest, name, ready=self._works(template)))
        ready = wanted if self._works(template) else 0
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": wanted,
            "updatedReplicas": wanted,
            "readyReplicas": ready,
        }

    def _works(self, template: Json) -> bool:
        return texts(template, "metadata", "labels").get("tandem.dev/role-hash") not in self.broken

    def _answer(self) -> None:
        """Every ready gateway follows the policy that is there and reaches every ready pod."""
        pods = [body for (kind, _, _), body in self._cluster.objects.items() if kind is Kind.POD and _is_ready(body)]
        self._telemetry.documents.clear()
        for pod in pods:
            labels = texts(pod, "metadata", "labels")
            policy = self._policy(text(pod, "metadata", "namespace"), labels["tandem.dev/deployment"])
            if labels["tandem.dev/role"] == "gateway" and policy is not None:
                document = Document(
                    boot=text(pod, "metadata", "uid"),
                    policy=policy["number"],
                    admitted=Admitted(_counted(pods, "target"), _counted(pods, "draft")),
                    adapters=self._adapted(pods),
                    serving=bool(_counted(pods, "target")),
                )
                self._telemetry.documents[text(pod, "status", "podIP")] = record.dump(document)

    def _adapted(self, pods: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
        """What a gateway says of the targets that it reaches; a pod that is gone holds nothing."""
        there = {text(pod, "status", "podIP"): pod for pod in pods}
        found: dict[str, dict[str, int]] = {}
        for address in [address for address in self._telemetry.loaded if address not in there]:
            del self._telemetry.loaded[address]
        for address, held in self._telemetry.loaded.items():
            role_hash = texts(there[address], "metadata", "labels")["tandem.dev/role-hash"]
            counts = found.setdefault(role_hash, {})
            for digest in set(held.values()):
                counts[digest] = counts.get(digest, 0) + 1
        return found

    def _policy(self, namespace: str, name: str) -> Any:
        held = self._cluster.objects.get((Kind.CONFIG_MAP, namespace, f"{name}-policy"))
        return None if held is None else json.loads(held["data"]["policy.json"])


def _is_ready(pod: Json) -> bool:
    return any(text(item, "status") == "True" for item in items(pod, "status", "conditions"))


def _counted(pods: list[dict[str, Any]], role: str) -> dict[str, int]:
    labels = [texts(pod, "metadata", "labels") for pod in pods]
    hashes = [held["tandem.dev/role-hash"] for held in labels if held["tandem.dev/role"] == role]
    return {role_hash: hashes.count(role_hash) for role_hash in sorted(hashes)}


def _pod(deployment: dict[str, Any], digest: str, name: str, *, ready: bool) -> Json:
    """A pod as the ReplicaSet of `digest` makes it; its owner's uid is the Deployment's, which spares ReplicaSets."""
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    fetched = record.dump(Fetched(digest="sha256:weights", tokenizer="sha256:words"))
    owner = {"kind": "ReplicaSet", "name": f"{metadata['name']}-{digest}", "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": metadata["namespace"],
            "name": name,
            "labels": {**template["metadata"]["labels"], "pod-template-hash": digest},
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
        "status": {
            "phase": "Running" if ready else "Pending",
            "podIP": f"pod-ip-of-{name}",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"message": json.dumps(fetched)}}}],
        },
    }
