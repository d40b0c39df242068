"""Knows how a decision's events become Kubernetes events and counters.

Refuses to decide anything. An event that cannot be written is a line in the log: events inform, nothing rests on them.
"""

import hashlib
import logging
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter

from tandem_operator.domain.decision import Decision, Event
from tandem_operator.domain.errors import ClusterError
from tandem_operator.ports import Cluster, Json, Key, Kind

CONTROLLER = "tandem.dev/operator"
LONGEST_NOTE = 1024
"""The API's own bound."""

log = logging.getLogger(__name__)


def build_event(event: Event, *, key: Key, uid: str, at: datetime, instance: str) -> Json:
    """The events.k8s.io/v1 object; the same event at the same moment has the same name, so that a repeat is one."""
    stamp = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    digest = hashlib.sha256(f"{uid}|{stamp}|{event.reason}|{event.note}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": key.namespace, "name": f"{key.name}.{digest}"},
        "eventTime": stamp,
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": "Reconcile",
        "type": event.weight.value,
        "reason": event.reason,
        "note": event.note[:LONGEST_NOTE],
        "regarding": {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": Kind.SPECULATIVE_DEPLOYMENT.value,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
    }


class EventRecorder:
    """Writes the events of decisions, and counts them by reason and cause."""

    def __init__(self, cluster: Cluster, *, instance: str, registry: CollectorRegistry) -> None:
        self._cluster = cluster
        self._instance = instance
        self._counter = Counter(
            "tandem_operator_events",
            "Turns of rollouts and breakers, by reason and what led to them.",
            ["reason", "cause"],
            registry=registry,
        )

    async def decided(self, key: Key, uid: str, decision: Decision) -> None:
        for event in decision.events:
            self._counter.labels(event.reason, event.cause).inc()
            body = build_event(event, key=key, uid=uid, at=decision.decided_at, instance=self._instance)
            try:
                await self._cluster.create(Kind.EVENT, body)
            except ClusterError as error:
                log.warning("event not written key=%s reason=%s error=%s", key, event.reason, error)
