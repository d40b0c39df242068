"""Knows how to wake who waits at a stated moment, from a thread of its own, as an engine's step loop does.

Refuses to know what the time was for.

An event loop's own timers are late by up to a millisecond, as it asks the system to wait for whole ones; a thread that
sleeps is late by some ten microseconds. Whoever is woken hears when that was, by the clock that all processes share.
"""

import asyncio
import heapq
import itertools
import sys
import threading
import time
from types import TracebackType
from typing import Self

SWITCH_SECONDS = 0.0002
"""How long the loop may keep the interpreter from this thread. Python's own 5 ms would count as time that the engine
took."""


class Alarms:
    """Used on one event loop, for as long as the context lasts."""

    def __init__(self) -> None:
        self._set: list[tuple[float, int, asyncio.Future[float]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)

    def __enter__(self) -> Self:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    async def at(self, due: float) -> float:
        """Returns at `due`, in seconds of `time.monotonic`; when it was that the thread woke."""
        waiting: asyncio.Future[float] = self._loop.create_future()
        with self._changed:
            entry = (due, next(self._order), waiting)
            heapq.heappush(self._set, entry)
            if self._set[0] is entry:
                self._changed.notify()
        return await waiting

    def _run(self) -> None:
        while (ripe := self._next_ripe()) is not None:
            self._loop.call_soon_threadsafe(_tell, ripe, time.monotonic())

    def _next_ripe(self) -> list[asyncio.Future[float]] | None:
        """Those whose moment has come; None at the end."""
        with self._changed:
            while not self._ended:
                left = self._set[0][0] - time.monotonic() if self._set else None
                if left is not None and left <= 0:
                    return self._take(time.monotonic())
                self._changed.wait(left)
        return None

    def _take(self, now: float) -> list[asyncio.Future[float]]:
        ripe = []
        while self._set and self._set[0][0] <= now:
            ripe.append(heapq.heappop(self._set)[2])
        return ripe


def _tell(ripe: list[asyncio.Future[float]], woken: float) -> None:
    for waiting in ripe:
        if not waiting.done():
            waiting.set_result(woken)
