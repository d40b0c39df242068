"""Knows a round over gRPC with nothing of the product in it: what links, loops and system take by themselves.

Refuses to know sessions, tokens, the K rule and the messages of the wire. Two processes, as in the product:
`python -m benchmarks.stage.floor engines TARGET DRAFT LOG` and `... gateway TARGET DRAFT PORT K`.

A gateway without a thought holds one stream of frames to each of two peers, with the options and the environment of the
product's links. For a caller it asks the one, waits, asks the other, waits, and writes an event of the usual length.
Messages are as long as a verify and its verdict and say which stream it is and what to wait for; all that wait in one
turn of the loop share a frame. The peers wake as the timed engines do, from a thread, and write the same log.
"""

import asyncio
import json
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, cast

import grpc.aio

from benchmarks.stage.alarms import Alarms
from benchmarks.stage.engines import MILLISECONDS, Log
from benchmarks.stage.prompts import Told, told_by
from tandem_runtime.discovery import ENGINE_PORT
from tandem_runtime.main import until_signalled
from tandem_runtime.wire import transport
from tandem_runtime.wire.outbox import Outbox

SERVICE, METHOD = "floor", "Converse"
UP, DOWN = struct.Struct("!IH34x"), struct.Struct("!I31x")
"""A stream and tenths of milliseconds; a stream: 40 and 35 bytes, as `rpc` counts them of a verify."""
TENTHS: Final = 10
EVENT: Final = b"data: " + b"x" * 150 + b"\n\n"
HEAD: Final = b"HTTP/1.1 200 OK\r\n\r\n"
END: Final = b"data: {}\n\ndata: [DONE]\n\n"


class Request(NamedTuple):
    """What a caller of `benchmarks.stage.streams` asks for."""

    told: Told
    tokens: int


def read_request(data: bytes) -> Request:
    """A request for a completion, whole, as `streams.completion` writes it."""
    body = json.loads(data.partition(b"\r\n\r\n")[2])
    return Request(told_by(tuple(body["prompt"])), body["max_tokens"])


class Peer:
    """One end of a stream of frames at the gateway."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def converse(self, address: str) -> None:
        options = transport.CLIENT_OPTIONS
        async with grpc.aio.insecure_channel(f"{address}:{ENGINE_PORT}", options=options) as channel:
            async for frame in channel.stream_stream(f"/{SERVICE}/{METHOD}", bytes, bytes)(self.outbox.frames()):
                for (stream,) in DOWN.iter_unpack(frame):
                    self._waiting.pop(stream).set_result(None)

    async def ask(self, stream: int, milliseconds: float) -> None:
        """Returns when it has answered, that long after it was asked at the earliest."""
        answered = self._waiting[stream] = asyncio.get_running_loop().create_future()
        self.outbox.put(UP.pack(stream, round(milliseconds * TENTHS)))
        await answered


class Caller(asyncio.Protocol):
    """One stream's connection to the gateway. `k` guesses a round."""

    def __init__(self, target: Peer, draft: Peer, k: int) -> None:
        self._target, self._draft, self._k = target, draft, k
        self._transport: asyncio.Transport | None = None
        self._serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # which uvloop's is but for the name

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._serving = asyncio.create_task(self._serve(self._transport, read_request(data)))

    async def _serve(self, transport: asyncio.Transport, request: Request) -> None:
        stream, guess_ms, verify_ms = request.told
        transport.write(HEAD)
        for _ in range(request.tokens // (self._k + 1)):
            await self._draft.ask(stream, self._k * guess_ms)
            await self._target.ask(stream, verify_ms or 0.0)
            transport.write(EVENT)
        transport.write(END)
        transport.close()


class Server:
    """A peer. `ready` writes down what it took: of a stream, when it was asked and when it answered."""

    def __init__(self, alarms: Alarms, log: Log, *, is_target: bool) -> None:
        self._alarms, self._log, self._is_target = alarms, log, is_target
        self._answering: set[asyncio.Task[None]] = set()

    async def converse(self, frames: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        outbox = Outbox()
        reading = asyncio.create_task(self._read(frames, outbox))
        async for frame in outbox.frames():
            await context.write(frame)
        await reading

    async def _read(self, frames: AsyncIterator[bytes], outbox: Outbox) -> None:
        async for frame in frames:
            for stream, tenths in UP.iter_unpack(frame):
                answering = asyncio.create_task(self._answer(stream, tenths / TENTHS / MILLISECONDS, outbox))
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
        outbox.end()

    async def _answer(self, stream: int, seconds: float, outbox: Outbox) -> None:
        asked = time.monotonic()
        ready = await self._alarms.at(asked + seconds)
        if self._is_target:
            self._log.judged(stream, asked, ready)
        else:
            self._log.guessed[stream] = asked, ready
        outbox.put(DOWN.pack(stream))


async def serve_engines(target: str, draft: str, log: Log, ending: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        alarms = stack.enter_context(Alarms())
        for address in (target, draft):
            server = grpc.aio.server(options=transport.SERVER_OPTIONS)
            peer = Server(alarms, log, is_target=address == target)
            method = grpc.stream_stream_rpc_method_handler(peer.converse)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
            server.add_insecure_port(f"{address}:{ENGINE_PORT}")
            await server.start()
            stack.push_async_callback(server.stop, None)
        print("ready", flush=True)
        await ending.wait()


async def serve_gateway(addresses: tuple[str, str], port: int, k: int, ending: asyncio.Event) -> None:
    target, draft = peers = Peer(), Peer()
    talking = [asyncio.create_task(peer.converse(address)) for peer, address in zip(peers, addresses, strict=True)]
    server = await asyncio.get_running_loop().create_server(partial(Caller, target, draft, k), "127.0.0.1", port)
    async with server:
        print("ready", flush=True)
        await ending.wait()
    for each in talking:
        each.cancel()
    await asyncio.wait(talking)


def main() -> None:
    words: Iterator[str] = iter(sys.argv[1:])
    role, target, draft = next(words), next(words), next(words)
    if role == "engines":
        log = Log()
        until_signalled(partial(serve_engines, target, draft, log))
        Path(next(words)).write_text(json.dumps(log.rounds))
    else:
        until_signalled(partial(serve_gateway, (target, draft), int(next(words)), int(next(words))))


if __name__ == "__main__":
    main()
