"""Runs one container through its life: start, probe, restart with back-off, stop.

It knows one container and no pod; what it learns goes into `status`, and `changed` is called for each step.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tandem_devcluster.errors import PodConfigError
from tandem_devcluster.events import PodEvents
from tandem_devcluster.moments import now_seconds
from tandem_devcluster.podstatus import (
    RESET_AFTER_SECONDS,
    ContainerStatus,
    Running,
    Terminated,
    Waiting,
    backoff_seconds,
    restarts_after,
)
from tandem_devcluster.probes import Prober
from tandem_devcluster.process import ContainerProcess, ContainerStartError, LaunchOrders
from tandem_devcluster.workload import Container, Probe

_log = logging.getLogger(__name__)

_MEMORY_PERIOD_SECONDS = 0.2
_CONFIG_RETRY_SECONDS = 1.0
_MESSAGE_BYTES = 4096
_LOG_TAIL_BYTES = 2048
_START_ERROR = 128


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a container needs from its pod. `orders` is asked before each start and may raise `PodConfigError`."""

    folder: Path
    address: str
    grace_seconds: float
    backoff_base_seconds: float
    orders: Callable[[Container], Awaitable[LaunchOrders]]
    events: PodEvents
    changed: Callable[[], None]


@dataclass(slots=True)
class _Cause:
    """Why we ended a run ourselves; empty when the process ended by itself."""

    reason: str = ""


