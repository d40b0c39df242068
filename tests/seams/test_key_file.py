"""A file of API keys that changes while a gateway serves: who is let in, whose work ends, and what is remembered."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message
from tests.seams.gateway_peers import Running, always, running_gateway, until
from tests.seams.mounted_secret import MountedSecret
from tests.seams.port_words import opening
from tests.seams.wire_peers import CAPABILITIES

from tandem_runtime.domain.policy import ExactnessPolicy, RoleHash
from tandem_runtime.domain.suffix import Owner
from tandem_runtime.domain.tokens import Drafter, SessionId, TokenId
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.app import Api
from tandem_runtime.gateway.failures import Unauthorized
from tandem_runtime.gateway.key_file import KeyFile
from tandem_runtime.gateway.keys import ApiKeys
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.local import Lookup
from tandem_runtime.replicas import Pool, Replica
from tandem_runtime.wire.client import RemoteTarget

TWO = "acme:first-secret\nbeta:second-secret\n"
LONG: dict[str, Any] = {"model": "chat", "prompt": "b", "max_tokens": 5000, "temperature": 0}


def slowed(prefix: tuple[TokenId, ...]) -> list[float]:
    """Long enough a step for keys to change within an answer."""
    time.sleep(0.002)
    return chain_logits(prefix)


@dataclass
class Heard:
    """What a listener was told."""

    gone: list[frozenset[str]] = field(default_factory=list)
    known: list[frozenset[str]] = field(default_factory=list)

    def keys_changed(self, *, gone: frozenset[str], known: frozenset[str]) -> None:
        self.gone.append(gone)
        self.known.append(known)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def opens(keys: KeyFile, key: str) -> bool:
    try:
        keys.tenant(f"Bearer {key}")
    except Unauthorized:
        return False
    return True


async def test_a_secret_that_the_kubelet_swaps_is_in_force_after_two_looks(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "auth", {"keys": TWO})
    keys, heard = KeyFile(secret.folder / "keys"), Heard()
    await keys.look(heard)
    secret.put({"keys": "beta:second-secret\ngamma:third-secret\n"})
    seen = []
    for _ in range(4):
        await keys.look(heard)
        seen.append([opens(keys, f"{which}-secret") for which in ("first", "second", "third")])
    assert seen == [[True, True, False], *[[False, True, True]] * 3]
    assert (heard.gone, heard.known) == ([frozenset({"acme"})], [frozenset({"beta", "gamma"})])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no key"),
        (b"# acme:first-secret\n", "holds no key"),
        (b"acme:first-secret\nbeta second-secret\n", "line 2 is not of the form `tenant:key`"),
        (b"acme:first-secret weight=much\n", "line 1: weight=much"),
        (b"acme:first-secret-\xe9\n", "byte 18 is not UTF-8"),
    ],
)
async def test_a_file_that_is_of_no_use_changes_nothing_and_says_so_without_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, says: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(TWO)
    keys, heard = KeyFile(path), Heard()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for _ in range(5):
        await keys.look(heard)
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert (keys.is_stale, len(told)) == (True, 1)
    assert says in told[0]
    assert opens(keys, "first-secret")
    assert opens(keys, "second-secret")
    path.write_text(TWO)
    for _ in range(2):
        await keys.look(heard)
    assert not keys.is_stale
    assert heard.gone == [frozenset()]
    assert "secret" not in caplog.text


async def test_half_a_file_revokes_nobody(tmp_path: Path) -> None:
    """As an editor leaves it for a moment that writes in place."""
    path = tmp_path / "keys"
    path.write_text(TWO)
    keys, heard = KeyFile(path), Heard()
    path.write_text("acme:first-secret\n")
    await keys.look(heard)
    path.write_text(TWO + "gamma:third-secret\n")
    for _ in range(2):
        await keys.look(heard)
    assert (heard.gone, heard.known) == ([frozenset()], [frozenset({"acme", "beta", "gamma"})])


async def test_a_fault_of_ours_does_not_end_the_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandem_runtime.gateway.key_file.LOOK_SECONDS", 0.01)
    path = tmp_path / "keys"
    path.write_text(TWO)
    keys, heard = KeyFile(path), Heard()

    class Broken:
        def keys_changed(self, *, gone: frozenset[str], known: frozenset[str]) -> None:
            heard.keys_changed(gone=gone, known=known)
            raise RuntimeError("first-secret")

    path.write_text("beta:second-secret\n")
    following = asyncio.create_task(keys.follow(Broken()))
    await until(lambda: len(heard.gone) == 1)
    path.write_text(TWO)
    await until(lambda: len(heard.gone) == 2)
    following.cancel()
    await asyncio.wait((following,))
    assert opens(keys, "first-secret")
    assert "RuntimeError at keys_changed" in caplog.text
    assert "secret" not in caplog.text


async def test_a_content_at_which_we_failed_is_tried_again_and_nothing_stays_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the machine has no thread left for a moment."""
    monkeypatch.setattr("tandem_runtime.gateway.key_file.LOOK_SECONDS", 0.01)
    path = tmp_path / "keys"
    path.write_text(TWO)
    keys, heard = KeyFile(path), Heard()
    really, failures = ApiKeys.from_bytes, iter(range(1))

    def fails_once(content: bytes, *, path: Path) -> ApiKeys:
        if next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        return really(content, path=path)

    monkeypatch.setattr(ApiKeys, "from_bytes", fails_once)
    path.write_text("beta:second-secret\n")
    following = asyncio.create_task(keys.follow(heard))
    await until(lambda: keys.is_stale)
    await until(lambda: not opens(keys, "first-secret"))
    await until(lambda: not keys.is_stale)
    following.cancel()
    await asyncio.wait((following,))
    assert heard.gone == [frozenset({"acme"})]


