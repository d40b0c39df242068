"""The admin side over a real socket."""

import asyncio
import contextlib
import errno
import gc
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandem_runtime.admin import MOST_HEAD_BYTES, admin_app, http_server


async def test_ready_follows_the_trouble_and_healthy_does_not() -> None:
    trouble: str | None = "the model is loading"
    app = admin_app(trouble=lambda: trouble, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port, httpx.AsyncClient() as client:
        before = await client.get(f"http://127.0.0.1:{port}/readyz")
        alive = await client.get(f"http://127.0.0.1:{port}/healthz")
        trouble = None
        after = await client.get(f"http://127.0.0.1:{port}/readyz")
    assert (before.status_code, before.text) == (503, "the model is loading\n")
    assert (alive.status_code, after.status_code) == (200, 200)


async def test_metrics_are_those_of_the_registry_and_routes_of_the_role_are_served_beside() -> None:
    registry = CollectorRegistry()
    Counter("tandem_tests", "Counted here.", registry=registry).inc()

    async def evidence(_: Request) -> Response:
        return PlainTextResponse("evidence")

    app = admin_app(trouble=lambda: None, registry=registry, routes=[Route("/internal/evidence", evidence)])
    async with http_server(app, host="127.0.0.1", port=0) as port, httpx.AsyncClient() as client:
        metrics = await client.get(f"http://127.0.0.1:{port}/metrics")
        beside = await client.get(f"http://127.0.0.1:{port}/internal/evidence")
        unknown = await client.get(f"http://127.0.0.1:{port}/internal")
    assert "tandem_tests_total 1.0" in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain")
    assert (beside.text, unknown.status_code) == ("evidence", 404)


async def test_a_port_in_use_is_one_line_that_names_it() -> None:
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use$") as caught:
            await http_server(app, host="127.0.0.1", port=port).__aenter__()
    assert getattr(caught.value.__cause__, "errno", None) == errno.EADDRINUSE


async def test_a_head_that_does_not_end_is_refused_before_it_fills_the_memory() -> None:
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"GET /healthz HTTP/1.1\r\nhost: x\r\nendless: "
        writer.write(head + b"x" * (MOST_HEAD_BYTES - len(head)))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(b"x")
        reply = await reader.read()
        writer.close()
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert str(MOST_HEAD_BYTES).encode() in reply


async def test_trailers_that_do_not_end_are_refused_too() -> None:
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        chunked = b"POST /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(chunked + b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n0\r\n")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                for _ in range(20):
                    writer.write(b"trailer: x\r\n" * 1000)
                    await writer.drain()
                await reader.read()
        writer.close()


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
"""What Java's client sends with its first request, whatever that is."""


@pytest.mark.parametrize("pause_seconds", [0.0, 0.05])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"content-length: 100\r\n", b"x" * 100),
        (b"transfer-encoding: chunked\r\n", b"64\r\n" + b"x" * 100 + b"\r\n0\r\n\r\n"),
    ],
    ids=["whole", "chunked"],
)
async def test_a_request_that_offers_an_upgrade_is_one_like_any_other(
    framing: bytes, body: bytes, pause_seconds: float
) -> None:
    async def told(request: Request) -> Response:
        return PlainTextResponse(f"{request.method} {len(await request.body())}!")

    app = admin_app(
        trouble=lambda: None, registry=CollectorRegistry(), routes=[Route("/told", told, methods=["PUT", "GET"])]
    )
    async with http_server(app, host="127.0.0.1", port=0) as port, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for upgrade in (UPGRADE, UPGRADE, b""):
            writer.write(b"PUT /told HTTP/1.1\r\nhost: x\r\n" + upgrade + framing + b"\r\n")
            await asyncio.sleep(pause_seconds)
            writer.write(body)
            assert (await reader.readuntil(b"!")).endswith(b"\r\n\r\nPUT 100!")
        writer.write(2 * (b"GET /told HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n"))
        for _ in range(2):
            assert (await reader.readuntil(b"!")).endswith(b"\r\n\r\nGET 0!")
        writer.close()


async def test_what_is_wrong_with_a_request_that_offers_an_upgrade_is_told() -> None:
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /told HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"transfer-encoding: gzip\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_requests_that_are_longer_together_than_a_head_may_be_are_served_on_one_connection() -> None:
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port, httpx.AsyncClient() as client:
        replies = [
            await client.request("GET", f"http://127.0.0.1:{port}/healthz", content=bytes(MOST_HEAD_BYTES + 1))
            for _ in range(3)
        ]
        long = [await client.get(f"http://127.0.0.1:{port}/healthz", headers={"x": "x" * 30_000}) for _ in range(3)]
    assert [reply.status_code for reply in (*replies, *long)] == [200] * 6


async def test_a_connection_that_ended_is_gone_without_a_search_for_garbage() -> None:
    """A gateway looks for garbage rarely, and a connection holds buffers."""
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port, asyncio.timeout(10):
        with _no_search_for_garbage():
            before = _connections()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"ok\n")
            writer.close()
            while _connections() > before:
                await asyncio.sleep(0.01)


@contextlib.contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """Nor any left of what went before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _connections() -> int:
    return sum(isinstance(each, HttpToolsProtocol) for each in gc.get_objects())
