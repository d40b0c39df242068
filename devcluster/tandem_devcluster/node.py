"""A process node: registers a Node, keeps its lease alive, and gives every pod bound to it a worker.

It knows pods only as workers. One process is one node; its containers die with it, as on a machine that loses power.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.build import KUBERNETES_VERSION
from tandem_devcluster.certificates import KeyPair
from tandem_devcluster.components import API_PORT
from tandem_devcluster.container import ContainerRunner
from tandem_devcluster.errors import ApiError, PodConfigError
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.kubelet import serve_kubelet
from tandem_devcluster.machine import KUBELET_PORT, Machine, build_node, build_node_status
from tandem_devcluster.moments import now_micros, now_seconds
from tandem_devcluster.namespace import GATEWAY_ADDRESS
from tandem_devcluster.pod import Host, PodWorker
from tandem_devcluster.state import StateFolder
from tandem_devcluster.workload import Object

_log = logging.getLogger("tandem_devcluster.node")

_LEASE_GROUP = "coordination.k8s.io/v1"
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 20
_HEARTBEAT_SECONDS = 4.0
_RETRY_SECONDS = 0.5
_CONFLICT = 409
_FIRST_OFFSET, _LAST_OFFSET = 2, 254
_FINISHED = ("Succeeded", "Failed")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Node:
    """One machine's agent."""

    def __init__(self, api: Api, machine: Machine, state: StateFolder, backoff_base_seconds: float) -> None:
        self._api = api
        self._machine = machine
        self._host = Host(
            api=api,
            machine=machine,
            folder=state.node(machine.name) / "pods",
            base_environment=_base_environment(),
            backoff_base_seconds=backoff_base_seconds,
        )
        self._workers: dict[str, PodWorker] = {}
        self._next_offset = _FIRST_OFFSET

    async def run(self) -> None:
        """Register and serve for ever."""
        await self._register()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeat())
            group.create_task(self._follow_pods())

    def find_runner(self, namespace: str, pod: str, container: str) -> ContainerRunner | None:
        for worker in self._workers.values():
            if (worker.workload.namespace, worker.workload.name) == (namespace, pod):
                return worker.runner(container)
        return None

    async def _register(self) -> None:
        path = build_path("nodes", name=self._machine.name)
        try:
            await self._api.create(build_path("nodes"), build_node(self._machine))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
        await self._renew_lease()
        status = build_node_status(self._machine, now=now_seconds(), version=KUBERNETES_VERSION)
        await self._api.patch(f"{path}/status", {"status": status})

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            with suppress(
                ApiError, aiohttp.ClientError, TimeoutError
            ):  # a missed beat is what the lease is there to show
                await self._renew_lease()

    async def _renew_lease(self) -> None:
        name = self._machine.name
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": now_micros()}
        lease = {"metadata": {"name": name, "namespace": _LEASE_NAMESPACE}, "spec": spec}
        path = build_path("leases", namespace=_LEASE_NAMESPACE, group=_LEASE_GROUP)
        try:
            await self._api.patch(f"{path}/{name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            await self._api.create(path, lease)

    async def _follow_pods(self) -> None:
        selector = f"spec.nodeName={self._machine.name}"
        while True:
            try:
                async for kind, found in self._api.follow(build_path("pods"), field_selector=selector):
                    await self._take(kind, found)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                _log.warning("watch of pods interrupted: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _take(self, kind: str, found: Object) -> None:
        match kind:
            case "LISTED":
                await self._match({pod["metadata"]["uid"]: pod for pod in found["items"]})
            case "DELETED":
                await self._drop(found["metadata"]["uid"])
            case _:
                await self._update(found)

    async def _match(self, pods: dict[str, Object]) -> None:
        for uid in self._workers.keys() - pods.keys():
            await self._drop(uid)
        for pod in pods.values():
            await self._update(pod)

    async def _drop(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker is not None:
            await worker.kill()

    async def _update(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            self._workers[uid].update(pod)
        elif pod["status"].get("phase") not in _FINISHED:
            await self._begin(uid, pod)
        elif "deletionTimestamp" in pod["metadata"]:
            await self._remove(pod, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    async def _begin(self, uid: str, pod: Object) -> None:
        try:
            worker = self._workers[uid] = PodWorker(self._host, pod, self._free_address())
        except PodConfigError as error:
            await self._reject(pod, str(error))
            return
        worker.start()

    async def _reject(self, pod: Object, why: str) -> None:
        """Fail a pod that this cluster cannot run, as a kubelet fails one that it does not admit."""
        status = {"phase": "Failed", "reason": "NotOffered", "message": why}
        await self._api.patch(_pod_path(pod) + "/status", {"status": status})

    async def _remove(self, pod: Object, options: Object) -> None:
        with suppress(ApiError):
            await self._api.delete(_pod_path(pod), options)

    def _free_address(self) -> str:
        """The next address in turn, so that a new pod does not get the address of one that just ended."""
        used = {worker.address for worker in self._workers.values()}
        for _ in range(_FIRST_OFFSET, _LAST_OFFSET + 1):
            address = self._machine.pod_address(self._next_offset)
            self._next_offset = _FIRST_OFFSET if self._next_offset == _LAST_OFFSET else self._next_offset + 1
            if address not in used:
                return address
        raise PodConfigError(f"node {self._machine.name} has no free pod address")


def _pod_path(pod: Object) -> str:
    return build_path("pods", namespace=pod["metadata"]["namespace"], name=pod["metadata"]["name"])


def _base_environment() -> dict[str, str]:
    """What every container finds: the project's own programs first on PATH, and where the API server is."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "HOME": "/tmp",  # noqa: S108 - the container's own, and every user may write there
        "KUBERNETES_SERVICE_HOST": GATEWAY_ADDRESS,
        "KUBERNETES_SERVICE_PORT": str(API_PORT),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(API_PORT),
    }


async def _serve(state: StateFolder, machine: Machine, backoff_base_seconds: float) -> None:
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    pair = KeyPair(state.pki / f"node-{machine.name}.crt", state.pki / f"node-{machine.name}.key")
    async with Api(read_access(state.node(machine.name) / "kubeconfig")) as api:
        node = Node(api, machine, state, backoff_base_seconds)
        server = await serve_kubelet(
            machine.address, KUBELET_PORT, pair=pair, authority=state.pki / "ca.crt", find_runner=node.find_runner
        )
        try:
            await node.run()
        finally:
            await server.cleanup()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(prog="tandem_devcluster.node")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--machine", type=json.loads, required=True)
    parser.add_argument("--backoff-base", type=float, required=True)
    given = parser.parse_args()
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(StateFolder(given.state), Machine(**given.machine), given.backoff_base))


if __name__ == "__main__":
    main()
