"""`tandem-runtime gateway` as a process of its own, between a small Kubernetes API and engines on real sockets."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.seams.gateway_peers import ShiftedClock
from tests.seams.kube_api import config_map, kube_api, pod

from tandem_runtime.domain.tokens import Incarnation
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.model_folder import tokenizer_digest_of
from tandem_runtime.wire.roles import DraftRole, Role, TargetRole
from tandem_runtime.wire.server import EngineServer
from tandem_runtime.wire.tls import RoleTls

POLICY: dict[str, Any] = {
    "version": 1,
    "number": 3,
    "servedModelName": "chat",
    "salt": "uid",
    "revisions": [{"name": "r1", "target": "91ab02c4", "draft": "0be3fa77", "weight": 100}],
    "speculation": {"mode": "Always", "minDraftTokens": 3, "maxDraftTokens": 3},
    "control": {"offPercent": 0},
}


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """Its two ports, and what it has logged."""

    api: httpx.AsyncClient
    admin: httpx.AsyncClient
    log: Path

    async def until_ready(self) -> None:
        async with asyncio.timeout(60):
            while not await self._admits_both():
                await asyncio.sleep(0.05)

    async def complete(self, key: str = "none", **fields: Any) -> httpx.Response:
        body = {"model": "chat", "prompt": "b", "max_tokens": 16, "temperature": 0, **fields}
        return await self.api.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})

    async def metric(self, name: str) -> float:
        lines = (await self.admin.get("/metrics")).text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    async def _admits_both(self) -> bool:
        try:
            admitted = (await self.admin.get("/internal/evidence")).json()["admitted"]
        except httpx.TransportError:
            return False  # it is starting
        return bool(admitted["targets"] and admitted["drafts"])


@asynccontextmanager
async def pair_in_a_cluster(
    folder: Path, tokenizer: Path, *, addresses: tuple[str, str], tls: RoleTls | None = None
) -> AsyncIterator[Path]:
    """A kubeconfig for an API that knows a target and a draft, which serve at these addresses and port 8001."""
    facts = EngineFacts(
        model_digest="sha256:m", tokenizer_digest=tokenizer_digest_of(tokenizer), incarnation=Incarnation("life")
    )
    clock = ShiftedClock()
    async with AsyncExitStack() as stack:
        api, kubeconfig = await stack.enter_async_context(kube_api(folder))
        target = stack.enter_context(BatchedTarget(ScriptedModel(chain_logits), facts, clock=clock))
        draft = stack.enter_context(BatchedDraft(ScriptedModel(chain_logits), facts, clock=clock))
        roles: list[Role] = [TargetRole(target), DraftRole(draft)]
        for role, address in zip(roles, addresses, strict=True):
            await stack.enter_async_context(EngineServer(role, host=address, port=8001, tls=tls))
        await api.put("configmaps", config_map("chat-policy", **{"policy.json": json.dumps(POLICY)}))
        await api.put("pods", pod("t", role="target", role_hash="91ab02c4", ip=addresses[0]))
        await api.put("pods", pod("d", role="draft", role_hash="0be3fa77", ip=addresses[1]))
        yield kubeconfig


@asynccontextmanager
async def gateway_process(kubeconfig: Path, tokenizer: Path, *options: str) -> AsyncIterator[GatewayProcess]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, admin_port = one.getsockname()[1], other.getsockname()[1]
    command = [sys.executable, "-m", "tandem_runtime.main", "gateway", "--deployment", "chat", "--namespace", "llm"]
    command += ["--tokenizer", str(tokenizer), "--port", str(port), "--admin-port", str(admin_port), *options]
    log = kubeconfig.with_name("gateway.log")
    with log.open("wb") as written:
        child = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "KUBECONFIG": str(kubeconfig)}, stderr=written
        )
        try:
            async with (
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as api,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin_port}", timeout=30) as admin,
            ):
                yield GatewayProcess(api, admin, log)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
