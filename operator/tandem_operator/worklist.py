"""Knows which objects wait to be looked at, and that no object is looked at twice at the same time.

Refuses to know what looking means, and what woke us.

The queue is level-triggered: it holds keys, never events. A key that is added while it is being worked on is worked on
once more afterwards, so nothing is missed and nothing is done in parallel for one object; a key that is added ten times
while it waits is worked on once. A failed look comes back after a back-off of 1, 2, 4, ... 60 s, which a new `add` cuts
short; a good look comes back when the work says so, or after `resync_seconds`; a look that finds nothing there ends the
key, unless it was added meanwhile.

Who is *woken*, because something happened, goes before those whose time has come; but these wait no longer than
`PATIENCE_SECONDS` for it, so that a busy object does not keep others from being looked at.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandem_operator.domain.errors import Unavailable
from tandem_operator.ports import Clock

KeyT = TypeVar("KeyT", bound=Hashable)

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
PATIENCE_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Entry:
    """When a key is next due (None: not waiting), whether it was woken, and how often in a row it failed."""

    due: float | None = None
    woken: bool = False
    failures: int = 0
    working: bool = False


@dataclass(slots=True)
class Figures:
    """Plain counts for the metrics and the liveness probe."""

    finished: int = 0
    failed: int = 0
    last_finished: float = 0.0
    busy_since: float | None = None
    oldest_due: float | None = None

    def silent_seconds(self, now: float) -> float:
        """How long there has been work without a look that finished; 0 where there is nothing to look at."""
        return 0.0 if self.busy_since is None else now - max(self.busy_since, self.last_finished)

    def overdue_seconds(self, now: float) -> float:
        """How long the key that waits longest should have been looked at."""
        due = self.oldest_due
        return 0.0 if due is None else max(0.0, now - due)


def back_off(failures: int, error: Exception) -> float:
    """Seconds until the next try: 1, 2, 4, ... 60, and not before the API server said."""
    grown = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 10), LONGEST_BACKOFF_SECONDS)
    asked = error.retry_after_seconds if isinstance(error, Unavailable) else None
    return max(grown, min(asked or 0.0, LONGEST_BACKOFF_SECONDS))


class Worklist(Generic[KeyT]):
    """Serial per key, at most `workers` keys at once."""

    def __init__(
        self,
        work: Callable[[KeyT], Awaitable[float | None]],
        *,
        clock: Clock,
        workers: int = 8,
        resync_seconds: float = 60.0,
    ) -> None:
        """`work` returns seconds until the key wants another look; None: there is nothing to look at any more."""
        self._work = work
        self._clock = clock
        self._workers = workers
        self._resync_seconds = resync_seconds
        self._entries: dict[KeyT, Entry] = {}
        self._woken: list[tuple[float, int, KeyT]] = []
        self._waiting: list[tuple[float, int, KeyT]] = []
        self._places = itertools.count()
        self._changed = asyncio.Condition()
        self.figures = Figures(last_finished=clock.monotonic())

    def __len__(self) -> int:
        return len(self._entries)

    async def add(self, key: KeyT, *, after_seconds: float = 0.0) -> None:
        """Look at `key` soon. Adding never postpones what was due earlier."""
        async with self._changed:
            now = self._clock.monotonic()
            self.figures.busy_since = self.figures.busy_since if self._entries else now
            entry = self._entries.setdefault(key, Entry())
            self._line_up(key, entry, now + after_seconds, woken=not after_seconds)
            self._changed.notify()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._workers):
                workers.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key, entry = await self._next()
            await self._look(key, entry)

    async def _next(self) -> tuple[KeyT, Entry]:
        async with self._changed:
            while True:
                found = self._earliest()
                if found is not None and self._wait_for(found[1]) <= 0:
                    key, entry = found
                    entry.due, entry.woken, entry.working = None, False, True
                    return key, entry
                timeout = None if found is None else self._wait_for(found[1])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._changed.wait()

    def _wait_for(self, entry: Entry) -> float:
        return 0.0 if entry.due is None else entry.due - self._clock.monotonic()

    def _line_up(self, key: KeyT, entry: Entry, due: float, *, woken: bool = False) -> None:
        """A place in line, which only a sooner one, or one among the woken, replaces; the old place is then void."""
        if entry.due is not None and entry.due <= due and entry.woken >= woken:
            return
        entry.due = due if entry.due is None else min(entry.due, due)
        entry.woken = entry.woken or woken
        self._take_place(key, entry)

    def _take_place(self, key: KeyT, entry: Entry) -> None:
        """Who is being looked at takes it when that is over."""
        if entry.due is not None and not entry.working:
            line = self._woken if entry.woken else self._waiting
            heapq.heappush(line, (entry.due, next(self._places), key))

    def _earliest(self) -> tuple[KeyT, Entry] | None:
        """Who is next, due or not yet."""
        woken, waiting = self._first(self._woken, woken=True), self._first(self._waiting, woken=False)
        dues = [found[1].due for found in (woken, waiting) if found is not None and found[1].due is not None]
        self.figures.oldest_due = min(dues, default=None)
        if woken is None or (waiting is not None and self._wait_for(waiting[1]) < -PATIENCE_SECONDS):
            return waiting
        return woken

    def _first(self, line: list[tuple[float, int, KeyT]], *, woken: bool) -> tuple[KeyT, Entry] | None:
        """The first place that is not void."""
        while line:
            due, _, key = line[0]
            entry = self._entries.get(key)
            if entry is not None and not entry.working and (entry.due, entry.woken) == (due, woken):
                return key, entry
            heapq.heappop(line)
        return None

    async def _look(self, key: KeyT, entry: Entry) -> None:
        again: float | None
        try:
            wish = await self._work(key)
        except Exception as error:
            # Whatever one object does to us, the others go on; the cause is in the log, and the object comes back.
            entry.failures += 1
            self.figures.failed += 1
            again = back_off(entry.failures, error)
            log.warning("look failed key=%s again_in=%.0fs error=%s: %s", key, again, type(error).__name__, error)
        else:
            entry.failures = 0
            again = None if wish is None else min(wish, self._resync_seconds)
        await self._finish(key, entry, again)

    async def _finish(self, key: KeyT, entry: Entry, again: float | None) -> None:
        async with self._changed:
            entry.working = False
            self.figures.finished += 1
            self.figures.last_finished = self._clock.monotonic()
            self._take_place(key, entry)
            if again is not None:
                self._line_up(key, entry, self.figures.last_finished + again)
            elif entry.due is None:
                del self._entries[key]
                self.figures.busy_since = self.figures.busy_since if self._entries else None
            self._changed.notify()
