"""A real control plane's autoscaler moves the target through the scale subresource, and a tied draft follows.

Without metrics an autoscaler still brings a count between its bounds, and says of a count that lies there which
metrics it misses: by then it has read `/scale` whole, its selector too. With metrics of pods (`pod_metrics`) it
follows a load. The stories are played at the same time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.pod_metrics import Load, loaded, metrics_of_pods
from tests.cluster.rollout_story import CRD_GROUP, FIRST, IDLE, NAME, SECOND, Stage, Theatre, settled, theatre

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
PAUSED: dict[str, Any] = {
    **SECOND,
    "canary": {**SECOND["canary"], "steps": [{"percent": 50, "holdSeconds": 0, "pause": True}]},
}
SCALERS = "autoscaling/v2"
AUTOSCALER = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
BY_LOAD: dict[str, Any] = {
    "minReplicas": 1,
    "maxReplicas": 6,
    "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1"}}}
    ],
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
}
"""One pod for each core that is used, at once in both directions."""
QUIET_SECONDS = 10.0
"""Three looks of the dev cluster's autoscaler."""


@pytest.fixture(scope="module")
def ends(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseException | None]:
    """How each story ended: None where all of it was so."""
    return asyncio.run(play_all(cluster, tmp_path_factory.mktemp("autoscaling")))


async def play_all(cluster: Cluster, folder: Path) -> dict[str, BaseException | None]:
    async with theatre(cluster, folder) as house, metrics_of_pods(house.api):

        async def play(story: Story) -> None:
            async with house.stage() as stage:
                await story(house, stage)
                assert stage.operator.strange_lines() == []

        ended = await asyncio.gather(*(play(story) for story in STORIES), return_exceptions=True)
    return dict(zip(BY_NAME, ended, strict=True))


Story = Callable[[Theatre, Stage], Coroutine[None, None, None]]


async def an_autoscaler_without_metrics_keeps_its_bounds_and_a_tied_draft_follows(house: Theatre, stage: Stage) -> None:
    await stage.create(TIED)
    stage.operator.start()
    revision = (await stage.serves(TIED))["status"]["stableRevision"]
    await up_to_its_lower_bound(stage)
    await down_to_its_upper_bound(stage)
    found = await by_hand(house, stage)
    assert (found["status"]["stableRevision"], len(found["status"]["revisions"])) == (revision, 1)


async def an_autoscaler_follows_the_load_up_and_down_and_a_tied_draft_follows(house: Theatre, stage: Stage) -> None:
    async with under_load(stage, TIED) as load:
        before = scalings(house, stage)
        load.millicores = 3000
        await reached(stage, targets=3, drafts=2)
        load.millicores = 2000
        found = await reached(stage, targets=2, drafts=1)
        held = await scaler_until(stage, lambda held: number(held, "status", "currentReplicas") == 2)
    told = {text(each, "type"): text(each, "reason") for each in items(held, *CONDITIONS)}
    assert told["ScalingActive"] == "ValidMetricFound"
    assert scalings(house, stage) - before == 2
    assert (found["metadata"]["generation"], len(found["status"]["revisions"])) == (3, 1)


async def while_a_canary_stands_an_autoscaler_and_the_operator_write_once_for_each_change_of_load(
    house: Theatre, stage: Stage
) -> None:
    async with under_load(stage, FIRST) as load:
        await stage.edit(PAUSED)
        await stage.until(lambda found: found["status"]["progress"]["rollout"]["stage"] == "Paused")
        before, uids, began = scalings(house, stage), await uids_of(stage), len(stage.proxy.record)
        for targets in (2, 3, 2):
            load.millicores = targets * 1000
            await stage.until(has(targets))
        await asyncio.sleep(QUIET_SECONDS)
        found = await stage.api.get(stage.path)
    assert found["status"]["progress"]["rollout"]["stage"] == "Paused"
    assert await uids_of(stage) == uids
    assert (scalings(house, stage) - before, found["metadata"]["generation"]) == (3, 5)
    done = (entry.asked.path for entry in stage.proxy.record[began:] if entry.done)
    written = Counter(path.rpartition("/")[2] for path in done if "/deployments/" in path)
    assert sorted(written.values()) == [2, 3], "of the canary, which has one pod beside one or two of stable; of stable"


async def up_to_its_lower_bound(stage: Stage) -> None:
    await autoscaled(stage, {"minReplicas": 3, "maxReplicas": 6})
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


async def autoscaled(stage: Stage, wanted: dict[str, Any]) -> None:
    target = {"apiVersion": CRD_GROUP, "kind": "SpeculativeDeployment", "name": NAME}
    body = {
        "apiVersion": SCALERS,
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": NAME},
        "spec": {"scaleTargetRef": target, **wanted},
    }
    await stage.api.create(scaler(stage).rpartition("/")[0], body)


@asynccontextmanager
async def under_load(stage: Stage, wanted: dict[str, Any]) -> AsyncIterator[Load]:
    """The first revision serves with one target pod, which an autoscaler reads the metrics of and finds well loaded."""
    await stage.create(wanted)
    stage.operator.start()
    found = await stage.serves(wanted)
    async with loaded(Load(stage.api, stage.namespace, text(found, "status", "selector"), 1000)) as load:
        await autoscaled(stage, BY_LOAD)
        await scaler_until(stage, lambda held: bool(items(held, "status", "currentMetrics")))
        yield load


def has(targets: int) -> Callable[[Object], bool]:
    return lambda found: number(found, "status", "replicas") == targets


async def uids_of(stage: Stage) -> dict[str, str]:
    return {
        text(body, "metadata", "name"): text(body, "metadata", "uid") for body in await stage.children("Deployment")
    }


def scalings(house: Theatre, stage: Stage) -> int:
    """How often the autoscaler has written this object's number."""
    path = f"{stage.path}/scale"
    written = (entry for entry in house.cluster.requests(AUTOSCALER) if entry["verb"] in ("update", "patch"))
    return sum(entry["requestURI"].partition("?")[0] == path for entry in written)


STORIES: tuple[Story, ...] = (
    an_autoscaler_without_metrics_keeps_its_bounds_and_a_tied_draft_follows,
    an_autoscaler_follows_the_load_up_and_down_and_a_tied_draft_follows,
    while_a_canary_stands_an_autoscaler_and_the_operator_write_once_for_each_change_of_load,
)
BY_NAME = [story.__name__ for story in STORIES]


@pytest.mark.parametrize("story", BY_NAME)
def test_story(ends: dict[str, BaseException | None], story: str) -> None:
    error = ends[story]
    if error is not None:
        raise error
