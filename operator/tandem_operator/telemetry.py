"""Knows how to ask running pods for what they measured: a gateway's evidence, an engine's memory.

Refuses to know what the numbers mean. No answer within the deadline is None: absence of evidence, never a value.
"""

import asyncio
import logging

import aiohttp

from tandem_operator.domain import record
from tandem_operator.domain.templates import ADMIN_PORT
from tandem_operator.ports import Pressure

ANSWER_SECONDS = 3.0
"""Pods answer from memory; one that needs longer is in trouble, and the look does not wait for it."""

LARGEST_ANSWER_BYTES = 16 << 20
"""A gateway's evidence takes some ten kilobytes per revision and policy, and 4 MB at most, since it forgets old ones;
more than this is no evidence."""

log = logging.getLogger(__name__)


class PodTelemetry:
    """`Telemetry` over HTTP to pod IPs; one instance belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def evidence(self, address: str) -> bytes | None:
        return await self._get(address, "evidence")

    async def pressure(self, address: str) -> Pressure | None:
        answer = await self._get(address, "memory")
        try:
            return None if answer is None else record.read(Pressure, answer)
        except record.RecordError as error:
            log.warning("memory cannot be read pod=%s error=%s", address, error)
            return None

    async def _get(self, address: str, what: str) -> bytes | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{ADMIN_PORT}/internal/{what}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._session.get(url) as answer:
                answer.raise_for_status()
                return await _body(answer)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.warning("no answer pod=%s asked=%s error=%s", address, what, type(error).__name__)
            return None


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body; raises ValueError for one that does not end."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ValueError("the answer is too long")
    return bytes(body)
