"""Knows how to speak to the Kubernetes API: paths, verbs, content types, and what its refusals mean.

Refuses to know why anything is written. Every request has a deadline, because a call that hangs
would starve its object.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import client, config

from tandem_operator.definition import schema_of
from tandem_operator.domain.errors import ClusterError, Conflict, Forbidden, Refused, Unavailable
from tandem_operator.domain.nested import items, mapping, text, texts
from tandem_operator.ports import Change, Json, Key, Kind

SIGNED: Mapping[str, str] = {"fieldManager": "tandem-operator"}
"""Every write carries the operator's one name for its fields."""
REQUEST_SECONDS = 15.0
"""Longer than any healthy answer, shorter than the patience of an object that waits behind it."""

WATCH_SECONDS = 300
"""The API server ends a watch after this long; what changes is then listed anew, in case that one missed something."""
SILENCE_SECONDS = 90.0
"""A watch hears of a bookmark each minute; one that hears nothing for longer than this is dead."""
PAGE = "200"
"""Objects of a list that are asked for at once: decoding more would keep everything else waiting."""

PLAIN = "application/json"
METADATA_ALONE = f"{PLAIN};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Nodes are asked for so: of each we read name and labels, and it also lists every image that it holds. So are
children, where only their versions are wanted."""
METADATA_EVENTS = f"{PLAIN};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

UNTYPED = "failed to create typed patch object"
"""So the API server says, with status 500, that an applied object has an unknown field or a value of a wrong type."""

IN_CLUSTER_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class Place(NamedTuple):
    """Where a kind lives in the API."""

    prefix: str
    plural: str
    namespaced: bool = True


PLACES: Mapping[Kind, Place] = {
    Kind.SPECULATIVE_DEPLOYMENT: Place("/apis/tandem.dev/v1alpha1", "speculativedeployments"),
    Kind.CONTROLLER_REVISION: Place("/apis/apps/v1", "controllerrevisions"),
    Kind.DEPLOYMENT: Place("/apis/apps/v1", "deployments"),
    Kind.POD_DISRUPTION_BUDGET: Place("/apis/policy/v1", "poddisruptionbudgets"),
    Kind.POD: Place("/api/v1", "pods"),
    Kind.NODE: Place("/api/v1", "nodes", namespaced=False),
    Kind.SERVICE: Place("/api/v1", "services"),
    Kind.SERVICE_ACCOUNT: Place("/api/v1", "serviceaccounts"),
    Kind.CONFIG_MAP: Place("/api/v1", "configmaps"),
    Kind.ROLE: Place("/apis/rbac.authorization.k8s.io/v1", "roles"),
    Kind.ROLE_BINDING: Place("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    Kind.LEASE: Place("/apis/coordination.k8s.io/v1", "leases"),
    Kind.EVENT: Place("/apis/events.k8s.io/v1", "events"),
    Kind.RULES_REVIEW: Place("/apis/authorization.k8s.io/v1", "selfsubjectrulesreviews", namespaced=False),
}


def path_of(kind: Kind, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
    """The URL path of a collection, an object or a subresource; no namespace means all of them."""
    place = PLACES[kind]
    parts = [place.prefix]
    if place.namespaced and namespace is not None:
        parts.append(f"namespaces/{namespace}")
    parts += [part for part in (place.plural, name, subresource) if part is not None]
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API said: status, its reason phrase, `Retry-After` where it gave seconds, and the body."""

    status: int
    reason: str
    retry_after_seconds: float | None
    data: bytes


def refusal(what: str, answer: Answer) -> ClusterError:
    """Which branch of the error tree an answer of the API is, in the API's own words where it gave any."""
    message = _words(answer.data) or answer.reason
    match answer.status:
        case 404:
            return NotFound(what, message)
        case 409:
            return Conflict(what, message)
        case 403:
            return Forbidden(what, message)
        case 400 | 413 | 415 | 422:
            return Refused(what, message)
        case 500 if UNTYPED in message:
            return Refused(what, message)
        case _:
            # Also 401: a token that has expired is replaced by itself, and no administrator can grant anything.
            return Unavailable(what, message, retry_after_seconds=answer.retry_after_seconds)


