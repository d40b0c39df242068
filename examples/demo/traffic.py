"""Knows how to send streams of real requests to an OpenAI endpoint, and what they cost.

Refuses to know Kubernetes. Closed loop: each of `streams` clients sends its next request when the last one has ended,
so that load follows speed and nothing queues up. Every request has a seed of its own and samples at temperature 0.
"""

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import httpx

REQUEST_SECONDS = 60.0
PAUSE_AFTER_FAILURE_SECONDS = 0.2


@dataclass(slots=True)
class Tally:
    """What the clients have seen since the last reset."""

    requests: int = 0
    failures: int = 0
    tokens: int = 0
    seconds: float = 0.0
    proposed: int = 0
    accepted: int = 0
    by_revision: dict[str, int] = field(default_factory=dict)
    last_failure: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What to send and how hard."""

    url: str
    model: str
    prompts: Sequence[str]
    streams: int = 6
    max_tokens: int = 32
    temperature: float = 0.0


class Traffic:
    """Runs the clients in a thread of its own, until stopped; the kind of prompts can change on the way."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._tally = Tally()
        self._numbers = count()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="traffic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def switch(self, load: Load) -> None:
        """Every client takes its next prompt from `load`; requests in flight end as they are."""
        with self._lock:
            self._load = load

    def take(self) -> Tally:
        """What was seen since the last take."""
        with self._lock:
            seen, self._tally = self._tally, Tally()
        return seen

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(timeout=REQUEST_SECONDS, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(self._client(client) for _ in range(self._load.streams)))

    async def _client(self, client: httpx.AsyncClient) -> None:
        while not self._stop.is_set():
            with self._lock:
                load, number = self._load, next(self._numbers)
            try:
                await self._request(client, load, number)
            except (httpx.HTTPError, ValueError) as error:
                with self._lock:
                    self._tally.failures += 1
                    self._tally.last_failure = f"{type(error).__name__}: {error}"
                await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)

    async def _request(self, client: httpx.AsyncClient, load: Load, number: int) -> None:
        body = {
            "model": load.model,
            "prompt": load.prompts[number % len(load.prompts)],
            "max_tokens": load.max_tokens,
            "temperature": load.temperature,
            "seed": number,
        }
        began = time.monotonic()
        answer = await client.post(f"{load.url}/v1/completions", json=body)
        answer.raise_for_status()
        self._count(json.loads(answer.content), time.monotonic() - began)

    def _count(self, reply: dict[str, dict[str, int]], seconds: float) -> None:
        speculation = reply["speculation"]
        revision = str(speculation.get("revision", ""))
        with self._lock:
            tally = self._tally
            tally.requests += 1
            tally.seconds += seconds
            tally.tokens += reply["usage"]["completion_tokens"]
            tally.proposed += speculation.get("proposed", 0)
            tally.accepted += speculation.get("accepted", 0)
            tally.by_revision[revision] = tally.by_revision.get(revision, 0) + 1
