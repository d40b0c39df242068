"""What a metrics server tells of pods, as objects that a test writes: the definition, and a load that pods share.

It stands in for kubelets and a metrics server, and knows nothing of who reads it: the autoscaler is the
controllers' own.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.errors import ApiError
from tandem_devcluster.testing import Object

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
ROUND_SECONDS = 0.5
NOT_YET = (404, 429)
"""What the API server answers of a kind that it has just heard of."""
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"pods.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, stands in for a metrics server"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "PodMetrics", "listKind": "PodMetricsList", "plural": "pods", "singular": "podmetrics"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
DEFINITIONS = build_path("customresourcedefinitions", group="apiextensions.k8s.io/v1")


@asynccontextmanager
async def metrics_of_pods(api: Api) -> AsyncIterator[None]:
    """The API server takes metrics of pods for as long as the block runs."""
    await api.create(DEFINITIONS, DEFINITION)
    try:
        async with asyncio.timeout(30):
            while not await _served(api):
                await asyncio.sleep(0.2)
        yield
    finally:
        await api.delete(f"{DEFINITIONS}/{DEFINITION['metadata']['name']}")


async def _served(api: Api) -> bool:
    try:
        await api.get(build_path("pods", group=f"{GROUP}/{VERSION}"))
    except ApiError as error:
        if error.status not in NOT_YET:
            raise
        return False
    return True


@dataclass
class Load:
    """So many thousandths of a core, which the ready pods that a selector names share among them."""

    api: Api
    namespace: str
    selector: str
    millicores: int
    _told: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._round()
            await asyncio.sleep(ROUND_SECONDS)

    async def _round(self) -> None:
        """Pods that are known come first: with a new one that is not told of yet no autoscaler finds more to do."""
        listed = await self.api.get(build_path("pods", namespace=self.namespace), labelSelector=self.selector)
        pods = {pod["metadata"]["name"]: pod for pod in listed["items"] if is_ready(pod)}
        for name in self._told.keys() - pods.keys():
            await self.api.delete(f"{self._path}/{name}")
            del self._told[name]
        each = self.millicores // max(1, len(pods))
        changed = [name for name in pods if self._told.get(name) != each]
        for name in sorted(changed, key=lambda name: name not in self._told):
            await self._tell(pods[name]["metadata"], each)

    async def _tell(self, pod: Object, millicores: int) -> None:
        body = metrics_of(pod, millicores)
        if pod["name"] in self._told:
            held = await self.api.get(f"{self._path}/{pod['name']}")
            body["metadata"]["resourceVersion"] = held["metadata"]["resourceVersion"]
            await self.api.replace(f"{self._path}/{pod['name']}", body)
        else:
            await self.api.create(self._path, body)
        self._told[pod["name"]] = millicores

    @property
    def _path(self) -> str:
        return build_path("pods", namespace=self.namespace, group=f"{GROUP}/{VERSION}")


def is_ready(pod: Object) -> bool:
    conditions: Mapping[str, str] = {held["type"]: held["status"] for held in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def metrics_of(pod: Object, millicores: int) -> Object:
    """With the pod's labels, by which an autoscaler finds it."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "PodMetrics",
        "metadata": {"name": pod["name"], "labels": pod["labels"]},
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "window": "1s",
        "containers": [{"name": "engine", "usage": {"cpu": f"{millicores}m", "memory": "64Mi"}}],
    }


@asynccontextmanager
async def loaded(load: Load) -> AsyncIterator[Load]:
    """The pods are told of for as long as the block runs; what it meets ends the block."""
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(load.run())
        try:
            yield load
        finally:
            telling.cancel()
