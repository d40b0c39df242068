"""Nodes of the dev cluster fail, come back, join and leave as machines do."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tandem_devcluster.testing import Cluster

pytestmark = pytest.mark.cluster

Object = dict[str, Any]


@pytest.fixture
def node(cluster: Cluster) -> Any:
    """A node of the test's own, so that no other test's pods are hit."""
    cluster.devcluster("node", "add", "spare-0,cpu=4,memory=8Gi")
    yield "spare-0"
    cluster.devcluster("node", "remove", "spare-0")


def build_server(node: str) -> Object:
    main = {"name": "main", "image": "unused", "command": ["sleep", "1000"]}
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "server"}, "spec": spec}


def is_running(pod: Object) -> bool:
    return any("running" in entry["state"] for entry in pod["status"].get("containerStatuses", ()))


def ready_status(node: Object) -> str:
    return next(str(entry["status"]) for entry in node["status"]["conditions"] if entry["type"] == "Ready")


def agent_of(node: str) -> int:
    """The process id of a node's agent, as seen from here."""
    wanted = json.dumps({"name": node})[1:-1].encode()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            words = read_command(process).split(b"\0")
            if b"tandem_devcluster.node" in words and any(wanted in word for word in words):
                return int(process.name)
    raise LookupError(f"no agent of {node}")


def read_command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_an_agent_that_crashes_comes_back_and_restarts_its_pods(cluster: Cluster, namespace: str, node: str) -> None:
    cluster.apply(build_server(node), namespace=namespace)
    cluster.wait("pod", "server", namespace=namespace, until=is_running)
    os.kill(agent_of(node), signal.SIGKILL)
    again = cluster.wait(
        "pod",
        "server",
        namespace=namespace,
        until=lambda pod: is_running(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == 1,
    )
    last = again["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (137, "ContainerStatusUnknown")


def test_a_failed_node_becomes_not_ready_and_can_be_restored(cluster: Cluster, namespace: str, node: str) -> None:
    cluster.devcluster("node", "fail", node)
    cluster.wait(
        "node", node, namespace=namespace, until=lambda found: ready_status(found) == "Unknown", deadline_seconds=60
    )
    with pytest.raises(LookupError):
        agent_of(node)
    cluster.devcluster("node", "restore", node)
    assert ready_status(cluster.get("node", node, namespace=namespace)) == "True"


def test_a_node_that_is_not_there_is_named_in_one_line(cluster: Cluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        cluster.devcluster("node", "fail", "h200-9")
    assert refusal.value.stderr == "error: there is no node 'h200-9'; there are cpu-0, l4-0, h100-0\n"


def test_clients_keep_what_they_know_of_resources_with_the_cluster(cluster: Cluster) -> None:
    """In the home folder it would be found again by a later cluster at the same port, which has other resources."""
    address = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    at_home = Path.home() / ".kube" / "cache" / "discovery" / address.removeprefix("https://").replace(":", "_")
    known = set(at_home.rglob("*"))
    cluster.kubectl("get", "nodes")
    assert list((cluster.state.client_cache / "discovery").rglob("servergroups.json"))
    assert set(at_home.rglob("*")) == known
