"""Pods found through the API, real links to real engines, and what happens to requests when pods come and go."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import LETTERS, Running, ShiftedClock, always, local, until
from tests.seams.kube_api import KubeApi, kube_api, pod

from tandem_runtime.admin import http_server
from tandem_runtime.cluster import connect, follow
from tandem_runtime.discovery import Discovery, EnginePod, Role, pod_selection, read_pod
from tandem_runtime.domain.evidence import Ledger
from tandem_runtime.domain.policy import ControlPolicy, PairRevision, Policy, RevisionName, RoleHash
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.app import Api
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.gateway.serving import Books, Gateway
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.replicas import Pool
from tandem_runtime.telemetry import Metrics
from tandem_runtime.testing import TableTokenizer
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.server import EngineServer

TARGET, DRAFT = RoleHash("91ab02c4"), RoleHash("0be3fa77")
ADDRESSES = {"t1": "127.0.0.11", "t2": "127.0.0.12", "d1": "127.0.0.21"}
LONG: dict[str, Any] = {"prompt": "b", "max_tokens": 120, "temperature": 0}
POLICY = Policy(
    number=1,
    served_model_name="chat",
    salt="uid",
    revisions=(PairRevision(RevisionName("r1"), TARGET, DRAFT, 100),),
    speculation=always(3),
    control=ControlPolicy(off_percent=0),
)


@dataclass
class Pods:
    """Engine processes at loopback addresses of their own, as pods have them, all on one port."""

    api: KubeApi
    port: int
    clock: ShiftedClock
    running: dict[str, AsyncExitStack] = field(default_factory=dict)
    servers: dict[str, EngineServer] = field(default_factory=dict)

    async def start(self, name: str, *, ready: bool = True) -> None:
        stack = self.running[name] = AsyncExitStack()
        model = local(slowed, name)
        if name.startswith("t"):
            role: TargetRole | DraftRole = TargetRole(
                stack.enter_context(BatchedTarget(model.model, model.facts, clock=self.clock))
            )
        else:
            role = DraftRole(stack.enter_context(BatchedDraft(model.model, model.facts, clock=self.clock)))
        server = await stack.enter_async_context(EngineServer(role, host=ADDRESSES[name], port=self.port))
        self.servers[name], self.port = server, server.port
        await self.tell(name, ready=ready)

    async def tell(self, name: str, *, ready: bool = True, deleted: bool = False) -> None:
        role, role_hash = ("target", TARGET) if name.startswith("t") else ("draft", DRAFT)
        item = pod(name, role=role, role_hash=role_hash, ip=ADDRESSES[name], ready=ready, deleted=deleted)
        await self.api.put("pods", item)

    async def kill(self, name: str) -> None:
        await self.running.pop(name).aclose()


def slowed(prefix: tuple[TokenId, ...]) -> list[float]:
    """Long enough a step for a pod to die within a stream."""
    time.sleep(0.003)
    return chain_logits(prefix)


def gateway_over(fleet: Fleet, clock: ShiftedClock) -> Gateway:
    return Gateway(
        tokenizer=TableTokenizer(LETTERS),
        in_force=PolicyInForce(POLICY),
        fleet=fleet,
        books=Books(Ledger(boot="boot"), Metrics()),
        clock=clock,
        limits=Limits(),
    )


@contextmanager
def cancelled_after(task: "asyncio.Task[None]") -> Iterator[None]:
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Pods, Running]]:
    clock = ShiftedClock()
    async with AsyncExitStack() as stack:
        api, kubeconfig = await stack.enter_async_context(kube_api(folder))
        client = await stack.enter_async_context(connect(kubeconfig))
        pods = Pods(api, 0, clock)
        await pods.start("t1", ready=False)
        fleet = Fleet(Pool(), Pool())
        discovery = Discovery(fleet, tokenizer_digest="sha256:table", port=pods.port)
        selection = pod_selection(deployment="chat", namespace="llm")
        finding = asyncio.create_task(discovery.run(partial(follow, client), selection))
        gateway = gateway_over(fleet, clock)
        port = await stack.enter_async_context(http_server(Api(gateway).app(), host="127.0.0.1", port=0))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30))
        stack.enter_context(cancelled_after(finding))
        try:
            yield pods, Running(f"http://127.0.0.1:{port}", gateway, http, clock)
        finally:
            for name in list(pods.running):
                await pods.kill(name)


def admitted(running: Running) -> dict[str, dict[str, int]]:
    return {role: dict(counts) for role, counts in running.gateway.evidence()["admitted"].items()}


async def test_pods_are_used_once_they_are_ready_and_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (pods, running):
        await until(lambda: len(pods.api.requests) >= 2)
        assert admitted(running) == {"targets": {}, "drafts": {}}
        assert running.gateway.trouble() == "no target pod of a revision with a weight is ready"
        await pods.tell("t1")
        await until(lambda: admitted(running)["targets"] == {TARGET: 1})
        alone = await running.plain(**LONG)
        await pods.start("d1")
        await until(lambda: admitted(running) == {"targets": {TARGET: 1}, "drafts": {DRAFT: 1}})
        paired = await running.plain(**LONG)
    assert (alone["speculation"]["proposed"], paired["speculation"]["proposed"] > 0) == (0, True)
    assert alone["choices"] == paired["choices"]


async def test_a_target_that_dies_within_a_stream_is_replaced_and_the_text_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (pods, running):
        await pods.tell("t1")
        await until(lambda: admitted(running)["targets"] == {TARGET: 1})
        quiet = (await running.plain(**LONG))["choices"][0]["text"]
        await pods.start("t2")
        await until(lambda: admitted(running)["targets"] == {TARGET: 2})
        text, killed = "", False
        async for event in running.stream(**LONG):
            text += event["choices"][0]["text"]
            if len(text) > 20 and not killed:
                killed = True
                (serving,) = [replica.uid for replica in running.gateway.fleet.targets if replica.sessions]
                await pods.kill(serving.removeprefix("uid-"))
        await until(lambda: admitted(running)["targets"] == {TARGET: 1})
        stratum = running.stratum()
    assert killed
    assert text == quiet
    assert (stratum["requests"], stratum["errors"]) == (2, 0)


async def test_a_lost_target_without_another_is_an_error_in_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_runtime.gateway.seats.REOPEN_SECONDS", 0.2)
    async with cluster(tmp_path) as (pods, running):
        await pods.tell("t1")
        await until(lambda: admitted(running)["targets"] == {TARGET: 1})
        events = []
        async for event in running.stream(**LONG):
            events.append(event)
            if len(events) == 5:
                await pods.kill("t1")
        refused = await running.http.post("/v1/completions", json={"model": "chat", **LONG})
        stratum = running.stratum()
    assert [("error" in event) for event in events[-2:]] == [False, True]
    assert events[-1]["error"]["code"] == "target_unavailable"
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert (stratum["requests"], stratum["errors"]) == (2, 2)


async def test_a_draft_pod_that_dies_within_a_stream_changes_no_text(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (pods, running):
        await pods.tell("t1")
        await pods.start("d1")
        await until(lambda: admitted(running) == {"targets": {TARGET: 1}, "drafts": {DRAFT: 1}})
        quiet = (await running.plain(**LONG, speculation={"off": True}))["choices"][0]["text"]
        text, pieces = "", []
        async for event in running.stream(**LONG):
            pieces.append(event["choices"][0]["text"])
            text += pieces[-1]
            if len(pieces) == 5:
                await pods.kill("d1")
        assert running.gateway.ready
        errors = running.stratum()["errors"]
    assert text == quiet
    assert len(pieces[1]) == 4
    assert len(pieces[-2]) == 1
    assert errors == 0


async def test_a_target_that_drains_before_anyone_told_is_passed_over(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (pods, running):
        await pods.tell("t1")
        await until(lambda: admitted(running)["targets"] == {TARGET: 1})
        async for event in running.stream(**LONG):
            if pods.servers["t1"].refusal is not None:
                continue
            draining = asyncio.create_task(pods.servers["t1"].drain(grace_seconds=60))
            await until(lambda: pods.servers["t1"].refusal is not None)
            waiting = asyncio.create_task(running.plain(**{**LONG, "max_tokens": 2}))
            await until(lambda: running.gateway.waiting == 1)
            await pods.start("t2")
            await until(lambda: admitted(running)["targets"] == {TARGET: 2})
            served = [await running.plain(**{**LONG, "max_tokens": 2}) for _ in range(3)]
            assert "error" not in event
        await draining
    assert {reply["choices"][0]["text"] for reply in (*served, await waiting)} == {"fd"}


async def test_a_pod_under_deletion_gets_nothing_new_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (pods, running):
        await pods.tell("t1")
        await until(lambda: admitted(running)["targets"] == {TARGET: 1})
        quiet = (await running.plain(**LONG))["choices"][0]["text"]
        text, told = "", False
        async for event in running.stream(**LONG):
            text += event["choices"][0]["text"]
            if not told:
                told = True
                await pods.tell("t1", deleted=True)
                await until(lambda: admitted(running)["targets"] == {})
        assert text == quiet
        await pods.api.delete("pods", "t1")
        await until(lambda: not list(running.gateway.fleet.targets))


async def test_a_pod_with_another_tokenizer_stays_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with kube_api(tmp_path) as (api, kubeconfig), connect(kubeconfig) as client:
        pods = Pods(api, 0, ShiftedClock())
        await pods.start("t1")
        fleet = Fleet(Pool(), Pool())
        discovery = Discovery(fleet, tokenizer_digest="sha256:other", port=pods.port)
        selection = pod_selection(deployment="chat", namespace="llm")
        with cancelled_after(asyncio.create_task(discovery.run(partial(follow, client), selection))):
            await until(lambda: "stays out: its tokenizer is sha256:table" in caplog.text)
            assert fleet.targets.admitted() == {}
        await pods.kill("t1")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, EnginePod("uid-t1", Role.TARGET, TARGET, "10.0.0.1", 1767225600.0, draining=False)),
        ({"ready": False}, EnginePod("uid-t1", Role.TARGET, TARGET, "10.0.0.1", None, draining=False)),
        ({"deleted": True}, EnginePod("uid-t1", Role.TARGET, TARGET, "10.0.0.1", 1767225600.0, draining=True)),
        ({"ip": ""}, None),
        ({"role": "gateway"}, None),
        ({"role_hash": ""}, None),
    ],
)
def test_a_pod_is_read_from_the_apis_json(change: dict[str, object], expected: EnginePod | None) -> None:
    fields: dict[str, object] = {"role": "target", "role_hash": TARGET, "ip": "10.0.0.1", **change}
    assert read_pod(pod("t1", **fields)) == expected  # type: ignore[arg-type]
