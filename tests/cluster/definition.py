"""Installs the definition of the resource as the chart brings it, and waits until it is found by its name."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem_devcluster.testing import Cluster

CHART = Path(__file__).parents[2] / "charts" / "tandem"
NAME = "speculativedeployments.tandem.dev"
DISCOVERY_SECONDS = 60.0


def install_definition(cluster: Cluster) -> None:
    """`kubectl wait` would not do: it fails on a definition so new that it has no conditions at all."""
    rendered = cluster.helm("template", "tandem", str(CHART), "--show-only", "templates/crd.yaml")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rendered)
    cluster.wait("crd", NAME, namespace="default", until=_is_established)
    deadline = time.monotonic() + DISCOVERY_SECONDS
    while NAME not in cluster.kubectl("api-resources", "--api-group=tandem.dev", "--output=name").split():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{NAME} is served, and after {DISCOVERY_SECONDS:.0f} s not in the list of resources")
        time.sleep(0.1)  # the list follows some time after, and cannot be watched


def _is_established(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
