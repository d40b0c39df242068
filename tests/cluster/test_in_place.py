"""A canary in the place of what serves, with the operator as a process on a real API server and its controllers.

Pods are idle (`idle_pods`), so that a rollout takes seconds; that every old pod goes before a new one comes, and comes
back, is the controllers' own doing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.idle_pods import NEVER_READY
from tests.cluster.rollout_story import IDLE, PATIENCE_SECONDS, Stage, Theatre, spec, theatre

from tandem_devcluster.api import build_path
from tandem_devcluster.testing import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LOOK_SECONDS = 0.1


def pair(draft: str) -> dict[str, Any]:
    """Speculation is off by mode: idle gateways propose nothing, so that errors alone decide."""
    body = spec("file:///m/target")
    return {
        **body,
        "draft": {"model": {"uri": draft}, "podTemplate": IDLE},
        "speculation": {"mode": "Off"},
        "canary": {**body["canary"], "surge": "InPlaceDraft"},
    }


def recreated(target: str) -> dict[str, Any]:
    """A target alone, which goes before the next one comes."""
    body = spec(target)
    return {**body, "canary": {**body["canary"], "surge": "Recreate"}}


async def drafts(stage: Stage) -> dict[str, set[str]]:
    return await engines(stage, "draft")


async def engines(stage: Stage, role: str) -> dict[str, set[str]]:
    """The names of a role's pods by role hash, of those on their way out too."""
    found: dict[str, set[str]] = {}
    path, label = build_path("pods", namespace=stage.namespace), f"tandem.dev/role={role}"
    listed = await stage.api.get(path, labelSelector=label)
    for body in listed["items"]:
        found.setdefault(body["metadata"]["labels"]["tandem.dev/role-hash"], set()).add(body["metadata"]["name"])
    return found


@asynccontextmanager
async def watched(stage: Stage, *, most: int) -> AsyncIterator[None]:
    """Holds of how many revisions there are draft pods at once, and that the target's pod is always ready."""

    over = asyncio.Event()

    async def look() -> None:
        while not over.is_set():  # a cancelled request leaves its connection open
            held = await drafts(stage)
            assert len(held) <= most, held
            targets = [body for body in await stage.children("Deployment") if "-target-" in body["metadata"]["name"]]
            assert [body["status"].get("readyReplicas") for body in targets] == [1]
            await asyncio.sleep(LOOK_SECONDS)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        yield
        over.set()


async def until_swapped(stage: Stage, before: str) -> None:
    """Until no draft pods are there but those of another hash."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (held := await drafts(stage)) or before in held:
            await asyncio.sleep(LOOK_SECONDS)


async def swap_and_fail(stage: Stage) -> None:
    await stage.create(pair("file:///m/first"))
    stage.operator.start()
    await stage.serves(pair("file:///m/first"))
    async with watched(stage, most=1):
        await stage.edit(pair("file:///m/second"))
        found = await stage.serves(pair("file:///m/second"))
        (second,) = await drafts(stage)
        assert [held["draft"] for held in found["status"]["revisions"] if held["percent"] == 100] == [second]
        await stage.edit(pair(NEVER_READY))
        found = await stage.until(lambda now: now["status"].get("canary", {}).get("surge") == "InPlaceDraft")
        third = found["status"]["canaryRevision"]
        await until_swapped(stage, second)
    async with watched(stage, most=2):  # nothing is waited for on the way back
        stage.operator.kill()
        await stage.edit(annotations={"tandem.dev/abort": f"@{third}#1"})
        found = await stage.serves(pair("file:///m/second"))
    assert found["status"]["refusedRevision"] == third
    assert set(await drafts(stage)) == {second}


async def recreate_and_fail(stage: Stage) -> None:
    first, second, failing = (recreated(f"file:///m/{name}") for name in ("first", "second", "failing"))
    await stage.create(first)
    stage.operator.start()
    await stage.serves(first)
    before = set(await engines(stage, "target"))
    await stage.edit(second)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while before & set(held := await engines(stage, "target")):
            assert len(held) == 1, held
            await asyncio.sleep(LOOK_SECONDS)
    stage.operator.kill()
    await stage.serves(second)
    assert len(after := set(await engines(stage, "target"))) == 1
    await stage.edit(failing)
    await stage.until(lambda now: "refusedRevision" in now["status"])
    found = await stage.serves(second)
    reason = next(held["reason"] for held in found["status"]["conditions"] if held["type"] == "RolledBack")
    assert (reason, found["status"]["revisions"][0]["verdict"]) == ("ErrorsFailed", "Bad")
    assert set(await engines(stage, "target")) == after


def test_what_is_replaced_goes_before_the_new_one_comes_and_comes_back_when_that_fails(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A draft, and a target, each in a namespace of its own."""

    async def tell(house: Theatre, story: Callable[[Stage], Awaitable[None]]) -> None:
        async with house.stage() as stage:
            await story(stage)
            assert stage.operator.strange_lines() == []

    async def play() -> None:
        async with theatre(cluster, tmp_path) as house, asyncio.TaskGroup() as group:
            for story in (swap_and_fail, recreate_and_fail):
                group.create_task(tell(house, story))

    asyncio.run(play())
