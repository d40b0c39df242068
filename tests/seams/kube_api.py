"""A small Kubernetes API on a loopback port: lists and watches of one namespace, with faults on demand."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tandem_runtime.admin import http_server

KINDS = {"pods": "Pod", "configmaps": "ConfigMap"}


class KubeApi:
    """Keeps every version of every object, as watches need them. `down` answers 503; `expire` forgets old versions."""

    def __init__(self) -> None:
        self.down = False
        self.requests: list[str] = []
        self._versions = itertools.count(1)
        self._oldest = 0
        self._events: list[tuple[int, str, str, dict[str, Any]]] = []
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._changed = asyncio.Event()
        self._cut = asyncio.Event()

    async def put(self, plural: str, item: dict[str, Any]) -> None:
        key = plural, item["metadata"]["name"]
        await self._record("MODIFIED" if key in self._objects else "ADDED", plural, item)
        self._objects[key] = item

    async def delete(self, plural: str, name: str) -> None:
        await self._record("DELETED", plural, self._objects.pop((plural, name)))

    async def cut_watches(self, *, expire: bool = False) -> None:
        """End all open watches without a word; with `expire` their versions are too old to go on from."""
        if expire:
            self._oldest = next(self._versions)
        self._cut.set()
        self._cut = asyncio.Event()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _record(self, kind: str, plural: str, item: dict[str, Any]) -> None:
        version = next(self._versions)
        item["metadata"] = {"namespace": "llm", "labels": {}, **item["metadata"], "resourceVersion": str(version)}
        self._events.append((version, kind, plural, json.loads(json.dumps(item))))
        self._wake()

    def _selects(self, request: Request, item: dict[str, Any]) -> bool:
        name = request.query_params.get("fieldSelector", "").removeprefix("metadata.name=")
        labels = request.query_params.get("labelSelector", "").partition(",")[0].partition("=")
        wanted = not labels[2] or item["metadata"]["labels"].get(labels[0]) == labels[2]
        return wanted and (not name or item["metadata"]["name"] == name)

    async def serve(self, request: Request) -> Response:
        self.requests.append(str(request.url).partition("/api/")[2])
        plural = request.path_params["plural"]
        if self.down:
            return JSONResponse({"kind": "Status", "code": 503}, status_code=503)
        if request.query_params.get("watch"):
            return StreamingResponse(self._watch(request, plural), media_type="application/json")
        chosen = [item for (kind, _), item in self._objects.items() if kind == plural and self._selects(request, item)]
        version = str(max((event[0] for event in self._events), default=0))
        return JSONResponse({"kind": f"{KINDS[plural]}List", "metadata": {"resourceVersion": version}, "items": chosen})

    async def _watch(self, request: Request, plural: str) -> AsyncIterator[str]:
        seen, cut = int(request.query_params["resourceVersion"]), self._cut
        if seen < self._oldest:
            yield _line("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
            return
        yield _line("BOOKMARK", {"metadata": {"resourceVersion": str(seen)}})
        while not cut.is_set():
            changed = self._changed
            for version, kind, of, item in self._events:
                if version > seen and of == plural and self._selects(request, item):
                    seen = version
                    yield _line(kind, item)
            await changed.wait()


def _line(kind: str, item: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "object": item}) + "\n"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name, "uid": f"uid-{name}"}, "data": data}


def pod(name: str, *, role: str, role_hash: str, ip: str, ready: bool = True, deleted: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": {"tandem.dev/deployment": "chat", "tandem.dev/role": role, "tandem.dev/role-hash": role_hash},
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {"kind": "Pod", "metadata": metadata, "status": {"podIP": ip, "conditions": [condition]}}


@asynccontextmanager
async def kube_api(folder: Path) -> AsyncIterator[tuple[KubeApi, Path]]:
    """The API and a kubeconfig for it."""
    api = KubeApi()
    app = Starlette(routes=[Route("/api/v1/namespaces/llm/{plural}", api.serve)])
    async with http_server(app, host="127.0.0.1", port=0) as port:
        kubeconfig = folder / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
        try:
            yield api, kubeconfig
        finally:
            await api.cut_watches()
