"""Knows how a decision and its outcome read in status: conditions, and the progress to go on from.

Refuses to know how it was decided, what is written to children, and what else people read there (`views`).

Status speaks to three readers. Programs read conditions: `Ready` speaks of serving alone, `Reconciling` and `Stalled`
(`settling`) of what to wait for after an edit, and every condition carries the generation it is about. People read
phase, figures and messages. The operator reads `progress`. A transition time moves only when its condition's status
does, messages hold no counters in the steady state, and a status that says nothing new is not written.
"""

from collections.abc import Callable, Mapping

from tandem_operator.domain import health, progress, record, rollout, settling, views
from tandem_operator.domain.actions import Outcome, Verb
from tandem_operator.domain.bounds import fitted
from tandem_operator.domain.decision import CheckVerdict, Decision, GateResult, GateVerdict
from tandem_operator.domain.nested import items, text
from tandem_operator.domain.observed import NO_ANSWER, Observed, Pod
from tandem_operator.domain.progress import Progress, SpeculationReason, SpeculationState, Stage
from tandem_operator.domain.revision import Role, RoleHash
from tandem_operator.domain.views import View, percent_of

LONGEST_MESSAGE = 1024
LACKING_NAMED = 5
_TRUE, _FALSE, _UNKNOWN = GateVerdict.OPEN, GateVerdict.CLOSED, GateVerdict.UNKNOWN


def report(seen: Observed, decision: Decision, outcome: Outcome) -> Mapping[str, object] | None:
    """The new status, or None where it says what the old one does."""
    view = View(seen, decision, outcome)
    old = seen.resource.status
    status = {
        **_kept(old, decision),
        "observedGeneration": seen.resource.generation,
        "progress": progress.write(_persisted(view)),
        "conditions": _conditions(view),
    }
    status["phase"] = _phase(view)
    status = fitted({name: value for name, value in {**status, **views.shown(view)}.items() if value is not None})
    return None if status == old else status


def _kept(old: Mapping[str, object], decision: Decision) -> dict[str, object]:
    """Where nothing can be decided, what was last known stays."""
    return dict(old) if decision.hold else {}


def _persisted(view: View) -> Progress:
    """The decided progress, unless writing stopped before it was its turn: what it rests on is not saved then."""
    planned = [action for action in view.outcome.plan.actions if action.verb is Verb.PERSIST]
    skipped = view.outcome.failed is not None and any(action not in view.outcome.done for action in planned)
    return view.seen.progress if skipped else view.decision.progress


# Conditions


def _conditions(view: View) -> list[dict[str, object]]:
    old = {text(item, "type"): item for item in items(view.seen.resource.status, "conditions")}
    return [_condition(view, kind, judge(view), old.get(kind)) for kind, judge in CONDITIONS.items()]


def _condition(view: View, kind: str, found: GateResult, before: Mapping[str, object] | None) -> dict[str, object]:
    same = before is not None and text(before, "status") == found.verdict
    since = text(before, "lastTransitionTime") if same else record.dump_moment(view.seen.now)
    return {
        "type": kind,
        "status": str(found.verdict),
        "observedGeneration": view.seen.resource.generation,
        "lastTransitionTime": since,
        "reason": found.reason,
        "message": found.message[:LONGEST_MESSAGE],
    }


def _ready(view: View) -> GateResult:
    spec, serving = view.decision.spec, view.serving
    if spec is not None and spec.target.replicas == 0:
        return GateResult(_FALSE, "ScaledToZero", "spec.target.replicas is 0")
    if serving is None or not view.decision.stable:
        return GateResult(_FALSE, "NotServingYet", "no revision has served yet")
    if not view.ready(Role.TARGET, serving.pair.target):
        if view.gave_way and not view.decision.progress.rollout.surge.shares_target:
            words = f"serving stops until a target pod of revision {view.canary} is ready"
            return GateResult(_FALSE, "Recreating", words)
        return GateResult(_FALSE, "NoTarget", f"no target pod of revision {serving.name} is ready")
    if not view.ready(Role.GATEWAY, None):
        return GateResult(_FALSE, "NoGateway", "no gateway pod is ready")
    return GateResult(_TRUE, "Serving", f"revision {serving.name} serves")


def _accepted(view: View) -> GateResult:
    failed = view.outcome.failed
    if view.decision.refusal is not None:
        return GateResult(_FALSE, "InvalidSpec", f"{view.decision.refusal}; what served goes on serving")
    if failed is not None and failed.reason == "Refused":
        return GateResult(_FALSE, "ChildRefused", f"{failed.action.kind} {failed.action.name}: {failed.message}")
    return _outdated(view.seen.lacking_fields) or GateResult(_TRUE, "Valid", "the spec is valid")


