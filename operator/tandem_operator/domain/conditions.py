"""Knows how a decision and its outcome read in status: conditions, figures, views, and the progress to go on from.

Refuses to know how it was decided and what is written to children.

Status speaks to three readers. Programs read conditions: `Ready` speaks of serving alone, `Reconciling` and `Stalled`
(`settling`) of what to wait for after an edit, and every condition carries the generation it is about. People read
phase, figures and messages. The operator reads `progress`. A transition time moves only when its condition's status
does, messages hold no counters in the steady state, and a status that says nothing new is not written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tandem_operator.domain import health, progress, record, settling
from tandem_operator.domain.actions import Outcome, Verb
from tandem_operator.domain.bounds import fitted
from tandem_operator.domain.decision import CheckVerdict, Decision, Figures, GateResult, GateVerdict
from tandem_operator.domain.nested import items, mapping, number, text
from tandem_operator.domain.observed import Observed, Pod, StoredRevision
from tandem_operator.domain.progress import Progress, SpeculationReason, SpeculationState, Stage
from tandem_operator.domain.revision import NOTHING, Role, RoleHash
from tandem_operator.domain.templates import Owner, selector

LONGEST_MESSAGE = 1024
_TRUE, _FALSE, _UNKNOWN = GateVerdict.OPEN, GateVerdict.CLOSED, GateVerdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class View:
    """What conditions are made from."""

    seen: Observed
    decision: Decision
    outcome: Outcome

    @property
    def serving(self) -> StoredRevision | None:
        """The revision that serves, or that is to be the first."""
        named = self.decision.stable or self.decision.progress.rollout.revision
        return next((stored for stored in self.seen.revisions if stored.name == named), None)

    def ready(self, role: Role, role_hash: RoleHash | None) -> int:
        workload = self.seen.workload(role, role_hash)
        return 0 if workload is None else workload.ready

    def wanted(self, role: Role, role_hash: RoleHash | None) -> int:
        found = (pods.replicas for pods in self.decision.pods if (pods.role, pods.role_hash) == (role, role_hash))
        return next(found, 0)


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
    status = fitted({name: value for name, value in {**status, **_views(view)}.items() if value is not None})
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
    return GateResult(_TRUE, "Valid", "the spec is valid")


def _target_ready(view: View) -> GateResult:
    serving = view.serving
    if serving is None:
        return GateResult(_UNKNOWN, "NotYet", "nothing has been rolled out yet")
    return _pods_ready(view, Role.TARGET, serving.pair.target)


def _draft_ready(view: View) -> GateResult:
    serving = view.serving
    if serving is None:
        return GateResult(_UNKNOWN, "NotYet", "nothing has been rolled out yet")
    if serving.pair.draft is None:
        return GateResult(_TRUE, "NotUsed", "the pair has no draft pods")
    if not view.wanted(Role.DRAFT, serving.pair.draft) and view.decision.pods:
        return GateResult(_FALSE, "Released", "its pods were given up, because speculation has been off for long")
    return _pods_ready(view, Role.DRAFT, serving.pair.draft)


def _gateway_ready(view: View) -> GateResult:
    if view.decision.spec is None:
        return GateResult(_UNKNOWN, "NotYet", "the spec cannot be read")
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
    if spec is not None and spec.paused:
        return GateResult(_FALSE, "Paused", "spec.paused is true; aborts, rollbacks and disabling still act")
    percent = _percent(view.decision, moved.revision)
    messages: Mapping[Stage, str] = {
        Stage.INSTALLING: f"the first revision {moved.revision} is coming up",
        Stage.PREPARING: f"revision {moved.revision}: pods for step {moved.step} are coming up",
        Stage.STEPPING: f"revision {moved.revision}: step {moved.step} at {percent} %",
        Stage.PAUSED: f"revision {moved.revision}: step {moved.step} waits for tandem.dev/promote",
        Stage.COMPLETING: f"revision {moved.revision} passed and is coming up to full size",
        Stage.RETURNING: f"going back to revision {moved.revision}",
    }
    if moved.stage is Stage.RETURNING and percent < 100:
        return GateResult(_TRUE, "RollingBackCold", f"revision {moved.revision} is coming up again before it serves")
    return GateResult(_TRUE, str(moved.stage), messages[moved.stage])


def _percent(decision: Decision, revision: str) -> int:
    return next((share.weight for share in decision.shares if share.revision == revision), 0)


def _canary_healthy(view: View) -> GateResult:
    checks = view.decision.checks
    if not checks:
        return GateResult(_UNKNOWN, "NoCanary", "no canary is being judged")
    worst = health.worst(checks)
    telling = [check for check in checks if check.verdict in (worst, CheckVerdict.NOT_COMPARED)]
    words = "; ".join(f"{check.name} {check.value}".rstrip() + f": {check.message}" for check in telling)
    verdicts = {CheckVerdict.PASS: _TRUE, CheckVerdict.FAIL: _FALSE}
    return GateResult(verdicts.get(worst, _UNKNOWN), str(worst), words)


def _speculation_active(view: View) -> GateResult:
    held, serving = view.decision.progress.breaker, view.serving
    if held.state is not SpeculationState.ACTIVE:
        return GateResult(_FALSE, str(held.reason), f"{held.state}: {held.note}")
    if serving is None:
        return GateResult(_FALSE, "NotServingYet", "no pair serves yet")
    if serving.pair.draft is not None and not view.ready(Role.DRAFT, serving.pair.draft):
        return GateResult(_FALSE, "DraftNotReady", "no draft pod is ready; the target serves alone")
    return GateResult(_TRUE, str(held.reason), held.note or "on since this revision serves")


def _memory_pressure(view: View) -> GateResult:
    held = view.decision.progress.breaker
    pressed = held.reason is SpeculationReason.MEMORY_PRESSURE and held.state is SpeculationState.DISABLED
    if pressed:
        return GateResult(_TRUE, "AboveMark", held.note)
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


def _views(view: View) -> dict[str, object]:
    """What people and the scale subresource read; while everything is held, the last known stays."""
    decision, seen = view.decision, view.seen
    if decision.hold or decision.spec is None:
        return {}
    moved, held = decision.progress.rollout, decision.progress
    trial = decision.checks or moved.stage in (Stage.PREPARING, Stage.STEPPING, Stage.PAUSED, Stage.COMPLETING)
    port, resource = decision.spec.gateway.service.port, seen.resource
    return {
        "stableRevision": decision.stable or None,
        "canaryRevision": moved.revision if trial and moved.revision else None,
        "previousRevision": decision.previous or None,
        "refusedRevision": held.refused or None,
        "canary": _canary(view) if trial and moved.revision else None,
        "revisions": [_revision(view, stored) for stored in reversed(seen.revisions)],
        "speculation": _speculation(view),
        "gateway": _gateway(view),
        "alerts": [record.dump(alert) for alert in held.alerts] or None,
        "handledCommands": dict(held.handled) or None,
        "endpoint": f"http://{resource.name}.{resource.namespace}.svc:{port}/v1",
        **_scale(view),
    }


def _canary(view: View) -> dict[str, object]:
    moved = view.decision.progress.rollout
    found = {
        "step": moved.step,
        "percent": _percent(view.decision, moved.revision),
        "startedAt": _moment(moved.started_at),
        "stepStartedAt": _moment(moved.step_started_at),
        "deadlineAt": _moment(moved.deadline_at),
        "checks": [record.dump(check) for check in view.decision.checks],
    }
    return {name: value for name, value in found.items() if value is not None}


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else record.dump_moment(moment)


def _revision(view: View, stored: StoredRevision) -> dict[str, object]:
    pair = stored.pair
    found = {
        "name": stored.name,
        "number": stored.number,
        "target": pair.target,
        "draft": pair.draft or NOTHING,
        "adapters": pair.adapters,
        "verdict": str(stored.verdict),
        "reason": stored.reason,
        "percent": _percent(view.decision, stored.name),
        "targetReady": _of(view, Role.TARGET, pair.target),
        "draftReady": _of(view, Role.DRAFT, pair.draft),
        "targetDigest": _digest(view, Role.TARGET, pair.target),
        "draftDigest": _digest(view, Role.DRAFT, pair.draft),
        **_shown_of(view, stored.name),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _of(view: View, role: Role, role_hash: RoleHash | None) -> str | None:
    wanted = view.wanted(role, role_hash)
    return f"{view.ready(role, role_hash)}/{wanted}" if wanted and role_hash is not None else None


def _digest(view: View, role: Role, role_hash: RoleHash | None) -> str | None:
    ours = (pod.fetched for pod in view.seen.pods if (pod.role, pod.role_hash) == (role, role_hash))
    return next((fetched.digest for fetched in ours if fetched is not None and fetched.digest), None)


def _shown_of(view: View, revision: str) -> dict[str, object]:
    """Live figures of a revision: new ones when they are due, else those that stand in status."""
    figures = view.decision.figures.get(revision)
    if view.decision.show_figures and figures is not None:
        return _figures(figures, ("acceptance", "speedup"))
    old = next((item for item in items(view.seen.resource.status, "revisions") if text(item, "name") == revision), {})
    return {name: text(old, name) for name in ("acceptance", "speedup") if text(old, name)}


_FIGURES: Mapping[str, Callable[[Figures], float | None]] = {
    "acceptance": lambda figures: figures.acceptance,
    "acceptedOfProposed": lambda figures: figures.accepted_of_proposed,
    "meanAcceptedLength": lambda figures: figures.mean_accepted_length,
    "speedup": lambda figures: figures.speedup,
}


def _figures(figures: Figures, names: tuple[str, ...]) -> dict[str, object]:
    found = ((name, _FIGURES[name](figures)) for name in names)
    return {name: f"{value:.2f}" for name, value in found if value is not None}


def _speculation(view: View) -> dict[str, object]:
    held, seen = view.decision.progress.breaker, view.seen
    day_old = [flip for flip in held.flips if (seen.now - flip).days < 1]
    found = {
        "state": str(held.state),
        "verification": text(view.decision.policy, "speculation", "verification") or None,
        "reason": str(held.reason),
        "since": _moment(held.since),
        "flipsToday": len(day_old),
        "nextTryAt": _moment(held.next_try_at),
    }
    return {**_shown_figures(view), **{name: value for name, value in found.items() if value is not None}}


def _shown_figures(view: View) -> dict[str, object]:
    figures = view.decision.figures.get(view.decision.stable)
    old = mapping(view.seen.resource.status, "speculation")
    same = text(view.seen.resource.status, "stableRevision") == view.decision.stable
    kept: dict[str, object] = {name: text(old, name) for name in _FIGURES if same and text(old, name)}
    if view.decision.show_figures and figures is not None:
        return {**kept, **_figures(figures, tuple(_FIGURES))}
    return kept


def _gateway(view: View) -> dict[str, object]:
    workload = view.seen.workload(Role.GATEWAY, None)
    in_force = number(view.decision.policy, "number")
    gateways = view.seen.of_role(Role.GATEWAY)
    return {
        "replicas": 0 if workload is None else workload.total,
        "ready": 0 if workload is None else workload.ready,
        "policy": in_force,
        "policyObservedBy": sum(view.seen.follows(pod, in_force) for pod in gateways) if in_force else 0,
        **_undone(view.decision.progress),
    }


def _undone(held: Progress) -> dict[str, object]:
    if held.undone is None:
        return {}
    since = record.dump_moment(held.undone.at)
    return {"policyUndone": f"settings of policy {held.undone.back_to.number} since {since}: {held.undone.note}"}


def _scale(view: View) -> dict[str, object]:
    """For the scale subresource: the pods of the serving revision's target, counted and selected."""
    serving = view.serving
    if serving is None:
        return {"replicas": 0}
    workload = view.seen.workload(Role.TARGET, serving.pair.target)
    resource = view.seen.resource
    owner = Owner(name=resource.name, namespace=resource.namespace, uid=resource.uid)
    labels = selector(owner, Role.TARGET, serving.pair.target)
    return {
        "replicas": 0 if workload is None else workload.total,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
    }
