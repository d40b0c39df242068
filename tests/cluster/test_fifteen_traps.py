"""The fifteen traps of operators like this one, each by its name, on a real API server with the real operator.

Played here, at the same time: 1 to 5, 7 to 9, 11, 13 and 15. Elsewhere: 6 (a restart in the middle) is
`test_operator_faults`; 10 (looking often) takes thousands of simulated canaries; 12 (flapping) is
`tests/scenarios/test_flapping_stories`; 14 (frozen definitions, an uninstall that hangs, the largest object) is
`test_upgrade_of_the_chart`, and upgrades that would roll a fleet are `test_upgrade` and the pinned hashes of
`tests/domain/test_revision`.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.cluster.fault_proxy import Asked, Entry, Fault, Hung, Refused, each
from tests.cluster.idle_pods import FAILING, NEVER_READY
from tests.cluster.rollout_story import (
    ALERT_TOKEN,
    FIRST,
    NAME,
    SECOND,
    Stage,
    Theatre,
    address_of,
    asked_for,
    chosen,
    during,
    settled,
    spec,
    theatre,
)

from tandem_devcluster.testing import Cluster, Object
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse
from tandem_operator.domain.webhook import ANNOTATION_PREFIX

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AT_ONCE = 4
SOON_SECONDS = 60.0
"""For what needs a few looks; on an idle machine each takes less than ten seconds."""

QUIET_SECONDS = 10.0
"""In which nobody may write a number again."""

Trap = Callable[[Theatre, Stage], Coroutine[None, None, None]]


def name_of(wanted: dict[str, Any]) -> str:
    return revision_of(parse(wanted)).name


async def serving(stage: Stage, wanted: dict[str, Any]) -> Object:
    await stage.create(wanted)
    stage.operator.start()
    return await stage.serves(wanted)


async def weights(stage: Stage) -> dict[str, int]:
    """Of those that are sent anybody: who ended stays listed with nothing while answers of it may be open."""
    found = await stage.api.get(f"/api/v1/namespaces/{stage.namespace}/configmaps/{NAME}-policy")
    policy = json.loads(found["data"]["policy.json"])
    return {served["name"]: served["weight"] for served in policy["revisions"] if served["weight"]}


def verdicts(found: Object) -> dict[str, str]:
    return {held["name"]: held["verdict"] for held in found["status"]["revisions"]}


def condition(found: Object, kind: str) -> tuple[str, str]:
    (held,) = [held for held in found["status"]["conditions"] if held["type"] == kind]
    return held["status"], held["reason"]


def canary_stands_at(percent: int) -> Callable[[Object], bool]:
    return lambda found: found["status"].get("canary", {}).get("percent") == percent


def has(replicas: int) -> Callable[[Object], bool]:
    return lambda found: settled(found) and found["status"]["replicas"] == replicas


def has_refused(wanted: dict[str, Any]) -> Callable[[Object], bool]:
    return lambda found: settled(found) and found["status"].get("refusedRevision") == name_of(wanted)


async def one_failed_status_write_stops_nothing(_: Theatre, stage: Stage) -> None:
    """1: once each, in three kinds; the object converges, and nothing else happens that could wake anybody."""
    await serving(stage, FIRST)
    stage.proxy.frozen = True
    for replicas, status in enumerate((409, 422, 500), start=2):
        stage.proxy.script = once(lambda asked: asked.method == "PUT" and asked.path.endswith("/status"), status)
        wanted = {**FIRST, "target": {**FIRST["target"], "replicas": replicas}}
        await stage.edit(wanted)
        await stage.until(has(replicas), within=SOON_SECONDS)


def once(of: Callable[[Asked], bool], status: int) -> Callable[[Asked], Fault | None]:
    """Refuses the first such request."""
    left = [Refused(status, "Planted")]
    return lambda asked: left.pop() if left and of(asked) else None


async def a_status_lost_after_its_mark_is_written_again(_: Theatre, stage: Stage) -> None:
    """2: the mark on the ControllerRevision is there, the status that belongs to it is refused, and no event comes."""
    await serving(stage, FIRST)
    marked = False

    def script(asked: Asked) -> Fault | None:
        nonlocal marked
        marked = marked or (asked.method == "PATCH" and "/controllerrevisions/" in asked.path)
        if marked and asked.method == "PUT" and asked.path.endswith("/status"):
            stage.proxy.script = lambda _: None
            return Refused(500, "InternalError")
        return None

    await stage.edit(SECOND)
    await stage.until(canary_stands_at(50), within=SOON_SECONDS)
    stage.proxy.frozen, stage.proxy.script = True, script
    await stage.serves(SECOND)
    assert marked


async def gateways_that_never_answer_hide_no_abort(house: Theatre, stage: Stage) -> None:
    """3 and 9: what cannot be known neither promotes nor condemns, and an abort acts all the same."""
    await serving(stage, FIRST)
    slow = {**SECOND, "canary": {**SECOND["canary"], "steps": [{"percent": 50, "holdSeconds": 0, "pause": True}]}}
    await stage.edit(slow)
    await stage.until(lambda found: found["status"]["progress"]["rollout"]["stage"] == "Paused", within=SOON_SECONDS)
    house.pods.silent.add(stage.namespace)
    await stage.edit(annotations={"tandem.dev/abort": f"@{name_of(SECOND)}#1"})
    found = await stage.until(
        lambda found: found["status"].get("refusedRevision") == name_of(SECOND), within=SOON_SECONDS
    )
    assert await weights(stage) == {name_of(FIRST): 100}
    assert verdicts(found)[name_of(SECOND)] != "Bad"


async def a_leader_that_cannot_reach_the_api_server_writes_nothing_more_and_ends(_: Theatre, stage: Stage) -> None:
    """4: at its renew deadline; the next one goes on."""
    await serving(stage, FIRST)
    stage.proxy.script = each(Hung())
    await asyncio.sleep(0)
    written = len([entry for entry in stage.proxy.record if entry.done])
    async with asyncio.timeout(SOON_SECONDS):
        while not stage.operator.exits:
            await asyncio.sleep(0.2)
    assert stage.operator.exits[0] == 1
    assert len([entry for entry in stage.proxy.record if entry.done]) == written
    stage.proxy.script = lambda _: None
    await stage.edit(SECOND)
    await stage.serves(SECOND)


async def two_that_both_lead_do_everything_once(house: Theatre, stage: Stage) -> None:
    """5: two operators whose Leases know nothing of each other serve the same object."""
    async with house.stage() as other:
        second = await house.rival(stage, other)
        await stage.create(FIRST)
        stage.operator.start()
        second.start()
        try:
            await stage.serves(FIRST)
            await stage.edit(SECOND)
            found = await stage.serves(SECOND)
        finally:
            await second.stop()
    assert found["metadata"]["generation"] == 2
    assert [len(await stage.children(kind)) for kind in ("ControllerRevision", "Deployment")] == [2, 2]
    assert verdicts(found) == {name_of(FIRST): "Good", name_of(SECOND): "Good"}
    assert stage.operator.strange_lines() == second.strange_lines() == []


async def two_bad_revisions_in_a_row_leave_the_last_good_one_untouched(_: Theatre, stage: Stage) -> None:
    """7: what serves is never overwritten."""
    await serving(stage, FIRST)
    before = {body["metadata"]["name"]: body["metadata"]["uid"] for body in await stage.children("Deployment")}
    for number in (1, 2):
        bad = spec(f"{FAILING}-{number}")
        await stage.edit(bad)
        found = await stage.until(has_refused(bad))
        assert verdicts(found)[name_of(bad)] == "Bad"
        assert found["status"]["stableRevision"] == name_of(FIRST)
    after = {body["metadata"]["name"]: body["metadata"]["uid"] for body in await stage.children("Deployment")}
    assert after == before
    assert await weights(stage) == {name_of(FIRST): 100}


async def a_promotion_that_fails_half_way_is_finished_and_nothing_of_it_is_done_twice(_: Theatre, stage: Stage) -> None:
    """7: while a promotion is written the API server refuses every other write, and the operator is killed."""
    await serving(stage, FIRST)
    await stage.edit({**SECOND, "canary": {**SECOND["canary"], "steps": [{"percent": 50, "holdSeconds": 2}]}})
    await stage.until(canary_stands_at(50), within=SOON_SECONDS)
    began, turns, killed = len(stage.proxy.record), itertools.count(), False

    def script(asked: Asked) -> Fault | None:
        return Refused(500, "InternalError") if asked.writes and next(turns) % 2 else None

    def after(entry: Entry) -> None:
        nonlocal killed
        if not killed and entry.done and "/controllerrevisions/" in entry.asked.path:
            killed = True
            stage.operator.kill()

    async with during(stage.proxy, script, 10):
        stage.proxy.after = after
        found = await stage.serves(SECOND)
    assert killed
    assert any(entry.fault for entry in stage.proxy.record[began:])
    assert verdicts(found) == {name_of(FIRST): "Good", name_of(SECOND): "Good"}
    assert await weights(stage) == {name_of(SECOND): 100}
    assert (await stage.told()).count("Promoted") <= 1


async def a_canary_that_is_never_ready_can_be_aborted(_: Theatre, stage: Stage) -> None:
    """8: nothing that is waited for stands before a command."""
    await serving(stage, FIRST)
    never = spec(NEVER_READY)
    await stage.edit(never)
    await stage.until(lambda found: found["status"].get("canaryRevision") == name_of(never), within=SOON_SECONDS)
    await stage.edit(annotations={"tandem.dev/abort": f"@{name_of(never)}#1"})
    found = await stage.until(has_refused(never), within=SOON_SECONDS)
    assert condition(found, "RolledBack") == ("True", "Aborted")
    assert len(await stage.children("Deployment")) == 2


async def without_an_answer_a_canary_holds(house: Theatre, stage: Stage) -> None:
    """9: gateways that do not answer make a provider error, which neither promotes nor condemns; then it goes on."""
    await serving(stage, FIRST)
    held = {**SECOND, "canary": {**SECOND["canary"], "steps": [{"percent": 50, "holdSeconds": 600}]}}
    await stage.edit(held)
    await stage.until(canary_stands_at(50), within=SOON_SECONDS)
    house.pods.silent.add(stage.namespace)
    found = await stage.until(
        lambda found: "ProviderError" in json.dumps(found["status"].get("canary", {})), within=SOON_SECONDS
    )
    assert found["status"]["stableRevision"] == name_of(FIRST)
    assert verdicts(found)[name_of(SECOND)] == "Unknown"
    house.pods.silent.discard(stage.namespace)
    await stage.edit(SECOND)
    await stage.serves(SECOND)


async def alerts_that_come_again_and_again_cause_one_rollback(_: Theatre, stage: Stage) -> None:
    """11: repeated, from two peers, in another order, across a restart."""
    first, second = (windowed(held) for held in (FIRST, SECOND))
    await serving(stage, first)
    await stage.edit(second)
    await stage.serves(second)
    body, again = (alerts(stage.namespace, *order) for order in ("ab", "ba"))
    for _repeated in range(3):
        await asyncio.gather(post(stage, body), post(stage, again))
    await stage.until(lambda found: found["status"].get("stableRevision") == name_of(FIRST), within=SOON_SECONDS)
    stage.operator.kill()
    await post(stage, body)
    found = await stage.until(has_answered, within=SOON_SECONDS)
    assert found["status"]["stableRevision"] == name_of(FIRST)
    assert (await stage.told()).count("RolledBack") == 1
    assert verdicts(found) == {name_of(FIRST): "Good", name_of(SECOND): "Bad"}
    assert await weights(stage) == {name_of(FIRST): 100}


def has_answered(found: Object) -> bool:
    """No alert waits on the object."""
    return settled(found) and not any(
        name.startswith(ANNOTATION_PREFIX) for name in found["metadata"].get("annotations", {})
    )


def windowed(wanted: dict[str, Any]) -> dict[str, Any]:
    """With ten minutes in which the previous revision's pods stay and an alert counts."""
    canary = {**wanted["canary"], "rollbackWindowSeconds": 600}
    return {**wanted, "canary": canary, "rollback": {"windowSeconds": 600}}