def _outdated(lacking: tuple[str, ...]) -> GateResult | None:
    """The served definition is that of an older release."""
    if not lacking:
        return None
    others = f" and {len(lacking) - LACKING_NAMED} more" if len(lacking) > LACKING_NAMED else ""
    named = f"{', '.join(lacking[:LACKING_NAMED])}{others}"
    told = f"the spec is valid, but the installed CRD is older than the operator and lacks {named}, so they are refused"
    return GateResult(_TRUE, "DefinitionOutdated", f"{told} or dropped: apply the CRD of the operator's release")


def _adapters_loaded(view: View) -> GateResult:
    if view.decision.adapters is not None:
        return view.decision.adapters
    if view.decision.hold:
        return GateResult(_UNKNOWN, "NotYet", "nothing can be decided: see Accepted and Stalled")
    return GateResult(_TRUE, "NotUsed", "no revision in use has adapters")


def _target_ready(view: View) -> GateResult:
    serving = view.serving
    if serving is None:
        return GateResult(_UNKNOWN, "NotYet", "nothing has been rolled out yet")
    return _given_way(view, Role.TARGET, serving.pair.target) or _pods_ready(view, Role.TARGET, serving.pair.target)


def _draft_ready(view: View) -> GateResult:
    serving = view.serving
    if serving is None:
        return GateResult(_UNKNOWN, "NotYet", "nothing has been rolled out yet")
    if serving.pair.draft is None:
        return GateResult(_TRUE, "NotUsed", "the pair has no draft pods")
    given_way = _given_way(view, Role.DRAFT, serving.pair.draft)
    if given_way is not None:
        return given_way
    if not view.wanted(Role.DRAFT, serving.pair.draft) and view.decision.pods:
        return GateResult(_FALSE, "Released", "its pods were given up, because speculation has been off for long")
    return _pods_ready(view, Role.DRAFT, serving.pair.draft)


def _given_way(view: View, role: Role, role_hash: RoleHash) -> GateResult | None:
    if not view.gave_way or view.wanted(role, role_hash):
        return None
    return GateResult(_FALSE, "GaveWay", f"its pods gave way to those of revision {view.canary}")


def _gateway_ready(view: View) -> GateResult:
    if view.decision.spec is None:
        return GateResult(_UNKNOWN, "NotYet", "the spec cannot be read")
    mute = view.seen.mute()
    if mute:
        words = f"{', '.join(mute)}: ready, but does not answer the operator, which cannot tell what policy it follows"
        return GateResult(_FALSE, NO_ANSWER, words)
    return _counted(view, Role.GATEWAY, None, view.decision.spec.gateway.replicas)


def _pods_ready(view: View, role: Role, role_hash: RoleHash) -> GateResult:
    return _counted(view, role, role_hash, view.wanted(role, role_hash))


def _counted(view: View, role: Role, role_hash: RoleHash | None, wanted: int) -> GateResult:
    ready = view.ready(role, role_hash)
    if wanted and ready >= wanted:
        return GateResult(_TRUE, "AllReady", f"{wanted}/{wanted} pods are ready")
    pods = [pod for pod in view.seen.of_role(role) if pod.role_hash == role_hash and not pod.ready]
    reason, words = _why_not_ready(pods)
    return GateResult(_FALSE, reason, f"{ready}/{wanted} pods are ready{words}")


def _why_not_ready(pods: list[Pod]) -> tuple[str, str]:
    """The most telling reason; a time here is fixed, so that waiting causes no writes."""
    failed = next((pod for pod in pods if pod.fetched is not None and pod.fetched.error is not None), None)
    if failed is not None and failed.fetched is not None:
        return "FetchFailed", f"; {failed.name}: {failed.fetched.error}"
    waiting = next((pod for pod in pods if pod.waiting_reason is not None), None)
    if waiting is not None and waiting.waiting_reason is not None:
        return waiting.waiting_reason, f"; {waiting.name} waits"
    unplaced = next((pod for pod in pods if pod.unschedulable is not None), None)
    if unplaced is not None:
        return "Unschedulable", f"; {unplaced.name}: {unplaced.unschedulable}"
    started = min((pod.started_at for pod in pods if pod.started_at is not None), default=None)
    return "Loading", "" if started is None else f"; loading since {record.dump_moment(started)}"


def _progressing(view: View) -> GateResult:
    moved, spec = view.decision.progress.rollout, view.decision.spec
    if moved.stage is Stage.STABLE:
        return GateResult(_FALSE, "Complete", "no rollout is under way")
    if spec is not None and spec.paused and not rollout.serves_nobody(moved):
        return GateResult(_FALSE, "Paused", "spec.paused is true; aborts, rollbacks and disabling still act")
    percent = percent_of(view.decision, moved.revision)
    messages: Mapping[Stage, str] = {
        Stage.INSTALLING: f"the first revision {moved.revision} is coming up",
        Stage.GATHERING: f"revision {moved.revision}: stable's pods give way once enough is known to compare",
        Stage.CLEARING: f"revision {moved.revision}: stable's pods go before its own come",
        Stage.PREPARING: f"revision {moved.revision}: pods for step {moved.step} are coming up",
        Stage.STEPPING: f"revision {moved.revision}: step {moved.step} at {percent} %",
        Stage.PAUSED: f"revision {moved.revision}: step {moved.step} waits for tandem.dev/promote",
        Stage.COMPLETING: f"revision {moved.revision} passed and is coming up to full size",
        Stage.RETURNING: f"going back to revision {moved.revision}",
    }
    if moved.stage is Stage.RETURNING and percent < 100:
        return GateResult(_TRUE, "RollingBackCold", f"revision {moved.revision} is coming up again before it serves")
    return GateResult(_TRUE, str(moved.stage), messages[moved.stage])


