"""The alert sink over a real loopback socket and the in-memory cluster."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tandem_operator.alerts import AlertSink, Endpoint, HttpThread, build_app
from tandem_operator.domain.errors import Unavailable
from tandem_operator.domain.webhook import ANNOTATION_PREFIX
from tandem_operator.ports import Kind
from tandem_operator.testing import MemoryCluster

TOKEN = "let-me-in"
ADDRESS = (Kind.SPECULATIVE_DEPLOYMENT, "llm", "chat")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def body(**labels: str) -> dict[str, Any]:
    named = {"alertname": "TandemHighErrorRate", "namespace": "llm", "specdep": "chat", **labels}
    one = {"status": "firing", "labels": named, "startsAt": "2026-01-31T12:00:00Z", "fingerprint": "8f0d2e1c"}
    return {"version": "4", "alerts": [one]}


def holding_chat() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.put(Kind.SPECULATIVE_DEPLOYMENT, {"metadata": {"namespace": "llm", "name": "chat"}, "spec": {}})
    return cluster


@contextmanager
def serving(
    cluster: MemoryCluster, *, trouble: str | None = None, watched: tuple[str, ...] = ()
) -> Iterator[httpx.Client]:
    registry = CollectorRegistry()

    async def build() -> Any:
        sink = AlertSink(cluster, TOKEN, registry, watched=watched)
        return build_app(sink, alive=lambda: None, ready=lambda: trouble, registry=registry)

    port = free_port()
    thread = HttpThread(Endpoint("127.0.0.1", port), build)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            yield client
    finally:
        thread.stop()


def alerts_on(cluster: MemoryCluster) -> list[str]:
    annotations = cluster.objects[ADDRESS]["metadata"].get("annotations", {})
    return [name for name in annotations if name.startswith(ANNOTATION_PREFIX)]


def test_an_alert_is_on_the_object_before_it_is_acknowledged_and_a_repeat_changes_nothing() -> None:
    cluster = holding_chat()
    with serving(cluster) as client:
        first = client.post("/v1/alerts", json=body())
        assert (first.status_code, first.json()["results"]) == (202, ["recorded"])
        assert len(alerts_on(cluster)) == 1
        second = client.post("/v1/alerts", json=body())
        assert (second.status_code, second.json()["results"]) == (202, ["repeated"])
    assert [verb for verb, _, _ in cluster.writes] == ["annotate"]


def test_an_alert_that_could_not_be_written_is_asked_for_again() -> None:
    cluster = holding_chat()
    with serving(cluster) as client, cluster.failing(lambda verb, kind, name: Unavailable("write", "planted")):
        assert client.post("/v1/alerts", json=body()).status_code == 503
    assert alerts_on(cluster) == []


def test_an_alert_for_an_object_that_is_not_there_is_acknowledged_and_counted() -> None:
    with serving(holding_chat()) as client:
        answer = client.post("/v1/alerts", json=body(specdep="other"))
        assert (answer.status_code, answer.json()["results"]) == (202, ["unknown"])
        assert 'tandem_operator_alerts_total{result="unknown"} 1.0' in client.get("/metrics").text


def test_a_full_object_asks_the_sender_to_come_again() -> None:
    cluster = holding_chat()
    with serving(cluster) as client:
        for number in range(20):
            assert client.post("/v1/alerts", json=body(revision=str(number))).status_code == 202
        assert client.post("/v1/alerts", json=body(revision="20")).status_code == 503
    assert len(alerts_on(cluster)) == 20


def several(*bodies: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "alerts": [alert for one in bodies for alert in one["alerts"]]}


def test_one_alert_that_cannot_be_recorded_keeps_no_other_from_being_recorded() -> None:
    cluster = holding_chat()
    cluster.put(Kind.SPECULATIVE_DEPLOYMENT, {"metadata": {"namespace": "llm", "name": "other"}, "spec": {}})

    def planted(verb: str, kind: Kind, name: str) -> Unavailable | None:
        return Unavailable(verb, "planted") if name == "other" else None

    with serving(cluster) as client, cluster.failing(planted):
        assert client.post("/v1/alerts", json=several(body(specdep="other"), body())).status_code == 503
    assert len(alerts_on(cluster)) == 1


def test_one_alert_that_cannot_be_read_is_told_and_keeps_no_other_from_being_recorded() -> None:
    cluster = holding_chat()
    wrong = body()
    wrong["alerts"][0]["startsAt"] = "yesterday"
    with serving(cluster) as client:
        answer = client.post("/v1/alerts", json=several(wrong, body()))
        assert (answer.status_code, "alerts[0].startsAt is 'yesterday'" in answer.json()["error"]) == (400, True)
        assert 'tandem_operator_alerts_total{result="malformed"} 1.0' in client.get("/metrics").text
    assert len(alerts_on(cluster)) == 1


def test_an_alert_for_a_namespace_that_is_not_watched_is_unknown_and_nothing_is_asked_of_the_api() -> None:
    cluster = holding_chat()
    with serving(cluster, watched=("another",)) as client, cluster.failing(lambda verb, *_: Unavailable(verb, "asked")):
        answer = client.post("/v1/alerts", json=body())
        assert (answer.status_code, answer.json()["results"]) == (202, ["unknown"])


def test_a_flood_about_one_object_is_one_write_and_its_rest_is_asked_for_again() -> None:
    cluster = holding_chat()
    flood = several(*(body(revision=str(number)) for number in range(1000)))
    with serving(cluster) as client:
        assert client.post("/v1/alerts", json=flood).status_code == 503
    assert ([verb for verb, _, _ in cluster.writes], len(alerts_on(cluster))) == (["annotate"], 20)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic let-me-in", "Bearer let-me-i", b"Bearer \xff"])
def test_without_the_token_nothing_is_recorded(given: str | bytes | None) -> None:
    cluster = holding_chat()
    with serving(cluster) as client:
        headers: Any = {} if given is None else {"Authorization": given}
        client.headers.pop("Authorization")
        assert client.post("/v1/alerts", json=body(), headers=headers).status_code == 401
    assert alerts_on(cluster) == []


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"version": "3"}', 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b"x" * (1 << 21), 413),
    ],
)
def test_a_malformed_body_is_refused_for_good(content: bytes, status: int) -> None:
    with serving(holding_chat()) as client:
        assert client.post("/v1/alerts", content=content).status_code == status


def test_a_charset_that_nobody_knows_changes_nothing() -> None:
    with serving(holding_chat()) as client:
        headers = {"Content-Type": "application/json; charset=martian"}
        assert client.post("/v1/alerts", json=body(), headers=headers).status_code == 202


def test_readiness_names_the_trouble() -> None:
    with serving(holding_chat(), trouble="no lease yet") as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "no lease yet\n")
        assert client.get("/healthz").status_code == 200


def test_a_port_in_use_is_raised_where_the_thread_is_started() -> None:
    async def build() -> Any:
        registry = CollectorRegistry()
        return build_app(
            AlertSink(MemoryCluster(), TOKEN, registry), alive=lambda: None, ready=lambda: None, registry=registry
        )

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        thread = HttpThread(Endpoint("127.0.0.1", taken.getsockname()[1]), build)
        with pytest.raises(OSError, match="address already in use"):
            thread.start()
