"""A real control plane's autoscaler moves the target through the scale subresource, and a tied draft follows.

There are no metrics here. An autoscaler needs none to bring a count between its bounds, and says of a count that lies
there which metrics it misses: by then it has read `/scale` whole, its selector too.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.rollout_story import CRD_GROUP, FIRST, IDLE, NAME, Stage, Theatre, settled, theatre

from tandem_devcluster.api import build_path
from tandem_devcluster.testing import Cluster, Object
from tandem_operator.domain.nested import items, number, text

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TIED: dict[str, Any] = {
    **FIRST,
    "draft": {
        "model": {"uri": "file:///m/draft"},
        "podTemplate": IDLE,
        "replicasPerTarget": {"drafts": 1, "targets": 2},
    },
}
SCALERS = "autoscaling/v2"


def test_an_autoscaler_moves_the_target_and_a_tied_draft_follows(cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(play(cluster, tmp_path))


async def play(cluster: Cluster, folder: Path) -> None:
    async with theatre(cluster, folder) as house, house.stage() as stage:
        await stage.create(TIED)
        stage.operator.start()
        revision = (await stage.serves(TIED))["status"]["stableRevision"]
        await up_to_its_lower_bound(stage)
        await down_to_its_upper_bound(stage)
        found = await by_hand(house, stage)
        assert (found["status"]["stableRevision"], len(found["status"]["revisions"])) == (revision, 1)
        assert stage.operator.strange_lines() == []


async def up_to_its_lower_bound(stage: Stage) -> None:
    target = {"apiVersion": CRD_GROUP, "kind": "SpeculativeDeployment", "name": NAME}
    body = {
        "apiVersion": SCALERS,
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": NAME},
        "spec": {"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 6},
    }
    await stage.api.create(scaler(stage).rpartition("/")[0], body)
    await reached(stage, targets=3, drafts=2)
    held = await scaler_until(stage, lambda held: number(held, "status", "currentReplicas") == 3)
    told = {text(each, "type"): (text(each, "status"), text(each, "reason")) for each in items(held, *CONDITIONS)}
    assert told["AbleToScale"][0] == "True"
    assert told["ScalingActive"] == ("False", "FailedGetResourceMetric")


CONDITIONS = ("status", "conditions")


async def down_to_its_upper_bound(stage: Stage) -> None:
    await stage.api.patch(scaler(stage), {"spec": {"minReplicas": 1, "maxReplicas": 2}})
    await reached(stage, targets=2, drafts=1)


async def by_hand(house: Theatre, stage: Stage) -> Object:
    """`kubectl scale`, with nobody left who would move it back."""
    await stage.api.delete(scaler(stage))
    scale = ("scale", f"specdep/{NAME}", "--replicas=5", "--namespace", stage.namespace)
    await asyncio.to_thread(house.cluster.kubectl, *scale)
    return await reached(stage, targets=5, drafts=3)


async def reached(stage: Stage, *, targets: int, drafts: int) -> Object:
    """The object with so many ready pods of both, which `/scale` tells too."""
    found = await stage.until(lambda found: settled(found) and found["status"]["replicas"] == targets)
    wanted = {role: await replicas(stage, role) for role in ("target", "draft")}
    assert wanted == {"target": targets, "draft": drafts}
    scale = await stage.api.get(f"{stage.path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (targets, targets)
    return found


async def replicas(stage: Stage, role: str) -> int:
    (body,) = (each for each in await stage.children("Deployment") if f"-{role}-" in each["metadata"]["name"])
    return number(body, "status", "readyReplicas")


def scaler(stage: Stage) -> str:
    return build_path("horizontalpodautoscalers", namespace=stage.namespace, group=SCALERS, name=NAME)


async def scaler_until(stage: Stage, reached: Callable[[Object], bool]) -> Object:
    async with asyncio.timeout(60):
        while True:
            held: Object = await stage.api.get(scaler(stage))
            if reached(held):
                return held
            await asyncio.sleep(0.5)