class ContainerRunner:
    """One container of one pod. `run` is awaited once; `stop` may be called at any time."""

    def __init__(self, container: Container, status: ContainerStatus, around: Surroundings) -> None:
        self.container = container
        self.status = status
        self._around = around
        self._process: ContainerProcess | None = None
        self._stopping = asyncio.Event()
        self._started = asyncio.Event()
        self._crashes = 0
        self._attempt = status.restarts  # the run that is or comes next; status shows it once it has begun

    async def run(self) -> int:
        """Run until the restart policy or `stop` ends it; the last exit code."""
        while True:
            begun = time.monotonic()
            ended = await self._run_once()
            if self._stopping.is_set() or not restarts_after(self.container.restarts, ended.exit_code):
                return ended.exit_code
            self._crashes = 1 if time.monotonic() - begun > RESET_AFTER_SECONDS else self._crashes + 1
            if await self._pause():
                return ended.exit_code
            self._attempt += 1

    async def wait_started(self) -> None:
        """Return once the startup probe has succeeded; used for sidecars."""
        await self._started.wait()

    async def stop(self, grace_seconds: float) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace period is over; return when no process is left."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        self._around.events.normal("Killing", f"Stopping container {self.container.name}")
        await self._end(process, grace_seconds)

    def kill(self) -> None:
        """End it at once."""
        self._stopping.set()
        if self._process is not None:
            self._process.send(signal.SIGKILL)

    async def execute(self, command: tuple[str, ...], *, timeout_seconds: float) -> tuple[int, str]:
        """Run a command in the running container."""
        if self._process is None:
            raise PodConfigError(f"container {self.container.name} is not running")
        return await self._process.execute(command, timeout_seconds=timeout_seconds)

    def log_file(self, *, previous: bool = False) -> Path:
        """The log of the latest run; `previous` is the last one that ended, which in a back-off is that same run."""
        back = 1 if previous and not isinstance(self.status.state, Waiting) else 0
        return self._around.folder / f"{self._attempt - back}.log"

    @property
    def is_running(self) -> bool:
        return isinstance(self.status.state, Running)

    async def _run_once(self) -> Terminated:
        started_at = now_seconds()
        try:
            process = self._process = await self._start()
        except ContainerStartError as error:
            self._around.events.warning("Failed", f"Error: {error}")
            return self._terminated(Terminated(_START_ERROR, "StartError", started_at, now_seconds(), str(error)))
        begun = self.status.moved(Running(started_at))
        self._update(replace(begun, started=self.container.startup is None, restarts=self._attempt))
        self._around.events.normal("Started", f"Started container {self.container.name}")
        cause = _Cause()
        async with _beside(self._watch(process, cause)):
            code = await process.wait()
            return self._terminated(self._explain(code, cause, started_at))

    async def _start(self) -> ContainerProcess:
        """Start the process, for as long as it takes until everything it refers to is there."""
        while True:
            try:
                orders = await self._around.orders(self.container)
                break
            except PodConfigError as error:
                self._update(replace(self.status, state=Waiting("CreateContainerConfigError", str(error))))
                await asyncio.sleep(_CONFIG_RETRY_SECONDS)
        orders.log.parent.mkdir(parents=True, exist_ok=True)
        self._message_file.write_bytes(b"")
        return await ContainerProcess.start(orders)

    async def _watch(self, process: ContainerProcess, cause: _Cause) -> None:
        """Probes and the memory limit, until cancelled; one of them may end the container."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_memory(process, cause))
            group.create_task(self._watch_probes(process, cause))

    async def _watch_memory(self, process: ContainerProcess, cause: _Cause) -> None:
        limit = self.container.memory_limit_bytes
        while limit is not None:
            if process.memory_bytes() > limit:
                cause.reason = "OOMKilled"
                process.send(signal.SIGKILL)
                return
            await asyncio.sleep(_MEMORY_PERIOD_SECONDS)

    async def _watch_probes(self, process: ContainerProcess, cause: _Cause) -> None:
        prober = Prober(process, self._around.address)
        if self.container.startup is not None and not await self._pass_startup(prober, self.container.startup):
            await self._fail("Startup", process, cause)
            return
        self._see_started(process)
        async with asyncio.TaskGroup() as group:
            if self.container.readiness is not None:
                group.create_task(self._follow_readiness(prober, self.container.readiness, process))
            if self.container.liveness is not None:
                group.create_task(self._follow_liveness(prober, self.container.liveness, process, cause))

    async def _pass_startup(self, prober: Prober, probe: Probe) -> bool:
        async for answer, streak in prober.answers(probe):
            if not answer.healthy:
                self._around.events.warning("Unhealthy", f"Startup probe failed: {answer.detail}")
            if streak.verdict is not None:
                return streak.verdict
        raise AssertionError("answers never end")

    def _see_started(self, process: ContainerProcess) -> None:
        if self._process is process:
            self._update(replace(self.status, started=True, ready=self.container.readiness is None))
            self._started.set()

    async def _follow_readiness(self, prober: Prober, probe: Probe, process: ContainerProcess) -> None:
        async for answer, streak in prober.answers(probe):
            if not answer.healthy:
                self._around.events.warning("Unhealthy", f"Readiness probe failed: {answer.detail}")
            ready = streak.verdict is True
            if self._process is process:  # an answer may come with or after the end, which is the last word
                self._update(replace(self.status, ready=ready))

    async def _follow_liveness(self, prober: Prober, probe: Probe, process: ContainerProcess, cause: _Cause) -> None:
        async for answer, streak in prober.answers(probe):
            if not answer.healthy:
                self._around.events.warning("Unhealthy", f"Liveness probe failed: {answer.detail}")
            if streak.verdict is False and not self._stopping.is_set():
                await self._fail("Liveness", process, cause)
                return

    async def _fail(self, probe: str, process: ContainerProcess, cause: _Cause) -> None:
        cause.reason = "Error"
        text = f"Container {self.container.name} failed its {probe.lower()} probe and is stopped"
        self._around.events.normal("Killing", text)
        await self._end(process, self._around.grace_seconds)

    async def _end(self, process: ContainerProcess, grace_seconds: float) -> None:
        try:
            async with asyncio.timeout(grace_seconds):
                if self.container.pre_stop is not None:
                    await self._run_hook(process)
                process.send(signal.SIGTERM)
                await process.wait()
        except TimeoutError:
            process.send(signal.SIGKILL)
            await process.wait()

    async def _run_hook(self, process: ContainerProcess) -> None:
        assert self.container.pre_stop is not None
        answer = await Prober(process, self._around.address).run_hook(self.container.pre_stop)
        if not answer.healthy:
            self._around.events.warning("FailedPreStopHook", f"PreStopHook failed: {answer.detail}")

    async def _pause(self) -> bool:
        """Wait out the back-off; whether the container was stopped meanwhile."""
        delay = backoff_seconds(self._crashes, self._around.backoff_base_seconds)
        if delay > 0:
            text = f"back-off {delay:g}s restarting failed container={self.container.name}"
            self._around.events.warning("BackOff", text)
            self._update(self.status.moved(Waiting("CrashLoopBackOff", text)))
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()
        return self._stopping.is_set()

    def _explain(self, code: int, cause: _Cause, started_at: str) -> Terminated:
        reason = cause.reason or ("Completed" if code == 0 else "Error")
        return Terminated(code, reason, started_at, now_seconds(), self._message(code))

    def _message(self, code: int) -> str:
        """What the container wrote to its termination message file, or the end of its log when it asks for that."""
        text = self._message_file.read_bytes()[-_MESSAGE_BYTES:]
        if not text and code != 0 and self.container.message_from_logs:
            text = self.log_file().read_bytes()[-_LOG_TAIL_BYTES:]
        return text.decode(errors="replace")

    @property
    def _message_file(self) -> Path:
        return self._around.folder / "termination-message"

    def _terminated(self, end: Terminated) -> Terminated:
        self._process = None
        self._started.clear()
        self._update(replace(self.status.moved(end), restarts=self._attempt))
        return end

    def _update(self, status: ContainerStatus) -> None:
        if status != self.status:
            self.status = status
            self._around.changed()


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do the work for as long as the block runs, however the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a container's watch ended before the container", exc_info=error)
