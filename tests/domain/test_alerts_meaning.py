"""What an alert means, as a table over what it meets."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.domain.alerts import PREFIX, RULES, Intent, Standing, echoed, intents, judge, selected
from tandem_operator.domain.observed import MadeStableBy, RevisionVerdict, StoredRevision
from tandem_operator.domain.progress import AlertAction, AnsweredAlert, Progress
from tandem_operator.domain.revision import Revision, RoleHash
from tandem_operator.domain.spec import AlertSelector, Rollback

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
RULES_OF_SPEC = Rollback(on_alerts=AlertSelector(names=("TandemHighErrorRate",)))
PAIR = Revision(target=RoleHash("t"), draft=RoleHash("d"))
OLD = StoredRevision(name="v1", number=1, pair=PAIR, verdict=RevisionVerdict.GOOD, stable_since=NOW - 9 * HOUR)
ACTIVE = StoredRevision(
    name="v2", number=2, pair=PAIR, stable_since=NOW - 2 * HOUR, made_stable_by=MadeStableBy.PROMOTION
)
STANDING = Standing(now=NOW, rules=RULES_OF_SPEC, stable=ACTIVE, previous=OLD)
ALERT = Intent(name="TandemHighErrorRate", starts_at=NOW - HOUR)
ANSWERED = AnsweredAlert(key="k", name="n", revision="v2", action=AlertAction.ROLLED_BACK, at=NOW - HOUR)

UNDONE = replace(ANSWERED, action=AlertAction.POLICY_UNDONE, since=NOW - HOUR)
ABORTED = replace(ANSWERED, action=AlertAction.ABORTED_CANARY, revision="v3", since=NOW - HOUR)
JUST_NOW = replace(ALERT, starts_at=NOW - timedelta(minutes=2))

CASES = [
    (JUST_NOW, replace(STANDING, answered=[replace(UNDONE, at=NOW)]), "Ignored", "for alert n already"),
    (replace(JUST_NOW, revision="v2"), replace(STANDING, answered=[replace(UNDONE, at=NOW)]), "Ignored", "already"),
    (JUST_NOW, replace(STANDING, answered=[replace(UNDONE, at=NOW - timedelta(minutes=6))]), "Ignored", "already"),
    (JUST_NOW, replace(STANDING, answered=[replace(UNDONE, at=NOW - timedelta(minutes=8))]), "RolledBack", "within"),
    (ALERT, replace(STANDING, answered=[replace(UNDONE, at=NOW)]), "RolledBack", "within"),
    (JUST_NOW, replace(STANDING, answered=[replace(ABORTED, at=NOW)]), "Ignored", "for alert n already"),
    (replace(JUST_NOW, revision="v2"), replace(STANDING, answered=[replace(ABORTED, at=NOW)]), "RolledBack", "within"),
    (ALERT, replace(STANDING, answered=[replace(ABORTED, at=NOW)]), "RolledBack", "within"),
    (ALERT, STANDING, "RolledBack", "within the rollback window"),
    (replace(ALERT, revision="v2"), STANDING, "RolledBack", "within"),
    (replace(ALERT, revision="v1"), STANDING, "Ignored", "revision v1, which does not serve"),
    (replace(ALERT, name="Other"), STANDING, "Ignored", "does not select it"),
    (replace(ALERT, starts_at=NOW - 3 * HOUR), STANDING, "Ignored", "before revision v2 became active"),
    (replace(ALERT, starts_at=NOW - 2 * HOUR), STANDING, "Ignored", "before revision v2 became active"),
    (
        ALERT,
        replace(STANDING, rules=replace(RULES_OF_SPEC, window_seconds=1800)),
        "Ignored",
        "after the rollback window",
    ),
    (
        ALERT,
        replace(STANDING, stable=replace(ACTIVE, made_stable_by=MadeStableBy.ALERT)),
        "Ignored",
        "brought back by a rollback",
    ),
    (
        ALERT,
        replace(STANDING, stable=replace(ACTIVE, made_stable_by=MadeStableBy.ROLLBACK)),
        "Ignored",
        "brought back by a rollback",
    ),
    (ALERT, replace(STANDING, rules=replace(RULES_OF_SPEC, dry_run=True)), "WouldRollBack", "to revision v1"),
    (ALERT, replace(STANDING, previous=None), "Stalled", "no earlier revision that is not Bad"),
    (ALERT, replace(STANDING, answered=[ANSWERED]), "Stalled", "within 24 hours"),
    (ALERT, replace(STANDING, answered=[replace(ANSWERED, at=NOW - 25 * HOUR)]), "RolledBack", "within"),
    (ALERT, replace(STANDING, answered=[replace(ANSWERED, action=AlertAction.IGNORED)]), "RolledBack", "within"),
    (ALERT, replace(STANDING, returning=True), "Ignored", "under way already"),
    (ALERT, replace(STANDING, stable=None), "Ignored", "no revision serves yet"),
    (ALERT, replace(STANDING, canary="v3", canary_since=NOW - 2 * HOUR), "AbortedCanary", "last change"),
    (ALERT, replace(STANDING, canary="v3", canary_since=NOW - HOUR / 2), "RolledBack", "within"),
    (
        replace(ALERT, revision="v3"),
        replace(STANDING, canary="v3", canary_since=NOW - HOUR / 2),
        "AbortedCanary",
        "last change",
    ),
    (ALERT, replace(STANDING, policy_since=NOW - 1.5 * HOUR), "PolicyUndone", "the last change"),
    (ALERT, replace(STANDING, policy_since=NOW - 2 * HOUR), "PolicyUndone", "the last change"),
    (ALERT, replace(STANDING, policy_since=NOW - HOUR / 2), "RolledBack", "within"),
    (ALERT, replace(STANDING, policy_since=NOW - HOUR), "RolledBack", "within"),
    (ALERT, replace(STANDING, policy_since=NOW - 2.5 * HOUR), "RolledBack", "within"),
    (ALERT, replace(STANDING, policies_over=[(NOW - 1.5 * HOUR, NOW - HOUR / 2)]), "Ignored", "replaced meanwhile"),
    (ALERT, replace(STANDING, policies_over=[(NOW - 1.5 * HOUR, NOW - 1.05 * HOUR)]), "Ignored", "replaced meanwhile"),
    (ALERT, replace(STANDING, policies_over=[(NOW - 1.5 * HOUR, NOW - 1.1 * HOUR)]), "RolledBack", "within"),
    (ALERT, replace(STANDING, policies_over=[(NOW - HOUR, NOW - HOUR / 2)]), "RolledBack", "within"),
    (ALERT, replace(STANDING, policies_over=[(NOW - 2.5 * HOUR, NOW - HOUR / 2)]), "RolledBack", "within"),
    (
        ALERT,
        replace(STANDING, policy_since=NOW - 1.2 * HOUR, policies_over=[(NOW - 1.5 * HOUR, NOW - 1.2 * HOUR)]),
        "PolicyUndone",
        "the last change",
    ),
    (
        ALERT,
        replace(STANDING, policy_since=NOW - 1.5 * HOUR, rules=replace(RULES_OF_SPEC, dry_run=True)),
        "WouldRollBack",
        "spec.speculation would be undone",
    ),
    (
        ALERT,
        replace(STANDING, policy_since=NOW - 1.5 * HOUR, canary="v3", canary_since=NOW - 2 * HOUR),
        "PolicyUndone",
        "the last change",
    ),
    (
        ALERT,
        replace(STANDING, policy_since=NOW - 1.5 * HOUR, canary="v3", canary_since=NOW - 1.2 * HOUR),
        "AbortedCanary",
        "last change",
    ),
    (
        ALERT,
        replace(STANDING, canary="v3", canary_since=NOW - 2 * HOUR, rules=replace(RULES_OF_SPEC, dry_run=True)),
        "WouldRollBack",
        "would be aborted",
    ),
]


@pytest.mark.parametrize(("intent", "standing", "action", "why"), CASES)
def test_an_alert_means_what_it_meets(intent: Intent, standing: Standing, action: str, why: str) -> None:
    found, note = judge(intent, standing)
    assert (found, why in note) == (action, True), note


def test_every_rule_has_the_last_word_in_some_case() -> None:
    first = [next((rule for rule in RULES if rule(intent, standing)), None) for intent, standing, *_ in CASES]
    assert set(RULES) <= set(first)


@pytest.mark.parametrize(
    ("labels", "selector", "meant"),
    [
        ({"alertname": "A"}, AlertSelector(names=("A",)), True),
        ({"alertname": "B"}, AlertSelector(names=("A",)), False),
        ({"alertname": "B", "team": "x", "more": "y"}, AlertSelector(names=(), match_labels={"team": "x"}), True),
        ({"alertname": "B", "team": "z"}, AlertSelector(names=(), match_labels={"team": "x"}), False),
        ({"alertname": "B"}, AlertSelector(names=(), match_labels={}), False),
    ],
)
def test_an_alert_is_selected_by_name_or_by_all_labels(
    labels: dict[str, str], selector: AlertSelector, meant: bool
) -> None:
    assert selected(labels, selector) is meant


def test_intents_are_read_oldest_first_and_what_cannot_be_read_is_kept_as_such() -> None:
    def value(hours: int) -> str:
        return json.dumps({"name": "A", "startsAt": (NOW - hours * HOUR).isoformat(), "fingerprint": "f"})

    annotations = {f"{PREFIX}a": value(1), f"{PREFIX}b": value(2), f"{PREFIX}c": "nonsense", "other": "x"}
    found = intents(annotations)
    assert list(found) == ["b", "a", "c"]
    assert (found["a"], found["c"]) == (Intent(name="A", starts_at=NOW - HOUR), None)


def test_status_keeps_the_last_twenty() -> None:
    held = Progress()
    for number in range(25):
        held = replace(held, alerts=echoed(held, replace(ANSWERED, key=str(number))))
    assert [alert.key for alert in held.alerts] == [str(number) for number in range(5, 25)]
