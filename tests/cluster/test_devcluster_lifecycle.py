"""A dev cluster leaves nothing behind, however it ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem_devcluster.build import ensure_built
from tandem_devcluster.errors import StartError, StateError
from tandem_devcluster.lifecycle import Plan, start, stop
from tandem_devcluster.machine import Machine
from tandem_devcluster.state import StateFolder
from tandem_devcluster.testing import Cluster

pytestmark = pytest.mark.cluster

ONE_NODE = Plan((Machine(name="cpu-0", number=1),))


def processes_of(state: StateFolder) -> list[int]:
    """Every live process that names the state folder or lies in its network namespace's tree."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(state.root) in command:
                found.append(int(process.name))
    return found


def wait_until_gone(state: StateFolder) -> None:
    deadline = time.monotonic() + 10
    while processes_of(state):
        assert time.monotonic() < deadline, f"still there: {processes_of(state)}"
        time.sleep(0.05)


def test_a_bare_cluster_is_an_api_server_and_nothing_else(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    start(state, asyncio.run(ensure_built()), Plan((), bare=True))
    try:
        assert Cluster(state).kubectl("get", "nodes", "-o", "name") == ""
        assert {path.stem for path in state.logs.glob("kube-*.log")} == {"kube-apiserver"}
    finally:
        stop(state)
    wait_until_gone(state)


MAKER = """
import sys, time
from pathlib import Path
from tandem_devcluster.lifecycle import Plan, start
from tandem_devcluster.state import StateFolder

start(StateFolder(Path(sys.argv[1])), Path(sys.argv[2]), Plan((), bare=True, bound=True))
print("made", flush=True)
time.sleep(600)
"""


def test_a_bound_cluster_ends_with_who_made_it_though_that_was_killed(tmp_path: Path) -> None:
    """A benchmark or a test run that was killed left its cluster running."""
    state = StateFolder(tmp_path / "state")
    command = [sys.executable, "-c", MAKER, str(state.root), str(asyncio.run(ensure_built()))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        try:
            assert maker.stdout is not None
            assert "made\n" in iter(maker.stdout.readline, "")
            assert processes_of(state)
        finally:
            maker.kill()
    wait_until_gone(state)
    assert state.running() is None


def test_a_killed_supervisor_takes_everything_along_and_the_next_start_works(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    program = asyncio.run(ensure_built())
    first = start(state, program, ONE_NODE)
    try:
        assert len(processes_of(state)) >= 6  # supervisor, etcd, three of the control plane, one node
        with pytest.raises(StateError, match="already runs"):
            start(state, program, ONE_NODE)
        Cluster(state).kubectl("create", "deployment", "sleeper", "--image=unused", "--", "sleep", "1000")
        Cluster(state).kubectl("rollout", "status", "deployment/sleeper", "--timeout=30s")
        os.kill(first.pid, signal.SIGKILL)
        wait_until_gone(state)
        start(state, program, ONE_NODE)
        assert Cluster(state).kubectl("get", "deployments", "-o", "name") == ""
    finally:
        stopped = stop(state)
    assert stopped
    assert processes_of(state) == []
    assert not stop(state)


def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    # A shell lets what it starts in the background ignore SIGINT, and the tests may have been started so.
    heeding = ["env", "--default-signal=INT"]
    command = [*heeding, sys.executable, "-m", "tandem_devcluster", "--state", str(state.root), "up"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as starting:
        assert starting.stdout is not None
        assert starting.stdout.readline() == "==> API server ready\n"
        starting.send_signal(signal.SIGINT)
        assert starting.stdout.read() == "interrupted\n"
    assert starting.returncode == 130
    assert processes_of(state) == []


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = Plan(ONE_NODE.machines, api_port=port)
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 cannot be used"):
            start(StateFolder(tmp_path / "state"), Path("unused"), plan)


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(StateError, match="not empty and not a dev cluster's"):
        start(StateFolder(tmp_path), Path("unused"), ONE_NODE)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_component_that_ends_at_once_fails_the_start_in_one_line(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    broken = tmp_path / "controlplane"
    broken.write_text("#!/bin/sh\necho no such flag >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(StartError, match=r"etcd ended with 1 \(no such flag\)"):
        start(state, broken, ONE_NODE)
    assert processes_of(state) == []
