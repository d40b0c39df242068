"""Carries TCP connections between a listening socket outside the cluster's network and an address inside it.

It knows bytes only. A socket belongs for ever to the network namespace it was made in: make the listening one outside,
then enter the namespace, and every connection made from then on leads inside.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tandem_devcluster.errors import StartError

Target = tuple[str, int]
_CHUNK_BYTES = 65536


def listen_outside(port: int) -> socket.socket:
    """A socket listening on 127.0.0.1; port 0 takes any free one.

    Raises:
        StartError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise StartError(f"port {port} on 127.0.0.1 cannot be used ({error.strerror}); choose another or 0") from error
    listener.listen(128)
    listener.setblocking(False)
    return listener


async def relay(listener: socket.socket, find_target: Callable[[], Awaitable[Target]]) -> asyncio.Server:
    """Serve the listener; each new connection asks `find_target` where to go, so it follows pods that change.

    A connection whose target cannot be found or reached is closed at once.
    """

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(*await find_target())
        except (OSError, LookupError):
            writer.close()
            return
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        for end in (writer, inner_writer):
            end.close()

    return await asyncio.start_server(carry, sock=listener)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender ends; pass its end on, so that half-closed connections work."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return
    writer.close()
