"""Events over the in-memory cluster: one object and one count per turn, and never a reason to stop."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from tests.domain.simulated_world import World

from tandem_operator.domain.decision import Decision, Event, Weight
from tandem_operator.domain.errors import ClusterError, Forbidden, Unavailable
from tandem_operator.events import LONGEST_NOTE, EventRecorder, build_event
from tandem_operator.ports import Key, Kind
from tandem_operator.testing import MemoryCluster

KEY = Key("llm", "chat")
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ABORTED = Event(Weight.WARNING, "CanaryAborted", "too slow", "SpeedupDropFailed")
PROMOTED = Event(Weight.NORMAL, "Promoted", "revision 1a2b3c4d passed")


def decision(*events: Event) -> Decision:
    return replace(World().look(), events=events, decided_at=AT)


def recorder() -> tuple[MemoryCluster, CollectorRegistry, EventRecorder]:
    cluster, registry = MemoryCluster(), CollectorRegistry()
    return cluster, registry, EventRecorder(cluster, instance="operator-1", registry=registry)


def counted(registry: CollectorRegistry, reason: str, cause: str = "") -> float | None:
    return registry.get_sample_value("tandem_operator_events_total", {"reason": reason, "cause": cause})


def test_an_event_says_what_happened_to_whom_and_who_says_so() -> None:
    body = dict(build_event(PROMOTED, key=KEY, uid="u", at=AT, instance="operator-1"))
    metadata = body.pop("metadata")
    assert isinstance(metadata, dict)
    assert (metadata["namespace"], metadata["name"].partition(".")[0]) == ("llm", "chat")
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2026-03-01T12:00:00.000000Z",
        "reportingController": "tandem.dev/operator",
        "reportingInstance": "operator-1",
        "action": "Reconcile",
        "type": "Normal",
        "reason": "Promoted",
        "note": "revision 1a2b3c4d passed",
        "regarding": {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "SpeculativeDeployment",
            "namespace": "llm",
            "name": "chat",
            "uid": "u",
        },
    }


def test_a_note_is_as_long_as_the_api_takes() -> None:
    long = Event(Weight.WARNING, "CanaryAborted", "x" * 5000)
    assert len(str(build_event(long, key=KEY, uid="u", at=AT, instance="i")["note"])) == LONGEST_NOTE == 1024


async def test_every_event_is_written_and_counted_and_the_same_one_again_is_one() -> None:
    cluster, registry, events = recorder()
    await events.decided(KEY, "u", decision(PROMOTED, ABORTED))
    await events.decided(KEY, "u", decision(PROMOTED))
    written = [body["reason"] for (kind, _, _), body in cluster.objects.items() if kind is Kind.EVENT]
    assert sorted(written) == ["CanaryAborted", "Promoted"]
    assert (counted(registry, "Promoted"), counted(registry, "CanaryAborted", "SpeedupDropFailed")) == (2, 1)


@pytest.mark.parametrize("error", [Forbidden("create Event", "no"), Unavailable("create Event", "hung")])
async def test_events_that_cannot_be_written_are_logged_and_block_nothing(
    error: ClusterError, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, registry, events = recorder()
    with cluster.failing(lambda verb, kind, name: error):
        await events.decided(KEY, "u", decision(PROMOTED, PROMOTED))
    assert counted(registry, "Promoted") == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"event not written key=llm/chat reason=Promoted error={error}"
    ] * 2