async def test_a_key_is_revoked_while_prompts_keep_all_shared_threads_busy(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(TWO)
    keys, heard, over = KeyFile(path), Heard(), threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    reading = asyncio.create_task(asyncio.to_thread(over.wait))
    await asyncio.sleep(0)
    path.write_text("beta:second-secret\n")
    try:
        async with asyncio.timeout(10):
            for _ in range(2):
                await keys.look(heard)
    finally:
        over.set()
        await reading
    assert not opens(keys, "first-secret")


@dataclass(frozen=True, slots=True)
class Followed:
    """A gateway whose keys stand in a file."""

    running: Running
    path: Path

    async def put(self, text: str, *, known: Callable[[], bool]) -> None:
        self.path.write_text(text)
        await until(known)

    async def stream_until_it_ends(self, key: str, **fields: Any) -> list[str]:
        """Lines of a stream, of which the first is awaited by `started`."""
        lines = []
        body = {**LONG, "stream": True, **fields}
        async with self.running.http.stream("POST", "/v1/completions", json=body, headers=bearer(key)) as reply:
            async for line in reply.aiter_lines():
                if line:
                    lines.append(line)
        return lines

    async def plain(self, key: str, **fields: Any) -> httpx.Response:
        return await self.running.http.post("/v1/completions", json={**LONG, **fields}, headers=bearer(key))


@asynccontextmanager
async def followed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, **more: Any) -> AsyncIterator[Followed]:
    monkeypatch.setattr("tandem_runtime.gateway.key_file.LOOK_SECONDS", 0.01)
    path = folder / "keys"
    path.write_text(text)
    keys = KeyFile(path)
    async with running_gateway(slowed, keys=keys, max_length=100_000, **more) as running:
        following = asyncio.create_task(keys.follow(running.gateway))
        try:
            yield Followed(running, path)
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def test_what_a_revoked_tenant_has_in_progress_ends_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with followed(tmp_path, monkeypatch, TWO) as gateway:
        running = gateway.running
        streamed = asyncio.create_task(gateway.stream_until_it_ends("first-secret"))
        plain = asyncio.create_task(gateway.plain("first-secret"))
        others = asyncio.create_task(gateway.stream_until_it_ends("second-secret", max_tokens=300))
        await until(lambda: running.gateway.sessions == 3)
        gateway.path.write_text("beta:second-secret\n")
        lines, reply = await streamed, await plain
        later = await gateway.plain("first-secret", max_tokens=1)
        untouched = await others
        errors = [one["errors"] for one in running.gateway.evidence()["strata"]]
        await until(lambda: running.gateway.sessions == 0)
    assert '"code": "invalid_api_key"' in lines[-1]
    assert "revoked" in lines[-1]
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert later.status_code == 401
    assert untouched[-1] == "data: [DONE]"
    assert errors == [0]


