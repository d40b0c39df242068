"""The real kopf over a loopback API: which event leads to which key, what the API is asked, what an error costs."""

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tandem_operator import handlers
from tandem_operator.handlers import Calls, keep_watching
from tandem_operator.logs import set_up_logging
from tandem_operator.ports import Change, Key, Kind

OURS = ("tandem.dev", "v1alpha1", "speculativedeployments")
SERVED = (OURS, ("apiextensions.k8s.io", "v1", "customresourcedefinitions"), ("", "v1", "namespaces"))
CLUSTER_WIDE = ("customresourcedefinitions", "namespaces")
PATIENCE_SECONDS = 60


def named(name: str, namespace: str = "llm") -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": "7"}}


@dataclass
class Api:
    """Discovery, lists and watches of what `objects` holds by plural; `tell` sends an event to whoever watches."""

    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    watches: dict[tuple[str, str], asyncio.Queue[dict[str, Any] | None]] = field(default_factory=dict)
    refused: int = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs))
        if self.refused:
            self.refused -= 1
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        parts = request.path.strip("/").split("/")
        if parts == ["api"]:
            return web.json_response({"versions": ["v1"]})
        if parts == ["apis"]:
            groups = sorted({(group, version) for group, version, _ in SERVED if group})
            return web.json_response({"groups": [described(*each) for each in groups]})
        if len(parts) == (2 if parts[0] == "api" else 3):
            group = "" if parts[0] == "api" else parts[1]
            return web.json_response({"resources": [listed(plural) for held, _, plural in SERVED if held == group]})
        if "watch" not in request.query:
            items = self.objects.get(parts[-1], [])
            return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
        return await self.stream(request, (parts[-1], parts[parts.index("namespaces") + 1] if "llm" in parts else ""))

    async def stream(self, request: web.Request, place: tuple[str, str]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue = self.watches.setdefault(place, asyncio.Queue())
        while (event := await queue.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    def end_watches(self) -> None:
        for queue in self.watches.values():
            queue.put_nowait(None)

    def tell(self, kind: str, plural: str, body: dict[str, Any], *, namespace: str = "") -> None:
        self.watches[plural, namespace].put_nowait({"type": kind, "object": body})


def described(group: str, version: str) -> dict[str, Any]:
    return {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}


def listed(plural: str) -> dict[str, Any]:
    names = {"name": plural, "singularName": plural[:-1], "kind": plural[:-1].title()}
    return {**names, "namespaced": plural not in CLUSTER_WIDE, "verbs": ["list", "watch", "patch"]}


@dataclass
class Woken:
    """The keys that handlers woke, and what for; `refuse` says for which one waking fails."""

    keys: list[Key] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    refuse: Callable[[Key], bool] = lambda key: False

    async def wake(self, change: Change) -> None:
        self.keys.append(change.key)
        self.changes.append(change)
        self.changed.set()
        if self.refuse(change.key):
            raise RuntimeError("planted")

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reached():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def watching(api: Api, woken: Woken, *namespaces: str) -> AsyncIterator[None]:
    """kopf as `main` runs it, until the block ends."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.serve)
    server = TestServer(app)
    await server.start_server()

    async def log_in() -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=str(server.make_url("")).rstrip("/"))

    stop = asyncio.Event()
    running = asyncio.create_task(keep_watching(Calls(log_in, woken.wake), namespaces, stop))
    try:
        yield
    finally:
        stop.set()
        api.end_watches()
        await running
        await server.close()


async def test_each_event_of_an_object_wakes_its_key_with_its_version() -> None:
    api, woken = Api(), Woken()
    api.objects["speculativedeployments"] = [named("there-before")]
    async with watching(api, woken):
        await woken.until(lambda: Key("llm", "there-before") in woken.keys)
        await asyncio.wait_for(_all_watched(api), PATIENCE_SECONDS)
        for event in ("ADDED", "MODIFIED", "DELETED"):
            api.tell(event, "speculativedeployments", named(event.lower()))
        wanted = {"there-before", "added", "modified", "deleted"}
        await woken.until(lambda: {key.name for key in woken.keys} >= wanted)
    versions = {"there-before": "7", "added": "7", "modified": "7", "deleted": ""}
    kind = Kind.SPECULATIVE_DEPLOYMENT
    assert set(woken.changes) == {Change(Key("llm", name), kind, name, versions[name]) for name in wanted}


async def test_only_the_objects_themselves_are_watched_and_nothing_is_written() -> None:
    api, woken = Api(objects={"speculativedeployments": [named("chat")]}), Woken()
    async with watching(api, woken):
        await woken.until(lambda: bool(woken.keys))
        await asyncio.wait_for(_all_watched(api), PATIENCE_SECONDS)
    assert {method for method, _ in api.asked} == {"GET"}
    assert {plural for plural, _ in api.watches} <= {"speculativedeployments", *CLUSTER_WIDE}


async def _all_watched(api: Api) -> None:
    while "speculativedeployments" not in {plural for plural, _ in api.watches}:
        await asyncio.sleep(0.01)


async def test_in_named_namespaces_nothing_is_asked_of_the_whole_cluster() -> None:
    api, woken = Api(objects={"speculativedeployments": [named("chat")]}), Woken()
    async with watching(api, woken, "llm"):
        await woken.until(lambda: bool(woken.keys))
        await asyncio.wait_for(_all_watched(api), PATIENCE_SECONDS)
        api.tell("MODIFIED", "speculativedeployments", named("other"), namespace="llm")
        await woken.until(lambda: Key("llm", "other") in woken.keys)
    discovery = {"/api", "/apis", *(f"/apis/{group}/{version}" for group, version, _ in SERVED if group), "/api/v1"}
    assert [path for _, path in api.asked if path not in discovery and "/namespaces/llm/" not in path] == []


async def test_an_error_in_a_handler_stops_neither_the_watch_nor_the_next_event() -> None:
    api, woken = Api(objects={"speculativedeployments": [named("chat")]}), Woken(refuse=lambda key: True)
    async with watching(api, woken):
        await woken.until(lambda: bool(woken.keys))
        await asyncio.wait_for(_all_watched(api), PATIENCE_SECONDS)
        for key in (Key("llm", f"o{number}") for number in range(3)):
            api.tell("MODIFIED", "speculativedeployments", named(key.name))
            await woken.until(partial(woken.keys.__contains__, key))


async def test_an_error_event_in_a_watch_ends_all_of_them_and_they_begin_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handlers, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(handlers, "ENDING_SECONDS", 1.0)
    api, woken = Api(objects={"speculativedeployments": [named("chat")]}), Woken()
    async with watching(api, woken):
        await asyncio.wait_for(_all_watched(api), PATIENCE_SECONDS)
        woken.keys.clear()
        before = len(api.asked)
        api.tell("ERROR", "speculativedeployments", {"kind": "Status", "code": 500, "message": "planted"})
        await woken.until(lambda: bool(woken.keys))
        assert any(path == "/apis" for _, path in api.asked[before:])
    assert "watches ended, and begin anew" in caplog.text


async def test_a_refused_token_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(handlers, "ENDING_SECONDS", 1.0)
    api, woken = Api(objects={"speculativedeployments": [named("chat")]}, refused=3), Woken()
    async with watching(api, woken):
        await woken.until(lambda: bool(woken.keys))


@pytest.mark.parametrize("planted", [asyncio.CancelledError(), SystemExit(1), ValueError("planted")])
async def test_whatever_ends_kopf_is_told_and_the_watches_begin_anew(
    planted: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, again = itertools.count(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def operator(*, stop_flag: asyncio.Event, **_: Any) -> None:
        if not next(runs):
            raise planted
        here.call_soon_threadsafe(again.set)
        await stop_flag.wait()

    monkeypatch.setattr(handlers, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(kopf, "operator", operator)
    stop = asyncio.Event()
    running = asyncio.create_task(keep_watching(Calls(unasked, Woken().wake), (), stop))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await again.wait()
        stop.set()
        await running


async def unasked() -> kopf.ConnectionInfo:
    raise AssertionError


async def test_who_stops_to_wait_for_the_end_of_the_watches_breaks_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def operator(*, stop_flag: asyncio.Event, **_: Any) -> None:
        await stop_flag.wait()
        go_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(kopf, "operator", operator)
    watches = handlers.Watches(Calls(unasked, Woken().wake), ())
    watches.leave()
    over = asyncio.wrap_future(watches.over)
    while not watches.over.running():
        await asyncio.sleep(0)
    over.cancel()
    go_on.set()
    await asyncio.to_thread(watches.over.result, PATIENCE_SECONDS)


def test_an_error_in_kopfs_loop_is_told_without_the_headers_that_were_sent(caplog: pytest.LogCaptureFixture) -> None:
    sent = CIMultiDictProxy(CIMultiDict({"Authorization": "Bearer hf_abc"}))
    asked = aiohttp.RequestInfo(URL("http://api/"), "GET", sent, URL("http://api/"))
    loop = asyncio.new_event_loop()
    loop.close()
    error = aiohttp.ClientResponseError(asked, (), status=401, message="Unauthorized")
    handlers._tell_in_one_line(loop, {"message": "planted", "exception": error})
    assert "hf_abc" in repr(error)
    assert "planted error=ClientResponseError: 401" in caplog.text
    assert "hf_abc" not in caplog.text


def test_the_log_tells_of_kopf_what_went_wrong_and_not_each_event_that_it_handed_on() -> None:
    try:
        set_up_logging("text")
        handled = logging.getLogger("kopf.objects")
        told = [level for level in (logging.INFO, logging.WARNING, logging.ERROR) if handled.isEnabledFor(level)]
    finally:
        logging.getLogger("kopf").setLevel(logging.NOTSET)
    assert told == [logging.WARNING, logging.ERROR]
