"""Adapters over real engines and a real gateway: whose text it is, speculated or not, and whose memory is whose."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from tests.seams.adapter_folders import saved_adapter
from tests.seams.gateway_peers import Running, ShiftedClock, always, running_gateway, until
from tests.seams.model_folders import VOCAB, saved_reference
from tests.seams.test_adapters import loaded
from tests.seams.wire_peers import opening

from tandem_runtime.adapter_routes import adapter_routes
from tandem_runtime.admin import http_server
from tandem_runtime.domain.adapters import AdapterDigest, AdapterSource
from tandem_runtime.domain.errors import BadRequest, ModelRefused, NotLoaded, Overloaded
from tandem_runtime.domain.policy import ExactnessPolicy, PairRevision, RevisionName, Slice
from tandem_runtime.domain.tokens import Incarnation, OpenSession, Proposal, SessionId, TokenId, VerifyRound
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import TorchModel
from tandem_runtime.gateway.replays import ReplayLimits, Replays
from tandem_runtime.local import adapter_desk
from tandem_runtime.model_folder import ADAPTER_FILES

TABLE = [bytes([32 + token]) for token in range(VOCAB - 1)] + [b"zz"]
PROMPT = tuple(7 * at % VOCAB for at in range(40))
LIFE = Incarnation("life")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, adapters for it below `adapters`, and one elsewhere."""
    folder = tmp_path_factory.mktemp("served")
    weights = saved_reference(folder / "model", "LlamaForCausalLM").state_dict()
    saved_adapter(folder / "adapters" / "one", weights, seed=1)
    saved_adapter(folder / "adapters" / "two", weights, seed=2, target_modules=["q_proj", "up_proj"])
    saved_adapter(folder / "elsewhere", weights, seed=3)
    (folder / "adapters" / "link").symlink_to(folder / "elsewhere")
    return folder


def adapters_of(model: TorchModel, folders: Path, *names: str, most: int = 8, fixed: bool = False) -> Adapters:
    adapters = Adapters(model, most=most, folder=None if fixed else folders / "adapters")
    for name in names:
        adapters.put_in(name, adapters.read(name, folders / "adapters" / name))
    return adapters


@contextmanager
def target_over(folders: Path, *names: str, most: int = 8) -> Iterator[BatchedTarget]:
    model = loaded(folders / "model")
    adapters = adapters_of(model, folders, *names, most=most)
    facts = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE, adapters=adapters)
    with BatchedTarget(model, facts, clock=ShiftedClock()) as target:
        yield target


def asking(name: str, adapter: str | None, *, tenant: str | None = "us") -> OpenSession:
    return replace(opening(name, prompt=PROMPT), adapter=adapter, tenant=tenant, max_tokens=24)


async def said(target: BatchedTarget, name: str, *, start: int = 0, count: int = 12) -> list[TokenId]:
    """The next `count` tokens of an open session."""
    tokens: list[TokenId] = []
    for number in range(start, start + count):
        verdict = await target.verify(VerifyRound(SessionId(name), LIFE, number, number, Proposal()))
        tokens.append(verdict.token)
    return tokens


async def test_a_known_prefix_is_found_under_its_own_adapter_alone(folders: Path) -> None:
    with target_over(folders, "one", "two") as target:
        texts, cached = [], []
        for number, adapter in enumerate((None, "one", "two", None, "one", "two")):
            cached.append((await target.open(asking(f"s{number}", adapter))).cached_tokens)
            texts.append(await said(target, f"s{number}"))
            await target.close(SessionId(f"s{number}"))
        await target.open(asking("apart", "one", tenant=None))
        apart = await said(target, "apart")
    assert cached == [0, 0, 0, 32, 32, 32]
    assert texts[:3] == texts[3:]
    assert texts[1] == apart
    assert len({tuple(text) for text in texts}) == 3


