"""Knows how a streamed answer is read as cheaply as possible: over a bare socket, the moment of each event kept.

Refuses to know what the events say, beyond whether they end as they should. A client library takes longer for an event
than a gateway may; this one counts event marks in what arrives, some ten microseconds each.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.stage.prompts import Told, prompt_of

MARK, LAST, FINE = b"data: ", b"data: [DONE]", b"HTTP/1.1 200 "
EXTRA_EVENTS = 2
"""After a text's pieces: the reason why it ended, and the mark of the end."""


def completion(told: Told, *, tokens: int) -> bytes:
    """The request for a stream, as it stands on the wire."""
    prompt = list(prompt_of(told))
    body = json.dumps(
        {"model": "chat", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(slots=True, eq=False)
class Stream(asyncio.Protocol):
    """One request on a connection of its own. Moments are seconds of `time.monotonic`."""

    request: bytes
    asked: float = 0.0
    moments: list[float] = field(default_factory=list)
    """When each event came."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    whole: bool = False
    """Whether it came to its end without a failure."""
    _head: bytes = b""
    _tail: bytes = b""
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.asked = time.monotonic()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if len(self._head) < len(FINE):
            self._head += data[: len(FINE) - len(self._head)]
        seen = self._tail + data
        self.moments += [now] * (seen.count(MARK) - self._tail.count(MARK))
        self.whole = self.whole or (LAST in seen and self._head == FINE)
        self._tail = seen[-len(LAST) :]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pieces(self, rounds: int) -> list[float]:
        """When each round's text came; nothing where the stream failed or has another number of them."""
        fits = self.whole and len(self.moments) == rounds + EXTRA_EVENTS
        return self.moments[:rounds] if fits else []


async def begun(port: int, request: bytes) -> Stream:
    """A stream that has just been asked for. Raises OSError."""
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(request), "127.0.0.1", port)
    return stream


@contextmanager
def leaving() -> Iterator[list[Stream]]:
    """A list for streams: whatever in it has not ended is left with the block."""
    streams: list[Stream] = []
    try:
        yield streams
    finally:
        for stream in streams:
            stream.leave()
