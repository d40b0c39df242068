"""Knows the deployment of the soak: two gateways, two targets and two drafts, each a process, and what can befall them.

Refuses to know what is asked of it.
"""

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from benchmarks.stage.fleet import POLICY, Child, Fleet, Gateway, addresses, fleet
from tests.seams.tokenizer_folders import CHAT_TEMPLATE, byte_level_folder
from tests.soak.role import ADMIN_PORT

TEMPLATE = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE
SPECULATION = {"mode": "Auto", "minDraftTokens": 1, "maxDraftTokens": 6}
DRAIN_SECONDS = 4
"""Of a gateway: what has begun may go on for so long."""
READY_SECONDS = 90.0
QUIET_SECONDS = 60.0


@dataclass(slots=True)
class Pod:
    """A role's place. Where its process is made anew in a pod of another name, `generation` counts."""

    name: str
    role: str
    address: str
    generation: int = 0
    child: Child | None = None

    @property
    def called(self) -> str:
        return f"{self.name}-{self.generation}"


@dataclass(slots=True)
class Stage:
    running: Fleet
    pods: list[Pod]
    chance: random.Random
    gateways: list[Gateway] = field(default_factory=list)
    _starts: Iterator[int] = field(default_factory=itertools.count)

    @property
    def ports(self) -> list[int]:
        return [gateway.port for gateway in self.gateways]

    def one(self, role: str) -> Pod:
        return self.chance.choice([pod for pod in self.pods if pod.role == role])

    async def start(self, pod: Pod) -> None:
        """Its process, until it serves, and the pod in the API."""
        words = ("tests.soak.role", pod.role, pod.address, str(self.running.folder), str(self.chance.random()))
        pod.child = await self.running.start(f"{pod.name}-{next(self._starts)}", *words)
        await self._serves(pod)
        await self.running.tell(pod.called, pod.role, pod.address)

    async def start_gateway(self) -> Gateway:
        words = ("--grace-seconds", str(DRAIN_SECONDS))
        gateway = await self.running.gateway(f"gateway-{next(self._starts)}", *words)
        await gateway.until_ready(drafts=True)
        return gateway

    async def sessions(self) -> Mapping[str, float]:
        """What each role's engine holds."""
        return {pod.called: await self._gauge(pod, "tandem_engine_sessions") for pod in self.pods}

    async def told(self) -> Mapping[str, str]:
        """What each process tells of itself, by its address."""
        paths = ("metrics", "readyz", "internal/evidence", "internal/memory")
        admins = [*(f"{pod.address}:{ADMIN_PORT}" for pod in self.pods)]
        admins += [f"127.0.0.1:{gateway.admin_port}" for gateway in self.gateways]
        places = [f"http://{admin}/{path}" for admin in admins for path in paths]
        places += [f"http://127.0.0.1:{port}/v1/speculation" for port in self.ports]
        async with httpx.AsyncClient(timeout=10) as http:
            return {place: (await http.get(place)).text for place in places}

    async def _gauge(self, pod: Pod, name: str) -> float:
        async with httpx.AsyncClient(timeout=10) as http:
            lines = (await http.get(f"http://{pod.address}:{ADMIN_PORT}/metrics")).text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    async def _serves(self, pod: Pod) -> None:
        assert pod.child is not None
        async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient() as http:
            while not await _is_ready(http, pod):
                pod.child.refuse_ended()
                await asyncio.sleep(0.05)

    async def quiet(self) -> Mapping[str, float]:
        """What roles hold once nobody asks any more: nothing, or what was left in spite of waiting."""
        held = await self.sessions()
        for _ in range(round(QUIET_SECONDS / 0.5)):
            if not any(held.values()):
                break
            await asyncio.sleep(0.5)
            held = await self.sessions()
        return {name: count for name, count in held.items() if count}


async def _is_ready(http: httpx.AsyncClient, pod: Pod) -> bool:
    try:
        return (await http.get(f"http://{pod.address}:{ADMIN_PORT}/readyz")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def kill_draft(stage: Stage) -> None:
    await _kill(stage, stage.one("draft"))


async def kill_target(stage: Stage) -> None:
    await _kill(stage, stage.one("target"))


async def kill_both_targets(stage: Stage) -> None:
    await asyncio.gather(*(_kill(stage, pod) for pod in stage.pods if pod.role == "target"))


async def freeze_draft(stage: Stage) -> None:
    await _freeze(stage, stage.one("draft"))


async def freeze_target(stage: Stage) -> None:
    await _freeze(stage, stage.one("target"))


async def drain_target(stage: Stage) -> None:
    """As where a node is emptied: the pod is under deletion, its process ends in order, another comes in its place."""
    pod = stage.one("target")
    assert pod.child is not None
    await stage.running.tell(pod.called, pod.role, pod.address, deleted=True)
    await pod.child.end()
    await stage.running.api.delete("pods", pod.called)
    pod.generation += 1
    await stage.start(pod)


async def restart_gateway(stage: Stage) -> None:
    """Another takes its place while it drains, as in a rollout of a Deployment."""
    at = stage.chance.randrange(len(stage.gateways))
    old, stage.gateways[at] = stage.gateways[at], await stage.start_gateway()
    await old.child.end()


async def cut_watches(stage: Stage) -> None:
    await stage.running.api.cut_watches(expire=True)


async def _kill(stage: Stage, pod: Pod) -> None:
    """Its container is started again in the same pod."""
    assert pod.child is not None
    await pod.child.kill()
    await asyncio.sleep(stage.chance.random())
    await stage.start(pod)


async def _freeze(stage: Stage, pod: Pod) -> None:
    """All its answers come late."""
    assert pod.child is not None
    pod.child.signal(signal.SIGSTOP)
    await asyncio.sleep(0.2 + 1.8 * stage.chance.random())
    pod.child.signal(signal.SIGCONT)


Fault = Callable[[Stage], Awaitable[None]]
FAULTS: tuple[Fault, ...] = (
    freeze_draft,
    kill_draft,
    kill_target,
    restart_gateway,
    drain_target,
    freeze_target,
    cut_watches,
    kill_both_targets,
)
"""In the order in which they come the first time."""


@asynccontextmanager
async def staged(place: Path, seed: int) -> AsyncIterator[Stage]:
    """All processes, until the block ends."""
    folder = byte_level_folder(place / "tokenizer", settings={"chat_template": TEMPLATE})
    one, two, three, four = addresses(4)
    pods = [Pod("t1", "target", one), Pod("t2", "target", two), Pod("d1", "draft", three), Pod("d2", "draft", four)]
    async with fleet(place, folder, {**POLICY, "speculation": SPECULATION}) as running:
        stage = Stage(running, pods, random.Random(seed))
        await asyncio.gather(*(stage.start(pod) for pod in pods))
        stage.gateways = list(await asyncio.gather(stage.start_gateway(), stage.start_gateway()))
        yield stage
