"""The operator tells target pods of adapters as they want to be told, and gateways as they read it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from tests.domain.simulated_specs import BASE, changed
from tests.scenarios.operator_stage import Stage
from tests.seams.adapter_folders import saved_adapter
from tests.seams.gateway_peers import ShiftedClock
from tests.seams.model_folders import saved_reference
from tests.seams.test_adapters import loaded

from tandem_operator import telemetry
from tandem_operator.domain import lora, record
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.samples import Document
from tandem_operator.ports import Kind
from tandem_operator.telemetry import PodTelemetry
from tandem_runtime.adapter_routes import adapter_routes
from tandem_runtime.admin import http_server
from tandem_runtime.domain.adapters import OF_THE_OPERATOR, AdapterSource, refuse_bad_name
from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.evidence import Ledger
from tandem_runtime.domain.policy import parse_policy
from tandem_runtime.domain.tokens import Incarnation
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import AdapterDesk

HOST = "127.0.0.1"
CONTENT = "0123456789abcdef"


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdapterDesk]:
    """A real engine behind the admin routes of a target pod."""
    weights = saved_reference(tmp_path / "model", "LlamaForCausalLM").state_dict()
    saved_adapter(tmp_path / "adapters" / "one", weights, seed=1)
    model = loaded(tmp_path / "model")
    adapters = Adapters(model, folder=tmp_path / "adapters")
    facts = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"), adapters=adapters)
    with BatchedTarget(model, facts, clock=ShiftedClock()) as target:
        app = Starlette(routes=adapter_routes(lambda: target.adapters))
        async with http_server(app, host=HOST, port=0) as port:
            monkeypatch.setattr(telemetry, "ADMIN_PORT", port)
            assert target.adapters is not None
            yield target.adapters


async def test_a_target_loads_and_lets_go_what_the_operator_says(desk: AdapterDesk, tmp_path: Path) -> None:
    source = {"uri": (tmp_path / "adapters" / "one").as_uri()}
    async with aiohttp.ClientSession() as session:
        pods = PodTelemetry(session)
        assert await pods.adapters(HOST) == {}
        assert await pods.load_adapter(HOST, CONTENT, source) is None
        [facts] = desk.loaded
        assert facts.name == f"{OF_THE_OPERATOR}{CONTENT}"
        await desk.load("by-hand", AdapterSource(source["uri"]))
        assert await pods.adapters(HOST) == {CONTENT: facts.digest}
        assert await pods.load_adapter(HOST, CONTENT, {**source, "digest": facts.digest}) is None
        refused = await pods.load_adapter(HOST, CONTENT, {**source, "digest": "sha256:other"})
        assert refused is not None
        assert f"is {facts.digest}, not sha256:other as asked" in refused
        assert "does not lie below" in str(await pods.load_adapter(HOST, CONTENT, {"uri": "file:///etc"}))
        assert "give file:///PATH" in str(await pods.load_adapter(HOST, CONTENT, {"uri": "hf://a/b"}))
        assert [await pods.unload_adapter(HOST, CONTENT) for _ in range(2)] == [None, None]
        assert [facts.name for facts in desk.loaded] == ["by-hand"]


async def test_a_pod_that_does_not_answer_is_no_pod_without_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "ADMIN_PORT", 1)
    async with aiohttp.ClientSession() as session:
        pods = PodTelemetry(session)
        assert await pods.adapters(HOST) is None
        assert "does not answer" in str(await pods.load_adapter(HOST, CONTENT, {"uri": "file:///a"}))


async def test_an_engine_that_takes_no_adapters_is_heard_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Starlette(routes=adapter_routes(lambda: None))
    async with http_server(app, host=HOST, port=0) as port, aiohttp.ClientSession() as session:
        monkeypatch.setattr(telemetry, "ADMIN_PORT", port)
        pods = PodTelemetry(session)
        assert await pods.adapters(HOST) is None
        assert "this engine takes no adapters" in str(await pods.load_adapter(HOST, CONTENT, {"uri": "file:///a"}))
        monkeypatch.setattr(telemetry, "OURS", "no/such/path/")
        assert await pods.load_adapter(HOST, CONTENT, {"uri": "file:///a"}) == "it answered 404"


async def test_gateways_read_what_the_operator_says_of_adapters() -> None:
    spec = changed(
        BASE,
        adapters=[{"name": "legal", "model": {"uri": "file:///srv/one"}}],
        target__adaptersFolder="/srv",
    )
    stage = Stage(spec)
    stage.telemetry.folders = {"file:///srv/one": "sha256:one"}
    await stage.settle()
    document = stage.cluster.objects[Kind.CONFIG_MAP, "llm", "chat-policy"]["data"]["policy.json"]
    (revision,) = parse_policy(document).revisions
    assert revision.adapters == {"legal": "sha256:one"}


def test_the_operator_reads_which_adapters_a_gateway_reaches() -> None:
    adapters = {"91ab02c4": {"sha256:one": 2}}
    written = Ledger(boot="b").document(wall=0.0, policy=1, admitted={}, serving=True, adapters=adapters)
    read = record.read(Document, json.dumps(written))
    assert read.adapters == adapters
    without = Ledger(boot="b").document(wall=0.0, policy=1, admitted={}, serving=True, adapters={})
    assert "adapters" not in without


@pytest.mark.parametrize("name", ["a", "A.b_c-d", "9" * 63, "", "9" * 64, "a:b", "-a", "ä", "a/b", ".a"])
def test_both_sides_take_the_same_names(name: str) -> None:
    adapter: Any = {"name": name, "model": {"uri": "hf://a/b", "revision": "0" * 40}}
    assert _refused(lambda: refuse_bad_name(name)) == _refused(
        lambda: lora.refuse((lora.Adapter(name=name, model=lora.AdapterModel(**adapter["model"])),), None)
    )


def _refused(check: Any) -> bool:
    try:
        check()
    except (BadRequest, SpecError):
        return True
    return False
