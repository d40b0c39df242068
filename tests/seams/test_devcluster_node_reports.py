"""What a process node tells the API server: every end once it is known, whatever else goes wrong; never backwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.seams.devcluster_peers import (
    SECONDS,
    Processes,
    ScriptedApi,
    build_host,
    build_pod,
    scripted_processes,
    state_of,
)

from tandem_devcluster.api import Object
from tandem_devcluster.errors import ApiError
from tandem_devcluster.pod import PodWorker

PROBE = {"exec": {"command": ["ask"]}, "periodSeconds": 1}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return scripted_processes(monkeypatch)


@pytest.fixture
async def api() -> ScriptedApi:
    return ScriptedApi()


@asynccontextmanager
async def running(api: ScriptedApi, folder: Path, pod: Object) -> AsyncIterator[PodWorker]:
    worker = PodWorker(build_host(api, folder), pod, "10.244.1.2")
    worker.start()
    try:
        yield worker
    finally:
        await worker.kill()


def is_running(status: Object) -> bool:
    return state_of(status) == "running"


def has_ended(status: Object) -> bool:
    return state_of(status) == "terminated"


async def test_the_end_is_told(api: ScriptedApi, processes: Processes, tmp_path: Path) -> None:
    async with running(api, tmp_path, build_pod()):
        await api.wait(is_running)
        processes[0].end(3)
        status = await api.wait(has_ended)
    assert (status["phase"], status["containerStatuses"][0]["ready"]) == ("Failed", False)
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize(
    "failure",
    [ApiError(409, "Conflict", "modified meanwhile"), ApiError(500, "InternalError", ""), TimeoutError("no answer")],
    ids=["conflict", "error", "no answer"],
)
async def test_an_end_whose_write_fails_is_written_again(
    api: ScriptedApi, processes: Processes, tmp_path: Path, failure: Exception
) -> None:
    failures = [failure]

    async def fail_once(verb: str, path: str, body: Object) -> None:
        if path.endswith("/status") and has_ended(body["status"]) and failures:
            raise failures.pop()

    api.answer = fail_once
    async with running(api, tmp_path, build_pod()):
        await api.wait(is_running)
        processes[0].end(0)
        assert (await api.wait(has_ended))["phase"] == "Succeeded"


async def test_an_end_during_a_slow_write_is_written_after_it(
    api: ScriptedApi, processes: Processes, tmp_path: Path
) -> None:
    slow, go_on = asyncio.Event(), asyncio.Event()

    async def hold_running(verb: str, path: str, body: Object) -> None:
        if path.endswith("/status") and is_running(body["status"]):
            slow.set()
            await go_on.wait()

    api.answer = hold_running
    async with running(api, tmp_path, build_pod()), asyncio.timeout(SECONDS):
        await slow.wait()
        processes[0].end(0)
        go_on.set()
        await api.wait(has_ended)
    assert [state_of(status) for status in api.statuses][-2:] == ["running", "terminated"]


async def test_a_deletion_lets_an_older_write_land_before_it_writes_the_last_one(
    api: ScriptedApi, processes: Processes, tmp_path: Path
) -> None:
    """A request that the client gave up may still be carried out: here it is, as soon as it may."""
    slow, go_on, late = asyncio.Event(), asyncio.Event(), set()

    async def land(body: Object) -> None:
        await go_on.wait()
        api.statuses.append(body["status"])

    async def outlive_the_client(verb: str, path: str, body: Object) -> None:
        if path.endswith("/status") and is_running(body["status"]) and not slow.is_set():
            landing = asyncio.create_task(land(body))
            late.add(landing)
            slow.set()
            await asyncio.shield(landing)
        if path.endswith("/status") and has_ended(body["status"]):
            go_on.set()

    api.answer = outlive_the_client
    pod = build_pod()
    async with running(api, tmp_path, pod) as worker, asyncio.timeout(SECONDS):
        await slow.wait()
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 1}
        worker.update(pod)
        await processes[0].wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await api.deleted.wait()
        await asyncio.gather(*late)
    assert state_of(api.statuses[-1]) == "terminated"


async def test_a_probe_that_does_not_end_does_not_hold_up_the_end(
    api: ScriptedApi, processes: Processes, tmp_path: Path
) -> None:
    """A probe's answer may come together with the container's end, and a cancelled wait may then go on."""
    probing, go_on = asyncio.Event(), asyncio.Event()

    async def stubborn() -> tuple[int, str]:
        probing.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return 0, ""

    processes.probe = stubborn
    async with running(api, tmp_path, build_pod(readinessProbe=PROBE)):
        async with asyncio.timeout(SECONDS):
            await probing.wait()
        processes[0].end(0)
        try:
            status = await api.wait(has_ended)
        finally:
            go_on.set()
    assert status["containerStatuses"][0]["ready"] is False
    assert api.statuses[-1] == status


async def test_a_pod_whose_object_is_gone_is_probed_no_more(
    api: ScriptedApi, processes: Processes, tmp_path: Path
) -> None:
    async with running(api, tmp_path, build_pod(readinessProbe=PROBE)):
        await api.wait(lambda status: bool(status["containerStatuses"][0]["ready"]))
    left = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr] # a coroutine each
    assert not [name for name in left if name.startswith(("ContainerRunner", "PodWorker"))]


async def test_a_fault_of_the_node_itself_fails_the_pod_and_says_so(
    api: ScriptedApi, processes: Processes, tmp_path: Path
) -> None:
    processes.refuse = OSError(11, "Resource temporarily unavailable")
    async with running(api, tmp_path, build_pod()):
        status = await api.wait(lambda status: status["phase"] == "Failed")
    assert "Resource temporarily unavailable" in status["message"]


async def test_an_event_that_has_expired_is_written_anew(
    api: ScriptedApi, processes: Processes, tmp_path: Path
) -> None:
    counted = asyncio.Event()

    async def forget_events(verb: str, path: str, body: Object) -> None:
        if verb == "patch" and "/events/" in path:
            counted.set()
            raise ApiError(404, "NotFound", "events expire after an hour")

    async def unhealthy() -> tuple[int, str]:
        return 1, "no"

    api.answer, processes.probe = forget_events, unhealthy
    async with running(api, tmp_path, build_pod(readinessProbe=PROBE)), asyncio.timeout(SECONDS):
        await counted.wait()
        while len([event for event in api.events if event["reason"] == "Unhealthy"]) < 2:
            await asyncio.sleep(0)
