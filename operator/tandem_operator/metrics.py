"""Knows what the operator measures: looks and their durations, what waits, whether it leads, what objects are at.

Refuses to know what a look does. Gauges are read when somebody scrapes, from another thread, so they read plain values.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tandem_operator.domain.decision import Decision
from tandem_operator.domain.progress import Breaker, Rollout, Stage
from tandem_operator.ports import Clock, Key

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


class ObjectFigures(Collector):
    """How many objects stand where, and for how long the canary that stands longest; as their last looks left them."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._standing: dict[Key, tuple[Rollout, Breaker]] = {}
        registry.register(self)

    async def decided(self, key: Key, uid: str, decision: Decision) -> None:  # noqa: ARG002 - as `reconcile.Observer`
        self._standing[key] = (decision.progress.rollout, decision.progress.breaker)

    def forget(self, key: Key) -> None:
        """It is gone."""
        self._standing.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        standing = list(self._standing.values())  # at once: another thread asks
        about = "Objects by the stage of their rollout and the state of their speculation."
        objects = GaugeMetricFamily("tandem_operator_objects", about, labels=["stage", "speculation"])
        for labels, count in Counter((rollout.stage, breaker.state) for rollout, breaker in standing).items():
            objects.add_metric(labels, count)
        yield objects
        now = self._clock.now()
        ages = [(now - at).total_seconds() for rollout, _ in standing if (at := _under_way_since(rollout)) is not None]
        about = "For how long the rollout has been under way that has been for longest; 0 where none is."
        yield GaugeMetricFamily("tandem_operator_oldest_rollout_seconds", about, value=max(ages, default=0.0))


def _under_way_since(rollout: Rollout) -> datetime | None:
    return None if rollout.stage is Stage.STABLE else rollout.started_at
