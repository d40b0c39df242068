"""The cluster's gateway put together: policy and pods from the API, real links, requests, evidence, and its end."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from tests.seams.gateway_peers import ShiftedClock, until
from tests.seams.gateway_process import POLICY
from tests.seams.kube_api import config_map, kube_api, pod
from tests.seams.tokenizer_folders import letters_folder

from tandem_runtime.cluster_gateway import GatewayOptions, serve_cluster_gateway
from tandem_runtime.domain.tokens import Incarnation
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.server import Listening, Ports
from tandem_runtime.model_folder import tokenizer_digest_of
from tandem_runtime.replicas import WARM_AFTER_SECONDS
from tandem_runtime.sources import FromCluster
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.server import EngineServer

TARGET_IP, DRAFT_IP = "127.0.0.31", "127.0.0.32"  # addresses of their own, since the port is always 8001


async def start_engines(stack: AsyncExitStack, clock: ShiftedClock, tokenizer_digest: str) -> None:
    facts = EngineFacts(model_digest="sha256:m", tokenizer_digest=tokenizer_digest, incarnation=Incarnation("life"))
    target = stack.enter_context(BatchedTarget(ScriptedModel(chain_logits), facts, clock=clock))
    draft = stack.enter_context(BatchedDraft(ScriptedModel(chain_logits), facts, clock=clock))
    await stack.enter_async_context(EngineServer(TargetRole(target), host=TARGET_IP, port=8001))
    await stack.enter_async_context(EngineServer(DraftRole(draft), host=DRAFT_IP, port=8001))


async def test_a_gateway_serves_what_policy_and_pods_say_and_drains_when_told(tmp_path: Path) -> None:
    clock = ShiftedClock()
    folder = letters_folder(tmp_path / "model")
    ending, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with AsyncExitStack() as stack:
        api, kubeconfig = await stack.enter_async_context(kube_api(tmp_path))
        await start_engines(stack, clock, tokenizer_digest_of(folder))
        options = GatewayOptions(
            source=FromCluster("chat", "llm", kubeconfig),
            tokenizer=folder,
            auth_file=None,
            limits=Limits(),
            listening=Listening(host="127.0.0.1", port=0, admin_port=0, notice_seconds=0.2, grace_seconds=5),
        )
        serving = asyncio.create_task(serve_cluster_gateway(options, clock=clock, ending=ending, started=started))
        ports: Ports = await started
        admin = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.admin}"))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.api}"))

        async def evidence() -> dict[str, Any]:
            return dict((await admin.get("/internal/evidence")).json())

        early = await admin.get("/readyz")
        await api.put("configmaps", config_map("chat-policy", **{"policy.json": json.dumps(POLICY)}))
        await api.put("pods", pod("t", role="target", role_hash="91ab02c4", ip=TARGET_IP))
        await api.put("pods", pod("d", role="draft", role_hash="0be3fa77", ip=DRAFT_IP))
        async with asyncio.timeout(30):
            while (await evidence())["admitted"] != {"targets": {"91ab02c4": 1}, "drafts": {"0be3fa77": 1}}:
                await asyncio.sleep(0.02)
        ready = await admin.get("/readyz")
        body = {"model": "chat", "prompt": "b", "max_tokens": 16, "temperature": 0}
        await http.post("/v1/completions", json=body)
        clock.shift += WARM_AFTER_SECONDS
        reply = (await http.post("/v1/completions", json=body)).json()
        told = await evidence()
        ending.set()
        await until(serving.done)
        await serving
    assert (early.status_code, early.text) == (503, "there is no policy yet\n")
    assert ready.status_code == 200
    assert reply["choices"][0]["text"] == "fdbcdacedcfdbcda"
    assert (reply["speculation"]["revision"], reply["speculation"]["accepted"]) == ("r1", 12)
    assert (told["policy"], told["serving"]) == (3, True)
    assert [(one["policy"], one["revision"], one["requests"]) for one in told["strata"]] == [(3, "r1", 2)]
    assert [one["emitted"] for one in told["strata"]] == [16]  # of the first, this gateway learnt what the pods cost