def alerts(namespace: str, *fingerprints: str) -> Object:
    """What Alertmanager posts of alerts that start now."""
    labels = {"alertname": "TandemHighErrorRate", "namespace": namespace, "specdep": NAME}
    alert = {"status": "firing", "labels": labels, "startsAt": datetime.now(UTC).isoformat()}
    return {"version": "4", "status": "firing", "alerts": [{**alert, "fingerprint": one} for one in fingerprints]}


async def post(stage: Stage, body: Object) -> None:
    """As Alertmanager does: again until it is taken."""
    url = f"http://{address_of(stage.namespace)}:9090/v1/alerts"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {ALERT_TOKEN}"}) as session:
        async with asyncio.timeout(SOON_SECONDS):
            while True:
                try:
                    async with session.post(url, json=body) as answer:
                        if answer.status == 202:
                            return
                except aiohttp.ClientError:
                    pass  # it is being started again
                await asyncio.sleep(0.2)


async def whoever_scales_is_obeyed_and_never_fought(_: Theatre, stage: Stage) -> None:
    """13: an autoscaler moves the scale subresource in the middle of a canary, and owns the number."""
    await serving(stage, FIRST)
    await stage.edit(SECOND)
    await stage.until(canary_stands_at(50), within=SOON_SECONDS)
    began = len(stage.proxy.record)
    for replicas in (3, 2):
        scale = await stage.api.get(f"{stage.path}/scale")
        await stage.api.replace(f"{stage.path}/scale", {**scale, "spec": {"replicas": replicas}})
    found = await stage.until(lambda found: settled(found) and found["status"].get("stableRevision") == name_of(SECOND))
    assert found["spec"]["target"]["replicas"] == found["status"]["replicas"] == 2
    owners = [held["manager"] for held in found["metadata"]["managedFields"] if "f:replicas" in json.dumps(held)]
    assert "tandem-operator" not in [owner for owner in owners if owner_of_spec(found, owner)]
    assert found["metadata"]["generation"] == 4
    await asyncio.sleep(QUIET_SECONDS)
    assert (await stage.api.get(stage.path))["metadata"]["generation"] == 4
    done = [entry.asked for entry in stage.proxy.record[began:] if entry.done]
    written = Counter(asked.path for asked in done if asked.method == "PATCH" and "/deployments/" in asked.path)
    assert max(written.values(), default=0) <= 3, "once for each of the two numbers, and once when a revision ends"


