"""Alertmanager's body: each alert by its own status, the same alert the same annotation, the rest refused clearly."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.webhook import annotation, read_webhook


def alert(**changes: Any) -> dict[str, Any]:
    labels = {"alertname": "TandemHighErrorRate", "namespace": "llm", "specdep": "chat", **changes.pop("labels", {})}
    return {
        "status": "firing",
        "labels": labels,
        "annotations": {},
        "startsAt": "2026-01-31T12:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "8f0d2e1c",
        **changes,
    }


def body(*alerts: Any, **changes: Any) -> dict[str, Any]:
    return {"version": "4", "status": "firing", "receiver": "tandem", "alerts": list(alerts), **changes}


def test_a_firing_alert_that_names_an_object_is_read() -> None:
    hook = read_webhook(body(alert(labels={"revision": "b07d51ee"})))
    (found,) = hook.firing
    assert (found.name, found.namespace, found.deployment, found.revision) == (
        "TandemHighErrorRate",
        "llm",
        "chat",
        "b07d51ee",
    )


@pytest.mark.parametrize(
    "ignored",
    [
        alert(status="resolved"),
        alert(labels={"namespace": ""}),
        alert(labels={"specdep": ""}),
        alert(labels={"alertname": ""}),
        alert(labels={"specdep": "chat/status"}),
        alert(labels={"specdep": "../chat"}),
        alert(labels={"namespace": "llm?limit=1"}),
        alert(labels={"namespace": "n" * 64}),
        {"status": "firing"},
    ],
)
def test_resolved_alerts_and_alerts_of_others_are_left_alone_beside_a_firing_one(ignored: dict[str, Any]) -> None:
    hook = read_webhook(body(ignored, alert()))
    assert (len(hook.firing), hook.ignored) == (1, 1)


def test_unknown_fields_are_ignored() -> None:
    assert read_webhook(body(alert(extra=1), notification_reason="new", truncatedAlerts=3)).ignored == 0


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (None, "version"),
        ([], "version"),
        ({"version": "3", "alerts": []}, "version"),
        ({"version": "4"}, "alerts"),
    ],
)
def test_what_is_no_such_body_is_refused_with_the_path(wrong: object, path: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_webhook(wrong)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ("x", "alerts[0]"),
        (alert(startsAt="yesterday"), "alerts[0].startsAt"),
        (alert(startsAt="2026-01-31T12:00:00"), "alerts[0].startsAt"),
        (alert(labels={"note": "x" * 8192}), "alerts[0].labels"),
    ],
)
def test_an_alert_that_cannot_be_read_is_named_and_does_not_stand_in_the_way_of_the_next(wrong: Any, path: str) -> None:
    hook = read_webhook(body(wrong, alert()))
    assert ([error.path for error in hook.malformed], len(hook.firing)) == ([path], 1)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_no_json_at_all_makes_it_fail_in_another_way(anything: object) -> None:
    for wrong in (anything, body(anything), body(alert(labels={"x": str(anything)}, startsAt=anything))):
        try:
            read_webhook(wrong)
        except SpecError:
            continue


def test_the_same_alert_gives_the_same_annotation_and_another_start_object_or_revision_another() -> None:
    def name(uid: str = "u", **changes: Any) -> str:
        (firing,) = read_webhook(body(alert(**changes))).firing
        return annotation(firing, uid=uid)[0]

    assert name() == name(annotations={"summary": "other"}, endsAt="2026-02-01T00:00:00Z")
    others = {
        name(uid="v"),
        name(startsAt="2026-01-31T13:00:00Z"),
        name(labels={"revision": "x"}),
        name(fingerprint="y"),
    }
    assert name() not in others
    assert len(others) == 4


def test_the_annotation_fits_the_rules_for_names_and_holds_what_the_decision_needs() -> None:
    (firing,) = read_webhook(body(alert())).firing
    name, value = annotation(firing, uid="u")
    prefix, digest = name.split("/")
    assert (prefix, len(digest) <= 63) == ("alert.tandem.dev", True)
    assert json.loads(value)["startsAt"] == "2026-01-31T12:00:00.123456+00:00"