async def test_a_revoked_caller_who_reads_nothing_does_not_keep_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_runtime.gateway.serving.HANG_UP_SECONDS", 0.2)
    stuck, never = asyncio.Event(), asyncio.Event()
    authorization = (b"authorization", b"Bearer first-secret")
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [authorization]}
    parts = iter([{"type": "http.request", "body": json.dumps({**LONG, "stream": True}).encode(), "more_body": False}])

    async def receive() -> Message:
        part = next(parts, None)
        if part is None:
            await never.wait()
        return part or {}

    async def send(_: Message) -> None:
        stuck.set()
        await never.wait()

    async with followed(tmp_path, monkeypatch, TWO) as gateway:
        front = gateway.running.gateway
        app = Api(front, keys=KeyFile(gateway.path)).app()
        serving = asyncio.create_task(app(scope, receive, send))
        await stuck.wait()
        before = front.sessions
        gateway.path.write_text("beta:second-secret\n")
        async with asyncio.timeout(20):
            await serving
        assert (before, front.sessions) == (1, 0)


async def test_a_tenant_that_keeps_another_key_loses_neither_streams_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = Lookup(Drafter.SUFFIX)
    text = "acme:first-secret\nacme:new-secret\n"
    async with followed(tmp_path, monkeypatch, text, lookups=[lookup], speculation=always(2)) as gateway:
        (await gateway.plain("first-secret", max_tokens=20)).raise_for_status()
        streamed = asyncio.create_task(gateway.stream_until_it_ends("first-secret", max_tokens=400))
        await until(lambda: gateway.running.gateway.sessions == 1)
        gateway.path.write_text("acme:new-secret\n")
        async with asyncio.timeout(30):
            while (await gateway.plain("first-secret", max_tokens=1)).status_code != 401:
                await asyncio.sleep(0.01)
        kept = outputs(gateway.running, "acme")
        lines = await streamed
        renewed = await gateway.plain("new-secret", max_tokens=1)
    assert lines[-1] == "data: [DONE]"
    assert renewed.status_code == 200
    assert kept


async def test_what_lookups_kept_of_a_revoked_tenant_is_forgotten_its_running_answers_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = Lookup(Drafter.SUFFIX)
    async with followed(tmp_path, monkeypatch, TWO, lookups=[lookup], speculation=always(2)) as gateway:
        for key in ("first-secret", "second-secret"):
            (await gateway.plain(key, max_tokens=20)).raise_for_status()
        before = [outputs(gateway.running, tenant) for tenant in ("acme", "beta")]
        streamed = asyncio.create_task(gateway.stream_until_it_ends("first-secret"))
        await until(lambda: gateway.running.gateway.sessions == 1)
        await gateway.put("beta:second-secret\n", known=lambda: not outputs(gateway.running, "acme"))
        await streamed
        await until(lambda: gateway.running.gateway.sessions == 0)
        after = [outputs(gateway.running, tenant) for tenant in ("acme", "beta")]
    assert (before, after) == ([True, True], [False, True])


async def test_what_waits_of_a_revoked_tenant_to_be_made_again_is_dropped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = Lookup(Drafter.SUFFIX)
    async with followed(tmp_path, monkeypatch, TWO, lookups=[lookup], speculation=always(2)) as gateway:
        front = gateway.running.gateway
        gateway.running.put_policy(exactness=ExactnessPolicy(10_000))
        for key in ("first-secret", "second-secret", "first-secret"):
            (await gateway.plain(key, max_tokens=20)).raise_for_status()
        before = front.replays.waiting
        await gateway.put("beta:second-secret\n", known=lambda: bool(front._revoked))
        after = front.replays.waiting
        dropped = [stratum["exactness"]["dropped"] for stratum in front.evidence()["strata"]]
    assert (before, after, sum(dropped)) == (3, 1, 2)


