"""A reverse proxy before an API server: it does to each request what a script says, and keeps a record of all.

It knows HTTP and what a watch is, and nothing of what the requests mean. Whoever is to be disturbed is given its
address in place of the API server's; what the script leaves alone passes unchanged, with the caller's own token, so
that authentication, rights, conflicts and validation are the API server's. Searched for first: mitmproxy would bring
thirty packages, and the fault proxies that pip knows work on TCP, where there is no 409 and no Retry-After.
"""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import aiohttp
from aiohttp import web
from yarl import URL

READS = ("GET", "HEAD")
HOP_BY_HOP = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length"})
LARGEST_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came; `path` is without the query. Whoever `pages` asks for a part of a list."""

    method: str
    path: str
    watches: bool = False
    pages: bool = False

    @property
    def writes(self) -> bool:
        return self.method not in READS


@dataclass(frozen=True, slots=True)
class Refused:
    """Answered in the API server's place, which never hears of it."""

    status: int
    reason: str
    message: str = "planted"
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The API server does it, and the connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class Hung:
    """Never answered, and the API server never hears of it."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Passed on after a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stale:
    """Passed on with a token that the API server does not take (any more): it answers 401 itself."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A watch that ends at once with an error event of this code."""

    code: int


Fault: TypeAlias = Refused | Lost | Hung | Slow | Stale | Ended
Script: TypeAlias = Callable[[Asked], Fault | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of a request; `status` is the API server's own answer, None where it gave none."""

    asked: Asked
    status: int | None = None
    fault: Fault | None = None

    @property
    def done(self) -> bool:
        """Whether the API server has done a write."""
        return self.asked.writes and self.status is not None and self.status < 300


def nothing(_: Asked) -> None:
    """The script under which everything passes."""


def each(fault: Fault, *, of: Callable[[Asked], bool] = lambda _: True) -> Script:
    """`fault` for each request that is one `of` these."""
    return lambda asked: fault if of(asked) else None


def mixed(seed: int, faults: Sequence[Fault], *, share: float) -> Script:
    """One of `faults` for a share of the requests, as chance wills; watches meet only what a watch can meet."""
    chance = random.Random(seed)

    def choose(asked: Asked) -> Fault | None:
        fits = [fault for fault in faults if asked.watches or not isinstance(fault, Ended)]
        return chance.choice(fits) if chance.random() < share else None

    return choose


class FaultProxy:
    """`script` may be exchanged at any time. While `frozen`, watches stay open and nothing of them arrives. `after`
    hears of each request that the API server has answered, before the answer passes on."""

    def __init__(self, session: aiohttp.ClientSession, upstream: str) -> None:
        self.script: Script = nothing
        self.frozen = False
        self._open: list[web.Request] = []
        self.after: Callable[[Entry], None] = lambda _: None
        self.record: list[Entry] = []
        self.url = ""
        self._session = session
        self._upstream = upstream

    async def serve(self, request: web.Request) -> web.StreamResponse:
        watches, pages = request.query.get("watch") in ("1", "true"), "limit" in request.query
        asked = Asked(request.method, request.path, watches, pages)
        fault = self.script(asked)
        match fault:
            case None | Slow() | Stale():
                await asyncio.sleep(fault.seconds if isinstance(fault, Slow) else 0)
                return await self._pass_on(request, asked, fault)
            case Lost():
                await self._pass_on(request, asked, fault)
                return _cut(request)
            case Refused():
                self.record.append(Entry(asked, fault=fault))
                return _refusal(fault)
            case Hung():
                self.record.append(Entry(asked, fault=fault))
                await asyncio.Event().wait()
            case Ended():
                self.record.append(Entry(asked, fault=fault))
                return await _end_watch(request, fault)
            case _:
                assert_never(fault)
        raise AssertionError("nothing follows a request that is never answered")

    async def _pass_on(self, request: web.Request, asked: Asked, fault: Fault | None) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        if isinstance(fault, Stale):
            headers["Authorization"] = "Bearer stale"
        url = URL(f"{self._upstream}{request.raw_path}", encoded=True)
        body = await request.read()
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            entry = Entry(asked, answer.status, fault)
            self.record.append(entry)
            passed = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            if asked.watches and answer.status == 200:
                return await self._stream(request, web.StreamResponse(headers=passed), answer)
            content = await answer.read()
            self.after(entry)
            return web.Response(status=answer.status, reason=answer.reason, headers=passed, body=content)

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """A watch, event by event, until either side ends it."""
        await response.prepare(request)
        self._open.append(request)
        try:
            async for chunk in answer.content.iter_any():
                if not self.frozen:
                    await response.write(chunk)
        except (aiohttp.ClientError, ConnectionError):
            _cut(request)
        finally:
            self._open = [other for other in self._open if other is not request]
        return response

    def cut_watches(self) -> None:
        """End the connections of all open watches, as an API server does that is replaced."""
        for request in tuple(self._open):
            _cut(request)


async def _end_watch(request: web.Request, fault: Ended) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.code, "message": "planted"}
    await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
    return response


def _cut(request: web.Request) -> web.Response:
    """Ends the connection; the response that goes with it reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=499)


def _refusal(fault: Refused) -> web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": fault.message,
        "reason": fault.reason,
        "code": fault.status,
    }
    again = {} if fault.retry_after_seconds is None else {"Retry-After": str(fault.retry_after_seconds)}
    return web.json_response(status, status=fault.status, headers=again)


@asynccontextmanager
async def fault_proxy(upstream: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[FaultProxy]:
    """The proxy on a port of its own of 127.0.0.1, over plain HTTP; `tls` knows the API server's authority and carries
    no identity."""
    connector = aiohttp.TCPConnector(ssl=tls or True, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        proxy = FaultProxy(session, upstream)
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", proxy.serve)
        # A caller that gave up is gone: what is held back for it ends with it.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()
