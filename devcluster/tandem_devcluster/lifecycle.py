"""Brings a cluster up and down, from outside its namespaces.

It knows the supervisor as one process and hears from it through a pipe while it starts. That process stands for all of
the cluster: when it has ended, nothing of the cluster is left.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandem_devcluster.errors import StartError, StateError
from tandem_devcluster.machine import Machine
from tandem_devcluster.relay import listen_outside
from tandem_devcluster.state import Running, StateFolder, start_ticks

_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """How the cluster is to be: its machines, its port on 127.0.0.1 (0: any), and the first restart delay of a pod.

    A `bare` one is an API server with its store: without controllers, scheduler and machines. A `bound` one ends with
    the thread that started it, however that ends.
    """

    machines: tuple[Machine, ...]
    api_port: int = 0
    backoff_base_seconds: float = 10.0
    bare: bool = False
    bound: bool = False


def start(state: StateFolder, program: Path, plan: Plan) -> Running:
    """Start a cluster in the folder and return when every node is Ready.

    Whatever goes wrong or interrupts it, nothing keeps running.

    Raises:
        StateError: one is running there already, or the folder cannot be used.
        StartError: the port is taken, or a part did not come up.
    """
    with state.locked():
        if (running := state.running()) is not None:
            raise StateError(f"a dev cluster already runs in {state.root} (process {running.pid})")
        with listen_outside(plan.api_port) as listener:
            try:
                state.prepare()
                state.set_machines(plan.machines)
                _install_clients(state, program)
                return _start_and_hear(state, program, plan, listener)
            except OSError as error:
                raise StateError(f"cannot write to {state.root}: {error}; free space, or choose --state") from error


def stop(state: StateFolder) -> bool:
    """End the cluster; whether there was one. Logs stay until the next start."""
    if not state.root.exists():
        return False
    with state.locked():
        running = state.running()
        if running is None:
            return False
        _end(running.pid, running.started_ticks)
        (state.root / "cluster.json").unlink()
        return True


def _start_and_hear(state: StateFolder, program: Path, plan: Plan, listener: socket.socket) -> Running:
    port = listener.getsockname()[1]
    said, herald = os.pipe()
    with os.fdopen(said) as lines:
        try:
            pid = _spawn(state, _orders(state, program, plan, port), listener.fileno(), herald)
        finally:
            os.close(herald)
        ticks = start_ticks(pid)
        try:
            running = Running(pid, ticks or 0, port)
            state.record(running)
            _hear_until_ready(lines, state)
        except BaseException:
            _end(pid, ticks)
            raise
    return running


def _orders(state: StateFolder, program: Path, plan: Plan, port: int) -> list[str]:
    orders = ["--state", str(state.root), "--program", str(program)]
    orders += ["--api-port", str(port), "--backoff-base", str(plan.backoff_base_seconds)]
    return [*orders, *(flag for flag, wanted in (("--bare", plan.bare), ("--bound", plan.bound)) if wanted)]


def _spawn(state: StateFolder, orders: list[str], listener: int, herald: int) -> int:
    """Start the supervisor as leader of a session of its own, holding both descriptors; its process id."""
    command = [sys.executable, "-m", "tandem_devcluster.supervisor", *orders]
    for name, descriptor in (("--listener", listener), ("--herald", herald)):
        os.set_inheritable(descriptor, True)
        command += [name, str(descriptor)]
    log = os.open(state.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    outputs = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    try:
        return os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *outputs],
            setsid=True,
        )
    finally:
        os.close(log)


def _hear_until_ready(said: Iterator[str], state: StateFolder) -> None:
    for line in said:
        text = line.strip()
        if text == "ready":
            return
        if text.startswith("error: "):
            raise StartError(text.removeprefix("error: "))
        print(f"==> {text}", flush=True)
    last = (state.supervisor_log.read_text().strip().splitlines() or ["it said nothing"])[-1]
    raise StartError(f"the supervisor ended: {last} (all of it: {state.supervisor_log})")


def _end(pid: int, started_ticks: int | None) -> None:
    """SIGTERM, then SIGKILL; only while the process is still the one that was meant."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _STOP_SECONDS
        while started_ticks is not None and start_ticks(pid) == started_ticks:
            if time.monotonic() > deadline:
                break
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(_POLL_SECONDS)
    with suppress(ChildProcessError):  # it is ours to reap only when this process has started it
        os.waitpid(pid, os.WNOHANG)


def _install_clients(state: StateFolder, program: Path) -> None:
    """`kubectl` and `helm` that can reach this cluster and no other.

    What they know of its resources they keep with it: by themselves they keep it in the home folder by port, for hours,
    and take it for that of a later cluster at the same port.
    """
    ways = f'KUBECONFIG="{state.kubeconfig}" KUBECACHEDIR="{state.client_cache}"'
    for name in ("kubectl", "helm"):
        script = state.bin / name
        script.write_text(f'#!/bin/sh\nexport {ways}\nexec "{program}" {name} "$@"\n')
        script.chmod(0o755)
