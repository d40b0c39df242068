"""A look is read from the API's objects, and a recorded one comes back exactly."""

import json
import string
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem_operator.domain import record
from tandem_operator.domain.observed import (
    Child,
    Fetched,
    Node,
    Observed,
    Pod,
    Resource,
    dump,
    load,
    newest_before,
    read_pod,
    read_revision,
    read_workload,
)
from tandem_operator.domain.pools import Alternative
from tandem_operator.domain.progress import (
    AlertAction,
    AnsweredAlert,
    Breaker,
    Progress,
    Rollout,
    SpeculationReason,
    SpeculationState,
    Stage,
    Surge,
    read,
    write,
)
from tandem_operator.domain.revision import Revision, Role, RoleHash
from tandem_operator.domain.samples import BUCKETS, Admitted, Arm, Buckets, Document, Scrape, Shadow, Slot, Stratum
from tandem_operator.domain.settings import OperatorTerms

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
words = st.text(string.ascii_letters + string.digits + '-_./ µ"\\', max_size=12)
moments = st.integers(0, 2**32).map(lambda seconds: record.EPOCH + timedelta(seconds=seconds, microseconds=seconds % 3))
counts = st.integers(0, 2**53 - 1)
rows = st.tuples(counts, counts).map(lambda pair: pair * (BUCKETS // 2))
leaves = st.none() | st.booleans() | counts | words
plain = leaves | st.lists(leaves, max_size=2) | st.dictionaries(words, leaves, max_size=2)
bodies = st.dictionaries(words, plain, max_size=2)
few = st.integers(0, 5)


def tuples_of(inner: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(inner, max_size=2).map(tuple)


strata = st.builds(
    Stratum,
    policy=few,
    revision=words,
    requests=counts,
    acceptance=st.none() | st.builds(Buckets, st.just((0,) * BUCKETS), rows, rows),
    shadow=st.none() | rows.map(lambda row: Shadow(row, row)),
)
slots = st.builds(
    Slot,
    pod=words,
    target=words,
    slot=counts,
    arm=st.sampled_from(Arm),
    policy=few,
    revision=words,
    tokens=counts,
    milliseconds=counts,
)
documents = st.builds(
    Document,
    boot=words,
    policy=few,
    admitted=st.builds(Admitted, st.dictionaries(words, few, max_size=2), st.dictionaries(words, few, max_size=2)),
    serving=st.booleans(),
    strata=st.lists(strata, max_size=1).map(tuple),
    slots=tuples_of(slots),
)
scrapes = st.builds(Scrape, moments, st.dictionaries(words, documents, max_size=2))
pods = st.builds(
    Pod,
    name=words,
    uid=words,
    role=st.sampled_from(Role),
    role_hash=st.none() | words,
    phase=words,
    ready=st.booleans(),
    started_at=st.none() | moments,
    waiting_reason=st.none() | words,
    unschedulable=st.none() | words,
    fetched=st.none() | st.builds(Fetched, digest=st.none() | words, error=st.none() | words),
    memory_basis_points=st.none() | few,
    preempting=st.none() | st.booleans(),
)
terms = st.builds(
    OperatorTerms,
    runtime_image=words,
    accelerators=st.dictionaries(
        words,
        tuples_of(st.builds(Alternative, label=words, values=tuples_of(words), tolerations=tuples_of(bodies))),
        max_size=2,
    ),
)
looks = st.builds(
    Observed,
    now=moments,
    resource=st.builds(
        Resource,
        name=words,
        namespace=words,
        uid=words,
        generation=counts,
        annotations=st.dictionaries(words, words, max_size=3),
        spec=bodies,
        status=bodies,
    ),
    terms=terms,
    children=tuples_of(st.builds(Child, bodies)),
    pods=tuples_of(pods),
    scrape=st.none() | scrapes,
    baseline=st.none() | scrapes,
    nodes=st.none() | tuples_of(st.builds(Node, words, st.dictionaries(words, words, max_size=2))),
    silent=st.dictionaries(words, moments, max_size=2),
)
progresses = st.builds(
    Progress,
    rollout=st.builds(
        Rollout,
        stage=st.sampled_from(Stage),
        revision=words,
        surge=st.sampled_from(Surge),
        step=few,
        started_at=st.none() | moments,
        deadline_at=st.none() | moments,
        gave_way=st.none() | few,
        room_made_at=st.none() | moments,
    ),
    breaker=st.builds(
        Breaker,
        state=st.sampled_from(SpeculationState),
        reason=st.sampled_from(SpeculationReason),
        since=st.none() | moments,
        flips=tuples_of(moments),
        commanded_off=st.booleans(),
        note=words,
    ),
    refused=words,
    handled=st.dictionaries(words, words, max_size=3),
    alerts=tuples_of(
        st.builds(AnsweredAlert, key=words, name=words, revision=words, action=st.sampled_from(AlertAction), at=moments)
    ),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(looks)
def test_a_recorded_look_comes_back_equal(seen: Observed) -> None:
    assert load(json.loads(json.dumps(dump(seen)))) == seen


@given(progresses)
def test_progress_comes_back_equal(held: Progress) -> None:
    assert read(json.loads(json.dumps({"progress": write(held)}))) == held


def test_without_status_there_is_no_progress() -> None:
    assert read({}) is None


LEAST = {
    "now": "2026-03-01T12:00:00Z",
    "resource": {"name": "chat", "namespace": "llm", "uid": "u", "generation": 1},
    "terms": {"runtimeImage": "i", "accelerators": {}},
}
POD = {"name": "p", "uid": "u", "role": "target", "phase": "Running"}


def test_what_a_recording_leaves_out_is_absent_and_what_a_newer_one_adds_is_ignored() -> None:
    seen = load({**LEAST, "pods": [{**POD, "mood": "good"}], "weather": {"rain": 1}})
    assert seen.pods == (Pod(name="p", uid="u", role=Role.TARGET, phase="Running"),)
    assert (seen.children, seen.scrape, seen.nodes, seen.pods[0].role_hash) == ((), None, None, None)


@pytest.mark.parametrize(
    ("recorded", "path"),
    [
        ({"now": "2026-03-01T12:00:00Z"}, r"\$\.resource"),
        ({"now": "yesterday", "resource": {}}, r"\$\.now"),
        ({"now": "2026-03-01T12:00:00", "resource": {}}, r"\$\.now"),
        ({"now": "1772366400", "resource": {}}, r"\$\.now"),
        ({"now": 1772366400, "resource": {}}, r"\$\.now"),
        ({"now": "0001-01-01T00:00:00+23:59", "resource": {}}, r"\$\.now"),
        ([], r"\$: found"),
        ("\ud800", r"\$: found"),
        ({**LEAST, "pods": [{**POD, "role": "targets"}]}, r"\$\.pods\[0\]\.role: found 'targets'"),
        ({**LEAST, "nodes": [{"name": "n", "labels": {"a": 1}}]}, r"\$\.nodes\[0\]\.labels\.a: found 1"),
        (
            {"now": "2026-03-01T12:00:00Z", "resource": {"name": 1}},
            r"\$\.resource\.name: found 1; Input should be a valid string",
        ),
    ],
)
def test_a_damaged_recording_names_the_place(recorded: object, path: str) -> None:
    with pytest.raises(record.RecordError, match=path):
        load(recorded)


def test_moments_are_written_in_utc() -> None:
    there = datetime(2026, 3, 1, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    assert record.dump_moment(there) == "2026-03-01T12:00:00Z"
    assert record.load_moment("2026-03-01T13:00:00+01:00") == NOW


LABELS = {"tandem.dev/role": "target", "tandem.dev/role-hash": "91ab02c4"}


def test_a_deployment_counts_nothing_as_updated_before_its_controller_has_seen_it() -> None:
    body = {
        "kind": "Deployment",
        "metadata": {"name": "chat-target-91ab02c4", "generation": 3, "labels": LABELS},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2},
    }
    seen = read_workload(Child(body))
    assert (seen.role, seen.role_hash, seen.wanted, seen.ready) == (Role.TARGET, "91ab02c4", 2, 2)
    assert (seen.updated, seen.settled) == (0, False)
    current = {**body, "status": {**body["status"], "observedGeneration": 3}}  # type: ignore[dict-item] # plain JSON
    assert (read_workload(Child(current)).updated, read_workload(Child(current)).settled) == (2, True)


def test_a_pod_tells_where_it_hangs() -> None:
    message = json.dumps({"digest": "sha256:d", "tokenizer": "sha256:t", "commit": "c", "path": "/models"})
    body = {
        "metadata": {"name": "p", "uid": "u", "labels": LABELS, "deletionTimestamp": "2026-03-01T12:00:00Z"},
        "status": {
            "phase": "Running",
            "startTime": "2026-03-01T11:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"message": message}}}],
            "containerStatuses": [{"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
        },
    }
    assert read_pod(body) == Pod(
        name="p",
        uid="u",
        role=Role.TARGET,
        role_hash=RoleHash("91ab02c4"),
        phase="Running",
        ready=True,
        leaving=True,
        gone_by=datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC),
        restarts=3,
        started_at=NOW - timedelta(hours=1),
        waiting_reason="CrashLoopBackOff",
        fetched=Fetched(digest="sha256:d", tokenizer="sha256:t", commit="c"),
    )


def test_a_pod_without_a_node_has_the_scheduler_s_words() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/3 nodes are available",
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    found = read_pod(
        {"metadata": {"name": "p", "labels": LABELS}, "status": {"phase": "Pending", "conditions": [condition]}}
    )
    assert (found.unschedulable, found.unschedulable_since, found.ready) == ("0/3 nodes are available", NOW, False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('{"error": "no such commit"}', Fetched(error="no such commit")),
        ("Killed", Fetched(error="Killed")),
        ('{"digest": 3}', Fetched(error='{"digest": 3}')),
        ("", None),
    ],
)
def test_what_a_fetcher_says_last_is_kept(message: str, expected: Fetched | None) -> None:
    statuses = [{"name": "fetch", "state": {"terminated": {"message": message}}}]
    body = {"metadata": {"name": "p", "labels": LABELS}, "status": {"initContainerStatuses": statuses}}
    assert read_pod(body).fetched == expected


def test_a_revision_is_read_with_its_marks() -> None:
    body = {
        "kind": "ControllerRevision",
        "metadata": {
            "name": "chat-6f2c9a41",
            "annotations": {
                "tandem.dev/verdict": "Good",
                "tandem.dev/stable-since": "2026-03-01T12:00:00Z",
                "tandem.dev/made-stable-by": "Promotion",
            },
        },
        "revision": 4,
        "data": {"target": "91ab02c4", "draft": None, "adapters": "00000000"},
    }
    found = read_revision(Child(body), "chat-")
    assert (found.name, found.number, found.verdict, found.stable_since) == ("6f2c9a41", 4, "Good", NOW)
    assert found.pair == Revision(target=RoleHash("91ab02c4"), draft=None)


def test_the_baseline_is_the_newest_scrape_that_is_old_enough() -> None:
    kept = tuple(Scrape(NOW + timedelta(seconds=10 * number), {}) for number in range(5))
    assert newest_before(kept, NOW + timedelta(seconds=25)) == kept[2]
    assert newest_before(kept, NOW - timedelta(seconds=1)) is None
