"""Knows what the operator measures of itself: looks and their durations, what waits, whether it leads.

Refuses to know what a look does. Gauges are read when somebody scrapes, from another thread, so they read plain values.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram

from tandem_operator.ports import Clock

KeyT = TypeVar("KeyT")
Look = Callable[[KeyT], Awaitable[float | None]]
BUCKETS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0)
"""From a look that writes nothing to one in which several requests met their deadline."""


class LookMetrics:
    """`tandem_operator_reconcile_seconds`, whose count is the number of looks, by outcome."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._seconds = Histogram(
            "tandem_operator_reconcile_seconds",
            "Looks at objects by outcome: Done, Gone, or the error that ended one.",
            ["outcome"],
            registry=registry,
            buckets=BUCKETS_SECONDS,
        )

    def timed(self, look: "Look[KeyT]") -> "Look[KeyT]":
        """The same look, measured; an error passes through."""

        async def measured(key: KeyT) -> float | None:
            began, outcome = self._clock.monotonic(), "Done"
            try:
                wish = await look(key)
                outcome = "Done" if wish is not None else "Gone"
            except Exception as error:
                outcome = type(error).__name__
                raise
            finally:
                self._seconds.labels(outcome).observe(self._clock.monotonic() - began)
            return wish

        return measured


def expose(registry: CollectorRegistry, name: str, what: str, read: Callable[[], float]) -> None:
    """A gauge `tandem_operator_<name>` that is read at every scrape."""
    Gauge(f"tandem_operator_{name}", what, registry=registry).set_function(read)