def _words(data: bytes) -> str | None:
    """`message` of the API's Status body."""
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return None


def object_place(body: Json) -> tuple[str | None, str]:
    """Namespace and name of an object."""
    return text(body, "metadata", "namespace") or None, text(body, "metadata", "name")


class KubeCluster:
    """`Cluster` over the API; one instance belongs to one event loop."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        return await self._request_or_none("GET", path_of(kind, namespace, name))

    async def list(self, kind: Kind, namespace: str | None, *, labels: Mapping[str, str]) -> tuple[Json, ...]:
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(labels.items()))}
        accept = METADATA_ALONE if kind is Kind.NODE else PLAIN
        found = await self._request("GET", path_of(kind, namespace), query=query, accept=accept)
        items = found.get("items") or []
        assert isinstance(items, list)
        # A list names its kind once, for all of its items; alone, each would not say what it is.
        kinded = ({**item, "apiVersion": found["apiVersion"], "kind": kind.value} for item in items)
        return tuple(sorted(kinded, key=lambda item: item["metadata"]["name"]))

    async def create(self, kind: Kind, body: Json) -> Json:
        namespace, _ = object_place(body)
        return await self._request("POST", path_of(kind, namespace), query=SIGNED, body=body)

    async def apply(self, kind: Kind, body: Json) -> Json:
        namespace, name = object_place(body)
        # Forced: the operator is the owner of what it renders, also of a field that a human has edited since.
        query = {**SIGNED, "force": "true"}
        content = "application/apply-patch+yaml"
        return await self._request("PATCH", path_of(kind, namespace, name), query=query, body=body, content=content)

    async def replace(self, kind: Kind, body: Json) -> Json:
        namespace, name = object_place(body)
        return await self._request("PUT", path_of(kind, namespace, name), query=SIGNED, body=body)

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        namespace, name = object_place(body)
        return await self._request("PUT", path_of(kind, namespace, name, "status"), query=SIGNED, body=body)

    async def annotate(self, kind: Kind, key: Key, annotations: Mapping[str, str | None]) -> Json:
        body: Json = {"metadata": {"annotations": dict(annotations)}}
        content = "application/merge-patch+json"
        path = path_of(kind, key.namespace, key.name)
        return await self._request("PATCH", path, query=SIGNED, body=body, content=content)

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        body: dict[str, object] = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        # With a uid, a Conflict says that another object bears the name by now: the one that was meant is gone.
        with contextlib.suppress(*(() if uid is None else (Conflict,))):
            await self._request_or_none("DELETE", path_of(kind, namespace, name), body=body)

    async def served_schema(self) -> Json:
        return schema_of(await self._request("GET", "/openapi/v3/apis/tandem.dev/v1alpha1"))

    async def list_changes(self, kind: Kind, namespace: str | None, *, label: str) -> tuple[tuple[Change, ...], str]:
        found: list[Change] = []
        query = {"labelSelector": label, "limit": PAGE}
        while True:
            page = await self._request("GET", path_of(kind, namespace), query=query, accept=METADATA_ALONE)
            found += [read_change(kind, label, body) for body in items(page, "items")]
            if not text(page, "metadata", "continue"):
                return tuple(found), text(page, "metadata", "resourceVersion")
            query["continue"] = text(page, "metadata", "continue")

    async def watch_changes(
        self, kind: Kind, namespace: str | None, *, label: str, version: str
    ) -> AsyncGenerator[Change, None]:
        path = path_of(kind, namespace)
        query = {"labelSelector": label, "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        query |= {"watch": "true", "allowWatchBookmarks": "true"}
        request = await self._serialized("GET", path, query=query, accept=METADATA_EVENTS)
        patience = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_SECONDS)
        answer = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                answer = await self._api.call_api(**request, _request_timeout=patience)
            if answer.status != 200:
                data = await answer.read()  # type: ignore[no-untyped-call]  # the client is only partly typed
                raise refusal(f"watch {path}", Answer(answer.status, str(answer.reason), None, data))
            async for line in answer.response.content:
                change = read_event(f"watch {path}", kind, label, line)
                if change is not None:
                    yield change
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Unavailable(f"watch {path}", f"{type(error).__name__} {error}") from error
        finally:
            if answer is not None:
                answer.response.close()

    async def _request_or_none(self, method: str, path: str, *, body: Json | None = None) -> Json | None:
        """None: 404."""
        try:
            return await self._request(method, path, body=body)
        except NotFound:
            return None

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content: str = PLAIN,
        accept: str = PLAIN,
    ) -> Json:
        request = await self._serialized(method, path, query=query, body=body, content=content, accept=accept)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                answer = await self._api.call_api(**request)
                data = await answer.read()  # type: ignore[no-untyped-call]  # the client is only partly typed
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}", f"{type(error).__name__} {error}") from error
        wait = answer.headers.get("Retry-After", "")
        seconds = float(wait) if wait.isdecimal() else None
        return read_answer(f"{method} {path}", Answer(answer.status, str(answer.reason), seconds, data))

    async def _serialized(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content: str = PLAIN,
        accept: str = PLAIN,
    ) -> dict[str, Any]:
        """The request as the client's `call_api` takes it."""
        request = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        return dict(zip(("method", "url", "header_params", "body", "post_params"), request, strict=True))


