"""Callers who do not go on, over real sockets: who sends no whole request and who takes no answer holds nothing for
good. The limits are shortened here."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import repeat

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem_runtime.admin import http_server

PART = b"x" * 65_536
HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
UPGRADED = HEAD.replace(b"host: x", b"host: x\r\nconnection: upgrade\r\nupgrade: h2c") + b"01234"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_runtime.admin.REQUEST_SECONDS", 0.3)
    monkeypatch.setattr("tandem_runtime.admin.STALLED_SECONDS", 0.3)


@asynccontextmanager
async def connected(app: ASGIApp) -> AsyncIterator[Connection]:
    async with http_server(app, host="127.0.0.1", port=0) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 19)
        yield reader, writer
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


class Answering:
    """Answers a whole request with `parts`, `seconds` after each other, and notes when the caller is gone."""

    def __init__(self, parts: Iterator[bytes], *, seconds: float = 0.0) -> None:
        self._parts, self._seconds = parts, seconds
        self.gone = asyncio.Event()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            self.gone.set()
            return
        watching = asyncio.create_task(self._watch(receive))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"keep-alive")]})
        while not self.gone.is_set() and (part := next(self._parts, None)) is not None:
            await send(body_of(part, more=True))
            await asyncio.sleep(self._seconds)
        await send(body_of(b"", more=False))
        watching.cancel()

    async def _watch(self, receive: Receive) -> None:
        if (await receive())["type"] == "http.disconnect":
            self.gone.set()


def body_of(part: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


async def test_who_takes_no_answer_is_gone_after_a_while() -> None:
    app = Answering(repeat(PART))
    async with connected(app) as (_, writer):
        writer.write(HEAD + b"0123456789")
        await app.gone.wait()


async def test_who_takes_an_answer_slowly_gets_it_whole() -> None:
    """Each half a megabyte in less than the limit, all in several of it."""
    app, answer = Answering(iter([PART] * 160)), bytearray()
    async with connected(app) as (reader, writer):
        writer.write(HEAD.replace(b"host: x", b"connection: close") + b"0123456789")
        while part := await reader.read(1 << 19):
            answer += part
            await asyncio.sleep(0.05)
    assert answer.endswith(b"0\r\n\r\n")
    assert answer.count(PART) == 160


@pytest.mark.parametrize(
    "sent", [b"POST /x HT", HEAD[:-2], HEAD + b"01234", UPGRADED], ids=["line", "head", "body", "upgrade"]
)
async def test_who_sends_no_whole_request_is_told_so(sent: bytes) -> None:
    app = Answering(iter([]))
    async with connected(app) as (reader, writer):
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        if sent.startswith(HEAD):
            await app.gone.wait()


async def test_who_sends_nothing_is_hung_up_on() -> None:
    async with connected(Answering(iter([]))) as (reader, _):
        assert await reader.read() == b""


async def test_a_connection_that_was_held_ready_takes_nothing_from_its_first_request() -> None:
    async with connected(Answering(iter([b"answer"]))) as (reader, writer):
        await asyncio.sleep(0.2)
        writer.write(HEAD)
        await asyncio.sleep(0.2)
        writer.write(b"0123456789")
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_second_request_has_the_same_limit() -> None:
    async with connected(Answering(iter([b"first"]))) as (reader, writer):
        writer.write(HEAD + b"0123456789")
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(HEAD + b"01")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [HEAD + b"01", HEAD[:20]], ids=["body", "head"])
async def test_what_stands_behind_an_answer_under_way_does_not_end_it(sent: bytes) -> None:
    app = Answering(iter([b"part"] * 10), seconds=0.1)
    async with connected(app) as (reader, writer):
        writer.write(HEAD + b"0123456789" + sent)
        answer = await reader.readuntil(b"0\r\n\r\n")
        assert answer.count(b"part") == 10
        assert b"HTTP/1.1 408 " not in answer
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
