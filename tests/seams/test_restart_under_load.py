"""Whole gateways over real links whose other ends go away and come back, or say everything twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import LETTERS, ShiftedClock, always, local, until
from tests.seams.wire_peers import connected

from tandem_runtime.admin import http_server
from tandem_runtime.domain.evidence import Ledger
from tandem_runtime.domain.policy import ControlPolicy, ExactnessPolicy
from tandem_runtime.domain.tokens import (
    Drafter,
    Incarnation,
    TokenId,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import chain_logits, lame_chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.app import Api
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.gateway.serving import Books, Gateway
from tandem_runtime.local import LOCAL_DRAFT, LOCAL_TARGET, local_policy
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.ports import TargetEngine
from tandem_runtime.replicas import Pool, Replica
from tandem_runtime.telemetry import Metrics
from tandem_runtime.testing import TableTokenizer
from tandem_runtime.wire import codec
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.server import EngineServer


def role_of(engine: object) -> TargetRole | DraftRole:
    if isinstance(engine, BatchedTarget):
        return TargetRole(engine)
    assert isinstance(engine, BatchedDraft)
    return DraftRole(engine)


@dataclass
class Machine:
    """An engine behind a socket that can be started anew on its port, as another life of it."""

    kind: type[BatchedTarget] | type[BatchedDraft]
    script: Callable[[tuple[TokenId, ...]], list[float]]
    clock: ShiftedClock
    port: int = 0
    lives: int = 0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        self.lives += 1
        self.stack = AsyncExitStack()
        told = local(self.script, self.kind.__name__)
        facts = replace(told.facts, incarnation=Incarnation(f"life {self.lives}"))
        engine = self.stack.enter_context(self.kind(told.model, facts, clock=self.clock))
        role = role_of(engine)
        server = await self.stack.enter_async_context(EngineServer(role, host="127.0.0.1", port=self.port))
        self.port = server.port

    async def stop(self) -> None:
        await self.stack.aclose()


@dataclass(frozen=True)
class Stage:
    targets: list[Machine]
    draft: Machine
    gateway: Gateway
    http: httpx.AsyncClient

    async def text(self, **fields: Any) -> str:
        body = {"model": "chat", "prompt": "b", "max_tokens": 60, "temperature": 0, **fields}
        reply = await self.http.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])


@asynccontextmanager
async def stage(targets: int = 1, *, script: Callable[..., list[float]] = chain_logits) -> AsyncIterator[Stage]:
    clock = ShiftedClock()
    machines = [Machine(BatchedTarget, script, clock) for _ in range(targets)]
    drafter = Machine(BatchedDraft, lame_chain_logits, clock)
    fleet = Fleet(Pool(), Pool())
    async with AsyncExitStack() as stack:
        for number, machine in enumerate(machines):
            await machine.start()
            stack.push_async_callback(machine.stop)
            peer = await stack.enter_async_context(connected(RemoteTarget, machine.port))
            known = await peer.capabilities()
            place = Replica[TargetEngine](f"t{number}", LOCAL_TARGET, peer, known, connected=_connected(peer))
            stack.enter_context(fleet.targets.holding(place))
        await drafter.start()
        stack.push_async_callback(drafter.stop)
        other = await stack.enter_async_context(connected(RemoteDraft, drafter.port))
        seat = Replica("d", LOCAL_DRAFT, other, await other.capabilities(), connected=_connected(other))
        stack.enter_context(fleet.drafts.holding(seat))
        policy = local_policy(
            "chat",
            drafters=[Drafter.MODEL],
            speculation=always(3),
            control=ControlPolicy(off_percent=0),
            exactness=ExactnessPolicy(0),
        )
        gateway = Gateway(
            tokenizer=TableTokenizer(LETTERS),
            in_force=PolicyInForce(policy),
            fleet=fleet,
            books=Books(Ledger(boot="boot"), Metrics()),
            clock=clock,
            limits=Limits(),
        )
        port = await stack.enter_async_context(http_server(Api(gateway).app(), host="127.0.0.1", port=0))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60))
        yield Stage(machines, drafter, gateway, http)


def _connected(peer: RemoteTarget | RemoteDraft) -> Callable[[], bool]:
    return lambda: peer.connected


async def test_replies_that_come_twice_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run too, whose replies are many; and of a prompt that is read."""
    once = codec.reply_frame
    asked = {"echo": True, "logprobs": 2, "max_tokens": 5}
    async with stage() as lab:
        quiet = [await lab.text(), await lab.text(speculation={"off": True}), await lab.text(**asked)]
        monkeypatch.setattr(codec, "reply_frame", lambda body, *, call: once(body, call=call) * 2)
        twice = [await lab.text(), await lab.text(speculation={"off": True}), await lab.text(**asked)]
        strata = lab.gateway.evidence()["strata"]
    assert twice == quiet
    assert [stratum["errors"] for stratum in strata] == [0]


async def test_engines_that_are_started_anew_under_load_cost_no_answer() -> None:
    """Twelve callers without a pause, while each engine goes away and comes back, twice: sessions that were cut off are
    opened again from what was said, by another target or by the next life of theirs."""
    async with stage(2) as lab:
        prompts = [[number % 7, number % 5] for number in range(12)]
        expected = [await lab.text(prompt=prompt, speculation={"off": True}) for prompt in prompts]
        done = asyncio.Event()
        answered = 0

        async def call(number: int) -> list[str]:
            nonlocal answered
            wrong = []
            while not done.is_set():
                text = await lab.text(prompt=prompts[number])
                answered += 1
                if text != expected[number]:
                    wrong.append(text)
            return wrong

        calls = [asyncio.create_task(call(number)) for number in range(len(prompts))]
        for machine in [*lab.targets, lab.draft] * 2:
            before = answered
            await until(lambda before=before: answered > before + 12)  # type: ignore[misc]
            await machine.stop()
            await asyncio.sleep(0.05)
            await machine.start()
        before = answered
        await until(lambda: answered > before + 12)
        done.set()
        wrong = await asyncio.gather(*calls)
        await until(lambda: lab.gateway.sessions == 0)
        strata = lab.gateway.evidence()["strata"]
    assert wrong == [[]] * len(prompts)
    assert [stratum["errors"] for stratum in strata] == [0]
    assert [machine.lives for machine in [*lab.targets, lab.draft]] == [3, 3, 3]
