"""The policy's ConfigMap, followed through an API that fails in every way we know."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.seams.gateway_peers import until
from tests.seams.kube_api import KubeApi, config_map, kube_api

from tandem_runtime import cluster
from tandem_runtime.cluster import connect, follow
from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.policy import PolicyInForce, follow_policy, policy_selection


def document(number: int, **changes: Any) -> str:
    revision = {"name": "r", "target": "t", "draft": None, "weight": 100}
    policy = {"version": 1, "number": number, "servedModelName": "chat", "salt": "uid", "revisions": [revision]}
    return json.dumps({**policy, **changes})


@asynccontextmanager
async def followed(folder: Path) -> AsyncIterator[tuple[KubeApi, PolicyInForce]]:
    in_force = PolicyInForce()
    selection = policy_selection(deployment="chat", namespace="llm")
    async with kube_api(folder) as (api, kubeconfig), connect(kubeconfig) as client:
        following = asyncio.create_task(follow_policy(in_force, partial(follow, client), selection))
        try:
            yield api, in_force
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def put(api: KubeApi, text: str) -> None:
    await api.put("configmaps", config_map("chat-policy", **{"policy.json": text}))


def number(in_force: PolicyInForce) -> int | None:
    return None if in_force.policy is None else in_force.policy.number


async def test_a_policy_is_in_force_as_soon_as_it_is_written(tmp_path: Path) -> None:
    async with followed(tmp_path) as (api, in_force):
        await until(lambda: len(api.requests) == 2)  # a list of nothing, and a watch
        await put(api, document(1))
        await until(lambda: number(in_force) == 1)
        await api.put("configmaps", config_map("other-policy", **{"policy.json": document(9)}))
        await put(api, document(2))
        await until(lambda: number(in_force) == 2)
    assert all("fieldSelector=metadata.name%3Dchat-policy" in request for request in api.requests)


async def test_a_wrong_policy_leaves_the_last_good_one_in_force_and_is_reported(tmp_path: Path) -> None:
    async with followed(tmp_path) as (api, in_force):
        await put(api, document(1))
        await until(lambda: number(in_force) == 1)
        await put(api, document(2, salt=""))
        await until(lambda: in_force.refused is not None)
        assert number(in_force) == 1
        assert in_force.refused == "salt is ''; a text of one or more printable characters is needed"
        await put(api, document(3))
        await until(lambda: number(in_force) == 3)
        assert in_force.refused is None


@pytest.mark.parametrize("expire", [False, True], ids=["cut", "cut and too old"])
async def test_a_watch_that_ends_is_taken_up_again(tmp_path: Path, expire: bool) -> None:
    async with followed(tmp_path) as (api, in_force):
        await put(api, document(1))
        await until(lambda: number(in_force) == 1)
        await api.cut_watches(expire=expire)
        await put(api, document(2))
        await until(lambda: number(in_force) == 2)


async def test_an_api_that_is_away_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with followed(tmp_path) as (api, in_force):
        await put(api, document(1))
        await until(lambda: number(in_force) == 1)
        api.down = True
        await api.cut_watches()
        await until(lambda: caplog.text.count("cannot follow configmaps") > 1)
        assert number(in_force) == 1
        api.down = False
        await put(api, document(2))
        await until(lambda: number(in_force) == 2)
    assert "HTTP 503" in caplog.text


async def test_a_deleted_config_map_leaves_its_policy_in_force(tmp_path: Path) -> None:
    async with followed(tmp_path) as (api, in_force):
        await put(api, document(1))
        await until(lambda: number(in_force) == 1)
        await api.delete("configmaps", "chat-policy")
        await put(api, document(2))
        await until(lambda: number(in_force) == 2)


async def test_a_connection_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SILENCE_SECONDS", 0.1)
    async with followed(tmp_path) as (api, in_force):
        await put(api, document(1))
        await until(lambda: len([request for request in api.requests if "watch" in request]) > 2)
        assert number(in_force) == 1


async def test_without_an_api_the_reason_is_one_line(tmp_path: Path) -> None:
    for kubeconfig in (tmp_path / "absent", None):
        with pytest.raises(SettingRefused, match="no Kubernetes API by"):
            async with connect(kubeconfig):
                pass