def owner_of_spec(found: Object, manager: str) -> bool:
    fields = [held["fieldsV1"] for held in found["metadata"]["managedFields"] if held["manager"] == manager]
    return any("f:spec" in held for held in fields)


async def a_canary_without_room_is_told_from_a_bad_one(_: Theatre, stage: Stage) -> None:
    """15: the real scheduler finds no node for it; past its deadline it is given up, and not called Bad."""
    await serving(stage, FIRST)
    nowhere = {"spec": {"nodeSelector": {"there.is/none": "such"}}}
    crowded = {
        **SECOND,
        "target": {"model": {"uri": "file:///m/second"}, "podTemplate": nowhere},
        "canary": {**SECOND["canary"], "progressDeadlineSeconds": 20},
    }
    await stage.edit(crowded)
    found = await stage.until(has_refused(crowded), within=SOON_SECONDS)
    assert condition(found, "RolledBack") == ("True", "NoCapacity")
    assert verdicts(found)[name_of(crowded)] == "Unknown"


TRAPS: tuple[Trap, ...] = (
    one_failed_status_write_stops_nothing,
    a_status_lost_after_its_mark_is_written_again,
    gateways_that_never_answer_hide_no_abort,
    a_leader_that_cannot_reach_the_api_server_writes_nothing_more_and_ends,
    two_that_both_lead_do_everything_once,
    two_bad_revisions_in_a_row_leave_the_last_good_one_untouched,
    a_promotion_that_fails_half_way_is_finished_and_nothing_of_it_is_done_twice,
    a_canary_that_is_never_ready_can_be_aborted,
    without_an_answer_a_canary_holds,
    alerts_that_come_again_and_again_cause_one_rollback,
    whoever_scales_is_obeyed_and_never_fought,
    a_canary_without_room_is_told_from_a_bad_one,
)


