"""The chart on a real API server: everything it renders is accepted, twice, and uninstalling keeps the resource."""

import json
import subprocess
from pathlib import Path

import pytest

from tandem_devcluster.testing import Cluster

pytestmark = pytest.mark.cluster

CHART = str(Path(__file__).parents[2] / "charts" / "tandem")


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["watch.namespaces={NAMESPACE}", "watch.nodes=false"],
        [
            "replicaCount=2",
            "alerts.existingSecret=mine",
            "priorityClassName=p",
            "nodeSelector.a=b",
            "podAnnotations.c=d",
        ],
        ["admissionPolicy.install=false", "imagePullSecrets[0].name=s", "service.annotations.e=f", "image.tag=v9"],
        ["prometheus.url=http://prometheus.monitoring:9090", "prometheus.existingSecret=reader"],
    ],
    ids=["defaults", "one namespace", "placed", "other switches", "prometheus"],
)
def test_what_the_chart_renders_is_accepted(cluster: Cluster, namespace: str, values: list[str]) -> None:
    given = [part for value in values for part in ("--set", value.replace("NAMESPACE", namespace))]
    rendered = cluster.helm("template", "tandem", CHART, "-n", namespace, *given)
    shown = cluster.kubectl(
        "apply", "-n", namespace, "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=rendered
    )
    assert "deployment.apps/tandem-operator" in shown


def test_a_value_that_does_not_exist_is_refused_by_name(cluster: Cluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        cluster.helm("template", "tandem", CHART, "--set", "watch.namespace=one")
    assert "additional properties 'namespace' not allowed" in caught.value.stderr


def test_a_second_release_that_would_serve_all_namespaces_is_refused_c40(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("delete", "crd/speculativedeployments.tandem.dev", "--ignore-not-found")
    cluster.helm("install", "tandem", CHART, "-n", namespace)
    try:
        for name in ("tandem", "second"):
            with pytest.raises(subprocess.CalledProcessError) as caught:
                cluster.helm("install", name, CHART, "-n", "default")
            assert "exists and cannot be imported into the current release" in caught.value.stderr
    finally:
        cluster.helm("uninstall", "tandem", "-n", namespace)


def test_an_upgrade_keeps_the_token_and_uninstalling_keeps_the_resource(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("delete", "crd/speculativedeployments.tandem.dev", "--ignore-not-found")
    cluster.helm("install", "tandem", CHART, "-n", namespace, "--set", "replicaCount=1")
    try:
        first = cluster.get("secret", "tandem-operator-alerts", namespace=namespace)["data"]["token"]
        cluster.helm("upgrade", "tandem", CHART, "-n", namespace, "--set", "replicaCount=2")
        assert cluster.get("secret", "tandem-operator-alerts", namespace=namespace)["data"]["token"] == first
        assert cluster.get("deployment", "tandem-operator", namespace=namespace)["spec"]["replicas"] == 2
    finally:
        cluster.helm("uninstall", "tandem", "-n", namespace)
    kept = json.loads(cluster.kubectl("get", "crd", "speculativedeployments.tandem.dev", "-o", "json"))
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    left = cluster.kubectl(
        "get", "deployment,service,secret,role,rolebinding,serviceaccount,pdb", "-n", namespace, "-o", "name"
    )
    assert [name for name in left.split() if "tandem" in name] == []
