"""The fault proxy before a small peer: what each fault does to a request, and what of it the peer hears."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from tests.cluster.fault_proxy import (
    Asked,
    Ended,
    Entry,
    FaultProxy,
    Hung,
    Lost,
    Refused,
    Slow,
    Stale,
    each,
    fault_proxy,
    mixed,
    nothing,
)


class Peer:
    """Answers everything with what it heard; a watch gets one event and stays open."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((request.method, request.path_qs, request.headers.get("Authorization", "")))
        if "watch" not in request.query:
            return web.json_response({"body": await request.text()}, status=201 if request.method == "POST" else 200)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type": "ADDED"}\n')
        await asyncio.Event().wait()
        return response


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[FaultProxy, Peer, aiohttp.ClientSession]]:
    peer, app = Peer(), web.Application()
    app.router.add_route("*", "/{path:.*}", peer.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    headers = {"Authorization": "Bearer good"}
    try:
        async with (
            fault_proxy(f"http://127.0.0.1:{runner.addresses[0][1]}") as proxy,
            aiohttp.ClientSession(proxy.url, headers=headers) as client,
        ):
            yield proxy, peer, client
    finally:
        await runner.cleanup()


async def test_what_no_script_names_passes_unchanged_and_is_recorded() -> None:
    async with stage() as (proxy, peer, client), client.post("/api/a%2Fb?x=1%2C2", data="text") as answer:
        assert (answer.status, await answer.json()) == (201, {"body": "text"})
        assert peer.heard == [("POST", "/api/a%2Fb?x=1,2", "Bearer good")]
        assert [(entry.asked.method, entry.status, entry.done) for entry in proxy.record] == [("POST", 201, True)]


async def test_a_refused_request_never_reaches_the_api_server() -> None:
    async with stage() as (proxy, peer, client):
        proxy.script = each(Refused(429, "TooManyRequests", retry_after_seconds=2))
        async with client.get("/api") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
            assert (await answer.json())["reason"] == "TooManyRequests"
        assert (peer.heard, proxy.record[0].status, proxy.record[0].done) == ([], None, False)


async def test_a_lost_answer_is_one_to_a_request_that_was_done() -> None:
    async with stage() as (proxy, peer, client):
        proxy.script = each(Lost())
        with pytest.raises(aiohttp.ClientError):
            await client.post("/api", data="text")
        assert (len(peer.heard), proxy.record[0].done) == (1, True)


async def test_who_hears_of_an_answer_hears_before_the_caller() -> None:
    async with stage() as (proxy, _, client):
        heard: list[Entry] = []
        proxy.after = heard.append
        async with client.put("/api", data="text"):
            assert [entry.done for entry in heard] == [True]


async def test_what_hangs_ends_with_its_caller() -> None:
    async with stage() as (proxy, peer, client):
        proxy.script = each(Hung())
        with pytest.raises(TimeoutError):
            await client.get("/api", timeout=aiohttp.ClientTimeout(total=0.1))
        assert peer.heard == []


async def test_nothing_arrives_of_a_frozen_watch() -> None:
    async with stage() as (proxy, peer, client):
        proxy.frozen = True
        with pytest.raises(TimeoutError):
            async with client.get("/api?watch=1", timeout=aiohttp.ClientTimeout(total=0.1)) as answer:
                await answer.read()
        assert len(peer.heard) == 1


async def test_a_stale_token_is_refused_by_the_api_server_itself() -> None:
    async with stage() as (proxy, peer, client):
        proxy.script = each(Stale())
        async with client.get("/api"):
            assert peer.heard[0][2] == "Bearer stale"


async def test_a_watch_passes_event_by_event_and_ends_with_the_error_that_is_planted() -> None:
    async with stage() as (proxy, _, client):
        async with client.get("/api?watch=true") as answer:
            assert await answer.content.readline() == b'{"type": "ADDED"}\n'
        proxy.script = each(Ended(410), of=lambda asked: asked.watches)
        async with client.get("/api?watch=true") as answer:
            assert json.loads(await answer.read())["object"]["code"] == 410


async def test_an_open_watch_can_be_cut() -> None:
    async with stage() as (proxy, _, client), client.get("/api?watch=true") as answer:
        await answer.content.readline()
        proxy.cut_watches()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.readline()


async def test_a_slow_request_is_done_all_the_same() -> None:
    async with stage() as (proxy, peer, client):
        proxy.script = each(Slow(0.01))
        async with client.get("/api") as answer:
            assert (answer.status, len(peer.heard)) == (200, 1)


def test_a_mix_is_the_same_for_the_same_seed_and_keeps_faults_of_watches_from_other_requests() -> None:
    asked = [Asked("GET", f"/{number}", watches=number % 4 == 0) for number in range(400)]
    faults = (Lost(), Ended(500))
    first, again = (list(map(mixed(3, faults, share=0.5), asked)) for _ in range(2))
    assert first == again
    assert {fault for fault, one in zip(first, asked, strict=True) if not one.watches} == {None, Lost()}
    assert Ended(500) in first
    assert nothing(asked[0]) is None
