"""Looks over the in-memory cluster: what counts as ours and what as an answer, and how far back scrapes are kept."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.domain.simulated_specs import TERMS

from tandem_operator.domain import progress, record
from tandem_operator.domain.errors import ClusterError, Forbidden, ProviderError, Unavailable
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.progress import Progress, Rollout, Stage
from tandem_operator.domain.readings import Reading, Trouble
from tandem_operator.domain.revision import Role
from tandem_operator.domain.samples import Document, Scrape
from tandem_operator.observe import MOST_SCRAPES, ScrapeHistory, Sources, find, memory_limit, observe
from tandem_operator.ports import Json, Key, Kind, Pressure
from tandem_operator.testing import FixedClock, MemoryCluster, ScriptedTelemetry

KEY = Key("llm", "chat")
LABELS = {"tandem.dev/deployment": "chat"}
WINDOW = timedelta(seconds=300)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Look:
    """One object with a gateway and a target of its own."""

    def __init__(self) -> None:
        self.cluster, self.telemetry = MemoryCluster(), ScriptedTelemetry()
        self.sources = Sources(self.cluster, self.telemetry, FixedClock(START), TERMS)
        metadata = {"namespace": "llm", "name": "chat", "uid": "uid-chat", "annotations": {"a": "1"}}
        self.resource = self.cluster.put(Kind.SPECULATIVE_DEPLOYMENT, {"metadata": metadata, "spec": {"x": 1}})
        self.child(Kind.DEPLOYMENT, "chat-gateway")
        self.child(Kind.DEPLOYMENT, "chat-target-1")
        self.pod("chat-gateway", "g", role="gateway", ip="10.0.0.1")
        self.pod("chat-target-1", "t", role="target", ip="10.0.0.2")

    def child(self, kind: Kind, name: str, *, owner: str = "uid-chat") -> None:
        owners = [{"uid": owner, "kind": "SpeculativeDeployment", "name": "chat"}]
        metadata = {"namespace": "llm", "name": name, "labels": LABELS, "ownerReferences": owners, "managedFields": [1]}
        self.cluster.put(kind, {"kind": kind.value, "metadata": metadata})

    def pod(self, deployment: str, name: str, *, role: str, ip: str, ready: bool = True, made: bool = True) -> None:
        owners = [{"kind": "ReplicaSet", "name": f"{deployment}-77", "uid": "rs"}] if made else []
        labels = {**LABELS, "tandem.dev/role": role, "tandem.dev/role-hash": "1", "pod-template-hash": "77"}
        metadata = {"namespace": "llm", "name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": owners}
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": ip, "conditions": conditions}
        engine = {"name": "engine", "resources": {"limits": {"memory": "4Gi"}}}
        body = {"kind": "Pod", "metadata": metadata, "spec": {"containers": [engine]}, "status": status}
        self.cluster.put(Kind.POD, body)

    async def observe(self) -> Observed:
        return await observe(await find(self.resource, self.cluster), self.sources, window=WINDOW)


def document(**changes: Any) -> Json:
    answer: Json = {**record.dump(Document(boot="b", policy=3)), **changes}
    return answer


async def test_a_look_holds_the_resource_its_children_and_its_pods() -> None:
    seen = await Look().observe()
    assert (seen.resource.uid, seen.resource.annotations, seen.resource.spec) == ("uid-chat", {"a": "1"}, {"x": 1})
    assert [(child.kind, child.name) for child in seen.children] == [
        ("Deployment", "chat-gateway"),
        ("Deployment", "chat-target-1"),
    ]
    assert all("managedFields" not in child.body["metadata"] for child in seen.children)  # type: ignore[operator]  # JSON
    assert [(pod.name, pod.role, pod.ready) for pod in seen.pods] == [
        ("g", Role.GATEWAY, True),
        ("t", Role.TARGET, True),
    ]
    assert (seen.now, seen.terms, seen.baseline) == (START, TERMS, None)


async def test_what_bears_our_label_but_is_not_ours_is_not_seen() -> None:
    look = Look()
    before = await look.observe()
    look.child(Kind.SERVICE, "theirs", owner="uid-of-another")
    look.child(Kind.DEPLOYMENT, "chat-target-2", owner="uid-of-an-earlier-chat")
    look.pod("chat-target-2", "stranger", role="target", ip="10.0.0.3")
    look.pod("chat-gateway", "by-hand", role="gateway", ip="10.0.0.4", made=False)
    look.pod("chat-gateway", "nonsense", role="no-role", ip="10.0.0.5", made=False)
    look.telemetry.documents["10.0.0.4"] = document(policy=99)
    seen = await look.observe()
    assert (seen.children, seen.pods) == (before.children, before.pods)
    assert seen.documents == {}


async def test_evidence_of_another_version_or_shape_counts_as_no_answer() -> None:
    look = Look()
    look.telemetry.documents["10.0.0.1"] = document()
    assert (await look.observe()).documents == {"g": Document(boot="b", policy=3)}
    for unreadable in (document(policy="three"), {"version": 2}, {}, document(strata=[{"policy": 1}])):
        look.telemetry.documents["10.0.0.1"] = unreadable
        assert (await look.observe()).documents == {}


async def test_only_gateways_with_an_address_are_asked_for_evidence() -> None:
    look = Look()
    look.pod("chat-gateway", "young", role="gateway", ip="", ready=False)
    look.telemetry.documents |= {"": document(), "10.0.0.2": document()}
    assert (await look.observe()).documents == {}


async def test_memory_of_a_ready_engine_is_its_share_of_the_limit() -> None:
    look = Look()
    look.telemetry.pressures |= {"10.0.0.2": Pressure(3 << 30, 8000, True), "10.0.0.1": Pressure(1, 1, True)}
    gateway, target = (await look.observe()).pods
    assert (target.memory_basis_points, target.kv_basis_points, target.preempting) == (7500, 8000, True)
    assert (gateway.memory_basis_points, gateway.kv_basis_points, gateway.preempting) == (None, None, None)
    look.pod("chat-target-1", "t", role="target", ip="10.0.0.2", ready=False)
    assert (await look.observe()).pods[1].memory_basis_points is None


@pytest.mark.parametrize(
    ("containers", "bytes_"),
    [
        ([{"name": "engine", "resources": {"limits": {"memory": "1Gi"}}}], 1 << 30),
        ([{"name": "engine", "resources": {}}], None),
        ([{"name": "engine", "resources": {"limits": {"memory": "0"}}}], None),
        ([{"name": "engine", "resources": {"limits": {"memory": "100m"}}}], None),
        ([{"name": "other", "resources": {"limits": {"memory": "1Gi"}}}], None),
        ([], None),
    ],
)
def test_the_limit_is_the_engine_containers(containers: list[Any], bytes_: int | None) -> None:
    assert memory_limit({"spec": {"containers": containers}}) == bytes_


async def test_nodes_are_none_where_they_may_not_be_read_and_labels_where_they_may() -> None:
    look = Look()
    look.cluster.put(Kind.NODE, {"metadata": {"name": "n", "labels": {"gpu": "L4"}}})
    nodes = (await look.observe()).nodes
    assert nodes is not None
    assert [(node.name, node.labels) for node in nodes] == [("n", {"gpu": "L4"})]
    with look.cluster.failing(lambda verb, kind, name: Forbidden("list", "no") if kind is Kind.NODE else None):
        assert (await look.observe()).nodes is None


@pytest.mark.parametrize("error", [Unavailable("list", "hung"), Forbidden("list", "no")])
async def test_children_that_cannot_be_read_end_the_look_rather_than_seem_absent(error: ClusterError) -> None:
    look = Look()
    failing = look.cluster.failing(lambda verb, kind, name: error if kind is Kind.DEPLOYMENT else None)
    with failing, pytest.raises(type(error)):
        await look.observe()


# The history of scrapes


def test_the_baseline_is_the_newest_scrape_from_before_the_window() -> None:
    history = ScrapeHistory()
    for second in range(0, 1000, 10):
        now = START + timedelta(seconds=second)
        found = history.baseline(KEY, now - WINDOW)
        assert found == (None if second < 300 else Scrape(now - WINDOW, {}))
        history.add(KEY, Scrape(now, {}), WINDOW)


def test_a_gap_in_looks_leaves_the_last_scrape_before_it_as_the_baseline() -> None:
    history = ScrapeHistory()
    history.add(KEY, Scrape(START, {}), WINDOW)
    history.add(KEY, Scrape(START + timedelta(seconds=10), {}), WINDOW)
    late = START + timedelta(hours=1)
    history.add(KEY, Scrape(late, {}), WINDOW)
    assert history.baseline(KEY, late - WINDOW) == Scrape(START + timedelta(seconds=10), {})


def test_frequent_looks_over_a_long_window_are_thinned_and_the_baseline_stays() -> None:
    history, window = ScrapeHistory(), timedelta(hours=1)
    for second in range(3 * 3600):
        history.add(KEY, Scrape(START + timedelta(seconds=second), {}), window)
    now = START + timedelta(seconds=3 * 3600)
    found = history.baseline(KEY, now - window)
    assert found is not None
    assert timedelta(0) <= (now - window) - found.at <= window / MOST_SCRAPES


def test_a_gateway_is_silent_from_the_first_look_that_it_did_not_answer_until_it_answers() -> None:
    history, later = ScrapeHistory(), START + timedelta(seconds=40)
    answer = {"a": Document(boot="a", policy=1, serving=True)}
    assert history.silent(KEY, Scrape(START, answer), ["a", "b"]) == {"b": START}
    assert history.silent(KEY, Scrape(later, answer), ["a", "b"]) == {"b": START}
    assert history.silent(KEY, Scrape(later, {}), ["a"]) == {"a": later}  # b went
    assert history.silent(KEY, Scrape(later, answer), ["a", "b"]) == {"b": later}
    history.forget(KEY)
    assert history.silent(KEY, Scrape(START, {}), []) == {}


def test_a_gateway_is_unheard_until_its_first_answer_and_its_successor_is_unheard_again() -> None:
    history, answer = ScrapeHistory(), {"a": Document(boot="a", policy=1, serving=True)}
    assert history.unheard(KEY, Scrape(START, {}), ["a", "b"]) == ("a", "b")
    assert history.unheard(KEY, Scrape(START, answer), ["a", "b"]) == ("b",)
    assert history.unheard(KEY, Scrape(START, {}), ["a", "b"]) == ("b",)
    assert history.unheard(KEY, Scrape(START, {}), ["c"]) == ("c",)
    assert history.unheard(KEY, Scrape(START, {}), ["a"]) == ("a",)


def test_objects_have_histories_of_their_own_and_a_gone_one_has_none() -> None:
    history, other = ScrapeHistory(), Key("llm", "other")
    history.add(KEY, Scrape(START, {}), WINDOW)
    assert history.baseline(other, START) is None
    history.forget(KEY)
    history.forget(other)
    assert history.baseline(KEY, START) is None


class Scripted:
    """Answers every query so; an error is raised."""

    def __init__(self, answer: bytes | ProviderError) -> None:
        self.answer, self.asked = answer, list[str]()

    async def ask(self, query: str) -> bytes:
        self.asked.append(query)
        if isinstance(self.answer, ProviderError):
            raise self.answer
        return self.answer


WRITTEN = "x{revision='{{revision}}'}"


def on_trial(look: Look) -> None:
    """A canary in its first step, with a metric of the user's own."""
    metric = {"name": "refusals", "query": WRITTEN, "thresholdBasisPoints": 1}
    model = {"model": {"uri": "file:///m"}}
    canary = {"steps": [{"percent": 5}], "analysis": {"metrics": [metric]}}
    moved = Progress(rollout=Rollout(stage=Stage.STEPPING, revision="b07d51ee"))
    status = {"stableRevision": "6f2c9a41", "progress": progress.write(moved)}
    spec = {"target": model, "draft": model, "canary": canary}
    look.resource = {"metadata": look.resource["metadata"], "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("metrics", "reading"),
    [
        (
            Scripted(b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}'),
            Reading(name="refusals", value=2.0),
        ),
        (
            Scripted(ProviderError("Prometheus cannot be reached")),
            Reading(name="refusals", trouble=Trouble.PROVIDER_ERROR, note="Prometheus cannot be reached"),
        ),
        (
            None,
            Reading(
                name="refusals",
                trouble=Trouble.PROVIDER_ERROR,
                note="the operator has no Prometheus: set the chart's prometheus.url",
            ),
        ),
    ],
)
async def test_a_canarys_own_metrics_are_asked_and_no_answer_stops_no_look(
    metrics: Scripted | None, reading: Reading
) -> None:
    look = Look()
    look.sources = replace(look.sources, metrics=metrics)
    assert (await look.observe()).readings == ()
    on_trial(look)
    assert (await look.observe()).readings == (replace(reading, query=WRITTEN),)
    assert metrics is None or metrics.asked == ["x{revision='b07d51ee'}"]
