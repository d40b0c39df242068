"""Knows what probes and gauges tell of this process: whether it works, whether it may, whether it leads.

Refuses to know how it works. Probes and scrapes come from another thread, so everything here is read as a plain value.
"""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from tandem_operator.lease import Leadership
from tandem_operator.metrics import expose
from tandem_operator.ports import Clock, Key
from tandem_operator.rights import Lacking
from tandem_operator.steady import Steady
from tandem_operator.worklist import Worklist

SILENCE_SECONDS = 180.0
"""Every object is looked at once a minute at least, and each request of a look has a deadline, so three minutes without
a finished look mean that we hang. A watch that hangs is not seen here, and need not be: kopf opens the objects' anew
when not even a bookmark came for 70 s, and those of the children are opened anew after 90 s (`kube`)."""


@dataclass(slots=True)
class Health:
    """Filled by `main` as the process gets on. `lacking` is None until the API server has told our rights."""

    clock: Clock
    leading: bool = False
    leadership: Leadership | None = None
    lacking: Lacking | None = None
    worklist: Worklist[Key] | None = None
    steady: Steady | None = None
    _last_event: float = field(init=False)

    def __post_init__(self) -> None:
        self.heard()

    def heard(self) -> None:
        """An event of some watched kind came."""
        self._last_event = self.clock.monotonic()

    def alive(self) -> str | None:
        """Progress, not presence: where there is something to look at, a look finishes within the time."""
        now = self.clock.monotonic()
        silent = 0.0 if self.worklist is None else self.worklist.figures.silent_seconds(now)
        return None if silent < SILENCE_SECONDS else f"no look has finished for {silent:.0f} s"

    def ready(self) -> str | None:
        """Standing by is ready too: a standby records alerts. Whoever lacks a right is not, and says which."""
        if self.lacking is None:
            return "the API server has not said yet which rights we have"
        return f"rights are missing: {', '.join(self.lacking.needed)}" if self.lacking.needed else None

    def expose(self, registry: CollectorRegistry) -> None:
        """The gauges; each is read at every scrape."""
        expose(registry, "leading", "1 while this process holds the lease.", lambda: float(self.leading))
        expose(registry, "lease_seconds_left", "For how long this process may write as it stands.", self._lease)
        expose(registry, "watch_age_seconds", "Since the last event of any watch.", self._watch_age)
        expose(registry, "queue_depth", "Objects that are looked at from time to time.", self._depth)
        expose(registry, "steady_objects", "Of them, those that were left with nothing to do.", self._steady)
        expose(registry, "queue_overdue_seconds", "How late the object is that waits longest.", self._overdue)

    def _lease(self) -> float:
        return 0.0 if self.leadership is None else self.leadership.left_seconds()

    def _watch_age(self) -> float:
        return self.clock.monotonic() - self._last_event

    def _depth(self) -> float:
        return 0.0 if self.worklist is None else float(len(self.worklist))

    def _steady(self) -> float:
        return 0.0 if self.steady is None else float(len(self.steady))

    def _overdue(self) -> float:
        return 0.0 if self.worklist is None else self.worklist.figures.overdue_seconds(self.clock.monotonic())
