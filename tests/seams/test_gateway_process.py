"""Roles as processes with what is mounted into their pods: keys that change, and certificates."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from tests.seams.gateway_process import gateway_process, pair_in_a_cluster
from tests.seams.mounted_secret import MountedSecret
from tests.seams.role_certificates import RoleAuthority, written
from tests.seams.tokenizer_folders import letters_folder
from tests.seams.wire_peers import QUICK, opening, verify

from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.tls import RoleTls

ADDRESSES = ("127.0.0.33", "127.0.0.34")
SCRIPT = "scripted:tandem_runtime.engines.scripted:chain_logits"
TWO = "acme:first-secret\nbeta:second-secret\n"


async def seconds_until(condition: Callable[[], Awaitable[bool]]) -> float:
    began = time.monotonic()
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_a_key_that_leaves_a_mounted_secret_is_refused_within_five_seconds(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "model")
    secret = MountedSecret(tmp_path / "auth", {"keys": TWO})
    options = ("--auth-file", str(secret.folder / "keys"))
    async with (
        pair_in_a_cluster(tmp_path, folder, addresses=ADDRESSES) as kubeconfig,
        gateway_process(kubeconfig, folder, *options) as gateway,
    ):
        await gateway.until_ready()

        async def statuses() -> list[int]:
            return [(await gateway.complete(f"{which}-secret")).status_code for which in ("first", "second")]

        async def first_is_refused() -> bool:
            return await statuses() == [401, 200]

        async def both_are_served() -> bool:
            return await statuses() == [200, 200]

        async def keys_are_stale() -> bool:
            return await gateway.metric("tandem_api_keys_stale") == 1

        assert await both_are_served()
        assert not await keys_are_stale()
        secret.put({"keys": "beta:second-secret\n"})
        revoked_after = await seconds_until(first_is_refused)
        secret.put({"keys": "acme first-secret\n"})
        await seconds_until(keys_are_stale)
        assert await first_is_refused()
        secret.put({"keys": TWO})
        await seconds_until(both_are_served)
        assert not await keys_are_stale()
    assert revoked_after < 5
    log = gateway.log.read_text()
    assert "API keys read anew tenants=1 revoked=1" in log
    assert "API keys stay as they were" in log
    assert "first-secret" not in log


async def test_a_gateway_and_engines_speak_tls_and_the_text_is_the_same(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "model")
    authority = RoleAuthority()
    engines, front = (MountedSecret(tmp_path / who, authority.issue()) for who in ("engines", "front"))
    texts: list[tuple[str, bool]] = []
    for tls, options in ((None, ()), (RoleTls(engines.folder), ("--role-tls", str(front.folder)))):
        (place := tmp_path / f"place{len(texts)}").mkdir()
        async with (
            pair_in_a_cluster(place, folder, addresses=ADDRESSES, tls=tls) as kubeconfig,
            gateway_process(kubeconfig, folder, *options) as gateway,
        ):
            await gateway.until_ready()
            reply = (await gateway.complete()).json()
            texts.append((reply["choices"][0]["text"], reply["speculation"]["accepted"] > 0))
    assert texts == [("fdbcdacedcfdbcda", True)] * 2


async def test_a_gateway_without_a_certificate_reaches_no_engine_that_wants_one_and_says_why(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "model")
    tls = RoleTls(written(tmp_path / "engines", RoleAuthority().issue()))
    async with (
        pair_in_a_cluster(tmp_path, folder, addresses=ADDRESSES, tls=tls) as kubeconfig,
        gateway_process(kubeconfig, folder) as gateway,
    ):

        async def it_has_said_why() -> bool:
            return "if the other end speaks TLS, this one needs --role-tls too" in gateway.log.read_text()

        await seconds_until(it_has_said_why)
        refused = await gateway.complete()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "target_unavailable")


async def test_a_target_process_serves_roles_over_tls_and_nobody_else(tmp_path: Path) -> None:
    authority = RoleAuthority()
    ours = RoleTls(written(tmp_path / "ours", authority.issue()))
    command = [sys.executable, "-m", "tandem_runtime.main", "target", "--model", SCRIPT, "--host", ADDRESSES[0]]
    command += [
        "--port",
        "8001",
        "--admin-port",
        "8002",
        "--role-tls",
        str(written(tmp_path / "its", authority.issue())),
    ]
    address = f"{ADDRESSES[0]}:8001"
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with (
            RemoteTarget(address, backoff=QUICK, tls=ours) as remote,
            RemoteTarget(address, backoff=QUICK) as stranger,
            httpx.AsyncClient() as kubelet,
        ):
            await remote.wait_connected()
            verdict = await remote.verify(verify(await remote.open(opening()), "s"))
            ready = await kubelet.get(f"http://{ADDRESSES[0]}:8002/readyz")
            assert not stranger.connected
    finally:
        child.terminate()
        ended = await child.wait()
    assert (verdict.offset, ready.status_code, ended) == (0, 200, 0)
