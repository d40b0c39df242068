"""A small client for the Kubernetes API: plain JSON objects over HTTPS, lists and watches.

It knows no kind of object; callers give paths (`build_path`) and dictionaries. Typed client libraries drop the fields
they do not know, which a node must not.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from tandem_devcluster.errors import ApiError
from tandem_devcluster.kubeconfig import Access

Object = dict[str, Any]

_REQUEST_SECONDS = 10  # a node that waits longer for one answer misses the beats that keep it Ready
_WATCH_SECONDS = 300
_GONE = 410


def build_path(plural: str, *, namespace: str = "", name: str = "", group: str = "", subresource: str = "") -> str:
    """The URL path of a resource; `group` is `group/version`, empty for the core group.

    Example: `build_path("leases", namespace="kube-node-lease", name="a", group="coordination.k8s.io/v1")`.
    """
    base = f"/apis/{group}" if group else "/api/v1"
    parts = [base, f"namespaces/{namespace}" if namespace else "", plural, name, subresource]
    return "/".join(part for part in parts if part)


class Api:
    """One identity's connection to the API server.

    Methods raise `ApiError` for an error status and `aiohttp.ClientError` or `TimeoutError` when there is no answer.
    """

    def __init__(self, access: Access, *, request_seconds: float = _REQUEST_SECONDS) -> None:
        connector = aiohttp.TCPConnector(ssl=access.tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=request_seconds)
        self._session = aiohttp.ClientSession(access.server, connector=connector, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str) -> Object:
        return await self._request("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: Object) -> Object:
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: Object) -> Object:
        """A strategic merge: lists with a merge key (conditions by type) are merged, others replaced."""
        return await self._request("PATCH", path, body=body, kind="application/strategic-merge-patch+json")

    async def delete(self, path: str, options: Object | None = None) -> None:
        await self._request("DELETE", path, body=options)

    async def is_ready(self) -> bool:
        """Whether the API server says that it is ready to serve; one that does not answer in time does not."""
        try:
            async with self._session.get("/readyz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def follow(self, path: str, *, field_selector: str = "") -> AsyncIterator[tuple[str, Object]]:
        """The collection's objects and then every change to them, for ever.

        Yields `(kind, object)`, `kind` being ADDED, MODIFIED or DELETED; after each (re)list additionally
        `("LISTED", list)`, so that a reader can drop what vanished unseen.
        """
        query = {"fieldSelector": field_selector} if field_selector else {}
        while True:
            listed = await self.get(path, **query)
            yield "LISTED", listed
            async for event in self._watch(path, listed["metadata"]["resourceVersion"], query):
                yield event

    async def _watch(self, path: str, version: str, query: Mapping[str, str]) -> AsyncIterator[tuple[str, Object]]:
        """Watch from `version` on, resuming when the server ends a watch, until the version is too old."""
        while True:
            wanted = {**query, "watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_SECONDS)}
            wanted["allowWatchBookmarks"] = "true"
            timeout = aiohttp.ClientTimeout(total=None, sock_read=_WATCH_SECONDS + _REQUEST_SECONDS)
            async with self._session.get(path, params=wanted, timeout=timeout, read_bufsize=2**24) as answer:
                if answer.status == _GONE:
                    return
                await _raise_for_status(answer)
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Accept": "application/json"}
        async with self._session.request(method, path, params=query, data=data, headers=headers) as answer:
            await _raise_for_status(answer)
            found: Object = await answer.json()
            return found


async def _raise_for_status(answer: aiohttp.ClientResponse) -> None:
    if answer.status < 400:
        return
    text = await answer.text()
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    raise ApiError(answer.status, status.get("reason", answer.reason or ""), status.get("message", text.strip()))


async def wait_until_ready(api: Api, *, deadline_seconds: float) -> None:
    """Return once the API server is ready; `TimeoutError` when that takes too long."""
    async with asyncio.timeout(deadline_seconds):
        while not await api.is_ready():  # noqa: ASYNC110 - another process becomes ready
            await asyncio.sleep(0.05)
