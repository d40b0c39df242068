"""Knows the admin side of every role over HTTP: alive, ready, metrics; and how an app of ours is served on a socket.

Refuses to know which role it is: what ready means, and further routes, are arguments.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import cast

import httptools
import uvicorn
from prometheus_client import CollectorRegistry, exposition
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MOST_HEAD_BYTES = 64 * 1024
"""Of a request before its body, or behind it. Nobody's is a tenth of it; without a limit one that never ends fills the
memory."""
STALLED_SECONDS = 60.0
"""For which a caller may leave so much unread that nothing more can be sent: 64 KiB beside what the system keeps."""
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_IDLE_SECONDS = 75
"""Longer than the 60 s for which common proxies keep a connection, so that the proxy closes it and no request races."""
REQUEST_SECONDS = float(_IDLE_SECONDS)
"""From a request's first byte until it is whole, and from a connection's beginning to its first request."""


def never() -> None:
    """Nothing hangs in a process that takes no steps."""


def _ok_unless(reason: str | None) -> Response:
    return PlainTextResponse("ok\n") if reason is None else PlainTextResponse(f"{reason}\n", status_code=503)


def admin_app(
    *,
    trouble: Callable[[], str | None],
    registry: CollectorRegistry,
    routes: Sequence[BaseRoute] = (),
    hung: Callable[[], str | None] = never,
) -> Starlette:
    """`/readyz` is 503 with the reason while `trouble` gives one, `/healthz` while `hung` does: then only another
    process helps. Else `/healthz` answers as long as the loop turns."""

    async def healthz(_: Request) -> Response:
        return _ok_unless(hung())

    async def readyz(_: Request) -> Response:
        return _ok_unless(trouble())

    async def metrics(_: Request) -> Response:
        return Response(exposition.generate_latest(registry), media_type=exposition.CONTENT_TYPE_LATEST)

    own = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    return Starlette(routes=[*own, *routes])


@contextlib.asynccontextmanager
async def http_server(app: ASGIApp, *, host: str, port: int, grace_seconds: int = 1) -> AsyncIterator[int]:
    """Serve `app` for as long as the context lasts; gives the port, which the system chooses where `port` is 0.

    At the end connections get `grace_seconds` to finish what they send. Raises OSError if the port cannot be had.
    """
    with _listening(host, port) as listener:
        server = _Server(
            uvicorn.Config(
                app,
                http=_Http,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        host.encode("idna")  # the socket would refuse such a name too, but by a TypeError and left open
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise OSError(f"cannot listen on {host}:{port}: {reason}") from error


class _Http(HttpToolsProtocol):
    """With what this parser, unlike the others, has not: a limit to a request's head and to what follows its body, and
    the body of a request that offers to be upgraded, as Java's client offers HTTP/2. And with what no server of
    uvicorn's has: an end of patience with who does not send a request whole, or does not take the answer, since both
    hold what others wait for."""

    _head_bytes = 0
    """Since the last that was of a body, or ended a head or a request."""
    _data = _behind = b""
    """What is read now, and what of it stands behind a head that offers an upgrade."""
    _is_known = False
    """The head that is parsed was parsed before."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._request_limit = _Limit(REQUEST_SECONDS, self._give_up_request)
        self._stall_limit = _Limit(STALLED_SECONDS, transport.abort)
        self._request_limit.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_limit.close()
        self._stall_limit.close()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_limit.begin()

    def resume_writing(self) -> None:
        self._stall_limit.end()
        super().resume_writing()

    def _give_up_request(self) -> None:
        """Who has sent nothing at all is not answered: it may be a connection that a proxy holds ready. And what stands
        behind an answer under way has time, since it is not read meanwhile."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # absent before the first, whatever its type says
        if self.pipeline or not (cycle is None or cycle.response_complete or cycle.more_body):
            self._request_limit.begin()
            return
        is_answered = cycle is not None and cycle.more_body and cycle.response_started
        if self._data and not is_answered:
            self.transport.write(_LATE)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._request_limit.begin()
        self._head_bytes += len(data)
        while data:
            self._data, self._behind = data, b""
            super().data_received(data)
            data = self._behind
        if self._head_bytes > MOST_HEAD_BYTES:
            self.send_400_response(f"The head of the request is longer than {MOST_HEAD_BYTES} bytes.")

    def _unsupported_upgrade_warning(self) -> None:
        """Nobody is upgraded here. The parser takes what is behind the head for another protocol, so a new one goes on
        there, as of a request that offers nothing."""
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade), "it is called where that is handled"
        told = b"".join(b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade")
        self.parser, self._is_known = httptools.HttpRequestParser(self), True
        self._behind = b"POST / HTTP/1.1\r\n%b\r\n%b" % (told, self._data[upgrade.args[0] :])

    def on_message_begin(self) -> None:
        self._request_limit.end()  # of a connection that was held ready
        self._request_limit.begin()
        if not self._is_known:
            super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_known:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        if not self._is_known:
            super().on_headers_complete()
        self._is_known = False

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._request_limit.end()
        if not self.parser.should_upgrade():
            super().on_message_complete()


class _Limit:
    """Does `then` when it was begun `seconds` ago and not ended since."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self._seconds, self._then = seconds, then
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Nothing where it was begun already."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._reach)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Let go of what holds this limit, which else would be left to the search for garbage, and all it holds."""
        self.end()
        self._then = _do_nothing

    def _reach(self) -> None:
        self._timer = None
        self._then()


def _do_nothing() -> None:
    pass


class _Server(uvicorn.Server):
    """Leaves the signals of the process to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
