"""Knows one look at one object, from reading to writing: observe -> decide -> plan -> apply -> report.

Refuses to know any rule (`domain`), any client (`kube`) and what woke us (`handlers`).
"""

from datetime import timedelta
from typing import Protocol

from tandem_operator.apply import Target, apply, write_status
from tandem_operator.domain.conditions import report
from tandem_operator.domain.decide import decide
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.observed import number
from tandem_operator.domain.plan import plan
from tandem_operator.observe import Sources, observe
from tandem_operator.ports import Json, Key, Kind


class Observer(Protocol):
    """Told what was decided and done; must not block or raise."""

    async def decided(self, key: Key, uid: str, decision: Decision) -> None: ...


async def reconcile(key: Key, sources: Sources, observer: Observer) -> float | None:
    """Returns seconds until the object wants another look; None: it is gone.

    Raises ClusterError where the look or a write met the API's refusal; the worklist comes back with a back-off.
    """
    resource = await sources.cluster.get(Kind.SPECULATIVE_DEPLOYMENT, key.namespace, key.name)
    if resource is None:
        sources.history.forget(key)
        return None
    target = Target(resource)
    seen = await observe(resource, sources, window=breaker_window(resource))
    decision = decide(seen)
    outcome = await apply(plan(decision, seen), target, sources.cluster)
    status = report(seen, decision, outcome)
    if status is not None:
        await write_status(status, target, sources.cluster)
    await observer.decided(key, seen.resource.uid, decision)
    return float(decision.look_again_in_seconds)


def breaker_window(resource: Json) -> timedelta:
    """How far back the breaker looks, read before the spec is parsed: a wrong spec must not stop a look."""
    return timedelta(seconds=number(resource, "spec", "autoDisable", "windowSeconds", default=300))
