"""What the operator renders is what an API server takes: the golden files, and their pods under `restricted`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_devcluster.testing import Cluster

pytestmark = pytest.mark.cluster

GOLDEN = sorted((Path(__file__).parents[1] / "domain" / "golden").glob("*.yaml"))


def children(path: Path, namespace: str) -> list[dict[str, Any]]:
    """The golden file's objects, moved to the test's namespace."""
    text = path.read_text().replace("namespace: llm", f"namespace: {namespace}")
    found: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    return found


def as_list(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_child_is_accepted_with_every_field(cluster: Cluster, namespace: str, path: Path) -> None:
    wanted = children(path, namespace)
    arguments = ("apply", "--server-side", "--validate=strict", "--dry-run=server", "-o", "json", "-f", "-")
    taken = json.loads(cluster.kubectl(*arguments, stdin=as_list(wanted)))["items"]
    assert [each["metadata"]["name"] for each in taken] == [each["metadata"]["name"] for each in wanted]
    for before, after in zip(wanted, taken, strict=True):
        assert lost(before, after) == []


def lost(wanted: Any, live: Any, path: str = "") -> list[str]:
    """Where the server kept another value than was sent: each would be written again at every look."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return [each for key, value in wanted.items() for each in lost(value, live.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        pairs = enumerate(zip(wanted, live, strict=True))
        return [each for index, (one, other) in pairs for each in lost(one, other, f"{path}[{index}]")]
    # An empty map or list that the server leaves out is the same value.
    return [] if wanted == live or (live is None and wanted in ({}, [])) else [f"{path}: {wanted!r} became {live!r}"]


@pytest.mark.parametrize("name", ["smallest", "target-alone"])
def test_pods_are_admitted_under_the_restricted_pod_security_standard(
    cluster: Cluster, namespace: str, name: str
) -> None:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    cluster.kubectl("create", "serviceaccount", "chat-gateway", "-n", namespace)
    (path,) = (path for path in GOLDEN if path.stem == name)
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **child["spec"]["template"],
            "metadata": {**child["spec"]["template"]["metadata"], "name": child["metadata"]["name"]},
        }
        for child in children(path, namespace)
        if child["kind"] == "Deployment"
    ]
    shown = cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=as_list(pods))
    assert shown.count("created") == len(pods) >= 2
