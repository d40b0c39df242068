"""Runs one pod: volumes, init containers in order, then all containers; and tells the API server about it.

It knows one pod on one node. The task `_live` carries it from the first volume to the last exit; `terminate` and `kill`
end it from outside. Status is written by a task of its own that compares what is with what was last written.
"""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.container import ContainerRunner, Surroundings
from tandem_devcluster.environment import Sources, build_environment, expand_command
from tandem_devcluster.errors import ApiError, PodConfigError
from tandem_devcluster.events import PodEvents
from tandem_devcluster.machine import Machine
from tandem_devcluster.moments import now_seconds
from tandem_devcluster.podstatus import (
    ContainerStatus,
    PodPicture,
    Terminated,
    build_status,
    first_status,
)
from tandem_devcluster.process import LaunchOrders, VolumeBinding
from tandem_devcluster.references import References
from tandem_devcluster.volumes import Volumes
from tandem_devcluster.workload import Container, Object, parse_workload

_log = logging.getLogger(__name__)

_MOUNT_RETRY_SECONDS = 1.0
_WRITE_RETRY_SECONDS = 0.5
_REFRESH_SECONDS = 20.0  # of volumes made of config maps, secrets and tokens; a kubelet takes about a minute
_CHECKOUT = Path(__file__).resolve().parents[2]
_LOST_CODE = 137
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Host:
    """What a pod needs from its node."""

    api: Api
    machine: Machine
    folder: Path
    base_environment: dict[str, str]
    backoff_base_seconds: float


def _uncovered(container: Container) -> list[VolumeBinding]:
    """The checkout, whose environment every container runs in, where a volume lies over it: a clone in /tmp, say."""
    covered = any(_CHECKOUT.is_relative_to(mount.path) for mount in container.mounts)
    return [VolumeBinding(_CHECKOUT, str(_CHECKOUT), read_only=True)] if covered else []


