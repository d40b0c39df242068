"""Knows how a deployment is started on this machine: an API that names its pods, engines, gateways, each a process.

Refuses to know what is asked of it, and what the engines compute.

Gateways are `tandem-runtime gateway` and find engines as in a cluster: by their pods, each at an address of its own and
the one port. Here those are loopback addresses, and the API is a small one in this process, which says nothing once the
gateways know their pods.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.seams.kube_api import KubeApi, config_map, kube_api, pod

from tandem_runtime.wire.transport import FEWER_THREADS

TOKENIZER = Path(__file__).parents[2] / "examples" / "pairs" / "target"
"""That of the example pair, for engines without a model."""
TARGET_HASH, DRAFT_HASH = "91ab02c4", "0be3fa77"
POLICY: Mapping[str, Any] = {
    "version": 1,
    "number": 1,
    "servedModelName": "chat",
    "salt": "uid",
    "revisions": [{"name": "r1", "target": TARGET_HASH, "draft": DRAFT_HASH, "weight": 100}],
    "control": {"offPercent": 0},
    "exactness": {"sampleBasisPoints": 0},
}
START_SECONDS = 120.0
END_SECONDS = 40.0
OPEN_FILES = 16_384


def always(k: int) -> dict[str, Any]:
    """A policy under which each round guesses `k` tokens, once the verdict before is known."""
    speculation = {"mode": "Always", "minDraftTokens": k, "maxDraftTokens": k, "overlap": "Off"}
    return {**POLICY, "speculation": speculation}


def plain() -> dict[str, Any]:
    """A policy of a target without a draft."""
    return {**POLICY, "revisions": [{"name": "r1", "target": TARGET_HASH, "draft": None, "weight": 100}]}


def addresses(count: int) -> tuple[str, ...]:
    """Loopback addresses that no other process of ours takes."""
    high, low = divmod(os.getpid(), 250)
    return tuple(f"127.{100 + high % 100}.{1 + low}.{number}" for number in range(1, count + 1))


def allow_open_files() -> None:
    """As many sockets as a thousand streams need, here and in what this process starts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class Ended(Exception):
    """A process ended that should serve; its log says why."""


@dataclass(slots=True)
class Child:
    """A process of the deployment."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def resident_bytes(self) -> int:
        """What it has in memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def end(self) -> None:
        """In order, or at once where that takes too long."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                await self.process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.process.wait()

    def refuse_ended(self) -> None:
        if self.process.returncode is not None:
            said = self.log.read_text().strip().splitlines()[-3:]
            raise Ended(f"a process ended with {self.process.returncode}: {' | '.join(said)}")


async def started(words: Sequence[str], log: Path, **environment: str) -> Child:
    """`python -m WORDS`, with what it says in `log`."""
    with log.open("ab") as written:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *words,
            cwd=Path(__file__).parents[2],
            env={**FEWER_THREADS, **os.environ, **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=written,
        )
    return Child(process, log)


async def said_ready(child: Child) -> None:
    """Returns when it has said `ready`. Raises Ended."""
    assert child.process.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        if await child.process.stdout.readline() != b"ready\n":
            await child.process.wait()
            child.refuse_ended()


@dataclass(slots=True)
class Gateway:
    """A gateway's process and its two ports."""

    child: Child
    port: int
    admin_port: int

    async def until_ready(self, *, drafts: bool) -> None:
        """Until it knows a target, and where `drafts` are wanted a draft. Raises Ended."""
        async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as http:
            while not await self._knows(http, drafts=drafts):
                self.child.refuse_ended()
                await asyncio.sleep(0.05)

    async def _knows(self, http: httpx.AsyncClient, *, drafts: bool) -> bool:
        try:
            told = (await http.get(f"http://127.0.0.1:{self.admin_port}/internal/evidence")).json()["admitted"]
        except httpx.TransportError:
            return False  # it is starting
        return bool(told["targets"]) and (bool(told["drafts"]) or not drafts)


@dataclass(slots=True)
class Fleet:
    """What runs, and the API that tells the gateways of it. `folder` holds the tokenizer."""

    api: KubeApi
    kubeconfig: Path
    folder: Path
    place: Path
    children: list[Child] = field(default_factory=list)

    async def tell(self, name: str, role: str, address: str, **more: bool) -> None:
        """That a pod of that name serves there."""
        role_hash = TARGET_HASH if role == "target" else DRAFT_HASH
        await self.api.put("pods", pod(name, role=role, role_hash=role_hash, ip=address, **more))

    async def start(self, name: str, *words: str, **environment: str) -> Child:
        child = await started(words, self.place / f"{name}.log", **environment)
        self.children.append(child)
        return child

    async def gateway(self, name: str, *options: str) -> Gateway:
        port, admin_port = _free_ports()
        words = ["tandem_runtime.main", "gateway", "--deployment", "chat", "--namespace", "llm"]
        words += ["--tokenizer", str(self.folder), "--port", str(port), "--admin-port", str(admin_port), *options]
        return Gateway(await self.start(name, *words, KUBECONFIG=str(self.kubeconfig)), port, admin_port)


@asynccontextmanager
async def fleet(place: Path, folder: Path, policy: Mapping[str, Any]) -> AsyncIterator[Fleet]:
    """An API that tells `policy`, and nothing else yet; whatever is started in it ends with it. Logs lie in `place`."""
    async with AsyncExitStack() as stack:
        api, kubeconfig = await stack.enter_async_context(kube_api(place))
        await api.put("configmaps", config_map("chat-policy", **{"policy.json": json.dumps(policy)}))
        running = Fleet(api, kubeconfig, folder, place)
        try:
            yield running
        finally:
            await asyncio.gather(*(child.kill() for child in running.children))


@asynccontextmanager
async def timed_fleet(place: Path, folder: Path, *, k: int) -> AsyncIterator[tuple[Fleet, Child]]:
    """With the engines of `benchmarks.stage.engines`, which write their log as `rounds.json` in `place` when they end,
    and K guesses a round."""
    target, draft = addresses(2)
    async with fleet(place, folder, always(k)) as running:
        words = ["benchmarks.stage.engines", target, draft, str(folder), str(place / "rounds.json")]
        engines = await running.start("engines", *words)
        await said_ready(engines)
        await running.tell("t", "target", target)
        await running.tell("d", "draft", draft)
        yield running, engines


@asynccontextmanager
async def bare_fleet(place: Path, *, k: int) -> AsyncIterator[tuple[Gateway, Child]]:
    """The gateway and the engines of `benchmarks.stage.floor`; the log is `floor.json` in `place`."""
    target, draft = addresses(2)
    port, _ = _free_ports()
    children: list[Child] = []
    try:
        for role, last in (("engines", [str(place / "floor.json")]), ("gateway", [str(port), str(k)])):
            words = ["benchmarks.stage.floor", role, target, draft, *last]
            children.append(await started(words, place / f"floor-{role}.log"))
            await said_ready(children[-1])
        engines, gateway = children
        yield Gateway(gateway, port, 0), engines
    finally:
        await asyncio.gather(*(child.kill() for child in children))


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