async def test_a_session_opened_again_under_another_adapter_keeps_nothing_of_the_first(folders: Path) -> None:
    with target_over(folders, "one") as target:
        await target.open(asking("s", None))
        await said(target, "s")
        assert (await target.open(asking("s", "one"))).cached_tokens == 0
        again = await said(target, "s")
        await target.open(asking("fresh", "one", tenant=None))
        assert again == await said(target, "fresh")


async def test_a_session_whose_adapter_is_unloaded_goes_on_and_may_be_opened_again(folders: Path) -> None:
    with target_over(folders, "one", most=1) as target:
        assert target.adapters is not None
        [facts] = target.adapters.loaded
        await target.open(asking("whole", facts.digest))
        whole = await said(target, "whole", count=18)
        await target.close(SessionId("whole"))
        await target.open(asking("s", "one"))
        parts = await said(target, "s", count=6)
        await target.adapters.unload("one")
        parts += await said(target, "s", start=6, count=6)
        await target.open(replace(asking("s", facts.digest), output=tuple(parts)))
        assert parts + await said(target, "s", start=12, count=6) == whole
        for asked in ("one", facts.digest):
            with pytest.raises(NotLoaded, match="none is loaded"):
                await target.open(asking("late", asked))
        with pytest.raises(NotLoaded):
            await target.open(replace(asking("s", facts.digest), tenant="them"))
        uri = (folders / "adapters" / "two").as_uri()
        with pytest.raises(Overloaded, match="1 adapters are held"):
            await target.adapters.load("two", AdapterSource(uri))
        await target.close(SessionId("s"))
        assert (await target.adapters.load("two", AdapterSource(uri))).name == "two"
        assert (await target.capabilities()).adapters == target.adapters.loaded


async def test_places_outside_the_folder_are_refused_before_they_are_looked_at(folders: Path) -> None:
    outside = [
        folders.joinpath("elsewhere").as_uri(),
        f"{folders.joinpath('adapters').as_uri()}/../elsewhere",
        f"{folders.joinpath('adapters').as_uri()}/%2e%2e/elsewhere",
        folders.joinpath("adapters", "link").as_uri(),
        "file:///etc",
        "file:///",
        f"{folders}/adapters-and-more",
        "file://another/host",
        "http://localhost/adapters",
        "hf://some/adapter",
        "file://[",
        "file:///%00",
        f"{folders.joinpath('adapters', 'one').as_uri()}?x",
        "",
    ]
    with target_over(folders) as target:
        assert target.adapters is not None
        for uri in outside:
            with pytest.raises(BadRequest, match="uri = "):
                await target.adapters.load("one", AdapterSource(uri))
        with pytest.raises(ModelRefused, match=r"does not exist; name a folder with adapter_model\.safetensors"):
            await target.adapters.load("one", AdapterSource(folders.joinpath("adapters", "absent").as_uri()))
        (folders / "adapters" / "round").symlink_to(folders / "adapters" / "round")
        with pytest.raises(BadRequest, match=r"names no folder|does not lie below"):
            await target.adapters.load("one", AdapterSource(folders.joinpath("adapters", "round").as_uri()))
        with pytest.raises(ModelRefused, match="cannot be read: File name too long"):
            await target.adapters.load("one", AdapterSource(folders.joinpath("adapters", "x" * 300).as_uri()))
        half = folders / "adapters" / "half"
        half.mkdir()
        (half / "adapter_config.json").symlink_to(folders / "elsewhere" / "adapter_config.json")
        with pytest.raises(BadRequest, match=r"adapter_config\.json does not lie below"):
            await target.adapters.load("one", AdapterSource(half.as_uri()))
        with pytest.raises(BadRequest, match="adapter's name"):
            await target.adapters.load("a:b", AdapterSource(folders.joinpath("adapters", "one").as_uri()))
        assert target.adapters.loaded == ()


