"""Knows how to ask a running gateway for its evidence.

Refuses to know what the numbers mean. No answer within the deadline is None: absence of evidence, never a value.
"""

import asyncio
import json
import logging

import aiohttp

from tandem_operator.ports import Json

ADMIN_PORT = 8002
EVIDENCE_SECONDS = 3.0
"""A gateway answers from memory; one that needs longer is in trouble, and the reconcile does not wait for it."""

log = logging.getLogger(__name__)


class GatewayTelemetry:
    """`Telemetry` over HTTP to pod IPs; one instance belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def evidence(self, address: str) -> Json | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{ADMIN_PORT}/internal/evidence"
        try:
            async with asyncio.timeout(EVIDENCE_SECONDS), self._session.get(url) as answer:
                answer.raise_for_status()
                found = await answer.json()
        except (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError) as error:
            log.warning("no evidence gateway=%s error=%s", address, type(error).__name__)
            return None
        return found if isinstance(found, dict) else None
