"""The operator asks a loopback server that speaks Prometheus' query API, and hears an answer or says why not."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from tandem_operator import prometheus
from tandem_operator.domain.errors import ProviderError
from tandem_operator.domain.readings import Reading, Trouble, read
from tandem_operator.prometheus import Prometheus

ANSWERS = {"one": [{"metric": {}, "value": [1767225600.123, "0.012"]}], "none": []}


class Server:
    """`/prefix/api/v1/query` as Prometheus answers it: form or URL parameters, 400 for what it cannot read."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.released = asyncio.Event()
        self.released.set()

    async def query(self, request: web.Request) -> web.StreamResponse:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append(form)
        self.tokens.append(request.headers.get("Authorization"))
        await self.released.wait()
        match form["query"]:
            case "elsewhere":
                raise web.HTTPFound("http://elsewhere.example/")
            case "page":
                return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")
            case "stranger":
                return web.json_response({"message": "who are you?"}, status=401)
            case "endless":
                return web.json_response({"status": "success", "data": "x" * (2 << 20)})
            case known if known in ANSWERS:
                data = {"resultType": "vector", "result": ANSWERS[known]}
                return web.json_response({"status": "success", "data": data})
            case _:
                error = {"status": "error", "errorType": "bad_data", "error": "1:1: parse error: unexpected x"}
                return web.json_response(error, status=400)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Server, str, aiohttp.ClientSession]]:
    server, app = Server(), web.Application()
    app.router.add_post("/prefix/api/v1/query", server.query)
    running = TestServer(app, host="127.0.0.1")
    await running.start_server()
    async with aiohttp.ClientSession() as session:
        yield server, str(running.make_url("/prefix")), session
    server.released.set()
    await running.close()


Served = tuple[Server, str, aiohttp.ClientSession]


async def test_a_query_is_asked_whole_and_its_number_is_heard(served: Served) -> None:
    server, url, session = served
    asked = Prometheus(session, url)
    assert read("m", await asked.ask("one")) == Reading(name="m", value=0.012)
    assert read("m", await asked.ask("none")).trouble is Trouble.NO_DATA
    assert server.asked == [{"query": "one", "timeout": "3s"}, {"query": "none", "timeout": "3s"}]
    assert server.tokens == [None, None]


async def test_what_prometheus_words_itself_is_heard_whatever_its_status(served: Served) -> None:
    _, url, session = served
    heard = read("m", await Prometheus(session, url).ask("sum("))
    assert heard == Reading(name="m", trouble=Trouble.PROVIDER_ERROR, note="bad_data: 1:1: parse error: unexpected x")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("page", "Prometheus answered 502 with text/html, not JSON"),
        ("stranger", "Prometheus answered 401; see the token in the chart's prometheus.existingSecret"),
        ("elsewhere", "Prometheus answered 302 with text/plain, not JSON"),
        ("endless", "Prometheus' answer is too long; aggregate the query to one number"),
    ],
)
async def test_what_is_no_answer_is_an_error_that_says_how_far_it_came(served: Served, query: str, words: str) -> None:
    _, url, session = served
    with pytest.raises(ProviderError) as caught:
        await Prometheus(session, url).ask(query)
    assert str(caught.value) == words


async def test_a_hung_prometheus_holds_no_look_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server, url, session = served
    monkeypatch.setattr(prometheus, "ANSWER_SECONDS", 0.05)
    server.released.clear()
    with pytest.raises(ProviderError, match=r"did not answer within 0\.05 s"):
        await Prometheus(session, url).ask("one")


async def test_nobody_listening_is_an_error() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ProviderError, match="cannot be reached: ClientConnectorError"):
            await Prometheus(session, f"http://127.0.0.1:{unused_port()}").ask("one")


async def test_the_token_is_shown_as_it_stands_in_its_file_at_each_query(served: Served, tmp_path: Path) -> None:
    server, url, session = served
    token = tmp_path / "token"
    asked = Prometheus(session, url, token)
    for word in ("first", "second"):
        token.write_text(f"{word}\n")
        await asked.ask("one")
    assert server.tokens == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("written", [None, b"", b"\n", b"a\nb", b"\xff"])
async def test_a_token_that_cannot_be_shown_is_named_and_not_printed(
    served: Served, tmp_path: Path, written: bytes | None
) -> None:
    _, url, session = served
    token = tmp_path / "token"
    if written is not None:
        token.write_bytes(written)
    with pytest.raises(ProviderError, match="the token for Prometheus") as caught:
        await Prometheus(session, url, token).ask("one")
    assert "a\nb" not in str(caught.value)


async def test_a_peer_without_a_content_type_is_no_prometheus(served: Served) -> None:
    answer = json.dumps({"status": "success"}).encode()

    async def bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
        await writer.drain()
        writer.close()

    _, _, session = served
    async with await asyncio.start_server(bare, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(ProviderError, match="answered 200 with application/octet-stream, not JSON"):
            await Prometheus(session, f"http://127.0.0.1:{port}").ask("one")
