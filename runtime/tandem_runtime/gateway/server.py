"""Knows how the gateway serves on its two ports, and how it stops: what has begun ends, what comes late goes elsewhere.

Refuses to know routes of the API, signals, and where policy and pods come from.

Stopping has three steps. First readiness goes, while requests are still taken, since whoever routes to this gateway
learns of it with a delay (a Service's endpoints in Kubernetes). Then the port closes and requests in progress go on.
What has not ended shortly before the deadline is told so in words, since the HTTP server would only hang up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tandem_runtime.admin import admin_app, http_server, never
from tandem_runtime.gateway.app import Api
from tandem_runtime.gateway.key_file import KeyFile
from tandem_runtime.gateway.record_file import opened
from tandem_runtime.gateway.serving import Gateway

LAST_WORDS_SECONDS = 1
"""Before the end of the grace: what it takes to tell hundreds of callers that they were cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where, and how patiently: `notice_seconds` still serving but not ready, `grace_seconds` for what has begun."""

    host: str
    port: int
    admin_port: int
    notice_seconds: float = 3.0
    grace_seconds: int = 25
    records: Path | None = None
    """Where a line is written for each choice that ended, see `record_file`; None: nowhere."""
    traced: bool = False
    """Whether spans are sent, see `spans`."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What was really bound, where 0 was asked for."""

    api: int
    admin: int


@dataclass(frozen=True, slots=True)
class OwnEngines:
    """What the admin side has of engines in the gateway's own process: further routes, and whether one is `hung`."""

    routes: Sequence[BaseRoute] = ()
    hung: Callable[[], str | None] = never


NO_ENGINES = OwnEngines()


async def serve_gateway(
    gateway: Gateway,
    listening: Listening,
    *,
    keys: KeyFile | None,
    ending: asyncio.Event,
    started: asyncio.Future[Ports],
    engines: OwnEngines = NO_ENGINES,
) -> None:
    """Serve until `ending` is set, then drain; `started` is told the ports. `engines`: those of this process. No
    `keys`: everyone may ask.

    Raises OSError for a port in use, and SettingRefused where records cannot be written.
    """

    async def evidence(_: Request) -> Response:
        return JSONResponse(gateway.evidence())

    admin = admin_app(
        trouble=gateway.trouble,
        registry=gateway.books.metrics.registry,
        routes=[Route("/internal/evidence", evidence), *engines.routes],
        hung=engines.hung,
    )
    api = Api(gateway, keys=keys).app()
    host = listening.host
    async with (
        _followed(keys, gateway),
        _recorded(listening.records, gateway),
        _traced(listening.traced, gateway),
        http_server(admin, host=host, port=listening.admin_port) as admin_port,
        http_server(api, host=host, port=listening.port, grace_seconds=listening.grace_seconds) as api_port,
    ):
        scoring = asyncio.create_task(gateway.shadow.run())
        replaying = asyncio.create_task(gateway.replays.run())
        started.set_result(Ports(api_port, admin_port))
        await ending.wait()
        gateway.draining = True
        replaying.cancel()  # what is left goes to who still waits for an answer
        await asyncio.wait((replaying,))
        await asyncio.sleep(listening.notice_seconds)
        scoring.cancel()
        asyncio.get_running_loop().call_later(max(listening.grace_seconds - LAST_WORDS_SECONDS, 0), gateway.cut_off)


@asynccontextmanager
async def _recorded(path: Path | None, gateway: Gateway) -> AsyncIterator[None]:
    """While the block lasts, to the last answer, each choice that ends is written there."""
    if path is None:
        yield
        return
    with opened(path) as gateway.records:
        yield


@asynccontextmanager
async def _traced(traced: bool, gateway: Gateway) -> AsyncIterator[None]:
    """While the block lasts, to the last answer, spans are told of each request; its end may wait for the network."""
    if not traced:
        yield
        return
    from tandem_runtime.gateway.spans import tracing  # noqa: PLC0415  # a library only for who is traced

    telling = tracing()
    gateway.tracing = telling.__enter__()
    try:
        yield
    finally:
        await asyncio.to_thread(telling.__exit__, None, None, None)


@asynccontextmanager
async def _followed(keys: KeyFile | None, gateway: Gateway) -> AsyncIterator[None]:
    """While the block lasts, to the last answer, the keys in force are those of their file."""
    if keys is None:
        yield
        return
    gateway.books.metrics.watch_keys(lambda: keys.is_stale)
    following = asyncio.create_task(keys.follow(gateway))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait((following,))
