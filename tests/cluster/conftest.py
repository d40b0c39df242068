"""One dev cluster for all cluster tests of a run, in a folder of its own beside any that a person may be using."""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from examples.demo.stage import PAIRS, PAIRS_FOLDER

from tandem_devcluster.build import ensure_built
from tandem_devcluster.lifecycle import Plan, start, stop
from tandem_devcluster.machine import DEFAULT_MACHINES
from tandem_devcluster.state import StateFolder
from tandem_devcluster.testing import Cluster

MODELS = "/opt/tandem/models"
"""Where pods find what lies in the fixture `models`."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that every pod sees as `MODELS`."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Cluster]:
    """The running cluster: nodes cpu-0, l4-0 (4 GPUs) and h100-0 (8 GPUs); crash back-off is 1, 2, 4, ... seconds."""
    state = StateFolder(tmp_path_factory.mktemp("devcluster") / "state")
    folders = {MODELS: str(models), PAIRS: str(PAIRS_FOLDER)}
    machines = tuple(replace(machine, folders=folders) for machine in DEFAULT_MACHINES)
    start(state, asyncio.run(ensure_built()), Plan(machines, backoff_base_seconds=1.0, bound=True))
    try:
        yield Cluster(state)
    finally:
        stop(state)


@pytest.fixture(scope="module")
def without_crd(cluster: Cluster) -> None:
    """A release that was uninstalled keeps its CRD, and Helm would not let another release take it over."""
    cluster.kubectl("delete", "crd/speculativedeployments.tandem.dev", "--ignore-not-found")


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own, with its default service account there."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("wait", "-n", name, "--for=create", "serviceaccount/default", "--timeout=30s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
