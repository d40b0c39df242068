"""Peers of a process node in one process: containers whose end a test decides, and an API server that is a list."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tandem_devcluster.api import Api, Object
from tandem_devcluster.machine import Machine
from tandem_devcluster.pod import Host
from tandem_devcluster.process import ContainerProcess, LaunchOrders

SECONDS = 3.0
"""No step of a test may take longer."""


class ScriptedProcess(ContainerProcess):
    """A container that runs until `end`; its exec probes do what `probe` does."""

    def __init__(self, probe: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        self.probe = probe
        self.probes = 0
        self._over = asyncio.Event()
        self._code = 0

    def end(self, code: int) -> None:
        if not self._over.is_set():
            self._code = code
            self._over.set()

    async def wait(self) -> int:
        await self._over.wait()
        return self._code

    def send(self, number: signal.Signals) -> None:
        self.end(128 + number)

    async def execute(self, command: Any, *, timeout_seconds: float) -> tuple[int, str]:
        self.probes += 1
        return await self.probe()


async def healthy() -> tuple[int, str]:
    return 0, ""


class Processes(list[ScriptedProcess]):
    """Every process that was started, in order; `refuse` is what the next start raises."""

    refuse: Exception | None = None
    probe: Callable[[], Awaitable[tuple[int, str]]] = staticmethod(healthy)

    async def start(self, orders: LaunchOrders) -> ContainerProcess:
        if self.refuse is not None:
            raise self.refuse
        self.append(ScriptedProcess(self.probe))
        return self[-1]


def scripted_processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """Containers become scripted processes for the rest of the test."""
    started = Processes()
    monkeypatch.setattr(ContainerProcess, "start", started.start)
    return started


class ScriptedApi(Api):
    """Keeps the pod statuses that were written; `answer` may fail a request or let it wait."""

    def __init__(self) -> None:
        self.statuses: list[Object] = []
        self.events: list[Object] = []
        self.deleted = asyncio.Event()
        self.answer: Callable[[str, str, Object], Awaitable[None]] = _at_once
        self._changed = asyncio.Event()

    async def create(self, path: str, body: Object) -> Object:
        await self.answer("create", path, body)
        self.events.append(body)
        return body

    async def patch(self, path: str, body: Object) -> Object:
        await self.answer("patch", path, body)
        if path.endswith("/status"):
            self.statuses.append(body["status"])
            self._changed.set()
        return body

    async def delete(self, path: str, options: Object | None = None) -> None:
        await self.answer("delete", path, options or {})
        self.deleted.set()

    async def wait(self, until: Callable[[Object], bool]) -> Object:
        """The newest status once it is as wanted."""
        async with asyncio.timeout(SECONDS):
            while not self.statuses or not until(self.statuses[-1]):
                self._changed.clear()
                await self._changed.wait()
        return self.statuses[-1]


async def _at_once(verb: str, path: str, body: Object) -> None:
    return None


def build_host(api: Api, folder: Path) -> Host:
    return Host(api, Machine(name="cpu-0", number=1), folder, base_environment={}, backoff_base_seconds=0.01)


def build_pod(**container: Any) -> Object:
    """A pod of one container that is run once."""
    main = {"name": "main", "image": "i", "command": ["run"], **container}
    metadata: Object = {"namespace": "n", "name": "p", "uid": "u"}
    spec = {"nodeName": "cpu-0", "serviceAccountName": "default", "restartPolicy": "Never", "containers": [main]}
    return {"metadata": metadata, "spec": spec, "status": {}}


def state_of(status: Object) -> str:
    """Which of waiting, running and terminated the container is."""
    (container,) = status["containerStatuses"]
    (kind,) = container["state"]
    return str(kind)
