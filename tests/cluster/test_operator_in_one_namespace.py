"""The operator with `watch.namespaces`, without the right to read nodes: it serves one namespace and no other."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem_devcluster.testing import Cluster, Object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CHART = str(Path(__file__).parents[2] / "charts" / "tandem")
NAMED = ("--set", "watch.nodes=false", "--set")
TYPO: Object = {"spec": {"contaners": []}}


def resting(name: str, *, wrong: bool = False) -> Object:
    """An object without engines, since none of them is asked here."""
    target = {"model": {"uri": "file:///m"}, "replicas": 0, **({"podTemplate": TYPO} if wrong else {})}
    spec = {"target": target, "draft": {"method": "None"}, "gateway": {"replicas": 1}}
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "SpeculativeDeployment",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The operator's own namespace and the one that it serves."""
    system, watched = (f"{role}-{secrets.token_hex(4)}" for role in ("system", "watched"))
    cluster.kubectl("create", "namespace", watched)
    # A release that was uninstalled keeps its CRD, and Helm would not let another release take it over.
    cluster.kubectl("delete", "crd/speculativedeployments.tandem.dev", "--ignore-not-found")
    install = ("--create-namespace", *NAMED, f"watch.namespaces={{{watched}}}", "--wait", "--timeout", "55s")
    cluster.helm("install", "tandem", CHART, "-n", system, *install)
    yield system, watched
    cluster.helm("uninstall", "tandem", "-n", system)
    cluster.kubectl("delete", "namespace", watched, system, "--wait=false")


def accepted(found: Object) -> Object:
    conditions = found.get("status", {}).get("conditions", [])
    return next((dict(each) for each in conditions if each["type"] == "Accepted"), {})


def test_it_serves_the_namespace_that_it_is_given_and_asks_for_nothing_beyond(
    cluster: Cluster, served: tuple[str, str], namespace: str
) -> None:
    system, watched = served
    cluster.apply(resting("chat"), namespace=namespace)
    cluster.apply(resting("chat"), namespace=watched)
    cluster.wait("specdep", "chat", namespace=watched, until=lambda found: accepted(found).get("status") == "True")
    cluster.kubectl("wait", "--for=create", "service/chat", "-n", watched, "--timeout=30s")
    assert cluster.get("specdep", "chat", namespace=namespace)["status"] == {"observedGeneration": -1}, "as defaulted"
    done = cluster.requests(f"system:serviceaccount:{system}:tandem-operator")
    refused = {entry["requestURI"] for entry in done if entry.get("responseStatus", {}).get("code") == 403}
    assert {uri.partition("?")[0] for uri in refused} == {"/api/v1/nodes"}


def test_a_field_that_pods_do_not_have_is_named_in_accepted(cluster: Cluster, served: tuple[str, str]) -> None:
    cluster.apply(resting("typo", wrong=True), namespace=served[1])
    found = cluster.wait(
        "specdep", "typo", namespace=served[1], until=lambda found: accepted(found).get("status") == "False"
    )
    assert ".spec.template.spec.contaners: field not declared in schema" in accepted(found)["message"]
