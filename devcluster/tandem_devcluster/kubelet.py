"""The part of a kubelet's HTTPS interface that `kubectl logs` needs.

It knows running containers and their log files. Only the API server may call: its certificate is asked for. Commands
into running containers and port forwarding are refused, saying so.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from tandem_devcluster.certificates import KeyPair
from tandem_devcluster.container import ContainerRunner

FindRunner = Callable[[str, str, str], ContainerRunner | None]

_POLL_SECONDS = 0.1
_CHUNK_BYTES = 65536
_UNKNOWN_OPTIONS = ("sinceSeconds", "sinceTime", "timestamps")


async def serve_kubelet(
    address: str, port: int, *, pair: KeyPair, authority: Path, find_runner: FindRunner
) -> web.AppRunner:
    """Listen until the returned runner is cleaned up. `find_runner(namespace, pod, container)` knows this node's."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(pair.certificate, pair.key)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", _Logs(find_runner).answer)
    for verb in ("exec", "attach", "portForward"):
        app.router.add_route("*", f"/{verb}/{{rest:.*}}", _refuse)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port, ssl_context=tls).start()
    return runner


async def _refuse(request: web.Request) -> web.Response:
    verb = request.path.split("/")[1]
    text = f"{verb} is not offered by the dev cluster; its pods are local processes and ports are reached by `forward`"
    return web.Response(status=501, text=text)


class _Logs:
    def __init__(self, find_runner: FindRunner) -> None:
        self._find_runner = find_runner

    async def answer(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        runner = self._find_runner(where["namespace"], where["pod"], where["container"])
        if runner is None:
            return web.Response(status=404, text=f"container {where['container']!r} is not on this node")
        for option in _UNKNOWN_OPTIONS:
            if request.query.get(option, "false") != "false":
                return web.Response(
                    status=400, text=f"{option} is not offered: the dev cluster keeps no times of lines"
                )
        log = runner.log_file(previous=request.query.get("previous") == "true")
        if not log.exists():
            return web.Response(status=404, text=f"container {where['container']!r} has no such log yet")
        return await self._stream(request, runner, log)

    async def _stream(self, request: web.Request, runner: ContainerRunner, log: Path) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with log.open("rb") as lines:
            lines.seek(_start_of_tail(log, request.query.get("tailLines")))
            limit = int(request.query.get("limitBytes", "0"))
            await response.write(lines.read(limit) if limit else b"")
            follow = request.query.get("follow") == "true" and not limit
            while not limit:
                live = follow and runner.is_running and runner.log_file() == log
                while chunk := lines.read(_CHUNK_BYTES):
                    await response.write(chunk)
                if not live:
                    break
                await asyncio.sleep(_POLL_SECONDS)
        return response


def _start_of_tail(log: Path, tail_lines: str | None) -> int:
    """The offset at which the last lines begin; 0 for the whole file."""
    if tail_lines is None:
        return 0
    content = log.read_bytes()
    wanted = content.splitlines(keepends=True)[-int(tail_lines) :] if int(tail_lines) else []
    return len(content) - sum(len(line) for line in wanted)
