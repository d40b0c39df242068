"""Stands in for everything between Deployments and the traffic of a thousand objects, for `operator_scale`.

Refuses to know the operator and what is measured. It has to run inside a dev cluster's network, where every address of
10.244.0.0/16 is this machine's. What is stood in for, and what it does:

- *Controllers*: a Deployment gets as many pods as it asks for, with a ReplicaSet as their owner that does not exist,
  and its status tells what there is. One whose template changed gets new pods at once.
- *Scheduler and kubelets*: a pod is ready as soon as it is there, has an address of its own, and runs nothing.
- *Gateways*: every address answers `/internal/evidence` as a gateway with an hour of traffic behind it. It follows the
  newest policy, and at each question its sums have grown by REQUESTS_PER_SECOND, in 128 buckets and ten bins of first
  tokens, with the slots of the last hour. Acceptance and speed-up wobble and do not drift, so nothing is to be done.
- *Engines*: they answer `/internal/memory`.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.errors import ApiError
from tandem_devcluster.kubeconfig import read_access

ADMIN_PORT = 8002
DEPLOYMENT, ROLE, ROLE_HASH = (f"tandem.dev/{name}" for name in ("deployment", "role", "role-hash"))
AT_ONCE = 16
"""Deployments that are seen to beside each other."""
SPANS = 4
"""Policies of which a gateway still tells."""

REQUESTS_PER_SECOND, TOKENS, ROUNDS = 2.0, 100, 30
"""Of a gateway, and of an answer."""
BUCKETS, SLOT_SECONDS, HOUR = 128, 20, 3600
EDGES = [10 * round(1.4**step) for step in range(1, 23)]
"""Of first tokens, in milliseconds; those from BINS on have some."""
BINS = range(6, 16)

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class StandInPod:
    """A pod of a Deployment."""

    namespace: str
    name: str
    uid: str
    address: str
    labels: Mapping[str, str]

    @property
    def object(self) -> Key:
        return (self.namespace, self.labels[DEPLOYMENT])


@dataclass(frozen=True, slots=True)
class Span:
    """A policy, and from when on the gateways followed it."""

    policy: Mapping[str, Any]
    since: float


@dataclass(slots=True)
class World:
    """Pods by their Deployment and by their address, and the policies of each object, the newest last."""

    api: Api
    pods: dict[Key, list[StandInPod]] = field(default_factory=dict)
    addresses: dict[str, StandInPod] = field(default_factory=dict)
    of_object: dict[Key, dict[str, StandInPod]] = field(default_factory=dict)
    spans: dict[Key, list[Span]] = field(default_factory=dict)
    count: int = 0
    locks: dict[Key, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve())
            group.create_task(self._follow_policies())
            async for body in self._changes(build_path("deployments", group="apps/v1")):
                if body.get("status", {}).get("observedGeneration") != body["metadata"]["generation"]:
                    group.create_task(self._see_to(body))

    async def _changes(self, path: str) -> Any:
        async for kind, body in self.api.follow(path):
            for each in body["items"] if kind == "LISTED" else [body]:
                if kind != "DELETED":
                    yield each

    async def _follow_policies(self) -> None:
        async for body in self._changes(build_path("configmaps")):
            metadata, text = body["metadata"], body.get("data", {}).get("policy.json")
            if text is None or not metadata["name"].endswith("-policy"):
                continue
            spans = self.spans.setdefault((metadata["namespace"], metadata["labels"][DEPLOYMENT]), [])
            policy = json.loads(text)
            if not spans or spans[-1].policy["number"] != policy["number"]:
                spans.append(Span(policy, time.time() - (0 if spans else HOUR)))
                del spans[:-SPANS]

    # Controllers and kubelets

    async def _see_to(self, deployment: Object) -> None:
        metadata = deployment["metadata"]
        key = (metadata["namespace"], metadata["name"])
        async with self.locks[key], self.room:
            held = self.pods.setdefault(key, [])
            digest, wanted = template_digest(deployment), deployment["spec"]["replicas"]
            current = [pod for pod in held if pod.labels["pod-template-hash"] == digest]
            for pod in [pod for pod in held if pod not in current[:wanted]]:
                held.remove(pod)
                await self._end(pod)
            while len(held) < wanted:
                held.append(await self._begin(deployment, digest))
            await self._tell(metadata, len(held))

    async def _begin(self, deployment: Object, digest: str) -> StandInPod:
        self.count += 1
        address = f"10.244.{16 + self.count // 250}.{1 + self.count % 250}"
        body = pod_body(deployment, digest, self.count)
        namespace = deployment["metadata"]["namespace"]
        made = (await self.api.create(build_path("pods", namespace=namespace), body))["metadata"]
        pod = StandInPod(namespace, made["name"], made["uid"], address, made["labels"])
        self.addresses[address] = pod
        self.of_object.setdefault(pod.object, {})[pod.uid] = pod
        path = build_path("pods", namespace=namespace, name=pod.name, subresource="status")
        await self.api.patch(path, {"status": ready_status(address)})
        return pod

    async def _end(self, pod: StandInPod) -> None:
        del self.addresses[pod.address], self.of_object[pod.object][pod.uid]
        await self.api.delete(build_path("pods", namespace=pod.namespace, name=pod.name), {"gracePeriodSeconds": 0})

    async def _tell(self, metadata: Object, count: int) -> None:
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), count)
        path = build_path(
            "deployments",
            group="apps/v1",
            namespace=metadata["namespace"],
            name=metadata["name"],
            subresource="status",
        )
        try:
            await self.api.patch(path, {"status": {**counts, "observedGeneration": metadata["generation"]}})
        except ApiError as gone:
            if gone.status != 404:
                raise

    # Gateways and engines

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/internal/evidence", self._evidence)
        app.router.add_get("/internal/memory", self._memory)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", ADMIN_PORT, backlog=1024).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _memory(self, _: web.Request) -> web.Response:
        return web.json_response({"workingSetBytes": 1 << 30, "kvBasisPoints": 3000, "preempting": False})

    async def _evidence(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        pod = self.addresses.get(request.transport.get_extra_info("sockname")[0])
        if pod is None:
            raise web.HTTPNotFound
        engines = [held for held in self.of_object[pod.object].values() if held.labels[ROLE] != "gateway"]
        return web.json_response(document(pod, self.spans.get(pod.object, []), engines, time.time()))


def template_digest(deployment: Object) -> str:
    return sha256(json.dumps(deployment["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]


def pod_body(deployment: Object, digest: str, number: int) -> Object:
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{metadata['name']}-{digest}"}
    return {
        "metadata": {
            "name": f"{owner['name']}-{number}",
            "labels": {**template["metadata"]["labels"], "pod-template-hash": digest},
            "ownerReferences": [{**owner, "uid": metadata["uid"]}],
        },
        "spec": template["spec"],
    }


def ready_status(address: str) -> Object:
    """Of a pod whose containers run and are ready, and whose models were fetched."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fetched = json.dumps({"digest": "sha256:weights", "tokenizer": "sha256:words"})
    over = {"terminated": {"exitCode": 0, "message": fetched}}
    held = {"name": "fetch", "state": over, "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
    kinds = ("PodScheduled", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "initContainerStatuses": [held],
    }


# What a gateway tells


def document(gateway: StandInPod, spans: Sequence[Span], engines: Sequence[StandInPod], now: float) -> Object:
    """Everything that a gateway has counted until now."""
    by_role = {role: [pod.labels[ROLE_HASH] for pod in engines if pod.labels[ROLE] == role] for role in ENGINE_ROLES}
    targets = [pod for pod in engines if pod.labels[ROLE] == "target"]
    return {
        "boot": gateway.uid,
        "policy": spans[-1].policy["number"] if spans else 0,
        "admitted": {f"{role}s": dict(Counter(hashes)) for role, hashes in by_role.items()},
        "serving": bool(targets),
        "strata": [stratum(*part) for part in parts(spans, now)],
        "slots": [slot(pod, number, spans) for pod in targets for number in slots(now)] if spans else [],
    }


ENGINE_ROLES = ("target", "draft")


def parts(spans: Sequence[Span], now: float) -> Iterator[tuple[int, str, int]]:
    """Policy, revision and requests so far, of each policy that is still told of."""
    ends = [*(span.since for span in spans[1:]), now]
    for span, end in zip(spans, ends, strict=False):
        for revision in span.policy["revisions"]:
            share = revision["weight"] / 100
            yield span.policy["number"], revision["name"], int((end - span.since) * REQUESTS_PER_SECOND * share)


def stratum(policy: int, revision: str, requests: int) -> Object:
    """Sums that only grow: every bucket has its own acceptance, and keeps it."""
    examined = [requests * TOKENS * (900 + bucket * 37 % 200) // (1000 * BUCKETS) for bucket in range(BUCKETS)]
    accepted = [count * (780 + bucket * 53 % 41) // 1000 for bucket, count in enumerate(examined)]
    each = [requests * (900 + bucket * 37 % 200) // (1000 * BUCKETS) for bucket in range(BUCKETS)]
    bins = {str(place): [count // (abs(place - 10) + 3) for count in each] for place in BINS}
    return {
        "policy": policy,
        "revision": revision,
        "requests": requests,
        "rounds": requests * ROUNDS,
        "speculating": requests * ROUNDS,
        "proposed": requests * TOKENS,
        "emitted": requests * TOKENS,
        "acceptance": {"accepted": accepted, "examined": examined, "requests": each},
        "firstToken": {"edgesMilliseconds": EDGES, "bins": bins},
    }


def slots(now: float) -> range:
    """The numbers of the slots of the last hour."""
    last = int(now) // SLOT_SECONDS
    return range(last - HOUR // SLOT_SECONDS, last)


def slot(pod: StandInPod, number: int, spans: Sequence[Span]) -> Object:
    """One in twenty decodes plainly, and takes half as long again."""
    heard = [span for span in spans if span.since <= number * SLOT_SECONDS] or spans[:1]
    plain = number % 20 == 0
    return {
        "pod": pod.uid,
        "target": pod.labels[ROLE_HASH],
        "slot": number,
        "arm": "off" if plain else "on",
        "policy": heard[-1].policy["number"],
        "revision": heard[-1].policy["revisions"][0]["name"],
        "tokens": 4000,
        "milliseconds": (30000 if plain else 20000) + number * 7919 % 11 * 100,
    }


async def stand_in(kubeconfig: Path) -> None:
    async with Api(read_access(kubeconfig), request_seconds=60) as api:
        await World(api).run()
