"""Knows how to follow one set of objects of a Kubernetes namespace, through whatever happens to the API.

Refuses to know what the objects mean.

List, then watch from the list's version; each change yields the whole set anew, so that a reader never has to replay.
A watch that the server ends is taken up where it ended; a version that has expired (410) and any other fault start
over with a list, after a pause that doubles. Meanwhile readers keep what they had: an API that is away changes nothing.
A connection that died without a word is noticed since every watch has a deadline of its own.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from aiohttp import ClientError, ClientResponse
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import ConfigException

from tandem_runtime.domain.errors import SettingRefused

KubeObject: TypeAlias = Mapping[str, Any]
"""One object as the API's JSON has it."""
Snapshot: TypeAlias = Mapping[str, KubeObject]
"""The followed objects by uid."""

WATCH_SECONDS = 30
"""The server ends a watch after this long; taking it up again is one request."""
_WATCH = {"watch": True, "allow_watch_bookmarks": True, "timeout_seconds": WATCH_SECONDS}
SILENCE_SECONDS = WATCH_SECONDS + 5.0
"""A connection that says nothing for longer than a watch may last is dead."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
GONE = 410

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a namespace: `kind` is `pods` or `configmaps`."""

    kind: str
    namespace: str
    label_selector: str | None = None
    field_selector: str | None = None


class Following(Protocol):
    """Where snapshots come from; the real one is `follow` bound to an API client."""

    def __call__(self, selection: Selection) -> AsyncIterator[Snapshot]: ...


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator[client.ApiClient]:
    """A client for the API: by `kubeconfig`, else by the pod's own service account. Raises SettingRefused."""
    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # partly typed
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]  # as above
                config_file=str(kubeconfig), client_configuration=settings
            )
    except (ConfigException, OSError) as error:
        where = "the pod's service account" if kubeconfig is None else f"KUBECONFIG {kubeconfig}"
        raise SettingRefused(f"no Kubernetes API by {where}: {error}") from error
    async with client.ApiClient(settings) as api:
        yield api


async def follow(api: client.ApiClient, selection: Selection) -> AsyncIterator[Snapshot]:
    """Yield the selected objects now and after every change, for ever; faults of the API are waited out."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            async with aclosing(_follow_once(api, selection)) as snapshots:
                async for snapshot in snapshots:
                    pause = FIRST_PAUSE_SECONDS
                    yield snapshot
        except ApiException as error:
            if error.status != GONE:
                _report(selection, f"HTTP {error.status} {error.reason}", pause)
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            _report(selection, f"{type(error).__name__}: {error}", pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _report(selection: Selection, fault: str, pause: float) -> None:
    log.warning(
        "cannot follow %s in %s (%s); trying again in %.1f s", selection.kind, selection.namespace, fault, pause
    )


async def _follow_once(api: client.ApiClient, selection: Selection) -> AsyncGenerator[Snapshot, None]:
    """One list and the watches that continue it, until the first fault."""
    async with _response(api, selection) as response:
        listed = await response.json()
    objects: dict[str, KubeObject] = {item["metadata"]["uid"]: item for item in listed.get("items") or ()}
    version = listed["metadata"]["resourceVersion"]
    yield dict(objects)
    while True:
        async with _response(api, selection, version=version) as response:
            async for line in response.content:
                event = _read_event(line)
                version = event["object"]["metadata"]["resourceVersion"]
                if _apply(objects, event):
                    yield dict(objects)


@asynccontextmanager
async def _response(
    api: client.ApiClient, selection: Selection, *, version: str | None = None
) -> AsyncIterator[ClientResponse]:
    """The raw response to a list, or to a watch from `version`. Raises ApiException for any status but 200."""
    core = client.CoreV1Api(api)
    lists = {
        "pods": core.list_namespaced_pod_without_preload_content,
        "configmaps": core.list_namespaced_config_map_without_preload_content,
    }
    watching: dict[str, Any] = {} if version is None else {"resource_version": version, **_WATCH}
    response: ClientResponse = await lists[selection.kind](
        selection.namespace,
        label_selector=selection.label_selector,
        field_selector=selection.field_selector,
        _request_timeout=SILENCE_SECONDS,
        **watching,
    )
    try:
        if response.status != HTTPStatus.OK:
            raise ApiException(status=response.status, reason=response.reason)
        yield response
    finally:
        response.close()


def _read_event(line: bytes) -> Mapping[str, Any]:
    """One line of a watch. Raises ApiException for an ERROR event."""
    event: Mapping[str, Any] = json.loads(line)
    if event["type"] == "ERROR":
        raise ApiException(status=event["object"].get("code", 500), reason=event["object"].get("message"))
    return event


def _apply(objects: dict[str, KubeObject], event: Mapping[str, Any]) -> bool:
    """Put one event into the set; False for a bookmark, which changes nothing."""
    if event["type"] == "BOOKMARK":
        return False
    uid = event["object"]["metadata"]["uid"]
    if event["type"] == "DELETED":
        objects.pop(uid, None)
    else:
        objects[uid] = event["object"]
    return True
