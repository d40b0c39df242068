"""Kubelets and gateways without engines: pods that no scheduler takes are ready at once and answer as the policy says.

It stands in for nodes and for what runs on them, and for nothing else: Deployments, ReplicaSets and garbage collection
are the controllers' own. One serves all namespaces of a test, so that many rollouts cost the API server one list.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.errors import ApiError
from tandem_operator.domain import record
from tandem_operator.domain.observed import LABEL_DEPLOYMENT, LABEL_ROLE, LABEL_ROLE_HASH, Fetched
from tandem_operator.domain.samples import Admitted, Document, Stratum
from tandem_operator.domain.templates import ADMIN_PORT
from tandem_operator.ports import Pressure

NOBODY = "nobody"
"""The scheduler that these pods wait for."""
NETWORK = 1 + os.getpid() % 90
"""Of 127/8, where these pods listen: runs beside each other meet seldom."""
ROUND_SECONDS = 0.2
REQUESTS = 200
"""Of each revision that a policy gives weight; more than any analysis here asks for."""
NEVER_READY, FAILING = "file:///m/never-ready", "file:///m/failing"
"""Models with which a pod does not come up, and with which half of the requests fail."""


@dataclass
class IdlePod:
    """A pod as this file plays it; `sums` are a gateway's, by policy number and revision."""

    namespace: str
    labels: Mapping[str, str]
    uid: str
    address: str
    arguments: str
    site: web.AppRunner | None = None
    sums: dict[tuple[int, str], Stratum] = field(default_factory=dict)


class IdlePods:
    """`silent` are the namespaces whose gateways take requests for evidence and never answer."""

    def __init__(self, api: Api) -> None:
        self.silent: set[str] = set()
        self._api = api
        self._pods: dict[str, IdlePod] = {}
        self._count = 0

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._round()
                await asyncio.sleep(ROUND_SECONDS)
        finally:
            for pod in self._pods.values():
                await self._silence(pod)

    async def _round(self) -> None:
        listed = await self._api.get("/api/v1/pods", labelSelector=LABEL_DEPLOYMENT)
        idle = {body["metadata"]["uid"]: body for body in listed["items"] if body["spec"]["schedulerName"] == NOBODY}
        for uid in self._pods.keys() - idle.keys():
            await self._silence(self._pods.pop(uid))
        for uid in idle.keys() - self._pods.keys():
            await self._begin(idle[uid])

    async def _begin(self, body: Mapping[str, Any]) -> None:
        self._count += 1
        metadata = body["metadata"]
        address = f"127.{NETWORK}.{self._count // 250}.{self._count % 250 + 1}"
        arguments = json.dumps(body["spec"])
        pod = IdlePod(metadata["namespace"], metadata["labels"], metadata["uid"], address, arguments)
        self._pods[pod.uid] = pod
        if NEVER_READY in arguments:
            return
        await self._listen(pod)
        path = build_path("pods", namespace=pod.namespace, name=metadata["name"], subresource="status")
        try:
            await self._api.patch(path, {"status": running(pod)})
        except ApiError as gone:
            if gone.status != 404:
                raise

    async def _listen(self, pod: IdlePod) -> None:
        async def evidence(_: web.Request) -> web.Response:
            if pod.namespace in self.silent:
                await asyncio.Event().wait()
            return web.json_response(record.dump(await self._document(pod)))

        async def memory(_: web.Request) -> web.Response:
            return web.json_response(record.dump(Pressure(1 << 20, 100, preempting=False)))

        app = web.Application()
        app.router.add_get("/internal/evidence", evidence)
        app.router.add_get("/internal/memory", memory)
        pod.site = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await pod.site.setup()
        await web.TCPSite(pod.site, pod.address, ADMIN_PORT).start()

    async def _silence(self, pod: IdlePod) -> None:
        if pod.site is not None:
            await pod.site.cleanup()

    async def _document(self, pod: IdlePod) -> Document:
        """What a gateway answers that follows the newest policy and serves each revision that has weight alike."""
        policy = await self._policy(pod)
        for served in policy.get("revisions", []):
            if served["weight"]:
                key = (policy["number"], served["name"])
                errors = REQUESTS // 2 if self._fails(pod, served["target"]) else 0
                pod.sums.setdefault(key, Stratum(policy=key[0], revision=key[1], requests=REQUESTS, errors=errors))
        targets, drafts = (self._admitted(pod, role) for role in ("target", "draft"))
        return Document(
            boot=pod.uid,
            policy=policy.get("number", 0),
            admitted=Admitted(targets, drafts),
            serving=bool(targets),
            strata=tuple(pod.sums[key] for key in sorted(pod.sums)),
        )

    async def _policy(self, pod: IdlePod) -> dict[str, Any]:
        name = f"{pod.labels[LABEL_DEPLOYMENT]}-policy"
        try:
            found = await self._api.get(build_path("configmaps", namespace=pod.namespace, name=name))
        except ApiError as absent:
            if absent.status != 404:
                raise
            return {}
        policy: dict[str, Any] = json.loads(found["data"]["policy.json"])
        return policy

    def _ready(self, gateway: IdlePod, role: str) -> list[IdlePod]:
        """Pods of a role that listen, of the gateway's own deployment."""
        mine = (pod for pod in self._pods.values() if pod.namespace == gateway.namespace and pod.site is not None)
        return [pod for pod in mine if pod.labels[LABEL_ROLE] == role]

    def _fails(self, gateway: IdlePod, target: str) -> bool:
        served = (pod for pod in self._ready(gateway, "target") if pod.labels[LABEL_ROLE_HASH] == target)
        return any(FAILING in pod.arguments for pod in served)

    def _admitted(self, gateway: IdlePod, role: str) -> dict[str, int]:
        """Counts by role hash."""
        hashes = [pod.labels[LABEL_ROLE_HASH] for pod in self._ready(gateway, role)]
        return {role_hash: hashes.count(role_hash) for role_hash in sorted(hashes)}


def running(pod: IdlePod) -> dict[str, Any]:
    """The status of a pod whose containers run and are ready."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"status": "True", "lastTransitionTime": now}
    fetched = json.dumps(record.dump(Fetched(digest="sha256:weights", tokenizer="sha256:words")))
    over = {"terminated": {"exitCode": 0, "message": fetched}}
    return {
        "phase": "Running",
        "podIP": pod.address,
        "podIPs": [{"ip": pod.address}, {"$patch": "replace"}],
        "startTime": now,
        "conditions": [{"type": kind, **ready} for kind in ("PodScheduled", "ContainersReady", "Ready")],
        "initContainerStatuses": [
            {"name": "fetch", "state": over, "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
        ],
    }


@asynccontextmanager
async def idle_pods(api: Api) -> AsyncIterator[IdlePods]:
    """For as long as the block runs; what it meets ends the block."""
    async with asyncio.TaskGroup() as group:
        pods = IdlePods(api)
        playing = group.create_task(pods.run())
        try:
            yield pods
        finally:
            playing.cancel()
