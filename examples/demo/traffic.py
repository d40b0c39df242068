"""Knows how to send streams of real requests to an OpenAI endpoint, and why the last one failed.

Refuses to know Kubernetes. Closed loop: each of `streams` clients sends its next request when the last one has ended,
so that load follows speed and nothing queues up. Every request has a seed of its own and samples at temperature 0.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import httpx

REQUEST_SECONDS = 60.0
PAUSE_AFTER_FAILURE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What to send and how hard."""

    url: str
    model: str
    prompts: Sequence[str]
    streams: int
    max_tokens: int = 32
    temperature: float = 0.0


class Traffic:
    """Runs the clients in a thread of its own, until stopped; the kind of prompts can change on the way."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.trouble = ""
        """What the last request failed with; "" after one that did not."""
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
            except httpx.HTTPError as error:
                self.trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
            else:
                self.trouble = ""

    async def _request(self, client: httpx.AsyncClient, load: Load, number: int) -> None:
        body = {
            "model": load.model,
            "prompt": load.prompts[number % len(load.prompts)],
            "max_tokens": load.max_tokens,
            "temperature": load.temperature,
            "seed": number,
        }
        answer = await client.post(f"{load.url}/v1/completions", json=body)
        answer.raise_for_status()