async def test_what_engines_compute_of_a_tenant_for_nobody_to_read_is_forgotten_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup, prompt = Lookup(Drafter.SUFFIX), "abcdefg" * 8
    async with followed(tmp_path, monkeypatch, TWO, lookups=[lookup], speculation=always(2)) as gateway:
        front = gateway.running.gateway
        gateway.running.put_policy(exactness=ExactnessPolicy(10_000))
        (engine,) = [each.engine for each in front.fleet.targets]
        assert isinstance(engine, BatchedTarget)
        for key in ("first-secret", "second-secret"):
            (await gateway.plain(key, prompt=prompt, max_tokens=20)).raise_for_status()
        replaying = asyncio.create_task(front.replays.run())
        await until(lambda: front.replays.waiting == 0)
        replaying.cancel()
        asked = opening("s", prompt=tuple(range(7)) * 8)

        async def known(tenant: str) -> bool:
            opened = await engine.open(replace(asked, tenant=tenant))
            await engine.close(SessionId("s"))
            return opened.cached_tokens > 0

        owners = ("acme", "acme:aside", "beta:aside")
        before = [await known(each) for each in owners]
        await gateway.put("beta:second-secret\n", known=lambda: bool(front._revoked))
        await until(lambda: not front._forgetting)
        after = [await known(each) for each in owners]
    assert (before, after) == ([True, True, True], [False, False, True])


async def test_engines_forget_what_they_computed_for_a_revoked_tenant_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "abcdefg" * 8
    async with followed(tmp_path, monkeypatch, TWO) as gateway:
        (engine,) = [each.engine for each in gateway.running.gateway.fleet.targets]
        assert isinstance(engine, BatchedTarget)

        async def found(key: str) -> bool:
            """Whether a part of the prompt need not be computed."""
            before = engine.memory.cached_tokens
            while (await gateway.plain(key, prompt=prompt, max_tokens=1)).status_code != 200:
                await asyncio.sleep(0.01)
            return engine.memory.cached_tokens > before

        seen = [await found(key) for key in ("first-secret", "second-secret", "first-secret", "second-secret")]
        await gateway.put("beta:second-secret\n", known=lambda: bool(gateway.running.gateway._revoked))
        gateway.path.write_text(TWO)
        seen += [await found(key) for key in ("first-secret", "second-secret", "first-secret")]
    assert seen == [False, False, True, True, False, True, True]


async def test_a_pod_that_cannot_be_told_to_forget_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_runtime.gateway.seats.FORGET_SECONDS", 0.05)
    away = RemoteTarget("127.0.0.1:1")
    replica = Replica("pod-uid", RoleHash("91ab02c4"), away, CAPABILITIES)
    fleet = Fleet(Pool(), Pool())
    with fleet.targets.holding(replica):
        await fleet.forget("acme")
    assert "pod-uid keeps what it computed for a tenant whose keys were revoked" in caplog.text


async def test_a_request_whose_key_is_revoked_while_it_waits_is_refused_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(sessions=1, wait_seconds=30.0)
    async with followed(tmp_path, monkeypatch, TWO, limits=limits) as gateway:
        front = gateway.running.gateway
        first = asyncio.create_task(gateway.plain("second-secret", max_tokens=400))
        await until(lambda: front.sessions == 1)
        waiting = asyncio.create_task(gateway.plain("first-secret"))
        await until(lambda: front.waiting == 1)
        gateway.path.write_text("beta:second-secret\n")
        seen = [(await first).status_code, (await waiting).status_code]
        gateway.path.write_text(TWO)
        async with asyncio.timeout(30):
            while (back := await gateway.plain("first-secret", max_tokens=1)).status_code == 401:
                await asyncio.sleep(0.01)
    assert seen == [200, 401]
    assert back.status_code == 200


def outputs(running: Running, tenant: str) -> bool:
    """Whether a lookup keeps any of the tenant's outputs."""
    lookups = [replica.engine for replica in running.gateway.fleet.drafts if isinstance(replica.engine, LookupDraft)]
    return any(lookup.earlier.of(Owner(tenant)) for lookup in lookups)