async def test_without_a_folder_nothing_comes_or_goes(folders: Path) -> None:
    model = loaded(folders / "model")
    fixed = adapters_of(model, folders, "one", fixed=True)
    facts = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE, adapters=fixed)
    with BatchedTarget(model, facts, clock=ShiftedClock()) as target:
        assert target.adapters is not None
        for change in (target.adapters.load("two", AdapterSource("file:///tmp")), target.adapters.unload("one")):
            with pytest.raises(BadRequest, match="--adapters-dir, and this server was started without it"):
                await change
        await target.open(asking("s", "one"))


@asynccontextmanager
async def gateway_over(folders: Path, *names: str) -> AsyncIterator[Running]:
    """A pair whose draft is the target's model without an adapter, so that some of its guesses are right."""
    model, draft = loaded(folders / "model"), loaded(folders / "model")
    adapters = adapters_of(model, folders, *names)
    async with running_gateway(model, draft, table=TABLE, speculation=always(4), adapters=adapters) as running:
        yield running


async def test_each_adapter_answers_alike_with_and_without_speculation(folders: Path) -> None:
    async with gateway_over(folders, "one", "two") as running:
        texts = []
        for model in ("chat", "chat:one", "chat:two"):
            asked: dict[str, Any] = {"model": model, "prompt": "a fox", "max_tokens": 24, "seed": 5, "temperature": 0.8}
            plain = await running.plain(**asked, speculation={"off": True})
            guessed = await asyncio.gather(*(running.plain(**asked) for _ in range(2)))
            assert [each["choices"] for each in guessed] == [plain["choices"]] * 2
            assert plain["model"] == model
            assert all(each["speculation"]["proposed"] for each in guessed)
            texts.append(plain["choices"][0]["text"])
    assert len(set(texts)) == 3


async def test_an_answer_with_an_adapter_is_replayed_with_it(folders: Path) -> None:
    async with gateway_over(folders, "one") as running:
        running.put_policy(exactness=ExactnessPolicy(10_000))
        limits = ReplayLimits(look_seconds=0.005, queue_seconds=60)
        running.gateway.replays = Replays(running.gateway.fleet.targets, clock=running.clock, limits=limits)
        for model in ("chat", "chat:one"):
            await running.plain(model=model, prompt="a fox", max_tokens=20, seed=3)
        replaying = asyncio.create_task(running.gateway.replays.run())
        await until(lambda: running.gateway.replays.waiting == 0)
        replaying.cancel()
        await asyncio.wait((replaying,))
        assert running.stratum()["exactness"]["equal"] == 2