class PodWorker:
    """One pod bound to this node. `start` once; then `update` with each newer version of the object."""

    def __init__(self, host: Host, pod: Object, address: str) -> None:
        self._host = host
        self._pod = pod
        self.workload = parse_workload(pod)
        self.address = address
        self._folder = host.folder / self.workload.uid
        self._events = PodEvents(host.api, self.workload, host.machine.name)
        self._references = References(host.api, self.workload)
        self._volumes = Volumes(self._folder / "volumes", self._references)
        self._runners = {entry.name: self._make_runner(entry) for entry in self.workload.everything}
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written: Object = {}
        self._failure = ""
        self._started_at = pod.get("status", {}).get("startTime") or now_seconds()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._publish())]
        self._dirty.set()
        self.update(self._pod)

    def update(self, pod: Object) -> None:
        """Take a newer version: a deletion begins the end, and conditions may have met a readiness gate."""
        self._pod = pod
        if "deletionTimestamp" in pod["metadata"] and self._ending is None:
            grace = float(pod["metadata"].get("deletionGracePeriodSeconds", self.workload.grace_seconds))
            self._ending = asyncio.create_task(self._terminate(grace))
        if self.workload.readiness_gates:
            self._dirty.set()

    async def kill(self) -> None:
        """The object is gone: end everything at once and forget it."""
        if self._ending is not None and self._ending is not asyncio.current_task():
            self._ending.cancel()
        for runner in self._runners.values():
            runner.kill()
        await self._forget()

    def runner(self, container: str) -> ContainerRunner | None:
        return self._runners.get(container)

    async def _live(self) -> None:
        await self._prepare_volumes()
        refreshing = asyncio.create_task(self._refresh_volumes())
        try:
            sidecars = await self._run_init_containers()
            if sidecars is not None:
                await asyncio.gather(*(self._runners[entry.name].run() for entry in self.workload.containers))
                await self._stop(sidecars, self.workload.grace_seconds)
        except PodConfigError as error:
            self._failure = str(error)
        except Exception as error:
            _log.exception("pod %s/%s is given up", self.workload.namespace, self.workload.name)
            self._give_up(f"the node's agent failed: {error}")
        finally:
            refreshing.cancel()
            self._dirty.set()

    def _give_up(self, why: str) -> None:
        self._failure = why
        for runner in self._runners.values():
            runner.kill()

    async def _run_init_containers(self) -> "Sequence[ContainerRunner] | None":
        """Run them in order; the sidecars among them stay. None when one has failed for good."""
        sidecars = []
        for entry in self.workload.init_containers:
            runner = self._runners[entry.name]
            if entry.is_sidecar:
                self._tasks.append(asyncio.create_task(_run(runner)))
                await runner.wait_started()
                sidecars.append(runner)
            elif await runner.run() != 0:
                return None
        return sidecars

    async def _prepare_volumes(self) -> None:
        """Make the volumes, trying again for as long as something they refer to is absent."""
        said = ""
        while True:
            try:
                await self._volumes.prepare(self.workload.volumes, await self._sources())
                return
            except (PodConfigError, ApiError, aiohttp.ClientError, TimeoutError) as error:
                if str(error) != said:
                    said = str(error)
                    self._events.warning("FailedMount", said)
            await asyncio.sleep(_MOUNT_RETRY_SECONDS)

    async def _refresh_volumes(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            with suppress(PodConfigError, ApiError, aiohttp.ClientError, TimeoutError):  # the next round tries again
                await self._volumes.prepare(self.workload.volumes, await self._sources())

    async def _sources(self, container: Container | None = None) -> Sources:
        return await self._references.sources(
            self._pod,
            container or self.workload.containers[0],
            address=self.address,
            host_address=self._host.machine.address,
        )

    def _make_dirty(self) -> None:
        self._dirty.set()

    def _make_runner(self, container: Container) -> ContainerRunner:
        around = Surroundings(
            folder=self._folder / container.name,
            address=self.address,
            grace_seconds=self.workload.grace_seconds,
            backoff_base_seconds=self._host.backoff_base_seconds,
            orders=self._orders,
            events=self._events,
            changed=self._make_dirty,
        )
        return ContainerRunner(container, self._first_status(container), around)

    def _first_status(self, container: Container) -> ContainerStatus:
        """A container that had already run when this node's agent started is a lost run."""
        main = container in self.workload.containers
        status = first_status(container, "ContainerCreating" if main else "PodInitializing")
        known = self._pod.get("status", {}).get("containerStatuses", ()) if main else ()
        before = next((entry for entry in known if entry["name"] == container.name), None)
        if before is None or (before["restartCount"] == 0 and "waiting" in before["state"]):
            return status
        return replace(status, last=_lost_run(now_seconds()), restarts=before["restartCount"] + 1)

    async def _orders(self, container: Container) -> LaunchOrders:
        try:
            sources = await self._sources(container)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            raise PodConfigError(str(error)) from error
        base = self._host.base_environment | {"HOSTNAME": self.workload.name}
        environment = build_environment(container, sources, base)
        folder = self._folder / container.name
        scratch = folder / "root"
        scratch.mkdir(parents=True, exist_ok=True)
        return LaunchOrders(
            command=expand_command(container, environment),
            environment=environment,
            working_folder=container.working_folder,
            hostname=self.workload.name[:63],
            log=self._runners[container.name].log_file(),
            scratch=scratch,
            bindings=self._bindings(container, folder),
            read_only_root=container.read_only_root,
        )

    def _bindings(self, container: Container, folder: Path) -> list[VolumeBinding]:
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{self.address} {self.workload.name}\n")
        folders = self._host.machine.folders.items()
        return [
            *(VolumeBinding(Path(outside), inside, read_only=True) for inside, outside in folders),
            *self._volumes.bindings(container, self.workload.volumes),
            *_uncovered(container),
            VolumeBinding(hosts, "/etc/hosts", read_only=True),
            VolumeBinding(folder / "termination-message", container.message_path, read_only=False),
        ]

    async def _terminate(self, grace_seconds: float) -> None:
        """End the pod as its deletion asks, say how it ended, and finish the deletion."""
        main = [self._runners[entry.name] for entry in self.workload.containers]
        init = [self._runners[entry.name] for entry in self.workload.init_containers]
        await self._stop(main, grace_seconds)
        await self._stop(init, grace_seconds)
        self._tasks[0].cancel()
        for runner in self._runners.values():
            runner.kill()
        await self._write_last_status()
        await self._finish_deletion()

    async def _stop(self, runners: Sequence[ContainerRunner], grace_seconds: float) -> None:
        await asyncio.gather(*(runner.stop(grace_seconds) for runner in runners))

    async def _write_last_status(self) -> None:
        async with self._writing:  # given up half-way, an older write could still land after the last one
            self._tasks[1].cancel()
        with suppress(ApiError, aiohttp.ClientError, TimeoutError):  # the deletion that follows is what counts
            await self._write()

    async def _finish_deletion(self) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.workload.uid}}
        while True:
            try:
                await self._host.api.delete(self._path(), options)
                return
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                if _is_gone(error):
                    return
                _log.warning("deletion of %s not finished: %r", self.workload.name, error)
            await asyncio.sleep(_WRITE_RETRY_SECONDS)

    async def _publish(self) -> None:
        """Write the status whenever it changed, until the pod is gone."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._write()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                if _is_gone(error):
                    return
                _log.warning("status of %s not written: %r", self.workload.name, error)
                self._dirty.set()
                await asyncio.sleep(_WRITE_RETRY_SECONDS)

    async def _write(self) -> None:
        """Write what is, unless it is what was written; one write at a time, so that none overtakes another."""
        async with self._writing:
            before = self._written or self._pod.get("status", {})
            status = build_status(self._picture(), now=now_seconds(), before=before.get("conditions", ()))
            if status == self._written:
                return
            patch = {"metadata": {"uid": self.workload.uid}, "status": status}
            await self._host.api.patch(self._path("status"), patch)
            self._written = status

    def _picture(self) -> PodPicture:
        conditions = self._pod.get("status", {}).get("conditions", ())
        return PodPicture(
            workload=self.workload,
            init=[self._runners[entry.name].status for entry in self.workload.init_containers],
            main=[self._runners[entry.name].status for entry in self.workload.containers],
            address=self.address,
            host_address=self._host.machine.address,
            started_at=self._started_at,
            gates_met=frozenset(entry["type"] for entry in conditions if entry["status"] == "True"),
            failure=self._failure,
        )

    def _path(self, subresource: str = "") -> str:
        where = self.workload.namespace, self.workload.name
        return build_path("pods", namespace=where[0], name=where[1], subresource=subresource)

    async def _forget(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _lost_run(now: str) -> Terminated:
    """How a run ended that nobody saw ending; a kubelet words it so too."""
    return Terminated(
        _LOST_CODE, "ContainerStatusUnknown", now, now, "the node's agent ended, and its containers with it"
    )


def _is_gone(error: Exception) -> bool:
    """Whether there is no such object. A conflict is no proof: when another pod has the name, the watch says so."""
    return isinstance(error, ApiError) and error.status == _NOT_FOUND


async def _run(runner: ContainerRunner) -> None:
    await runner.run()
