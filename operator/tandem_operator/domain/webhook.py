"""Knows Alertmanager's webhook body (version 4) and the annotation that an alert becomes on the object it names.

Refuses to know what an alert means for a revision: `domain.alerts` decides that from the object alone.

Delivery is at least once, from several peers, in any order. So an alert is a key, not an event: (fingerprint, startsAt)
of the firing alert, with the uid of the object and the revision that the alert itself names. The same alert gives the
same annotation, however often it comes, and writing it twice is writing it once.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tandem_operator.domain.errors import SpecError

ANNOTATION_PREFIX = "alert.tandem.dev/"
VERSION = "4"
LARGEST_ANNOTATION_BYTES = 8192
"""Twenty of these fit on an object, whose annotations the API server bounds to 256 KiB together."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Namespaces and objects; anything else names none, and would lead elsewhere as part of a path."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One firing alert that names an object. `revision` is what the alert says itself; empty: it does not say."""

    name: str
    namespace: str
    deployment: str
    fingerprint: str
    starts_at: datetime
    revision: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Webhook:
    """What a body holds for us: firing alerts that name an object, how many others were left alone, and what is wrong
    with those that cannot be read: they do not stand in the way of the rest."""

    firing: tuple[Firing, ...]
    ignored: int
    malformed: tuple[SpecError, ...] = ()

    def by_object(self) -> Mapping[tuple[str, str], list[Firing]]:
        """The firing alerts by (namespace, name) of the object that they name."""
        found: dict[tuple[str, str], list[Firing]] = {}
        for alert in self.firing:
            found.setdefault((alert.namespace, alert.deployment), []).append(alert)
        return found


def read_webhook(body: object) -> Webhook:
    """Each alert by its own status; unknown fields are ignored. Raises SpecError for what is no such body."""
    if not isinstance(body, Mapping) or body.get("version") != VERSION:
        version = body.get("version") if isinstance(body, Mapping) else None
        raise SpecError("version", version, f"is not an Alertmanager webhook of version {VERSION}")
    alerts = body.get("alerts")
    if not isinstance(alerts, list):
        raise SpecError("alerts", type(alerts).__name__, "must be a list of alerts")
    found = [_firing_or_error(alert, f"alerts[{index}]") for index, alert in enumerate(alerts)]
    return Webhook(
        firing=tuple(alert for alert in found if isinstance(alert, Firing)),
        ignored=found.count(None),
        malformed=tuple(alert for alert in found if isinstance(alert, SpecError)),
    )


def _firing_or_error(alert: object, path: str) -> Firing | SpecError | None:
    try:
        return _firing(alert, path)
    except SpecError as error:
        return error


def _firing(alert: object, path: str) -> Firing | None:
    if not isinstance(alert, Mapping):
        raise SpecError(path, type(alert).__name__, "must be an alert object")
    labels = alert.get("labels")
    if alert.get("status") != "firing" or not isinstance(labels, Mapping):
        return None
    named = {str(key): str(value) for key, value in labels.items()}
    if not named.get("alertname") or not all(_NAME.fullmatch(named.get(key, "")) for key in ("namespace", "specdep")):
        return None
    firing = Firing(
        name=named["alertname"],
        namespace=named["namespace"],
        deployment=named["specdep"],
        fingerprint=str(alert.get("fingerprint") or _fingerprint(named)),
        starts_at=_time(alert.get("startsAt"), f"{path}.startsAt"),
        revision=named.get("revision", ""),
        labels=tuple(sorted(named.items())),
    )
    size = len(_value(firing))
    if size > LARGEST_ANNOTATION_BYTES:
        raise SpecError(f"{path}.labels", f"{size} bytes", f"must be at most {LARGEST_ANNOTATION_BYTES} as JSON")
    return firing


def _fingerprint(labels: Mapping[str, str]) -> str:
    """For senders that leave it out: what Alertmanager's own is made of, the set of labels."""
    return hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:16]


def _time(value: object, path: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise SpecError(path, value, "must be a time like 2026-01-31T12:00:00Z") from error
    if parsed.tzinfo is None:
        raise SpecError(path, value, "must carry a time zone, like 2026-01-31T12:00:00Z")
    return parsed


def annotation(alert: Firing, *, uid: str) -> tuple[str, str]:
    """Name and value of the annotation that records `alert` on the object with this uid."""
    key = json.dumps([alert.fingerprint, alert.starts_at.isoformat(), uid, alert.revision])
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return f"{ANNOTATION_PREFIX}{digest}", _value(alert)


def _value(alert: Firing) -> str:
    value = {
        "name": alert.name,
        "fingerprint": alert.fingerprint,
        "startsAt": alert.starts_at.isoformat(),
        "revision": alert.revision,
        "labels": dict(alert.labels),
    }
    return json.dumps(value, sort_keys=True)
