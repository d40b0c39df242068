"""Knows one look at one object, from reading to writing: find -> observe -> decide -> plan -> apply -> report.

Refuses to know any rule (`domain`), any client (`kube`) and what woke us (`handlers`).
"""

from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Protocol

from tandem_operator.apply import Target, apply, is_outdated, progress_is_kept, write_status
from tandem_operator.domain import record, settling
from tandem_operator.domain.actions import Failure, Plan
from tandem_operator.domain.conditions import report
from tandem_operator.domain.decide import decide
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.errors import SpecError, TandemError
from tandem_operator.domain.nested import items, number, text
from tandem_operator.domain.observed import Observed, moment
from tandem_operator.domain.plan import plan
from tandem_operator.observe import Sources, addresses, find, observe
from tandem_operator.ports import Json, Key, Kind

BETWEEN_COUNTS = timedelta(seconds=5)
"""Between two statuses of an object on its way that differ in counts alone; whatever else is new is told at once."""


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


class Observers(tuple[Observer, ...]):
    """Each is told."""

    async def decided(self, key: Key, uid: str, decision: Decision) -> None:
        for observer in self:
            await observer.decided(key, uid, decision)


async def reconcile(key: Key, sources: Sources, observer: Observer) -> float | None:
    """Returns seconds until the object wants another look; None: it is gone, or on its way.

    An object that waits for somebody's finalizer is left as it is: the garbage collector may be taking its children
    already, and what comes back would be taken again.

    Raises StoppedShort or ClusterError where the look or a write failed; the worklist comes back with a back-off.
    """
    wish = await glance(key, sources)
    if wish is not None:
        return wish
    sources.steady.begin(key)
    try:
        return await look(key, sources, observer)
    finally:
        sources.steady.end(key)


async def glance(key: Key, sources: Sources) -> float | None:
    """Seconds until the next look at an object that was left at rest; None where it is to be read, or where something
    else follows from what its pods say now."""
    found = sources.steady.recall(key, sources.clock.now())
    if found is None:
        return None
    seen = await observe(found, sources, window=breaker_window(found.resource))
    decision = decide(seen)
    if not sources.steady.is_same(key, essence(seen, decision)):
        return None
    return sources.steady.paced(decision.look_again_in_seconds)


async def look(key: Key, sources: Sources, observer: Observer) -> float | None:
    """Everything is read, and whatever follows is written."""
    resource = await sources.cluster.get(Kind.SPECULATIVE_DEPLOYMENT, key.namespace, key.name)
    if resource is None or text(resource, "metadata", "deletionTimestamp"):
        sources.history.forget(key)
        sources.loads.forget(key)
        return None
    target = Target(resource)
    found = await find(resource, sources.cluster)
    seen = await observe(found, sources, window=breaker_window(resource))
    sources.keep(seen)
    decision, steps = planned(decide(seen), seen)
    outcome = await apply(steps, target, sources.cluster)
    # They rest on no write: a child that is refused for hours keeps no adapter out of a pod that began anew.
    sources.loads.follow(key, decision.loads or (), addresses(found.pods), sources.telemetry, sources.clock)
    # Before the report: who reads a status finds its events, and a conflict of the report does not make the turn again.
    if progress_is_kept(outcome):
        await observer.decided(key, seen.resource.uid, decision)
    status = None if is_outdated(outcome) else report(seen, decision, outcome)
    counts = status is not None and settling.may_wait(seen.resource.status, status)
    if status is not None and not (counts and seen.now - last_told(resource) < BETWEEN_COUNTS):
        await write_status(status, target, sources.cluster)
    if outcome.failed is not None:
        raise StoppedShort(outcome.failed)
    if status is None and not steps.actions and not decision.loads and settling.is_at_rest(seen, decision):
        sources.steady.keep(key, found, essence(seen, decision), seen.now)
        return sources.steady.paced(decision.look_again_in_seconds)
    return float(decision.look_again_in_seconds)


def last_told(resource: Json) -> datetime:
    """When a status was last written, as the API server keeps it for whoever manages fields."""
    entries = items(resource, "metadata", "managedFields")
    times = [moment(entry, "time") for entry in entries if text(entry, "subresource") == "status"]
    return max((time for time in times if time is not None), default=record.EPOCH)


def essence(seen: Observed, decision: Decision) -> bytes:
    """All that plan and report would read besides what the API server holds: where it is the same, so are they."""
    quiet = replace(decision, figures={}, decided_at=record.EPOCH, look_again_in_seconds=0)
    heard = {name: document.policy for name, document in seen.documents.items()}
    return sha256(repr((quiet, heard, seen.lacking_fields)).encode()).digest()


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
