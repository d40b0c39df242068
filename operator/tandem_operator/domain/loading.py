"""Knows which adapters each target pod has to hold, how far that is, and what gateways are told of them.

Refuses to know how a pod is told, and when a rollout goes on (`steering`).

Two revisions may mean different weights by one name on the same pods. So a pod holds *contents*: each is named by what
it was made of (uri, revision, digest), and the policy says, revision by revision, which name leads to which digest. The
digest that the first pod found stands on the revision's record from then on, and no pod may load another one for it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tandem_operator.domain.decision import GateResult, GateVerdict, JsonObject, Load
from tandem_operator.domain.observed import ANNOTATION_ADAPTERS, GROUP, Pod, StoredAdapter, StoredRevision
from tandem_operator.domain.revision import Role
from tandem_operator.domain.samples import Document
from tandem_operator.domain.situation import Course, Situation

Held = Mapping[str, str]
"""Digests by content, as a pod says."""


def note_digests(at: Situation, course: Course) -> Course:
    """What the first pod found is what the adapter is, and stands on the revision's record before anybody is sent to
    it."""
    for stored in at.revisions.values():
        found = dict(_found(at, stored))
        if any(adapter.digest is None and adapter.content in found for adapter in stored.adapters):
            why = f"revision {stored.name} has the adapters that its first pod loaded"
            note = json.dumps(found, sort_keys=True, separators=(",", ":"))
            course = course.mark(stored.name, {ANNOTATION_ADAPTERS: note}, why)
    return course


def _found(at: Situation, stored: StoredRevision) -> Iterator[tuple[str, str]]:
    for adapter in stored.adapters:
        held = (pod.adapters[adapter.content] for pod in _holders(at, stored, adapter) if pod.adapters is not None)
        digest = adapter.digest or next(held, None)
        if digest is not None:
            yield adapter.content, digest


def _holders(at: Situation, stored: StoredRevision, adapter: StoredAdapter) -> Iterable[Pod]:
    return (pod for pod in _targets(at, stored.pair.target) if adapter.content in (pod.adapters or {}))


def _targets(at: Situation, target: str) -> Sequence[Pod]:
    pods = (pod for pod in at.seen.of_role(Role.TARGET) if pod.role_hash == target and pod.ready)
    return sorted(pods, key=lambda pod: pod.name)


def told(at: Situation, name: str) -> Sequence[JsonObject]:
    """What requests of a revision mean by names, as far as digests are known."""
    stored = at.revisions.get(name)
    adapters = () if stored is None else stored.adapters
    return [{"name": each.name, "digest": each.digest} for each in adapters if each.digest is not None]


# What pods are told


def loads(at: Situation, used: Iterable[str]) -> tuple[Load, ...] | None:
    """What brings every ready target pod to hold what the revisions in use need, and no more; None where none of them
    has adapters and no pod holds any."""
    needed = _needed(at, used)
    pods = [pod for pod in at.seen.of_role(Role.TARGET) if pod.ready and pod.adapters is not None]
    # A gateway that has not heard of the newest policy still sends requests by an older one.
    orders = (
        order for pod in pods for order in _orders(pod, needed.get(str(pod.role_hash), {}), may_unload=at.is_heard)
    )
    found = tuple(sorted(orders, key=lambda load: (load.pod, load.source is not None, load.content)))
    return found if found or any(needed.values()) else None


def _needed(at: Situation, used: Iterable[str]) -> Mapping[str, Mapping[str, StoredAdapter]]:
    """By target hash and content."""
    needed: dict[str, dict[str, StoredAdapter]] = {}
    for stored in (at.revisions[name] for name in used if name in at.revisions):
        contents = needed.setdefault(stored.pair.target, {})
        for adapter in stored.adapters:
            if adapter.content not in contents or adapter.digest is not None:
                contents[adapter.content] = adapter
    return needed


def _orders(pod: Pod, needed: Mapping[str, StoredAdapter], *, may_unload: bool) -> Iterator[Load]:
    held = pod.adapters or {}
    for content in (held.keys() - needed.keys()) if may_unload else ():
        yield Load(pod=pod.name, uid=pod.uid, content=content)
    for content, adapter in needed.items():
        if not _has(held, adapter):
            digest = {} if adapter.digest is None else {"digest": adapter.digest}
            yield Load(pod=pod.name, uid=pod.uid, content=content, source={**adapter.source, **digest})


def _has(held: Held, adapter: StoredAdapter) -> bool:
    return adapter.content in held and adapter.digest in (None, held[adapter.content])


# How far it is


def is_done(at: Situation, name: str) -> bool:
    """Whether every ready target pod of a revision has its adapters, and every gateway knows that of all that it
    reaches."""
    stored = at.revisions.get(name)
    return stored is None or all(_is_loaded(at, stored, adapter) for adapter in stored.adapters)


def _is_loaded(at: Situation, stored: StoredRevision, adapter: StoredAdapter) -> bool:
    target, digest = stored.pair.target, adapter.digest
    if digest is None or any(_lacks(pod, adapter) for pod in _targets(at, target)):
        return False
    return all(_knows(document, target, digest) for document in at.seen.documents.values())


def _lacks(pod: Pod, adapter: StoredAdapter) -> bool:
    """A pod that did not answer this once lacks nothing: what gateways say counts."""
    return pod.adapters is not None and not _has(pod.adapters, adapter)


def _knows(document: Document, target: str, digest: str) -> bool:
    has_it = (document.adapters or {}).get(target, {}).get(digest, 0)
    return has_it >= document.admitted.targets.get(target, 0)


def lacking(at: Situation, name: str) -> str:
    """What a revision whose pods are waited for has not got."""
    stored = at.revisions.get(name)
    for adapter in () if stored is None else stored.adapters:
        if stored is not None and not _is_loaded(at, stored, adapter):
            return f"its adapters were not loaded ({adapter.name}{_why(at, stored, adapter)})"
    return "its pods were not ready"


def state(at: Situation, used: Sequence[str]) -> GateResult | None:
    """Of the revisions in use; None where none of them has adapters."""
    stored = [at.revisions[name] for name in used if name in at.revisions and at.revisions[name].adapters]
    if not stored:
        return None
    late = [(held, each) for held in stored for each in held.adapters if not _is_loaded(at, held, each)]
    refused = [(held, each) for held, each in late if _refusals(at, held, each)]
    if refused:
        return GateResult(GateVerdict.CLOSED, "LoadingFailed", _what(at, *refused[0]))
    if late:
        return GateResult(GateVerdict.CLOSED, "Loading", _what(at, *late[0]))
    names = "; ".join(f"{held.name}: {_listed(held)}" for held in stored)
    return GateResult(GateVerdict.OPEN, "AllLoaded", f"target pods have the adapters of their revisions: {names}")


def _what(at: Situation, stored: StoredRevision, adapter: StoredAdapter) -> str:
    return f"adapter {adapter.name} of revision {stored.name}{_why(at, stored, adapter)}"


def _listed(stored: StoredRevision) -> str:
    return ", ".join(f"{each.name} {each.digest}" for each in stored.adapters)


def _why(at: Situation, stored: StoredRevision, adapter: StoredAdapter) -> str:
    refusals = _refusals(at, stored, adapter)
    if refusals:
        return f" is not loaded by pod {refusals[0]}"
    pods = _targets(at, stored.pair.target)
    lacking = [pod.name for pod in pods if _lacks(pod, adapter)]
    if lacking or not pods:
        return f" is not in target pod {', '.join(lacking)} yet" if lacking else " waits for a target pod"
    return f" is loaded, and not every gateway has heard so; one of an older release needs {GROUP}/upgrade"


def _refusals(at: Situation, stored: StoredRevision, adapter: StoredAdapter) -> Sequence[str]:
    """What pods that have not got it said: `chat-target-1: digest of ...`."""
    faults = ((pod, (pod.adapter_faults or {}).get(adapter.content)) for pod in _targets(at, stored.pair.target))
    return [f"{pod.name}: {fault}" for pod, fault in faults if fault and _lacks(pod, adapter)]