BY_NAME = {trap.__name__: trap for trap in TRAPS}
ALWAYS = (
    a_status_lost_after_its_mark_is_written_again.__name__,
    two_that_both_lead_do_everything_once.__name__,
    alerts_that_come_again_and_again_cause_one_rollback.__name__,
    a_canary_without_room_is_told_from_a_bad_one.__name__,
)
"""Those that `make test` plays; the marker `faults` adds all the others."""


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, BaseException | None]:
    """How each trap ended that the tests of this run ask for: None where it did not snap."""
    return asyncio.run(play_all(cluster, tmp_path_factory.mktemp("traps"), sorted(asked_for(request, "trap"))))


async def play_all(cluster: Cluster, folder: Path, names: list[str]) -> dict[str, BaseException | None]:
    room = asyncio.Semaphore(AT_ONCE)
    async with theatre(cluster, folder) as house:

        async def play(name: str) -> None:
            async with room, house.stage() as stage:
                await BY_NAME[name](house, stage)

        ended = await asyncio.gather(*map(play, names), return_exceptions=True)
    return dict(zip(names, ended, strict=True))


@pytest.mark.parametrize("trap", chosen(BY_NAME, ALWAYS))
def test_trap(ends: dict[str, BaseException | None], trap: str) -> None:
    error = ends[trap]
    if error is not None:
        raise error
