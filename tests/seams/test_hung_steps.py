"""A step that does not end: its engine is not ready, and after a limit its process asks to be started anew."""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import ShiftedClock, always, local, running_gateway, until
from tests.seams.test_roles import free_ports
from tests.seams.wire_peers import QUICK, opening, verify

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.local import hung
from tandem_runtime.ports import Logits, Row
from tandem_runtime.wire.client import RemoteTarget

ROOT = Path(__file__).parents[2]
SOON_UNREADY = (
    "from tandem_runtime.engines import batched; from tandem_runtime.main import main; "
    "batched.LONGEST_STEP_SECONDS = 0.3; main()"
)
"""The role as it is, but for the 30 s after which it is not ready."""


@contextlib.asynccontextmanager
async def hanging_target(port: int, admin_port: int, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    model = "scripted:tests.seams.hanging_script:hung"
    ports = ["--port", str(port), "--admin-port", str(admin_port)]
    command = [sys.executable, "-c", SOON_UNREADY, "target", "--model", model, *ports, *options]
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        await child.wait()


async def looks(admin_port: int, *, seconds: float) -> list[tuple[int, int, str]]:
    """What readiness and liveness answered, change by change, and the words of the latter; to the first look at which
    it is not alive."""
    seen: list[tuple[int, int, str]] = []
    ends_at = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin_port}") as client:
        while time.monotonic() < ends_at and (not seen or seen[-1][1] == 200):
            alive, ready = await client.get("/healthz"), await client.get("/readyz")
            found = (ready.status_code, alive.status_code, alive.text)
            seen += [found] if not seen or seen[-1] != found else []
            await asyncio.sleep(0.05)
    return seen


@contextlib.asynccontextmanager
async def hanging_round(port: int) -> AsyncIterator[None]:
    async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote:
        await remote.wait_connected()
        opened = await remote.open(opening("s"))
        judging = asyncio.create_task(remote.verify(verify(opened, "s")))
        yield
        judging.cancel()


async def test_a_process_whose_step_hangs_is_first_unready_and_after_the_limit_no_longer_alive() -> None:
    port, admin_port = free_ports()
    async with hanging_target(port, admin_port, "--step-deadline-seconds", "3"), hanging_round(port):
        seen = await looks(admin_port, seconds=30)
    assert [found[:2] for found in seen[-2:]] == [(503, 200), (503, 503)]
    assert seen[-1][2].startswith("the step under way has taken 3 s, more than --step-deadline-seconds 3: the process ")
    assert {found[2] for found in seen[:-1]} == {"ok\n"}


async def test_a_process_without_a_limit_stays_alive_however_long_its_step_takes() -> None:
    port, admin_port = free_ports()
    async with hanging_target(port, admin_port, "--step-deadline-seconds", "0"), hanging_round(port):
        seen = await looks(admin_port, seconds=2)
    assert seen[-1] == (503, 200, "ok\n")


class Slow(ScriptedModel):
    """Takes its time for every step, as for the chunks of a long prompt."""

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        time.sleep(0.02)
        return super().forward(rows)


async def test_a_prompt_that_takes_longer_than_the_limit_chunk_by_chunk_is_no_step_that_hangs() -> None:
    one, clock = local(Slow(chain_logits), "slow"), ShiftedClock()
    with BatchedTarget(one.model, one.facts, clock=clock, size=StepSize(chunk_tokens=16)) as target:
        opened = await target.open(opening("s", prompt=(1,) * 1600))
        began, judging = clock.monotonic(), asyncio.create_task(target.verify(verify(opened, "s")))
        while not judging.done():
            assert target.hung(1) is None
            await asyncio.sleep(0.01)
        assert clock.monotonic() - began > 1.5
        await judging


@pytest.mark.parametrize("sick", ["target", "draft"])
async def test_a_server_of_one_machine_tells_when_either_of_its_engines_hangs(sick: str) -> None:
    goes_on = threading.Event()

    def script(prefix: tuple[TokenId, ...]) -> Any:
        if prefix != (0,):
            goes_on.wait()
        return chain_logits(prefix)

    scripts = {"target": chain_logits, "draft": chain_logits} | {sick: script}
    async with running_gateway(scripts["target"], scripts["draft"], speculation=always(2)) as running:
        fleet = running.gateway.fleet
        assert hung(fleet, 0.2) is None
        asking = asyncio.create_task(running.http.post("/v1/completions", json={"model": "chat", "prompt": "b"}))
        await until(lambda: hung(fleet, 0.2) is not None)
        assert hung(fleet, 0) is None
        goes_on.set()
        assert (await asking).status_code == 200
