"""Knows which alert means what for which revision: roll back once, abort a canary, or note it and do nothing.

Refuses to know HTTP and how a rollback is done.

An alert reaches the object as an *intent*, one annotation per (fingerprint, startsAt, object, revision label), so that
repeats, late arrivals and twin Alertmanagers are one alert. An alert is taken for a statement about what served when it
started, never for a command: one that started before the active revision did says nothing about it, a resolved one says
nothing at all, and one that finds a revision which a rollback brought back finds the best there is. At most one
rollback within 24 hours is an alert's; after that somebody has to look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tandem_operator.domain import record
from tandem_operator.domain.observed import MadeStableBy, StoredRevision
from tandem_operator.domain.progress import AlertAction, AnsweredAlert, Progress
from tandem_operator.domain.record import Moment
from tandem_operator.domain.spec import AlertSelector, Rollback

PREFIX = "alert.tandem.dev/"
BETWEEN_ROLLBACKS = timedelta(hours=24)
POLICY_WINDOW = timedelta(hours=1)
"""Policy changes are not canaried, and act within seconds: what they broke is seen soon."""
ECHO = timedelta(minutes=5)
"""Rules look back over minutes: so long after a change was taken back, alerts still begin for what it did."""
MOST_KEPT = 20
"""Alerts kept in status, and intents that may stand on an object at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A firing alert that named this object: `revision` is its label, "" where it has none."""

    name: str
    starts_at: Moment
    revision: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def selected(labels: Mapping[str, str], selector: AlertSelector) -> bool:
    """Whether an alert is meant: by its name, or by all of `matchLabels` where there are any."""
    wanted = selector.match_labels.items()
    by_labels = bool(wanted) and all(labels.get(key) == value for key, value in wanted)
    return labels.get("alertname", "") in selector.names or by_labels


def intents(annotations: Mapping[str, str]) -> Mapping[str, Intent | None]:
    """The intents on an object by key, oldest alert first; None for one that cannot be read."""
    found = {name.removeprefix(PREFIX): _read(text) for name, text in annotations.items() if name.startswith(PREFIX)}
    unknown = datetime.max.replace(tzinfo=record.EPOCH.tzinfo)
    return dict(sorted(found.items(), key=lambda pair: (unknown if pair[1] is None else pair[1].starts_at, pair[0])))


def _read(text: str) -> Intent | None:
    try:
        return record.read(Intent, text)
    except record.RecordError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an alert meets: `canary` is "" without one, `previous` what a rollback would return to, None without one.

    `policy_since` is when the spec's settings of speculation came into force, None where there is nothing to undo;
    `policies_over` are from when to when changes of them were in force that are so no more. `recreates`: stable was
    taken down for a canary, so that requests which it cannot serve are expected.
    """

    now: datetime
    rules: Rollback
    stable: StoredRevision | None
    previous: StoredRevision | None
    canary: str = ""
    canary_since: datetime | None = None
    policy_since: datetime | None = None
    policies_over: Sequence[tuple[datetime, datetime]] = ()
    returning: bool = False
    recreates: bool = False
    answered: Sequence[AnsweredAlert] = ()


def judge(intent: Intent, standing: Standing) -> tuple[AlertAction, str]:
    """What becomes of an alert, and why.

    RULES are asked in order; the first that answers decides. An alert that started two minutes after v2 was promoted,
    with v1 to return to, falls through all of them: RolledBack.
    """
    for rule in RULES:
        answer = rule(intent, standing)
        if answer is not None:
            return answer
    return (AlertAction.ROLLED_BACK, "started while the active revision served, within the rollback window")


Answer = tuple[AlertAction, str] | None


def _not_meant(intent: Intent, standing: Standing) -> Answer:
    if selected({**intent.labels, "alertname": intent.name}, standing.rules.on_alerts):
        return None
    return (AlertAction.IGNORED, "spec.rollback.onAlerts does not select it")


def _on_its_way(intent: Intent, standing: Standing) -> Answer:
    del intent
    return (AlertAction.IGNORED, "a rollback is under way already") if standing.returning else None


def _about_another(intent: Intent, standing: Standing) -> Answer:
    active = {standing.canary, standing.stable.name if standing.stable and not standing.recreates else ""}
    if not intent.revision or intent.revision in active:
        return None
    return (AlertAction.IGNORED, f"it speaks of revision {intent.revision}, which does not serve")


def _of_what_was_taken_back(intent: Intent, standing: Standing) -> Answer:
    """One change raises many alerts; the first takes it back, and the others say nothing of what served before it."""
    stable = "" if standing.stable is None else standing.stable.name
    for last in standing.answered:
        if last.since is None or not last.since < intent.starts_at <= last.at + ECHO:
            continue
        if last.action is AlertAction.POLICY_UNDONE or intent.revision != stable:
            return (AlertAction.IGNORED, f"what began before it was taken back for alert {last.name} already")
    return None


