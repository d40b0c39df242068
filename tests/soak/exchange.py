"""Knows how a caller asks over a bare socket, in good manners and in bad ones, and what it heard.

Refuses to know what is right.
"""

import asyncio
import socket
from dataclasses import dataclass
from enum import StrEnum

import h11

SECONDS_TO_ANSWER = 90.0
"""Longer than any deadline of the gateway's: who waits so long has been forgotten."""
SMALL_BUFFER = 4096
SLOW_BYTES, SLOW_PAUSE_SECONDS = 32_768, 0.03
USUAL_BYTES = 65_536


class Manner(StrEnum):
    """How a caller behaves."""

    PATIENT = "patient"
    SLOW = "slow"
    """Reads little at a time, so that the gateway has to wait."""
    LEAVING = "leaving"
    """Hangs up in the middle."""
    HALF_CLOSED = "half-closed"
    """Closes its own side once it has asked."""


@dataclass(frozen=True, slots=True)
class Heard:
    """`status` None: not a byte came. `whole`: the reply came to its end, as HTTP has it."""

    status: int | None = None
    content: bytes = b""
    whole: bool = False


async def exchange(port: int, path: str, body: bytes, manner: Manner, *, leave_after: int) -> Heard:
    """One request on a connection of its own; who leaves does so after so many bytes. Raises TimeoutError."""
    try:
        reader, writer = await asyncio.open_connection(sock=await _connected(port, manner))
    except OSError:
        return Heard()
    try:
        async with asyncio.timeout(SECONDS_TO_ANSWER):
            return await _exchange(reader, writer, path, body, manner, leave_after)
    except TimeoutError:  # which is an OSError, and the one that matters
        raise
    except OSError:
        return Heard()
    finally:
        writer.transport.abort()


async def _connected(port: int, manner: Manner) -> socket.socket:
    connecting = socket.socket()
    try:
        connecting.setblocking(False)
        if manner is Manner.SLOW:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", port))
    except BaseException:
        connecting.close()
        raise
    return connecting


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    path: str,
    body: bytes,
    manner: Manner,
    leave_after: int,
) -> Heard:
    protocol = h11.Connection(our_role=h11.CLIENT)
    writer.write(_request(protocol, path, body))
    if manner is Manner.HALF_CLOSED:
        writer.write_eof()
    heard, content = Heard(), bytearray()
    while True:
        try:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                protocol.receive_data(await _read(reader, manner))
        except (h11.RemoteProtocolError, OSError):
            return Heard(heard.status, bytes(content))
        match event:
            case h11.Response(status_code=status):
                heard = Heard(status)
            case h11.Data(data=data):
                content += data
            case h11.EndOfMessage():
                return Heard(heard.status, bytes(content), whole=True)
            case h11.ConnectionClosed():
                return Heard(heard.status, bytes(content))
        if manner is Manner.LEAVING and len(content) >= leave_after:
            return Heard(heard.status, bytes(content))


def _request(protocol: h11.Connection, path: str, body: bytes) -> bytes:
    headers = [("host", "gateway"), ("connection", "close"), ("content-length", str(len(body)))]
    parts = (h11.Request(method="POST", target=path, headers=headers), h11.Data(data=body), h11.EndOfMessage())
    return b"".join(protocol.send(part) or b"" for part in parts)


async def _read(reader: asyncio.StreamReader, manner: Manner) -> bytes:
    if manner is Manner.SLOW:
        await asyncio.sleep(SLOW_PAUSE_SECONDS)
        return await reader.read(SLOW_BYTES)
    return await reader.read(USUAL_BYTES)
