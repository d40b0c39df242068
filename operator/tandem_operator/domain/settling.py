"""Knows whether an object is on its way to what its spec asks, is there, or waits for a human.

Refuses to know the other conditions, and how these two are dated and kept.

`Reconciling` and `Stalled` are what kstatus reads, and so Flux, kpt and whoever waits for an edit: the first is
InProgress, the second Failed, neither is Current, and where both are true the one that comes first in the list counts.
So what waits for a human is not reconciling, though it is tried again and again. An alert without a way back does not
hide the canary of its cure, and a revision that was refused stalls the object only once its pods are cleared away. One
that an upgrade by command made of the same spec stalls nothing: what serves is what the spec asks for.
"""

from collections.abc import Collection, Iterator

from tandem_operator.domain.actions import JsonObject, Outcome, Verb
from tandem_operator.domain.decision import Decision, GateResult, GateVerdict
from tandem_operator.domain.nested import items, mapping, number, text
from tandem_operator.domain.observed import ANNOTATION_VERDICT, GROUP, Observed, RevisionVerdict
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import Role, revision_of

_TRUE, _FALSE = GateVerdict.OPEN, GateVerdict.CLOSED
HUMAN_ERRORS = ("Refused", "Forbidden", "ForeignObject")
"""Failed writes that no repetition mends."""


def reconciling(seen: Observed, decision: Decision, outcome: Outcome) -> GateResult:
    """Until the spec's revision is the only one with traffic, in the pods that it asks for, or nothing leads there."""
    if _is_stuck(decision, outcome):
        return GateResult(_FALSE, "Stalled", "nothing goes on before somebody does something: see Stalled")
    found = next(_left_to_do(seen, decision, outcome), None)
    if found is not None:
        return GateResult(_TRUE, *found)
    return GateResult(_FALSE, "Settled", "nothing is left to do")


def stalled(seen: Observed, decision: Decision, outcome: Outcome) -> GateResult:
    """What waits for a human: the spec is not followed, and will not be by itself."""
    if decision.stalled is not None:
        return decision.stalled
    if outcome.failed is not None and outcome.failed.reason in HUMAN_ERRORS:
        return GateResult(_TRUE, outcome.failed.reason, outcome.failed.message)
    if decision.refusal is not None:
        return GateResult(_TRUE, "InvalidSpec", decision.refusal)
    if _is_refused(seen, decision) and not _is_of_spec(seen, decision):
        return GateResult(_TRUE, "RevisionRefused", _why_refused(decision))
    return GateResult(_FALSE, "NotStalled", "nothing waits for a human")


def is_at_rest(seen: Observed, decision: Decision) -> bool:
    """Whether status says already that nothing is left to do, and nothing is on its way."""
    written = bool(items(seen.resource.status, "conditions"))
    return decision.progress.rollout.stage is Stage.STABLE and written and not _reconciles(seen.resource.status)


def may_wait(old: JsonObject, new: JsonObject) -> bool:
    """Whether a status of an object on its way tells nothing new but how far its pods and gateways are.

    Each look on the way sees other counts. Written each time, they would make as many writes as there are looks.
    """
    return _reconciles(new) and _without_counts(old) == _without_counts(new)


def _reconciles(status: JsonObject) -> bool:
    told = {text(item, "type"): text(item, "status") for item in items(status, "conditions")}
    return told.get("Reconciling") == _TRUE


def _without_counts(status: JsonObject) -> JsonObject:
    revisions = [_less(item, ("targetReady", "draftReady")) for item in items(status, "revisions")]
    # Why something is still reconciling goes through three reasons at the end of each change.
    conditions = [
        _less(item, ("message", "reason") if text(item, "type") == "Reconciling" else ("message",))
        for item in items(status, "conditions")
    ]
    gateway = _less(mapping(status, "gateway"), ("replicas", "ready", "policyObservedBy"))
    return {**status, "gateway": gateway, "revisions": revisions, "conditions": conditions}


