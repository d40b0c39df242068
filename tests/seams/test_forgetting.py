"""What engines keep of a tenant's texts, and that it serves nobody once the tenant is to be forgotten."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from tests.seams.mounted_secret import MountedSecret
from tests.seams.port_words import SystemClock, facts, opening, plain
from tests.seams.role_certificates import RoleAuthority
from tests.seams.wire_peers import CAPABILITIES, QUICK, CountingTarget, connected, served

from tandem_runtime.domain.errors import TargetLost
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.domain.tokens import OpenSession, SessionId
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.ports import Remembering
from tandem_runtime.replicas import Pool, Replica
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.tls import RoleTls

LONG = tuple(token % 7 for token in range(64))
"""Four blocks."""


def asking(name: str, tenant: str, *, adapter: str | None = None) -> OpenSession:
    return opening(name, prompt=LONG, tenant=tenant, adapter=adapter)


@asynccontextmanager
async def target() -> AsyncIterator[BatchedTarget]:
    with BatchedTarget(ScriptedModel(chain_logits), facts(), clock=SystemClock()) as engine:
        for name, tenant in (("a", "mine"), ("b", "other")):
            await plain(engine, asking(name, tenant), 4)
            await engine.close(SessionId(name))
        yield engine


async def known(engine: BatchedTarget | RemoteTarget | BatchedDraft, tenant: str) -> int:
    """Tokens of the prompt that need no computing."""
    opened = await engine.open(asking("asks", tenant))
    await engine.close(SessionId("asks"))
    return opened.cached_tokens


async def test_a_forgotten_tenants_prefixes_are_computed_anew_and_others_are_not() -> None:
    async with target() as engine:
        before = [await known(engine, tenant) for tenant in ("mine", "other")]
        await engine.forget("mine")
        await engine.forget("nobody")
        after = [await known(engine, tenant) for tenant in ("mine", "other")]
    assert (before, after) == ([64, 64], [0, 64])


async def test_a_session_that_is_open_goes_on_and_leaves_nothing() -> None:
    async with target() as engine:
        whole = await plain(engine, asking("c", "other"), 12)
        await engine.close(SessionId("c"))
        begun = await plain(engine, asking("d", "mine"), 5)
        await engine.forget("mine")
        rest = await plain(engine, replace(asking("d", "mine"), output=tuple(begun)), 7)
        await engine.close(SessionId("d"))
        left = await known(engine, "mine")
        again = await plain(engine, asking("e", "mine"), 12)
        await engine.close(SessionId("e"))
        back = await known(engine, "mine")
    assert [*begun, *rest] == whole == again
    assert (left, back) == (0, 64)


async def test_pods_forget_over_their_links(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "tls", RoleAuthority().issue())
    tls = RoleTls(secret.folder)
    with BatchedDraft(ScriptedModel(chain_logits), facts(), clock=SystemClock()) as draft:
        async with (
            target() as engine,
            served(TargetRole(engine), tls=tls) as server,
            served(DraftRole(draft), tls=tls) as drafts,
            connected(RemoteTarget, server.port, tls=tls) as remote,
            connected(RemoteDraft, drafts.port, tls=tls) as guesser,
        ):
            assert isinstance(remote, Remembering)
            before = await known(remote, "mine")
            await asyncio.gather(remote.forget("mine"), guesser.forget("mine"))
            after = [await known(remote, tenant) for tenant in ("mine", "other")]
    assert (before, after) == (64, [0, 64])


async def test_a_pod_whose_engine_keeps_nothing_has_forgotten_already() -> None:
    async with served(TargetRole(CountingTarget())) as server, connected(RemoteTarget, server.port) as remote:
        await remote.forget("mine")


async def test_a_pod_that_is_away_for_a_moment_is_waited_for() -> None:
    async with target() as engine:
        async with served(TargetRole(engine)) as server:
            port = server.port
        async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote:
            forgetting = asyncio.create_task(remote.forget("mine"))
            async with served(TargetRole(engine), port=port):
                await forgetting
        assert await known(engine, "mine") == 0


class Slow(CountingTarget):
    """Never done with forgetting."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def forget(self, tenant: str) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_link_that_ends_meanwhile_is_an_error_and_no_cancelling() -> None:
    engine = Slow()
    async with served(TargetRole(engine)) as server, connected(RemoteTarget, server.port) as remote:
        forgetting = asyncio.create_task(remote.forget("mine"))
        await engine.asked.wait()
        await remote.__aexit__(None, None, None)
        with pytest.raises(TargetLost, match="before it was known to have forgotten"):
            await forgetting


async def test_a_pod_whose_link_breaks_while_it_forgets_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    slow, fleet = Slow(), Fleet(Pool(), Pool())
    async with target() as engine, served(TargetRole(slow)) as server:
        async with RemoteTarget(f"127.0.0.1:{server.port}", backoff=QUICK) as remote:
            with fleet.targets.holding(Replica("pod-uid", RoleHash("91ab02c4"), remote, CAPABILITIES)):
                forgetting = asyncio.create_task(fleet.forget("mine"))
                await slow.asked.wait()
                await server.__aexit__(None, None, None)
                async with served(TargetRole(engine), port=server.port):
                    await forgetting
        assert await known(engine, "mine") == 0
    assert "keeps what it computed" not in caplog.text


async def test_who_is_cancelled_while_a_pod_forgets_is_cancelled() -> None:
    engine = Slow()
    async with served(TargetRole(engine)) as server, connected(RemoteTarget, server.port) as remote:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await remote.forget("mine")


async def test_what_is_no_request_to_forget_is_refused() -> None:
    async with (
        served(TargetRole(CountingTarget())) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        forget = channel.unary_unary("/tandem.verify.v1.Target/Forget", bytes, bytes)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await forget(b"\xff")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
