"""Knows how to ask running pods for what they measured: a gateway's evidence, an engine's memory.

Refuses to know what the numbers mean. No answer within the deadline is None: absence of evidence, never a value.
"""

import asyncio
import json
import logging

import aiohttp

from tandem_operator.domain.templates import ADMIN_PORT
from tandem_operator.ports import Json, Pressure

ANSWER_SECONDS = 3.0
"""Pods answer from memory; one that needs longer is in trouble, and the look does not wait for it."""

LARGEST_ANSWER_BYTES = 16 << 20
"""A gateway's evidence takes some ten kilobytes per revision and policy; more than this is no evidence."""

log = logging.getLogger(__name__)


class PodTelemetry:
    """`Telemetry` over HTTP to pod IPs; one instance belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def evidence(self, address: str) -> Json | None:
        return await self._get(address, "evidence")

    async def pressure(self, address: str) -> Pressure | None:
        found = await self._get(address, "memory")
        match found:
            case {"workingSetBytes": int(held), "kvBasisPoints": int(kv), "preempting": bool(preempting)}:
                return Pressure(held, kv, preempting)
            case _:
                return None

    async def _get(self, address: str, what: str) -> Json | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{ADMIN_PORT}/internal/{what}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._session.get(url) as answer:
                answer.raise_for_status()
                found = json.loads(await _body(answer))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError) as error:
            log.warning("no answer pod=%s asked=%s error=%s", address, what, type(error).__name__)
            return None
        return found if isinstance(found, dict) else None


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body; raises ValueError for one that does not end."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ValueError("the answer is too long")
    return bytes(body)
