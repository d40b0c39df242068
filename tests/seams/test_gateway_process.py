"""The cluster's gateway as a process: keys that change in a mounted Secret while it serves."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.seams.gateway_process import gateway_process, pair_in_a_cluster
from tests.seams.mounted_secret import MountedSecret
from tests.seams.tokenizer_folders import letters_folder

ADDRESSES = ("127.0.0.33", "127.0.0.34")
TWO = "acme:first-secret\nbeta:second-secret\n"


async def seconds_until(condition: Callable[[], Awaitable[bool]]) -> float:
    began = time.monotonic()
    async with asyncio.timeout(30):
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
