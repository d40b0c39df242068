"""Records of revisions that somebody deletes by hand, on a real API server with the real operator."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.rollout_story import FIRST, NAME, SECOND, Stage, theatre

from tandem_devcluster.testing import Cluster, Object
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 60.0
REVISIONS = "/apis/apps/v1/namespaces/{}/controllerrevisions/{}-{}"


def test_records_deleted_in_the_middle_of_a_canary_come_back_and_it_is_promoted(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def play() -> None:
        async with theatre(cluster, tmp_path) as house, house.stage() as stage:
            await records_are_deleted(stage)

    asyncio.run(play())


async def records_are_deleted(stage: Stage) -> None:
    await stage.create(FIRST)
    stage.operator.start()
    await stage.serves(FIRST)
    slow = {**SECOND, "canary": {**SECOND["canary"], "steps": [{"percent": 50, "holdSeconds": 0, "pause": True}]}}
    await stage.edit(slow)
    await stage.until(lambda found: found["status"]["progress"]["rollout"]["stage"] == "Paused")
    held, before = (
        await uids(stage),
        {body["metadata"]["name"]: body for body in await stage.children("ControllerRevision")},
    )
    for spec in (FIRST, SECOND):
        await stage.api.delete(REVISIONS.format(stage.namespace, NAME, revision_of(parse(spec)).name))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await stage.children("ControllerRevision")) < len(before):
            await asyncio.sleep(0.2)
    after = {body["metadata"]["name"]: body for body in await stage.children("ControllerRevision")}
    assert {name: told(body) for name, body in after.items()} == {name: told(body) for name, body in before.items()}
    assert await uids(stage) == held
    await stage.edit(annotations={"tandem.dev/promote": f"@{revision_of(parse(SECOND)).name}#1"})
    await stage.serves(SECOND)
    assert stage.operator.strange_lines() == []


async def uids(stage: Stage) -> dict[str, tuple[str, int]]:
    """Of the Deployments, with their generations."""
    found = (body["metadata"] for body in await stage.children("Deployment"))
    return {meta["name"]: (meta["uid"], meta["generation"]) for meta in found}


def told(body: Object) -> tuple[object, object, object, object]:
    """What a record says: its owner and marks too."""
    meta = body["metadata"]
    return body["revision"], body["data"], meta.get("annotations"), [owner["uid"] for owner in meta["ownerReferences"]]
