"""Reading the audit log of a dev cluster while the API server writes it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tandem_devcluster.state import CONTEXT, Running, StateFolder, start_ticks
from tandem_devcluster.testing import Cluster

KNOWN = {"verb": "get", "user": {"username": "somebody"}}
OTHER = {"verb": "list", "user": {"username": "another"}}
UNKNOWN: dict[str, Any] = {"verb": "create", "user": {}, "responseStatus": {"code": 401}}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """As if this process were a cluster's supervisor."""
    state, ticks = StateFolder(tmp_path), start_ticks(os.getpid())
    assert ticks is not None
    state.record(Running(os.getpid(), ticks, 0))
    state.kubeconfig.write_text(json.dumps({"current-context": CONTEXT}))
    state.logs.mkdir()
    return Cluster(state)


def test_a_request_of_nobody_belongs_to_no_user(cluster: Cluster) -> None:
    cluster.state.audit_log.write_text("".join(json.dumps(entry) + "\n" for entry in (KNOWN, UNKNOWN, OTHER)))
    assert list(cluster.audit()) == [KNOWN, UNKNOWN, OTHER]
    assert cluster.requests("somebody") == [KNOWN]


def test_a_line_that_is_being_written_is_not_read_yet(cluster: Cluster) -> None:
    cluster.state.audit_log.write_text(json.dumps(KNOWN) + "\n" + json.dumps(OTHER)[:20])
    assert list(cluster.audit()) == [KNOWN]