def _about_the_policy(intent: Intent, standing: Standing) -> Answer:
    """An alert within an hour of a change of `spec.speculation` undoes it, where nothing else changed since."""
    since, stable = standing.policy_since, standing.stable
    changes = [standing.canary_since, None if stable is None else stable.stable_since]
    if since is None or any(change is not None and change > since for change in changes):
        return None
    if not since < intent.starts_at <= since + POLICY_WINDOW:
        return None
    if standing.rules.dry_run:
        return (AlertAction.WOULD_ROLL_BACK, "dry run: the change of spec.speculation would be undone")
    return (AlertAction.POLICY_UNDONE, "started within an hour of a change of spec.speculation, the last change")


def _about_replaced_settings(intent: Intent, standing: Standing) -> Answer:
    """Somebody was faster: what the alert would have undone was undone or edited before it was heard."""
    stable = standing.stable
    changes = [standing.canary_since, None if stable is None else stable.stable_since]
    for since, until in standing.policies_over:
        later = any(change is not None and since < change < intent.starts_at for change in changes)
        if not later and since < intent.starts_at <= min(since + POLICY_WINDOW, until + ECHO):
            return (AlertAction.IGNORED, "the change of spec.speculation that it followed was replaced meanwhile")
    return None


def _about_the_canary(intent: Intent, standing: Standing) -> Answer:
    """While a canary runs it is the last change; an alert from before it is judged as stable's."""
    if not standing.canary or standing.canary_since is None:
        return None
    if intent.revision != standing.canary and intent.starts_at < standing.canary_since:
        return None
    if standing.rules.dry_run:
        return (AlertAction.WOULD_ROLL_BACK, "dry run: the canary would be aborted")
    return (AlertAction.ABORTED_CANARY, "a canary was in progress and is the last change")


def _before_its_time(intent: Intent, standing: Standing) -> Answer:
    stable = standing.stable
    if stable is None or stable.stable_since is None:
        return (AlertAction.IGNORED, "no revision serves yet")
    if intent.starts_at <= stable.stable_since:
        return (AlertAction.IGNORED, f"it started before revision {stable.name} became active")
    if intent.starts_at > stable.stable_since + timedelta(seconds=standing.rules.window_seconds):
        return (AlertAction.IGNORED, "it started after the rollback window of the last promotion")
    return None


def _brought_back(intent: Intent, standing: Standing) -> Answer:
    del intent
    stable = standing.stable
    if stable is not None and stable.made_stable_by in (MadeStableBy.ROLLBACK, MadeStableBy.ALERT):
        return (AlertAction.IGNORED, f"revision {stable.name} was itself brought back by a rollback")
    return None


def _dry(intent: Intent, standing: Standing) -> Answer:
    del intent
    if not standing.rules.dry_run:
        return None
    back = "nothing" if standing.previous is None else f"revision {standing.previous.name}"
    return (AlertAction.WOULD_ROLL_BACK, f"dry run: would return to {back}")


def _too_soon(intent: Intent, standing: Standing) -> Answer:
    del intent
    last = [alert.at for alert in standing.answered if alert.action is AlertAction.ROLLED_BACK]
    if last and standing.now - max(last) < BETWEEN_ROLLBACKS:
        return (AlertAction.STALLED, f"an alert rolled back at {record.dump_moment(max(last))}, within 24 hours; look")
    return None


def _nowhere_to_go(intent: Intent, standing: Standing) -> Answer:
    del intent
    if standing.previous is None:
        return (AlertAction.STALLED, "there is no earlier revision that is not Bad; the active one serves on")
    return None


RULES = (
    _not_meant,
    _on_its_way,
    _about_another,
    _of_what_was_taken_back,
    _about_the_policy,
    _about_replaced_settings,
    _about_the_canary,
    _before_its_time,
    _brought_back,
    _dry,
    _too_soon,
    _nowhere_to_go,
)


def begun(action: AlertAction, standing: Standing) -> datetime | None:
    """When the change began that the action takes back; None where it takes none back, or a revision that served."""
    changes = {AlertAction.POLICY_UNDONE: standing.policy_since, AlertAction.ABORTED_CANARY: standing.canary_since}
    return changes.get(action)


def echoed(progress: Progress, alert: AnsweredAlert) -> tuple[AnsweredAlert, ...]:
    """The kept alerts with one more, the oldest dropped."""
    return (*progress.alerts, alert)[-MOST_KEPT:]
