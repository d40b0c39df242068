"""Knows one look at one object, from reading to writing: observe -> decide -> plan -> apply -> report.

Refuses to know any rule (`domain`), any client (`kube`) and what woke us (`handlers`).
"""

from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from tandem_operator.apply import Target, apply, is_outdated, progress_is_kept, write_status
from tandem_operator.domain.actions import Failure, Plan
from tandem_operator.domain.conditions import report
from tandem_operator.domain.decide import decide
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.errors import SpecError, TandemError
from tandem_operator.domain.nested import number, text
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.plan import plan
from tandem_operator.observe import Sources, observe
from tandem_operator.ports import Json, Key, Kind


class StoppedShort(TandemError):
    """A plan could not be carried out to its end; what stopped it is in the status, and the object comes back."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return f"{self.failure.action}: {self.failure.reason}: {self.failure.message}"


class Observer(Protocol):
    """Told what was decided, once the progress that remembers it is kept; must not raise."""

    async def decided(self, key: Key, uid: str, decision: Decision) -> None: ...


async def reconcile(key: Key, sources: Sources, observer: Observer) -> float | None:
    """Returns seconds until the object wants another look; None: it is gone, or on its way.

    An object that waits for somebody's finalizer is left as it is: the garbage collector may be taking its children
    already, and what comes back would be taken again.

    Raises StoppedShort or ClusterError where the look or a write failed; the worklist comes back with a back-off.
    """
    resource = await sources.cluster.get(Kind.SPECULATIVE_DEPLOYMENT, key.namespace, key.name)
    if resource is None or text(resource, "metadata", "deletionTimestamp"):
        sources.history.forget(key)
        return None
    target = Target(resource)
    seen = await observe(resource, sources, window=breaker_window(resource))
    sources.keep(seen)
    decision, steps = planned(decide(seen), seen)
    outcome = await apply(steps, target, sources.cluster)
    # Before the report: who reads a status finds its events, and a conflict of the report does not make the turn again.
    if progress_is_kept(outcome):
        await observer.decided(key, seen.resource.uid, decision)
    status = None if is_outdated(outcome) else report(seen, decision, outcome)
    if status is not None:
        await write_status(status, target, sources.cluster)
    if outcome.failed is not None:
        raise StoppedShort(outcome.failed)
    return float(decision.look_again_in_seconds)


def planned(decision: Decision, seen: Observed) -> tuple[Decision, Plan]:
    """The decision with its plan. What cannot be rendered is refused like a wrong spec, and everything stays as it is;
    the turns that were decided with it are not made, so they are neither kept nor told."""
    try:
        return decision, plan(decision, seen)
    except SpecError as refused:
        held = replace(decision, refusal=str(refused), hold=True, progress=seen.progress, events=())
        return held, Plan()


def breaker_window(resource: Json) -> timedelta:
    """How far back the breaker looks, read before the spec is parsed: a wrong spec must not stop a look."""
    return timedelta(seconds=number(resource, "spec", "autoDisable", "windowSeconds", default=300))
