"""Knows how to ask running pods for what they measured and hold, and how to tell targets of adapters.

Refuses to know what the numbers mean, and which pod needs which adapter. No answer within the deadline is None: absence
of evidence, never a value.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from tandem_operator.domain import nested, record
from tandem_operator.domain.templates import ADMIN_PORT
from tandem_operator.ports import Pressure

ANSWER_SECONDS = 3.0
"""Pods answer from memory; one that needs longer is in trouble, and the look does not wait for it."""

LARGEST_ANSWER_BYTES = 16 << 20
"""A gateway's evidence takes some ten kilobytes per revision and policy, and 4 MB at most, since it forgets old ones;
more than this is no evidence."""

NOT_THERE = 404

LOAD_SECONDS = 900.0
"""A target reads an adapter from a disk or from the hub; large ones have some gigabytes."""
NO_SHORTER = aiohttp.ClientTimeout(total=None)
"""The library's own would end after five minutes what still goes on."""

OURS = "tandem."
"""How the names begin under which targets hold contents for us; what others loaded is left alone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """An adapter as a target tells of it."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `GET /adapters` answers."""

    adapters: tuple[Held, ...]


def pod_session() -> aiohttp.ClientSession:
    """For `PodTelemetry`; belongs to the running loop.

    Pods are asked every ten seconds or more seldom: connections that wait for that take more memory than time. There is
    no most of them, which is 100 by default: loads last for minutes, and no gateway is to look mute while they do.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))


class PodTelemetry:
    """`Telemetry` over HTTP to pod IPs; one instance belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def evidence(self, address: str) -> bytes | None:
        return await self._get(address, "internal/evidence")

    async def pressure(self, address: str) -> Pressure | None:
        answer = await self._get(address, "internal/memory")
        try:
            return None if answer is None else record.read(Pressure, answer)
        except record.RecordError as error:
            log.warning("memory cannot be read pod=%s error=%s", address, error)
            return None

    async def adapters(self, address: str) -> Mapping[str, str] | None:
        answer = await self._get(address, "adapters")
        try:
            held = None if answer is None else record.read(Loaded, answer).adapters
        except record.RecordError as error:
            log.warning("adapters cannot be read pod=%s error=%s", address, error)
            return None
        ours = () if held is None else (each for each in held if each.name.startswith(OURS))
        return None if held is None else {each.name.removeprefix(OURS): each.digest for each in ours}

    async def load_adapter(self, address: str, content: str, source: Mapping[str, str]) -> str | None:
        return await self._tell("PUT", address, content, dict(source))

    async def unload_adapter(self, address: str, content: str) -> str | None:
        return await self._tell("DELETE", address, content, None)

    async def _tell(self, verb: str, address: str, content: str, order: Mapping[str, str] | None) -> str | None:
        url = _url(address, f"adapters/{OURS}{content}")
        try:
            asking = self._session.request(verb, url, json=order, timeout=NO_SHORTER)
            async with asyncio.timeout(LOAD_SECONDS), asking as answer:
                if answer.ok or (verb, answer.status) == ("DELETE", NOT_THERE):
                    return None
                return _error_in(await _body(answer)) or f"it answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return f"it does not answer ({type(error).__name__})"

    async def _get(self, address: str, what: str) -> bytes | None:
        url = _url(address, what)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._session.get(url) as answer:
                answer.raise_for_status()
                return await _body(answer)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.warning("no answer pod=%s asked=%s error=%s", address, what, type(error).__name__)
            return None


def _error_in(body: bytes) -> str:
    """The words of a pod that refused; "" where it said none that can be read."""
    try:
        return nested.text(json.loads(body), "error")
    except ValueError:
        return ""


def _url(address: str, path: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ADMIN_PORT}/{path}"


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body; raises ValueError for one that does not end."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ValueError("the answer is too long")
    return bytes(body)
