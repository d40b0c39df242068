"""Knows which target and draft pods of a deployment exist, and keeps a connection to each one that is ready.

Refuses to choose among them, and to know what they compute.

Pods are watched by label and not as endpoints, since only a pod's labels carry its role hash. A pod's uid is its name
here. A pod under deletion drains: it gets no new sessions and keeps those it has until it is gone. A pod that is not
ready is treated the same. A connection that breaks is made again by the peer itself; meanwhile the pod gets nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from tandem_runtime.cluster import Following, KubeObject, Selection, Snapshot
from tandem_runtime.domain.errors import DraftLost, TargetLost
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.domain.tokens import Capabilities
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.replicas import Engine, Pool, Replica
from tandem_runtime.wire.client import RemoteDraft, RemotePeer, RemoteTarget
from tandem_runtime.wire.tls import RoleTls

ENGINE_PORT = 8001
DRAIN_LOOK_SECONDS = 0.2
DEPLOYMENT_LABEL = "tandem.dev/deployment"
ROLE_LABEL = "tandem.dev/role"
ROLE_HASH_LABEL = "tandem.dev/role-hash"

log = logging.getLogger(__name__)


class Role(StrEnum):
    """The roles that have engines."""

    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class EnginePod:
    """What a gateway needs to know of a pod. `ready_since` is in seconds since 1970, absent while it is not ready."""

    uid: str
    role: Role
    role_hash: RoleHash
    address: str
    ready_since: float | None
    draining: bool
    port: int | None = None
    """Its own; absent where all pods have the same."""

    @property
    def accepting(self) -> bool:
        return self.ready_since is not None and not self.draining


def pod_selection(*, deployment: str, namespace: str) -> Selection:
    roles = ", ".join(Role)
    return Selection("pods", namespace, label_selector=f"{DEPLOYMENT_LABEL}={deployment},{ROLE_LABEL} in ({roles})")


def read_pod(item: KubeObject) -> EnginePod | None:
    """A pod of the API; None for one that has no address yet, or no role of ours."""
    metadata, status = item["metadata"], item.get("status", {})
    labels = metadata.get("labels", {})
    role, role_hash, address = labels.get(ROLE_LABEL), labels.get(ROLE_HASH_LABEL), status.get("podIP")
    if role not in set(Role) or not role_hash or not address:
        return None
    return EnginePod(
        uid=metadata["uid"],
        role=Role(role),
        role_hash=RoleHash(role_hash),
        address=address,
        ready_since=_ready_since(status.get("conditions", ())),
        draining=metadata.get("deletionTimestamp") is not None,
    )


def _ready_since(conditions: Iterable[KubeObject]) -> float | None:
    for condition in conditions:
        if condition["type"] == "Ready" and condition["status"] == "True":
            since = condition.get("lastTransitionTime")
            return 0.0 if since is None else datetime.fromisoformat(since).timestamp()
    return None


async def _pods_of(snapshots: AsyncIterator[Snapshot]) -> AsyncIterator[Collection[EnginePod]]:
    async for snapshot in snapshots:
        yield [pod for item in snapshot.values() if (pod := read_pod(item)) is not None]


class Discovery:
    """Keeps a fleet equal to what the API says and connections allow; these are in clear, unless `tls` is given."""

    def __init__(
        self, fleet: Fleet, *, tokenizer_digest: str, port: int = ENGINE_PORT, tls: RoleTls | None = None
    ) -> None:
        self._fleet = fleet
        self._tokenizer_digest = tokenizer_digest
        self._port = port
        self._tls = tls
        self._pods: dict[str, EnginePod] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}

    async def run(self, following: Following, selection: Selection) -> None:
        """Follow the pods of the API for ever; all connections end with it."""
        await self.run_on(_pods_of(following(selection)))

    async def run_on(self, snapshots: AsyncIterator[Collection[EnginePod]], *, drains: bool = False) -> None:
        """Likewise, whoever tells of them. `drains`: one that is told of no more still has the sessions that it has, as
        where no end of a pod is announced."""
        async with asyncio.TaskGroup() as connections:
            async for snapshot in snapshots:
                pods = {pod.uid: pod for pod in snapshot}
                leaving = [replace(pod, draining=True) for pod in self._pods.values() if drains and pod.uid not in pods]
                self._take({**{pod.uid: pod for pod in leaving if self._holds(pod.uid)}, **pods}, connections)
                for pod in leaving:
                    connections.create_task(self._let_go(pod.uid))

    def _holds(self, uid: str) -> bool:
        """Whether sessions of this gateway are there."""
        return any(
            each.uid == uid and each.sessions for pool in (self._fleet.targets, self._fleet.drafts) for each in pool
        )

    async def _let_go(self, uid: str) -> None:
        """When its last session has ended; not at all if it is told of again."""
        while uid in self._pods and self._pods[uid].draining:
            if not self._holds(uid):
                del self._pods[uid]
                self._forget(uid)
                return
            await asyncio.sleep(DRAIN_LOOK_SECONDS)

    def _take(self, pods: dict[str, EnginePod], connections: asyncio.TaskGroup) -> None:
        for uid in self._keepers.keys() - pods.keys():
            self._forget(uid)
        self._pods = pods
        for uid, pod in pods.items():
            if uid not in self._keepers and pod.accepting:
                self._keepers[uid] = connections.create_task(self._keep(pod), name=f"{pod.role} {uid}")

    def _forget(self, uid: str) -> None:
        self._keepers.pop(uid).cancel()
        log.info("pod %s left", uid)

    def _accepts(self, uid: str) -> bool:
        return uid in self._pods and self._pods[uid].accepting

    async def _keep(self, pod: EnginePod) -> None:
        """One pod's connection for as long as the pod exists; it is in the fleet once it has answered."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        address = f"{host}:{self._port if pod.port is None else pod.port}"
        match pod.role:
            case Role.TARGET:
                async with RemoteTarget(address, tls=self._tls) as target:
                    await self._stay(pod, target, target, self._fleet.targets)
            case Role.DRAFT:
                async with RemoteDraft(address, tls=self._tls) as draft:
                    await self._stay(pod, draft, draft, self._fleet.drafts)
            case _:
                assert_never(pod.role)

    async def _stay(self, pod: EnginePod, peer: RemotePeer, engine: Engine, pool: Pool[Engine]) -> None:
        """`peer` and `engine` are one object: its link and its port."""
        capabilities = await _first_capabilities(peer)
        if capabilities.tokenizer_digest != self._tokenizer_digest:
            log.error(
                "%s pod %s stays out: its tokenizer is %s and this gateway's is %s, so its ids would mean other text",
                pod.role,
                pod.uid,
                capabilities.tokenizer_digest,
                self._tokenizer_digest,
            )
            return
        replica = Replica(
            pod.uid,
            pod.role_hash,
            engine,
            capabilities,
            pod.ready_since,
            connected=lambda: peer.connected,
            accepting=lambda: self._accepts(pod.uid),
            adapters=lambda: peer.adapters,
        )
        with pool.holding(replica):
            log.info("%s pod %s of %s joined", pod.role, pod.uid, pod.role_hash)
            await asyncio.Event().wait()  # until this task is cancelled: the pod is gone


async def _first_capabilities(peer: RemotePeer) -> Capabilities:
    """Waits for a link that lives long enough to tell."""
    while True:
        await peer.wait_connected()
        with suppress(TargetLost, DraftLost):
            return await peer.capabilities()
