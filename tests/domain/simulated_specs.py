"""Specs of pairs that the stories install and edit."""

import copy
from collections.abc import Mapping
from typing import Any

from tandem_operator.domain.pools import Alternative
from tandem_operator.domain.settings import OperatorTerms

TERMS = OperatorTerms(
    runtime_image="tandem-runtime:0.1.0",
    accelerators={
        "L4": (Alternative(label="nvidia.com/gpu.product", values=("NVIDIA-L4",)),),
        "H100": (Alternative(label="nvidia.com/gpu.product", values=("NVIDIA-H100-80GB-HBM3",)),),
    },
)
BASE: dict[str, Any] = {
    "target": {
        "model": {"uri": "hf://acme/target", "revision": "1" * 40},
        "replicas": 2,
        "placement": {"accelerator": "H100", "count": 1},
        "resources": {"limits": {"cpu": "1", "memory": "4Gi"}},
    },
    "draft": {
        "model": {"uri": "hf://acme/draft", "revision": "1" * 40},
        "replicas": 1,
        "placement": {"accelerator": "L4", "count": 1},
    },
    "gateway": {"replicas": 2},
    "canary": {
        "steps": [{"percent": 10, "holdSeconds": 60}, {"percent": 50, "holdSeconds": 60}],
        "analysis": {"minRequests": 1000, "acceptance": {"minBasisPoints": 6000}},
    },
    "rollback": {"onAlerts": {"names": ["TandemHighErrorRate"]}},
}


def changed(spec: Mapping[str, Any], **paths: Any) -> dict[str, Any]:
    """The spec with other values: changed(BASE, draft__model__revision="2" * 40)."""
    result = copy.deepcopy(dict(spec))
    for path, value in paths.items():
        *parents, last = path.split("__")
        place = result
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return result


V1, V2, V3 = "1" * 40, "2" * 40, "3" * 40
QUICK = changed(
    BASE,
    canary__analysis={"minRequests": 200, "minSlots": 8, "intervalSeconds": 30, "acceptance": {"minBasisPoints": 6000}},
    speculation={"control": {"percent": 20, "canaryPercent": 40, "slotSeconds": 10}},
    autoDisable={"windowSeconds": 60, "minRequests": 50, "cooldownSeconds": 120, "releaseDraftAfterSeconds": 0},
)