def _less(held: JsonObject, names: Collection[str]) -> JsonObject:
    return {name: value for name, value in held.items() if name not in names}


def _is_stuck(decision: Decision, outcome: Outcome) -> bool:
    """Whether trying again is all that is done."""
    failed = outcome.failed is not None and outcome.failed.reason in HUMAN_ERRORS
    waits = decision.hold or decision.progress.rollout.stage is Stage.INSTALLING
    return failed or decision.refusal is not None or (decision.stalled is not None and waits)


def _left_to_do(seen: Observed, decision: Decision, outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Reason and message of each step that is left, the first one first."""
    if decision.progress.rollout.stage is not Stage.STABLE:
        yield str(decision.progress.rollout.stage), "a rollout is under way"
    elif _is_ahead(seen, decision):
        yield "Pending", f"revision {decision.current} is next"
    if outcome.failed is not None:
        yield outcome.failed.reason, outcome.failed.message
    if any(action.verb in (Verb.APPLY, Verb.CREATE, Verb.DELETE) for action in outcome.done):
        yield "WritingChildren", "children are being brought up to date"
    spare = {(pods.role, pods.role_hash) for pods in decision.pods if pods.revision == decision.previous}
    asked = (held for held in seen.workloads if (held.role, held.role_hash) not in spare)
    unsettled = [held.name for held in asked if not held.settled or held.ready < held.wanted]
    if unsettled:
        yield "WaitingForPods", f"{', '.join(unsettled)}: not every pod is current and ready"
    if decision.adapters is not None and decision.adapters.verdict is not _TRUE:
        yield "LoadingAdapters", decision.adapters.message
    in_force = number(decision.policy, "number")
    behind = [pod.name for pod in seen.of_role(Role.GATEWAY) if not seen.follows(pod, in_force)]
    if behind:
        yield "WaitingForGateways", f"policy {in_force} has not reached {', '.join(sorted(behind))}"
    if decision.progress.retired:
        names = ", ".join(decision.progress.retired)
        yield "Retiring", f"revision {names}: its pods may have open answers, which propose no more"


def _is_ahead(seen: Observed, decision: Decision) -> bool:
    """Whether the spec means a revision that will be set out for."""
    return decision.current not in ("", decision.stable) and not decision.hold and not _is_refused(seen, decision)


def _is_refused(seen: Observed, decision: Decision) -> bool:
    """Whether the spec means a revision that is not tried again by itself."""
    refused = decision.progress.refused == decision.current or _verdict(seen, decision) == RevisionVerdict.BAD
    return refused and decision.current not in ("", decision.stable, decision.progress.rollout.revision)


def _is_of_spec(seen: Observed, decision: Decision) -> bool:
    """Whether what serves is made of the spec's values: the refused revision is then an upgrade's, by command."""
    pairs = (stored.pair for stored in seen.revisions if stored.name == decision.stable)
    return any(decision.spec is not None and revision_of(decision.spec, pair.edition) == pair for pair in pairs)


def _verdict(seen: Observed, decision: Decision) -> str:
    """Of the spec's revision: what was decided of it lately, or else what stands on its record."""
    decided = decision.progress.marks.get(decision.current, {}).get(ANNOTATION_VERDICT)
    stored = (str(revision.verdict) for revision in seen.revisions if revision.name == decision.current)
    return decided or next(stored, str(RevisionVerdict.UNKNOWN))


def _why_refused(decision: Decision) -> str:
    last, name = decision.progress.rolled_back, decision.current
    ours = last is not None and last.revision == name
    why = f"{last.reason}: {last.note}" if last is not None and ours else "it was found Bad before"
    ways = f"edit a field that makes another revision, or give {GROUP}/retry: @{name}#NONCE"
    return f"revision {name}, which the spec means, is refused, and {decision.stable} serves; {why}; {ways}"
