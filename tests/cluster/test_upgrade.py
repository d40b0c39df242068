"""An operator is upgraded on a real API server: pods stay, a command makes a new revision, and there is a way back."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from tests.cluster.operator_process import OperatorProcess
from tests.cluster.rollout_story import FIRST, Stage, address_of, count_kills, settled, theatre
from tests.scenarios.gitops import argocd, kstatus

from tandem_devcluster.api import build_path
from tandem_devcluster.testing import Cluster, Object
from tandem_operator.domain.nested import items, text
from tandem_operator.rights import LEASE_NAME

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

OLD, NEW = "tandem-runtime:0.1.0", "tandem-runtime:0.2.0"
STANDBY = "operator-1"
STANDING_BY_SECONDS = 5.0
HANDOVER_SECONDS = 2.5
"""A standby asks every two seconds; an expired Lease would take fifteen."""
WRITES = 6
"""After so many writes from the command on the operator is killed: while the new revision's children are made."""


def test_an_upgraded_operator_makes_a_new_revision_by_command_and_goes_back_by_command(
    cluster: Cluster, tmp_path: Path
) -> None:
    asyncio.run(play(cluster, tmp_path))


async def play(cluster: Cluster, folder: Path) -> None:
    async with theatre(cluster, folder) as house, house.stage() as stage:
        newer = stage.operator.changed(
            TANDEM_RUNTIME_IMAGE=NEW, POD_NAME=STANDBY, POD_IP=address_of(stage.namespace).replace("127.99", "127.98")
        )
        try:
            first = await installed(stage, newer)
            before = await pods(stage)
            await scaled(stage)
            assert before <= await pods(stage)
            second = await upgraded(stage, newer, first)
            await taken_back(stage, first, second)
        finally:
            await newer.stop()
    assert (newer.strange_lines(), newer.exits.count(-signal.SIGKILL)) == ([], 1)


async def installed(stage: Stage, newer: OperatorProcess) -> str:
    """The first revision, by an older operator, which then ends in order, so that the one that stands by need not wait
    until the Lease has expired."""
    older = stage.operator.changed(TANDEM_RUNTIME_IMAGE=OLD)
    await stage.create(FIRST)
    assert said_of(await stage.api.get(stage.path)) == ("InProgress", "Progressing")
    older.start()
    try:
        found = await stage.serves(FIRST)
        newer.start()
        await asyncio.sleep(STANDING_BY_SECONDS)
        assert not await holds(stage, STANDBY)
    finally:
        status, ended = await older.stop(), time.monotonic()
    async with asyncio.timeout(STANDING_BY_SECONDS):
        while not await holds(stage, STANDBY):
            await asyncio.sleep(0.05)
    assert status == 0
    assert time.monotonic() - ended < HANDOVER_SECONDS
    return text(found, "status", "stableRevision")


async def holds(stage: Stage, pod: str) -> bool:
    """Whether this pod leads."""
    lease = build_path("leases", namespace=stage.namespace, group="coordination.k8s.io/v1", name=LEASE_NAME)
    return text(await stage.api.get(lease), "spec", "holderIdentity").startswith(pod)


async def scaled(stage: Stage) -> None:
    """A change in place, so that the newer operator is known to have looked at everything."""
    await stage.edit({**FIRST, "target": {**FIRST["target"], "replicas": 2}})
    await stage.until(lambda found: settled(found) and found["status"]["replicas"] == 2)
    assert await images(stage) == {OLD}


async def upgraded(stage: Stage, operator: OperatorProcess, first: str) -> str:
    count_kills(stage.proxy, WRITES, operator.kill)
    await stage.edit(annotations={"tandem.dev/upgrade": f"@{first}#1"})
    found = await stage.until(lambda found: settled(found) and found["status"]["stableRevision"] != first)
    assert said_of(found) == ("Current", "Healthy")
    assert found["status"]["handledCommands"] == {"tandem.dev/upgrade": f"@{first}#1"}
    assert await images(stage) == {NEW}
    assert len(await stage.children("ControllerRevision")) == 2
    assert (await stage.told()).count("Promoted") == 1
    return text(found, "status", "stableRevision")


async def taken_back(stage: Stage, first: str, second: str) -> None:
    await stage.edit(annotations={"tandem.dev/rollback-to": f"{first}@{second}#1"})
    found = await stage.until(lambda found: settled(found) and found["status"]["stableRevision"] == first)
    assert said_of(found) == ("Current", "Healthy"), "what serves is of the same spec as what was taken back"
    assert (found["status"]["refusedRevision"], found["metadata"]["generation"]) == (second, 2)
    assert await images(stage) == {OLD}


def said_of(found: Object) -> tuple[str, str]:
    """By kstatus and by Argo CD."""
    return kstatus(found), argocd(found)[0]


async def images(stage: Stage) -> set[str]:
    """Of the containers of all Deployments."""
    found: list[Object] = await stage.children("Deployment")
    containers = [items(body, "spec", "template", "spec", "containers")[0] for body in found]
    return {text(container, "image") for container in containers}


async def pods(stage: Stage) -> set[str]:
    """By their uids."""
    found = await stage.api.get(build_path("pods", namespace=stage.namespace))
    return {text(pod, "metadata", "uid") for pod in found["items"]}
