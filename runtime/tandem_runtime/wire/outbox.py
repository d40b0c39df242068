"""Knows how messages for one peer wait, share frames, and hold back who makes too many.

Refuses to know what a message says: it is bytes that may be joined (see `codec`).

Everything put in one tick of the loop leaves in one frame, because the writer wakes in the next tick. While the peer
reads slowly the writer waits in gRPC's flow control, messages pile up here, and `room` holds back who waits for it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from tandem_runtime.wire.transport import JOINED_FRAME_BYTES

_ROOM_MESSAGES: Final = 256
"""More than this waiting means that the peer does not read as fast as we write; a frame of 64 sessions holds 64."""


class Outbox:
    """One writer takes `frames`; anyone may `put`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._writer: asyncio.Future[None] | None = None
        """What wakes the writer."""
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    def put(self, message: bytes) -> None:
        """Never waits; after the end, messages are dropped, as nobody is left to read them."""
        if self._ended:
            return
        self._waiting.append(message)
        if len(self._waiting) > _ROOM_MESSAGES:
            self._room.clear()
        self._wake()

    async def room(self) -> None:
        """Wait until the peer has read enough, or is gone."""
        await self._room.wait()

    def end(self) -> None:
        """What waits is still sent, then `frames` ends."""
        self._ended = True
        self._wake()
        self._room.set()

    async def frames(self) -> AsyncIterator[bytes]:
        while self._waiting or not self._ended:
            if self._waiting:
                yield self._take()
            else:
                self._writer = asyncio.get_running_loop().create_future()
                await self._writer

    def _wake(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _take(self) -> bytes:
        """As many messages as fit, at least one."""
        frame = bytearray()
        while self._waiting and (not frame or len(frame) + len(self._waiting[0]) <= JOINED_FRAME_BYTES):
            frame += self._waiting.popleft()
        if len(self._waiting) <= _ROOM_MESSAGES:
            self._room.set()
        return bytes(frame)
