"""Knows what people and the scale subresource read in status besides conditions: revisions, figures, canary, counts.

Refuses to know conditions and how anything was decided.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tandem_operator.domain import record, rollout
from tandem_operator.domain.actions import Outcome
from tandem_operator.domain.decision import Decision, Figures
from tandem_operator.domain.manifests import POLICY_KEY
from tandem_operator.domain.nested import items, mapping, number, text
from tandem_operator.domain.observed import Observed, StoredRevision
from tandem_operator.domain.progress import Progress
from tandem_operator.domain.revision import NOTHING, Role, RoleHash
from tandem_operator.domain.templates import Owner, selector

WHOLE = 100
"""Percent."""


@dataclass(frozen=True, slots=True)
class View:
    """What status is made from."""

    seen: Observed
    decision: Decision
    outcome: Outcome

    @property
    def serving(self) -> StoredRevision | None:
        """The revision that serves, or that is to be the first; a canary that is alone in the place of stable."""
        alone = self.gave_way and percent_of(self.decision, self.canary) == WHOLE
        named = self.canary if alone else self.decision.stable or self.canary
        return next((stored for stored in self.seen.revisions if stored.name == named), None)

    @property
    def canary(self) -> str:
        """The revision that is on its way."""
        return self.decision.progress.rollout.revision

    @property
    def gave_way(self) -> bool:
        """Whether pods of stable are gone, since those of the revision on its way take their place."""
        return self.decision.progress.rollout.gave_way is not None

    def ready(self, role: Role, role_hash: RoleHash | None) -> int:
        workload = self.seen.workload(role, role_hash)
        return 0 if workload is None else workload.ready

    def wanted(self, role: Role, role_hash: RoleHash | None) -> int:
        found = (pods.replicas for pods in self.decision.pods if (pods.role, pods.role_hash) == (role, role_hash))
        return next(found, 0)


def percent_of(decision: Decision, revision: str) -> int:
    """The share that a revision is decided to have."""
    return next((share.weight for share in decision.shares if share.revision == revision), 0)


def shown(view: View) -> dict[str, object]:
    """What people and the scale subresource read; while everything is held, the last known stays."""
    decision, seen = view.decision, view.seen
    if decision.hold or decision.spec is None:
        return {}
    moved, held = decision.progress.rollout, decision.progress
    trial = decision.checks or rollout.on_trial(moved)
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
        "surge": str(moved.surge),
        "step": moved.step,
        "percent": percent_of(view.decision, moved.revision),
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
        "percent": percent_of(view.decision, stored.name),
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
    in_force = number(_written_policy(view), "number")
    gateways = view.seen.of_role(Role.GATEWAY)
    return {
        "replicas": 0 if workload is None else workload.total,
        "ready": 0 if workload is None else workload.ready,
        "policy": in_force,
        "policyObservedBy": sum(view.seen.follows(pod, in_force) for pod in gateways) if in_force else 0,
        **_undone(view.decision.progress),
    }


def _written_policy(view: View) -> object:
    """The decided one, unless writing stopped before its turn: a number that was never given would be passed over."""
    written = ("ConfigMap", f"{view.seen.resource.name}-policy")
    planned = [action for action in view.outcome.plan.actions if (action.kind, action.name) == written]
    if all(action in view.outcome.done for action in planned):
        return view.decision.policy
    return view.seen.config("policy", POLICY_KEY)


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