async def test_models_are_listed_and_an_unknown_one_is_not_found(folders: Path) -> None:
    async with (
        gateway_over(folders, "one", "two") as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        listed = [model.id async for model in client.models.list()]
        for strange in ("chat:three", "chat:", ":one", "chat:one:two", "another:one", "another"):
            with pytest.raises(openai.NotFoundError) as refused:
                await client.completions.create(model=strange, prompt="a")
            assert refused.value.code == "model_not_found"
            assert "chat, chat:one, chat:two can be asked for" in refused.value.message
        answer = await client.completions.create(model="chat:two", prompt="a", max_tokens=4, stream=False)
        report = (answer.model_extra or {})["speculation"]
    assert listed == ["chat", "chat:one", "chat:two"]
    assert report["adapter"].startswith("sha256:")


async def test_adapters_come_and_go_by_the_admin_side_while_requests_run(folders: Path) -> None:
    async with gateway_over(folders) as running:
        routes = adapter_routes(lambda: adapter_desk(running.gateway.fleet))
        admin = Starlette(routes=routes)
        async with (
            http_server(admin, host="127.0.0.1", port=0) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        ):
            uri = folders.joinpath("adapters", "one").as_uri()
            put = await http.put("/adapters/one", json={"uri": uri})
            assert put.status_code == 200
            assert (await http.get("/adapters")).json() == {"adapters": [put.json()]}
            asked: dict[str, Any] = {"model": "chat:one", "prompt": "a fox", "max_tokens": 40, "seed": 5}
            whole = (await running.plain(**asked))["choices"][0]["text"]
            stream = running.stream(**asked)
            text = (await anext(stream))["choices"][0]["text"]
            assert (await http.delete("/adapters/one")).status_code == 204
            assert (await running.http.post("/v1/completions", json=asked)).status_code == 404
            text += "".join([event["choices"][0]["text"] async for event in stream if event["choices"]])
            assert text == whole
            assert (await http.get("/adapters")).json() == {"adapters": []}
            refused = {
                "again": await http.delete("/adapters/one"),
                "outside": await http.put("/adapters/one", json={"uri": "file:///etc"}),
                "no adapter": await http.put("/adapters/one", json={"uri": folders.joinpath("adapters").as_uri()}),
                "no uri": await http.put("/adapters/one", json={"url": uri}),
                "no json": await http.put("/adapters/one", content=b"\xff{"),
                "too long": await http.put("/adapters/one", content=b" " * 100_000),
            }
    assert {what: reply.status_code for what, reply in refused.items()} == {
        "again": 404,
        "outside": 400,
        "no adapter": 422,
        "no uri": 400,
        "no json": 400,
        "too long": 400,
    }
    assert all(list(reply.json()) == ["error"] for reply in refused.values())
    assert refused["no uri"].json()["error"] == 'uri: Field required; send {"uri": "file:///..."}'


async def test_a_name_means_what_the_policy_says_in_the_revision_that_a_request_falls_to(folders: Path) -> None:
    async with gateway_over(folders, "one", "two") as running:
        asked: dict[str, Any] = {"prompt": "a fox", "max_tokens": 24, "seed": 5}
        texts = {name: (await running.plain(model=f"chat:{name}", **asked))["choices"] for name in ("one", "two")}
        digests = running.gateway.fleet.targets.adapters(running.gateway.in_force.policy.revisions[0].target)  # type: ignore[union-attr]
        for name in ("one", "two"):
            policy = running.put_policy(revisions=told(running, {"legal": digests[name]}))
            answer = await running.plain(model="chat:legal", **asked)
            assert (answer["choices"], answer["model"]) == (texts[name], "chat:legal")
            assert answer["speculation"]["adapter"] == digests[name]
            assert running.gateway.models() == ("chat", "chat:legal")
        refused = await running.http.post("/v1/completions", json={"model": "chat:one", **asked})
        assert refused.status_code == 404
        (stable,) = policy.revisions
        canary = replace(stable, name=RevisionName("canary"), weight=0, adapters={"tax": digests["one"]})
        running.put_policy(revisions=(replace(stable, weight=0, speculate=False), replace(canary, weight=100)))
        answer = await running.plain(model="chat:tax", **asked)
        assert answer["choices"] == texts["one"]
        running.put_policy(revisions=(replace(stable, weight=100), replace(canary, weight=0)))
        missing = await running.http.post("/v1/completions", json={"model": "chat:tax", **asked})
        assert (missing.status_code, running.gateway.models()) == (404, ("chat", "chat:legal"))


def told(running: Running, adapters: dict[str, AdapterDigest]) -> tuple[PairRevision, ...]:
    policy = running.gateway.in_force.policy
    assert policy is not None
    return (replace(policy.revisions[0], adapters=adapters),)


async def test_a_name_of_the_other_revision_alone_is_refused_with_the_words_that_say_so(folders: Path) -> None:
    async with gateway_over(folders, "one") as running:
        (stable,) = told(running, {})
        digest = running.gateway.fleet.targets.adapters(stable.target)["one"]
        canary = replace(stable, name=RevisionName("canary"), weight=1, adapters={"tax": digest})
        running.put_policy(revisions=(replace(stable, weight=99), canary))
        assert running.gateway.models() == ("chat", "chat:tax")
        replies = [
            await running.http.post("/v1/completions", json={"model": "chat:tax", "prompt": "a", "max_tokens": 1})
            for _ in range(5)
        ]
        refused = next(reply for reply in replies if reply.status_code == 404)
        assert f"not served by revision {stable.name}, which this request falls to" in refused.text


async def test_a_request_counts_in_the_segment_of_its_adapter_and_decodes_plainly_where_that_is_asked(
    folders: Path,
) -> None:
    async with gateway_over(folders, "one", "two") as running:
        running.put_policy(segments=(Slice("first", adapter="one"), Slice("second", adapter="two")))
        for model in ("chat", "chat:one"):
            await running.plain(model=model, prompt="a fox", max_tokens=12, seed=3)
        counted = {name: sum(sums["examined"]) > 0 for name, sums in running.stratum()["segments"].items()}
        assert counted == {"first": True, "second": False}
        speculation = replace(always(4), plain=(Slice(adapter="one"),))
        running.put_policy(speculation=speculation)
        answers = [await running.plain(model=model, prompt="a fox", max_tokens=12) for model in ("chat:one", "chat")]
        assert [answer["speculation"]["proposed"] > 0 for answer in answers] == [False, True]


async def test_what_the_operator_loaded_is_asked_for_by_the_policys_names_alone(folders: Path) -> None:
    async with gateway_over(folders) as running:
        desk = adapter_desk(running.gateway.fleet)
        assert desk is not None
        facts = await desk.load("tandem.0123", AdapterSource(folders.joinpath("adapters", "one").as_uri()))
        assert running.gateway.models() == ("chat",)
        target = running.gateway.in_force.policy.revisions[0].target  # type: ignore[union-attr]
        assert running.gateway.evidence()["adapters"] == {target: {facts.digest: 1}}
        running.put_policy(revisions=told(running, {"legal": facts.digest}))
        assert running.gateway.models() == ("chat", "chat:legal")


async def test_a_repository_is_read_at_its_revision_and_what_was_downloaded_goes(folders: Path) -> None:
    asked, places = [], []

    def download(repository: str, revision: str | None, into: Path) -> None:
        asked.append((repository, revision))
        places.append(into)
        for name in ADAPTER_FILES:
            shutil.copy(folders / "adapters" / "one" / name, into)

    model = loaded(folders / "model")
    adapters = Adapters(model, download=download)
    facts = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE, adapters=adapters)
    with BatchedTarget(model, facts, clock=ShiftedClock()) as target:
        desk = target.adapters
        assert desk is not None
        source = AdapterSource("hf://acme/legal-lora", "c" * 40)
        first = await desk.load("legal", source)
        assert (await desk.load("legal", replace(source, digest=first.digest))) == first
        with pytest.raises(ModelRefused, match=rf"is {first.digest}, not sha256:other as asked"):
            await desk.load("legal", replace(source, digest="sha256:other"))
        assert desk.loaded == (first,)
        with pytest.raises(BadRequest, match="--adapters-dir, and this server was started without it"):
            await desk.load("legal", AdapterSource(folders.joinpath("adapters", "one").as_uri()))
        with pytest.raises(BadRequest, match="revision = 'main'"):
            await desk.load("legal", AdapterSource("file:///one", "main"))
        await desk.unload("legal")
        assert not desk.loaded
    assert asked == [("acme/legal-lora", "c" * 40)] * 3
    assert not any(place.exists() for place in places)


async def test_what_is_wrong_with_a_repository_is_told_in_the_same_words_each_time(folders: Path) -> None:
    adapters = Adapters(loaded(folders / "model"), download=lambda repository, revision, into: None)
    told = []
    for _ in range(2):
        with pytest.raises(ModelRefused) as refused:
            adapters.read_at("legal", AdapterSource("hf://acme/whole-model", "c" * 40))
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert told[0].startswith("hf://acme/whole-model is no adapter folder")


async def test_an_engine_that_takes_no_adapters_says_so() -> None:
    async with (
        http_server(Starlette(routes=adapter_routes(lambda: None)), host="127.0.0.1", port=0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        reply = await http.get("/adapters")
    assert (reply.status_code, "takes no adapters" in json.dumps(reply.json())) == (503, True)
