"""Children under watch through the real client, over a loopback API: what is asked and told, what an error costs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from tandem_operator import kube, watches
from tandem_operator.kube import METADATA_ALONE, METADATA_EVENTS, PAGE, KubeCluster
from tandem_operator.ports import Change, Key, Kind
from tandem_operator.watches import CHILD_KINDS, watch_children

PATIENCE_SECONDS = 60
LABEL = "tandem.dev/deployment"


def child(name: str, version: int, *, of: str = "chat") -> dict[str, Any]:
    return {"metadata": {"namespace": "llm", "name": name, "labels": {LABEL: of}, "resourceVersion": str(version)}}


@dataclass
class Api:
    """Lists what `objects` holds by plural, `page` at once, and streams what a test puts into `events`."""

    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    events: dict[str, asyncio.Queue[dict[str, Any] | None]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    page: int = 500
    refused: int = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        plural = request.path.rpartition("/")[2]
        self.asked.append((request.path, dict(request.query), request.headers["Accept"]))
        if self.refused:
            self.refused -= 1
            return web.json_response({"kind": "Status", "message": "planted"}, status=500)
        if request.query.get("watch") == "true":
            return await self.stream(request, plural)
        held, start = self.objects.get(plural, []), int(request.query.get("continue", "0"))
        rest = str(start + self.page) if len(held) > start + self.page else ""
        metadata = {"resourceVersion": "40", "continue": rest}
        return web.json_response({"metadata": metadata, "items": held[start : start + self.page]})

    async def stream(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.queue(plural).get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    def queue(self, plural: str) -> asyncio.Queue[dict[str, Any] | None]:
        return self.events.setdefault(plural, asyncio.Queue())

    def end(self) -> None:
        for queue in self.events.values():
            for _ in self.asked:
                queue.put_nowait(None)

    def tell(self, kind: str, body: dict[str, Any], plural: str = "pods") -> None:
        self.queue(plural).put_nowait({"type": kind, "object": body})


@dataclass
class Told:
    """What a watch told."""

    changes: list[Change] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def tell(self, change: Change) -> None:
        self.changes.append(change)
        self.changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reached():
                self.changed.clear()
                await self.changed.wait()

    def of_pods(self) -> list[tuple[str, str]]:
        return [(change.name, change.version) for change in self.changes if change.kind is Kind.POD]


@asynccontextmanager
async def watching(api: Api, told: Told, *namespaces: str) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.serve)
    server = TestServer(app)
    await server.start_server()
    settings = client.Configuration()
    settings.host = str(server.make_url("")).rstrip("/")
    kubernetes = client.ApiClient(settings)
    task = asyncio.create_task(watch_children(KubeCluster(kubernetes), namespaces, told.tell))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        api.end()
        await kubernetes.close()  # type: ignore[no-untyped-call]  # the client is only partly typed
        await server.close()


async def opened(api: Api) -> None:
    """Until pods are watched."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any("watch" in query for path, query, _ in api.asked if path.endswith("/pods")):
            await asyncio.sleep(0.01)


async def test_each_child_of_each_kind_is_told_with_its_version_and_the_object_it_belongs_to() -> None:
    api, told = Api(), Told()
    plurals = {kind: f"{kind.lower()}s" for kind in CHILD_KINDS}
    api.objects = {plural: [child("there", 3)] for plural in plurals.values()}
    async with watching(api, told):
        await told.until(lambda: {change.kind for change in told.changes} == set(CHILD_KINDS))
        for plural in plurals.values():
            api.tell("ADDED", child("new", 41, of="other"), plural)
            api.tell("BOOKMARK", {"metadata": {"resourceVersion": "42"}}, plural)
            api.tell("DELETED", child("there", 43), plural)
        await told.until(lambda: len(told.changes) == 3 * len(CHILD_KINDS))
    chat, other = Key("llm", "chat"), Key("llm", "other")
    for kind in CHILD_KINDS:
        assert [change for change in told.changes if change.kind is kind] == [
            Change(chat, kind, "there", "3"),
            Change(other, kind, "new", "41"),
            Change(chat, kind, "there", ""),
        ]


async def test_only_metadata_of_what_bears_our_label_is_asked_for_in_pages_and_only_in_named_namespaces() -> None:
    api, told = Api(page=2), Told()
    api.objects["pods"] = [child(f"p{number}", number) for number in range(5)]
    async with watching(api, told, "llm"):
        await told.until(lambda: len(told.of_pods()) == 5)
        await opened(api)
    lists = [query for path, query, accept in api.asked if path.endswith("/pods") and accept == METADATA_ALONE]
    assert [query.get("continue") for query in lists] == [None, "2", "4"]
    assert {query["limit"] for query in lists} == {PAGE}
    (watch,) = [(query, accept) for path, query, accept in api.asked if path.endswith("/pods") and "watch" in query]
    assert (watch[0]["resourceVersion"], watch[1]) == ("40", METADATA_EVENTS)
    assert {query["labelSelector"] for _, query, _ in api.asked} == {LABEL}
    assert all("/namespaces/llm/" in path for path, _, _ in api.asked)


async def test_what_vanished_between_two_watches_is_told_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "AGAIN_SECONDS", 0.0)
    api, told = Api(), Told()
    api.objects["pods"] = [child("stays", 1), child("goes", 2)]
    async with watching(api, told):
        await told.until(lambda: len(told.of_pods()) == 2)
        api.objects["pods"] = [child("stays", 1)]
        api.queue("pods").put_nowait(None)
        await told.until(lambda: ("goes", "") in told.of_pods())


@pytest.mark.parametrize("code", [410, 500])
async def test_an_error_event_ends_a_watch_and_the_next_one_begins_with_a_list(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watches, "AGAIN_SECONDS", 0.0)
    api, told = Api(), Told()
    async with watching(api, told):
        await opened(api)
        api.tell("ERROR", {"kind": "Status", "code": code, "message": "planted"})
        api.objects["pods"] = [child("after", 50)]
        await told.until(lambda: ("after", "50") in told.of_pods())
    assert "watch ended, and begins anew kind=Pod" in caplog.text


async def test_an_api_server_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "AGAIN_SECONDS", 0.01)
    api, told = Api(refused=12), Told()
    api.objects["pods"] = [child("there", 1)]
    async with watching(api, told):
        await told.until(lambda: ("there", "1") in told.of_pods())


async def test_a_watch_in_which_nothing_is_heard_of_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(kube, "SILENCE_SECONDS", 0.2)
    api, told = Api(), Told()
    async with watching(api, told):
        await opened(api)
        api.objects["pods"] = [child("unheard", 1)]
        await told.until(lambda: ("unheard", "1") in told.of_pods())
