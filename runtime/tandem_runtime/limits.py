"""Knows how long something is waited for, at next to no cost where it comes in time.

Refuses to know who waits, and for what.

    with within(5.0):           as `async with asyncio.timeout(5.0)`: TimeoutError once that is over
        await answer

A round has three such waits, and nearly all end in time. A timer of the loop for each costs as much as what is waited
for takes to write down, so all waits of a loop share one. It is set to the earliest of their ends; those that ended
meanwhile are gone when it goes off, and it is set anew by who is left. So it goes off once in about the shortest
limit, however many wait.
"""

import asyncio
from math import inf
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

PRECISION_SECONDS = 0.0005
"""Loops set timers by whole milliseconds, so that one may go off by so much too soon."""


class within:  # noqa: N801  # read as a word of the language, like `suppress` and `closing`
    """A limit in seconds for one stretch of one task. Within another one the earlier of both ends counts."""

    __slots__ = ("_cancelling", "_seconds", "_task", "_watch", "ends_at", "expired")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "what is to be cancelled is a task"
        loop = asyncio.get_running_loop()
        self._task, self._cancelling = task, task.cancelling()
        self.ends_at = loop.time() + self._seconds
        self._watch = _watch_of(loop)
        self._watch.begin(self, loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.end(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()


class _Watch:
    """The waits of one loop, and its timer for them."""

    def __init__(self) -> None:
        self._waits: set[within] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        """When that goes off."""

    def begin(self, wait: within, loop: asyncio.AbstractEventLoop) -> None:
        self._waits.add(wait)
        if wait.ends_at < self._due:
            self._set(wait.ends_at, loop)

    def end(self, wait: within) -> None:
        """A loop on which nobody waits has no timer left behind."""
        self._waits.discard(wait)
        if not self._waits:
            self._unset()

    def _set(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        self._unset()
        self._due, self._timer = due, loop.call_at(due, self._look)

    def _unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = inf, None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time() + PRECISION_SECONDS
        self._due, self._timer = inf, None
        over = [each for each in self._waits if each.ends_at <= now]
        self._waits.difference_update(over)
        for wait in sorted(over, key=lambda each: each.ends_at):
            wait.expire()
        if self._waits:
            self._set(min(wait.ends_at for wait in self._waits), loop)


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()


def _watch_of(loop: asyncio.AbstractEventLoop) -> _Watch:
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = _Watch()
    return watch
