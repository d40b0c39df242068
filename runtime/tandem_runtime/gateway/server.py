"""Knows how the gateway listens, and how it stops: what has begun ends, what comes late goes elsewhere.

Refuses to know routes and signals: it is told to stop by an event.

Stopping has three steps. First readiness goes, while requests are still taken, since whoever routes to this gateway
learns of it with a delay (a Service's endpoints in Kubernetes). Then the port closes and requests in progress go on.
What has not ended at the deadline is cut off.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.gateway.serving import Gateway

IDLE_CONNECTION_SECONDS = 75
"""Longer than the 60 s for which common proxies keep a connection, so that the proxy closes it and no request races."""


@dataclass(frozen=True, slots=True)
class Drain:
    """`notice_seconds`: still serving, no longer ready. `finish_seconds`: for what has begun."""

    notice_seconds: float = 3.0
    finish_seconds: float = 100.0


class _Server(uvicorn.Server):
    """Signals belong to whoever started us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with nullcontext():
            yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises SettingRefused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingRefused(f"cannot listen on --host {host} --port {port}: {error.strerror}") from error


@asynccontextmanager
async def listening(app: ASGIApp, listener: socket.socket, *, finish_seconds: float) -> AsyncIterator[None]:
    """Serve `app` on `listener` while the block lasts; then let requests end for up to `finish_seconds`."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_CONNECTION_SECONDS,
        timeout_graceful_shutdown=max(1, round(finish_seconds)),
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def serve_until(
    stop: asyncio.Event, gateway: Gateway, app: ASGIApp, listener: socket.socket, *, drain: Drain
) -> None:
    """Serve until `stop` is set, then drain."""
    async with listening(app, listener, finish_seconds=drain.finish_seconds):
        await stop.wait()
        gateway.draining = True
        await asyncio.sleep(drain.notice_seconds)
