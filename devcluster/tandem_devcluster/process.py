"""A container's process as seen from its node: start, signal, wait, measure, execute beside it.

It knows the launcher and /proc, and neither pods nor policies.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem_devcluster.errors import DevClusterError

_PACKAGE_PARENT = Path(__file__).resolve().parents[1]
_LAUNCHER = (sys.executable, "-S", "-m", "tandem_devcluster.launcher")
_KILOBYTE = 1024


class ContainerStartError(DevClusterError):
    """The command could not be started; the message is the kernel's."""


@dataclass(frozen=True, slots=True)
class VolumeBinding:
    """A file or folder of the host that appears at `target` in the container."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class LaunchOrders:
    """All that the launcher needs to know; `scratch` is an empty folder to mount the container's root on."""

    command: Sequence[str]
    environment: Mapping[str, str]
    working_folder: str
    hostname: str
    log: Path
    scratch: Path
    bindings: Sequence[VolumeBinding]
    read_only_root: bool

    def encode(self) -> bytes:
        mounts = [
            {"source": str(binding.source), "target": binding.target, "read_only": binding.read_only}
            for binding in self.bindings
        ]
        return _encode(
            command=list(self.command),
            environment=dict(self.environment),
            working_folder=self.working_folder,
            hostname=self.hostname,
            log=str(self.log),
            scratch=str(self.scratch),
            mounts=mounts,
            read_only_root=self.read_only_root,
        )


class ContainerProcess:
    """A started container. `pid` is its process 1 as seen from the node."""

    def __init__(self, launcher: asyncio.subprocess.Process, pid: int, orders: LaunchOrders) -> None:
        self._launcher = launcher
        self._orders = orders
        self.pid = pid

    @classmethod
    async def start(cls, orders: LaunchOrders) -> "ContainerProcess":
        """Return once the command runs.

        Raises:
            ContainerStartError: a mount failed, or there is no such command.
        """
        launcher = await _launch("run", orders.encode())
        assert launcher.stdout is not None
        try:
            said = (await launcher.stdout.read()).decode()
        except asyncio.CancelledError:
            launcher.kill()  # takes the container with it
            raise
        report = dict(line.split(" ", 1) for line in said.splitlines())
        if "error" in report or "pid" not in report:
            await launcher.wait()
            raise ContainerStartError(report.get("error", "the launcher ended before the command was started"))
        return cls(launcher, int(report["pid"]), orders)

    async def wait(self) -> int:
        """The exit code; 128 + signal for a death by signal."""
        return await self._launcher.wait()

    def send(self, number: signal.Signals) -> None:
        """Signal process 1; the kernel lets it ignore any signal but SIGKILL, as in every container."""
        if self._launcher.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def memory_bytes(self) -> int:
        """Memory of its own that the container holds: anonymous and shared pages, not mapped files."""
        return sum(_own_memory_bytes(pid) for pid in _family(self.pid))

    async def execute(self, command: Sequence[str], *, timeout_seconds: float) -> tuple[int, str]:
        """Run a command inside the container; its exit code and output.

        Raises:
            TimeoutError: it took longer; it has been killed.
        """
        orders = _encode(
            pid=self.pid,
            command=list(command),
            environment=dict(self._orders.environment),
            working_folder=self._orders.working_folder,
        )
        launcher = await _launch("exec", orders)
        try:
            async with asyncio.timeout(timeout_seconds):
                output, _ = await launcher.communicate()
        finally:
            if launcher.returncode is None:
                launcher.kill()  # takes the command with it
        assert launcher.returncode is not None
        return launcher.returncode, output.decode(errors="replace")


def _encode(**orders: Any) -> bytes:
    return json.dumps(orders).encode()


async def _launch(mode: str, orders: bytes) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    launcher = await asyncio.create_subprocess_exec(*_LAUNCHER, mode, cwd=_PACKAGE_PARENT, stdin=pipe, stdout=pipe)
    assert launcher.stdin is not None
    with suppress(ConnectionError):  # it may end before it has read all; its report says why
        launcher.stdin.write(orders)
        await launcher.stdin.drain()
    launcher.stdin.close()
    return launcher


def _family(pid: int) -> Iterator[int]:
    """The process and all its descendants."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _own_memory_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0  # it has just ended
    lines = (line.split() for line in status.splitlines())
    return sum(int(line[1]) for line in lines if line and line[0] in ("RssAnon:", "RssShmem:")) * _KILOBYTE