def read_change(kind: Kind, label: str, body: Json, *, gone: bool = False) -> Change:
    """What an object's metadata say; the label names the SpeculativeDeployment."""
    key = Key(text(body, "metadata", "namespace"), texts(body, "metadata", "labels").get(label, ""))
    return Change(key, kind, text(body, "metadata", "name"), "" if gone else text(body, "metadata", "resourceVersion"))


def read_event(what: str, kind: Kind, label: str, line: bytes) -> Change | None:
    """What a line of a watch tells of; None: of nothing but that it is alive.

    Raises Unavailable where the watch is over, because its version has become too old or for another reason.
    """
    event = json.loads(line)
    told, body = text(event, "type"), mapping(event, "object")
    if told == "ERROR":
        raise Unavailable(what, text(body, "message") or "it ended with an error")
    return None if told == "BOOKMARK" else read_change(kind, label, body, gone=told == "DELETED")


class NotFound(Unavailable):
    """404: for reads and deletes an answer; elsewhere an object, a namespace or a kind that is not there (yet)."""


def read_answer(what: str, answer: Answer) -> Json:
    """The object that the API answered with; raises what an answer without one means."""
    if not 200 <= answer.status <= 299:
        raise refusal(what, answer)
    try:
        found = json.loads(answer.data)
    except ValueError as error:
        raise Unavailable(what, f"the answer is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Unavailable(what, "the answer is no JSON object")
    return found


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API is and who we are, for a second client: either a token or a certificate with its key, as files."""

    server: str
    ca_path: str | None
    token: str | None = field(repr=False)
    certificate_path: str | None
    key_path: str | None


async def read_access() -> Access:
    """As `connect` reads it; a token is read anew each time, since it rotates."""
    settings = await _configuration()
    spoken = await settings.get_api_key_with_prefix("BearerToken", alias="authorization")
    token = None if spoken is None else spoken.split(" ", 1)[-1]
    return Access(settings.host, settings.ssl_ca_cert, token, settings.cert_file, settings.key_file)


@asynccontextmanager
async def connect() -> AsyncIterator[KubeCluster]:
    """To the cluster that this pod runs in, else to the one that KUBECONFIG names."""
    api = client.ApiClient(await _configuration())
    try:
        yield KubeCluster(api)
    finally:
        await api.close()  # type: ignore[no-untyped-call]  # the client is only partly typed


async def _configuration() -> client.Configuration:
    settings = client.Configuration()
    if IN_CLUSTER_TOKEN.exists():  # noqa: ASYNC240  once, before anything runs
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # as above
        return settings
    try:
        await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # as above
    except (config.ConfigException, OSError) as error:
        raise Unavailable("find the API server", f"no pod's account, and no kubeconfig: {error}") from error
    return settings
