"""The target and the draft as processes: started by the command line, spoken to over the wire, ended by a signal."""

import asyncio
import contextlib
import itertools
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.seams.role_certificates import RoleAuthority, written
from tests.seams.wire_peers import QUICK, opening, verify

from tandem_runtime import main
from tandem_runtime.domain.errors import Overloaded, TargetLost
from tandem_runtime.domain.tokens import Opened, OpenSession, Proposal, ProposeRound, SessionId
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.role_server import Engine, RoleName, ServeOptions, serve_role
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget

SCRIPT = "scripted:tandem_runtime.engines.scripted:chain_logits"


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.asynccontextmanager
async def role(name: str, port: int, admin_port: int, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    ports = ["--port", str(port), "--admin-port", str(admin_port)]
    command = [sys.executable, "-m", "tandem_runtime.main", name, "--model", SCRIPT, *ports, *options]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


def likeliest(prefix: tuple[int, ...]) -> int:
    logits = chain_logits(prefix)
    return logits.index(max(logits))


async def test_a_role_with_a_certificate_tells_when_that_ends(tmp_path: Path) -> None:
    port, admin_port = free_ports()
    folder = written(tmp_path / "tls", RoleAuthority().issue(days=5))
    async with role("target", port, admin_port, "--role-tls", str(folder)) as child, httpx.AsyncClient() as client:
        assert child.stderr is not None
        async with asyncio.timeout(30):
            while b"certificate ends in days=5.0" not in (line := await child.stderr.readline()):
                assert line
        metrics = (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text
    (ends,) = re.findall(r"^tandem_role_certificate_not_after_seconds (\S+)$", metrics, re.MULTILINE)
    assert float(ends) - time.time() == pytest.approx(5 * 86_400, abs=600)


async def test_a_target_tells_how_much_memory_it_holds() -> None:
    port, admin_port = free_ports()
    async with (
        role("target", port, admin_port),
        RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote,
        httpx.AsyncClient() as client,
    ):
        await remote.wait_connected()
        memory = f"http://127.0.0.1:{admin_port}/internal/memory"
        empty = (await client.get(memory)).json()
        opened = await remote.open(opening("s", prompt=(1,) * 1000))
        await remote.verify(verify(opened, "s"))
        held = (await client.get(memory)).json()
        told = (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text.splitlines()
    assert empty == {"workingSetBytes": empty["workingSetBytes"], "kvBasisPoints": 0, "preempting": False}
    assert 10 * 2**20 < empty["workingSetBytes"] < 4 * 2**30
    assert held["kvBasisPoints"] == round(63 / (64 * 256) * 10_000)  # 1000 tokens stand in 63 blocks of 16
    figures = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in told if line[0] != "#"}
    assert (
        figures['tandem_engine_kv_bytes{state="used"}'] == figures["tandem_engine_largest_session_kv_bytes"] == 63 * 128
    )
    assert figures['tandem_engine_tokens_total{source="computed"}'] == 1000
    assert figures["tandem_engine_preemptions_total"] == 0
    assert figures['tandem_engine_rows_total{priority="interactive"}'] == 1000
    assert figures['tandem_engine_rows_total{priority="background"}'] == figures["tandem_engine_waiting_rounds"] == 0


async def test_a_paced_target_tells_the_seconds_of_its_steps_beside_those_of_its_work() -> None:
    port, admin_port = free_ports()
    async with (
        role("target", port, admin_port, "--pace", "h100-70b"),
        RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote,
        httpx.AsyncClient() as client,
    ):
        await remote.wait_connected()
        opened = await remote.open(opening("s"))
        verdict = await remote.verify(verify(opened, "s"))
        told = (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text
    figures = {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in told.splitlines() if line[0] != "#")
    }
    unpaced, paced = (figures[f'tandem_engine_step_seconds_total{{kind="{kind}"}}'] for kind in ("unpaced", "paced"))
    assert figures["tandem_engine_steps_total"] == 1
    assert figures["tandem_engine_bytes_read_total"] == figures["tandem_engine_products_total"] == 0  # of a script
    assert 0 < unpaced <= paced
    assert min(paced, verdict.forward_seconds) >= 0.015


async def test_a_target_process_judges_and_drains_at_sigterm() -> None:
    port, admin_port = free_ports()
    async with role("target", port, admin_port) as child:
        async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote, httpx.AsyncClient() as client:
            await remote.wait_connected()
            readyz = f"http://127.0.0.1:{admin_port}/readyz"
            assert (await client.get(readyz)).status_code == 200
            assert (await remote.capabilities()).determinism == "Bitwise"

            opened = await remote.open(greedy())
            child.send_signal(signal.SIGTERM)
            while (draining := await client.get(readyz)).status_code == 200:
                await asyncio.sleep(0.01)
            assert "shutting down" in draining.text
            with pytest.raises(Overloaded, match="shutting down"):
                await remote.open(greedy("late"))

            first = likeliest((1, 2, 3))
            verdict = await remote.verify(verify(opened, "s", ids=(first,)))
            assert (verdict.accepted, verdict.token) == (1, likeliest((1, 2, 3, first)))
            await remote.close(SessionId("s"))
            assert await child.wait() == 0
        assert child.stderr is not None
        log = (await child.stderr.read()).decode()
        assert [line.split(" ")[4] for line in log.splitlines()] == ["loading", "serving", "draining", "ended"]


async def test_a_target_killed_in_a_run_is_target_lost_and_found_again_when_it_is_back() -> None:
    port, admin_port = free_ports()
    async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote:
        async with role("target", port, admin_port) as child:
            await remote.wait_connected()
            opened = await remote.open(greedy())
            child.kill()
            with pytest.raises(TargetLost):
                await go_on_until_it_fails(remote, opened)
        async with role("target", port, admin_port):
            await remote.wait_connected()
            assert (await remote.open(greedy())).incarnation != opened.incarnation


async def test_a_target_that_hangs_with_its_socket_open_is_lost_by_its_pings() -> None:
    """Takes the ping timeout, ten seconds: nothing shorter tells a hung peer from a busy one."""
    port, admin_port = free_ports()
    async with role("target", port, admin_port) as child, RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote:
        await remote.wait_connected()
        opened = await remote.open(greedy())
        child.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(30):
            with pytest.raises(TargetLost, match="broke: UNAVAILABLE"):
                await remote.verify(verify(opened, "s"))
        child.send_signal(signal.SIGCONT)
        await remote.wait_connected()


async def test_the_end_asked_for_while_the_model_loads_does_not_wait_for_it() -> None:
    ending, reading = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load() -> Engine:
        loop.call_soon_threadsafe(ending.set)
        reading.wait()
        raise AssertionError("nobody hears this")

    options = ServeOptions(host="127.0.0.1", port=0, admin_port=0, grace_seconds=1)
    await serve_role(load, options, ending=ending, name=RoleName.TARGET, clock=main.SystemClock())
    reading.set()


async def go_on_until_it_fails(remote: RemoteTarget, opened: Opened) -> None:
    for step in itertools.count():
        await remote.verify(verify(opened, "s", round=step, offset=step))


async def test_a_draft_process_proposes() -> None:
    port, admin_port = free_ports()
    async with role("draft", port, admin_port), RemoteDraft(f"127.0.0.1:{port}", backoff=QUICK) as remote:
        await remote.wait_connected()
        opened = await remote.open(greedy())
        proposal = await remote.propose(ProposeRound(SessionId("s"), opened.incarnation, 0, (), 2))
        first = likeliest((1, 2, 3))
        assert proposal == Proposal((first, likeliest((1, 2, 3, first))), None, proposal.draft_seconds)


def greedy(session: str = "s") -> OpenSession:
    return opening(session, temperature=0)


BAD_LINES = [
    (["target"], 2, "the following arguments are required: --model"),
    (["target", "--model", "x", "--port", "99999"], 2, "argument --port: '99999' is no port"),
    (["target", "--model", "x", "--port", "http"], 2, "argument --port: 'http' is no port"),
    (["target", "--model", "x", "--dtype", "fp8"], 2, "argument --dtype: invalid choice: 'fp8'"),
    (["target", "--model", "x", "--weights", "fp8"], 2, "argument --weights: invalid choice: 'fp8'"),
    (["draft", "--model", SCRIPT, "--weights", "int4"], 1, "int4 weights: scripted:"),
    (
        ["target", "--model", "x", "--pace", "b200"],
        2,
        "there is no table 'b200'; the tables are h100-70b, l4-8b, l4-8b-eager",
    ),
    (["target", "--model", "x", "--max-sessions", "0"], 2, "argument --max-sessions: '0' is no whole number from 1"),
    (["target", "--model", "x", "--max-length", "9" * 5000], 2, "is no whole number from 1 to 10000000"),
    (["target", "--model", SCRIPT, "--step-rows", "31"], 1, "--step-rows 31: one proposal may need 32; give as many"),
    (["target", "--model", SCRIPT, "--host", "\u00fc" * 70], 1, "cannot listen on"),
    (["draft", "--model", "/no\nwhere", "--port", "0", "--admin-port", "0"], 1, "/no where does not exist"),
    (["draft", "--model", "/nowhere", "--port", "0", "--admin-port", "0"], 1, "/nowhere does not exist; name a folder"),
    (["draft", "--model", "scripted:no.such:f", "--port", "0", "--admin-port", "0"], 1, "No module named 'no'"),
    (["launch"], 2, "invalid choice: 'launch'"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), BAD_LINES)
def test_a_wrong_command_line_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = main.run(arguments)
    except SystemExit as exit:
        ended = exit.code
    said = capsys.readouterr().err.strip().splitlines()
    assert (ended, len(said)) == (code, 1)
    assert says in said[0]
    assert said[0].startswith("tandem-runtime")


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_port_in_use_is_one_line_and_exit_1(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = {"--port": "--admin-port", "--admin-port": "--port"}[which]
        assert main.run(["target", "--model", SCRIPT, which, str(port), other, "0"]) == 1
    assert f"tandem-runtime target: cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    importlib.import_module(module.name)
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize("name", ["main", "gateway", "wire", "role_server", "fetch"])
def test_what_serves_without_a_model_imports_no_torch(name: str) -> None:
    command = [sys.executable, "-c", IMPORT_ALL, f"tandem_runtime.{name}"]
    assert subprocess.run(command, check=False).returncode == 0
