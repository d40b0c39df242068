"""What a test waits for is seen however soon it comes: the real kubectl, and an API on which a pod ends in between."""

import asyncio
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tandem_devcluster.build import ensure_built
from tandem_devcluster.state import CONTEXT, Running, StateFolder, start_ticks
from tandem_devcluster.testing import Cluster

pytestmark = pytest.mark.cluster

PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list", "watch"]}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [PODS]},
}


def build_pod(phase: str, version: str) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "n", "resourceVersion": version}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "status": {"phase": phase}}


RUNNING, ENDED = build_pod("Running", "1"), build_pod("Succeeded", "2")


class OneFastPod(BaseHTTPRequestHandler):
    """The pod runs when it is read for the first time, and has ended before the watch that follows."""

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(where.query).items()}
        if "watch" in query:
            # Version 0 is "the latest, whichever"; from version 1 on, the end is a change.
            self._answer({"type": "ADDED" if query["resourceVersion"] == "0" else "MODIFIED", "object": ENDED})
        elif where.path.endswith("/pods/p"):
            self._answer(RUNNING)
        elif where.path.endswith("/pods"):
            version = {"resourceVersion": "1"}
            self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": version, "items": [RUNNING]})
        else:
            self._answer(DISCOVERY[where.path])

    def _answer(self, found: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Tests print what they want to say."""


@pytest.fixture
def api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OneFastPod) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture
def cluster_of_one_pod(tmp_path: Path, api: str) -> Cluster:
    """As if this process were the supervisor of a cluster at `api`."""
    state, ticks = StateFolder(tmp_path / "state"), start_ticks(os.getpid())
    assert ticks is not None
    with state.locked():
        state.prepare()
    state.record(Running(os.getpid(), ticks, 0))
    contexts = [{"name": CONTEXT, "context": {"cluster": CONTEXT}}]
    clusters = [{"name": CONTEXT, "cluster": {"server": api}}]
    state.kubeconfig.write_text(json.dumps({"current-context": CONTEXT, "contexts": contexts, "clusters": clusters}))
    kubectl = state.bin / "kubectl"
    program = asyncio.run(ensure_built())
    home = f"HOME={tmp_path} KUBECONFIG={state.kubeconfig}"  # discovery is kept in the home folder
    kubectl.write_text(f'#!/bin/sh\n{home} exec {program} kubectl "$@"\n')
    kubectl.chmod(0o755)
    return Cluster(state)


def test_a_pod_that_ends_between_a_look_and_the_watch_is_seen_to_have_ended(cluster_of_one_pod: Cluster) -> None:
    found = cluster_of_one_pod.wait(
        "pod", "p", namespace="n", until=lambda pod: pod["status"]["phase"] == "Succeeded", deadline_seconds=5
    )
    assert found == ENDED