def _canary_healthy(view: View) -> GateResult:
    checks = view.decision.checks
    if not checks:
        return GateResult(_UNKNOWN, "NoCanary", "no canary is being judged")
    worst = health.worst(checks)
    telling = [check for check in checks if check.verdict in (worst, CheckVerdict.NOT_COMPARED)]
    words = "; ".join(f"{check.title} {check.value}".rstrip() + f": {check.message}" for check in telling)
    verdicts = {CheckVerdict.PASS: _TRUE, CheckVerdict.FAIL: _FALSE}
    return GateResult(verdicts.get(worst, _UNKNOWN), str(worst), words)


def _speculation_active(view: View) -> GateResult:
    held, serving = view.decision.progress.breaker, view.serving
    if held.state is not SpeculationState.ACTIVE:
        return GateResult(_FALSE, str(held.reason), f"{held.state}: {held.note}")
    if serving is None:
        return GateResult(_FALSE, "NotServingYet", "no pair serves yet")
    if view.gave_way:
        serves = f"which serves {percent_of(view.decision, view.canary)} %"
        return GateResult(_FALSE, "GaveWay", f"stable's draft gave way to that of revision {view.canary}, {serves}")
    if serving.pair.draft is not None and not view.ready(Role.DRAFT, serving.pair.draft):
        return GateResult(_FALSE, "DraftNotReady", "no draft pod is ready; the target serves alone")
    return GateResult(_TRUE, str(held.reason), held.note or "on since this revision serves")


def _memory_pressure(view: View) -> GateResult:
    held = view.decision.progress.breaker
    pressed = held.reason is SpeculationReason.MEMORY_PRESSURE and held.state is SpeculationState.DISABLED
    if pressed:
        return GateResult(_TRUE, "AboveMark", held.note)
    quiet = view.decision.progress.rollout.quiet_since
    if quiet is not None:
        words = (
            f"the speculation of revision {view.canary} is off since {record.dump_moment(quiet)}, so that it may ease"
        )
        return GateResult(_TRUE, "CanaryQuiet", words)
    return GateResult(_FALSE, "BelowMark", "memory has not switched speculation off")


def _rolled_back(view: View) -> GateResult:
    last = view.decision.progress.rolled_back
    if last is None:
        return GateResult(_FALSE, "NothingTakenBack", "no revision was taken back since the last promotion")
    return GateResult(_TRUE, last.reason, f"revision {last.revision}: {last.note}")


def _children_modified(view: View) -> GateResult:
    found = view.outcome.plan.modified
    if not found:
        return GateResult(_FALSE, "AsWritten", "nobody added to the children")
    return GateResult(_TRUE, "ForeignAdditions", f"left alone: {'; '.join(found)}")


CONDITIONS: Mapping[str, Callable[[View], GateResult]] = {
    "Ready": _ready,
    "Accepted": _accepted,
    "ModelsCompatible": lambda view: view.decision.compatible,
    "AdaptersLoaded": _adapters_loaded,
    "TargetReady": _target_ready,
    "DraftReady": _draft_ready,
    "GatewayReady": _gateway_ready,
    "Progressing": _progressing,
    "CanaryHealthy": _canary_healthy,
    "CapacityAvailable": lambda view: view.decision.capacity,
    "SpeculationActive": _speculation_active,
    "MemoryPressure": _memory_pressure,
    "RolledBack": _rolled_back,
    "ChildrenModified": _children_modified,
    "Reconciling": lambda view: settling.reconciling(view.seen, view.decision, view.outcome),
    "Stalled": lambda view: settling.stalled(view.seen, view.decision, view.outcome),
}
"""Every condition, all of them written at the first visit."""


# Views


def _phase(view: View) -> str:
    stage, stalled = view.decision.progress.rollout.stage, view.decision.stalled
    if view.decision.stable and _ready(view).verdict is _FALSE:
        return "Degraded"
    if stalled is not None:
        return "Degraded"
    match stage:
        case Stage.INSTALLING:
            return "Progressing" if view.decision.shares else "Pending"
        case Stage.STABLE:
            return "Serving"
        case Stage.RETURNING:
            return "Progressing"
        case _:
            return "Canary"
