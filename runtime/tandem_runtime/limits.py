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

PRECISION_SECONDS = 0.0005
"""Loops set timers by whole milliseconds, so that one may go off by so much too soon."""


class within:  # noqa: N801  # read as a word of the language, like `suppress` and `closing`
    """A limit in seconds for one stretch of one task. Within another one the earlier of both ends counts."""

    __slots__ = ("_cancelling", "_seconds", "_task", "_watch", "ends_at", "expired")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.expired = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "what is to be cancelled is a task"
        watch = _watches.get(loop)
        if watch is None:
            watch = _watches[loop] = _Watch(loop)
        self._task, self._cancelling, self._watch = task, task.cancelling(), watch
        self.ends_at = loop.time() + self._seconds
        watch.waits[self] = None
        if self.ends_at < watch.due:
            watch.set(self.ends_at)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.waits.pop(self, None)
        if not self._watch.waits:
            self._watch.end()
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()


class _Watch:
    """The waits of one loop, and its timer for them; of the loop's last wait nothing is left behind."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.due = inf
        """When that goes off."""
        self.waits: dict[within, None] = {}
        """In the order in which they began, so that runs in virtual time repeat."""

    def set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.due, self._timer = due, self._loop.call_at(due, self._look)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if _watches.get(self._loop) is self:  # several that end at once end it once
            del _watches[self._loop]

    def _look(self) -> None:
        now = self._loop.time() + PRECISION_SECONDS
        over = [each for each in self.waits if each.ends_at <= now]
        for wait in sorted(over, key=lambda each: each.ends_at):
            del self.waits[wait]
            wait.expire()
        self.due, self._timer = inf, None
        if self.waits:
            self.set(min(wait.ends_at for wait in self.waits))


_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
"""Of the loops on which somebody waits."""
