"""Knows virtual time: an event loop that never waits, but jumps to the moment of its next timer.

Refuses to know what happens at those moments. Nothing here may wait for the world outside: a loop with neither timers
nor callbacks would wait for ever, which is a fault of the simulation and raises.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stalled(Exception):
    """Nothing is left that could happen."""


class _Jump(selectors.SelectSelector):
    """Where a selector waits, time is moved on by as much."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stalled("every task waits, and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at second 0."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


class VirtualClock:
    """`ports.Clock` of the loop that runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return self._loop.time()


def run_virtually(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What `main` returns, in a loop of its own. Raises Stalled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
