"""What the operator hears of pods, over a loopback server: numbers, or nothing within the deadline."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator import telemetry
from tandem_operator.ports import Pressure
from tandem_operator.telemetry import PodTelemetry, pod_session

HOST = "127.0.0.1"
MEMORY = {"workingSetBytes": 7, "kvBasisPoints": 8000, "preempting": True}


class Pod:
    """Answers every path with `body`; `released` ends a hang."""

    def __init__(self) -> None:
        self.body, self.status, self.paths = b"{}", 200, list[str]()
        self.released = asyncio.Event()
        self.released.set()
        self.loading, self.read = 0, asyncio.Event()

    async def load(self, _: web.Request) -> web.Response:
        """Takes until the adapter is `read`."""
        self.loading += 1
        await self.read.wait()
        return web.json_response({})

    async def serve(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        await self.released.wait()
        return web.Response(body=self.body, status=self.status, content_type="application/json")


@pytest.fixture
async def heard(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Pod, PodTelemetry]]:
    pod, app = Pod(), web.Application()
    app.router.add_get("/{path:.*}", pod.serve)
    app.router.add_put("/{path:.*}", pod.load)
    server = TestServer(app, host=HOST)
    await server.start_server()
    monkeypatch.setattr(telemetry, "ADMIN_PORT", server.port)
    async with pod_session() as session:
        yield pod, PodTelemetry(session)
    pod.released.set()
    pod.read.set()
    await server.close()


async def test_evidence_and_memory_come_from_their_paths(heard: tuple[Pod, PodTelemetry]) -> None:
    pod, pods = heard
    pod.body = json.dumps(MEMORY).encode()
    assert (await pods.evidence(HOST), await pods.pressure(HOST)) == (pod.body, Pressure(7, 8000, True))
    assert pod.paths == ["/internal/evidence", "/internal/memory"]


async def test_an_error_is_no_answer(heard: tuple[Pod, PodTelemetry]) -> None:
    pod, pods = heard
    pod.body, pod.status = json.dumps(MEMORY).encode(), 500
    assert (await pods.evidence(HOST), await pods.pressure(HOST)) == (None, None)


async def test_a_pod_is_heard_while_more_loads_go_on_than_a_client_has_connections(
    heard: tuple[Pod, PodTelemetry],
) -> None:
    pod, pods = heard
    loads = [asyncio.create_task(pods.load_adapter(HOST, f"{index}", {"uri": "file:///one"})) for index in range(101)]
    while pod.loading < 100:
        await asyncio.sleep(0.01)
    assert await pods.evidence(HOST) == pod.body
    pod.read.set()
    assert set(await asyncio.gather(*loads)) == {None}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
async def test_memory_that_is_no_object_is_no_answer(heard: tuple[Pod, PodTelemetry], body: bytes) -> None:
    pod, pods = heard
    pod.body = body
    assert await pods.pressure(HOST) is None


async def test_an_answer_that_does_not_end_is_no_answer(
    heard: tuple[Pod, PodTelemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, pods = heard
    monkeypatch.setattr(telemetry, "LARGEST_ANSWER_BYTES", len(json.dumps(MEMORY)) - 1)
    pod.body = json.dumps(MEMORY).encode()
    assert await pods.evidence(HOST) is None


@pytest.mark.parametrize("change", [{"workingSetBytes": "7"}, {"kvBasisPoints": None}, {"preempting": 1}])
async def test_memory_of_another_shape_is_no_answer(heard: tuple[Pod, PodTelemetry], change: dict[str, Any]) -> None:
    pod, pods = heard
    pod.body = json.dumps({**MEMORY, **change}).encode()
    assert await pods.pressure(HOST) is None


async def test_a_pod_that_hangs_or_is_gone_costs_the_deadline_and_no_more(
    heard: tuple[Pod, PodTelemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, pods = heard
    monkeypatch.setattr(telemetry, "ANSWER_SECONDS", 0.2)
    pod.released.clear()
    async with asyncio.timeout(10):
        assert await pods.evidence(HOST) is None
    monkeypatch.setattr(telemetry, "ADMIN_PORT", 1)
    assert await pods.evidence(HOST) is None
