"""The fourteenth of the operators' traps (`test_fifteen_traps`): a definition that is frozen or prunes, an uninstall
that hangs on objects, an object as large as may be. Helm, the API server and the operator's pod are real."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.test_operator_in_one_namespace import accepted, resting

from tandem_devcluster.testing import Cluster, Object
from tandem_operator.domain.spec import LARGEST_OVERLAY_BYTES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CHART = Path(__file__).parents[2] / "charts" / "tandem"
ANCHOR = "              servedModelName:\n"
PATCH = "--type=merge"


@pytest.fixture
def system(cluster: Cluster, namespace: str, without_crd: None) -> Iterator[str]:
    """A release that serves `namespace`, in a namespace of its own."""
    name = f"system-{secrets.token_hex(4)}"
    served = ("--set", "watch.nodes=false", "--set", f"watch.namespaces={{{namespace}}}")
    cluster.helm("install", "tandem", str(CHART), "-n", name, "--create-namespace", *served, "--wait", "--timeout=90s")
    yield name
    cluster.helm("uninstall", "tandem", "-n", name, "--ignore-not-found")
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def newer_chart(folder: Path) -> Path:
    """The chart of a version whose spec has one field more."""
    shutil.copytree(CHART, folder / "tandem")
    definition = folder / "tandem" / "files" / "speculativedeployments.yaml"
    before, found, after = definition.read_text().partition(ANCHOR)
    assert found
    definition.write_text(f"{before}              team: {{type: string, maxLength: 63}}\n{found}{after}")
    return folder / "tandem"


def largest() -> Object:
    """As much as an object may say of its pods, twice."""
    wanted = resting("largest")
    padding = {"name": "NOTE", "value": "x" * (LARGEST_OVERLAY_BYTES - 200)}
    for role, container in (("target", "engine"), ("gateway", "gateway")):
        wanted["spec"][role]["podTemplate"] = {"spec": {"containers": [{"name": container, "env": [padding]}]}}
    return wanted


def is_accepted(found: Object) -> bool:
    return bool(accepted(found).get("status") == "True")


def test_trap_14_a_newer_chart_brings_its_fields_and_an_uninstall_leaves_objects_that_can_go(
    cluster: Cluster, namespace: str, system: str, tmp_path: Path
) -> None:
    cluster.apply(resting("chat"), largest(), namespace=namespace)
    for name in ("chat", "largest"):
        cluster.wait("specdep", name, namespace=namespace, until=is_accepted)
        cluster.kubectl("wait", "--for=create", f"service/{name}", "-n", namespace, "--timeout=30s")
    uids = children(cluster, namespace)

    cluster.helm("upgrade", "tandem", str(newer_chart(tmp_path)), "-n", system, "--reuse-values")
    cluster.kubectl("patch", "specdep", "chat", "-n", namespace, PATCH, "-p", '{"spec": {"team": "a"}}')
    cluster.kubectl("patch", "specdep", "chat", "-n", namespace, PATCH, "-p", '{"spec": {"paused": true}}')
    assert cluster.get("specdep", "chat", namespace=namespace)["spec"]["team"] == "a"

    cluster.helm("uninstall", "tandem", "-n", system, "--timeout=60s")
    assert cluster.get("specdep", "chat", namespace=namespace)["spec"]["team"] == "a"
    assert children(cluster, namespace) == uids, "what serves goes on without the operator"
    cluster.kubectl("delete", "specdep", "--all", "-n", namespace, "--timeout=30s")
    assert cluster.kubectl("get", "specdep", "-n", namespace, "-o", "name") == ""


def children(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Uids of Deployments by name."""
    listed = cluster.get("deployment", namespace=namespace)["items"]
    return {body["metadata"]["name"]: body["metadata"]["uid"] for body in listed}
