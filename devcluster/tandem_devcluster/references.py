"""Fetches what a pod refers to: config maps, secrets, service-account tokens.

It knows the API and no file. Everything is read as the node, so the node authoriser lets it see exactly the objects of
pods that are bound to it.
"""

import asyncio
import base64
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.environment import Sources, pod_fields, references
from tandem_devcluster.errors import ApiError
from tandem_devcluster.workload import Container, Object, Workload

_NOT_FOUND = 404
_RENEW_AFTER = 0.8  # of a token's lifetime, as a kubelet does
_DEFAULT_TOKEN_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    renew_at: float


class References:
    """The objects that one pod may read."""

    def __init__(self, api: Api, workload: Workload) -> None:
        self._api = api
        self._workload = workload
        self._tokens: dict[tuple[str, int], _Token] = {}

    async def config_map(self, name: str) -> Mapping[str, bytes] | None:
        """Its data by key, or None when there is no such object."""
        found = await self._get("configmaps", name)
        if found is None:
            return None
        plain = {key: value.encode() for key, value in found.get("data", {}).items()}
        return plain | {key: base64.b64decode(value) for key, value in found.get("binaryData", {}).items()}

    async def secret(self, name: str) -> Mapping[str, bytes] | None:
        found = await self._get("secrets", name)
        if found is None:
            return None
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    async def token(self, audience: str, lifetime_seconds: int | None) -> str:
        """A token of the pod's service account, bound to the pod, renewed before it expires."""
        seconds = lifetime_seconds or _DEFAULT_TOKEN_SECONDS
        held = self._tokens.get((audience, seconds))
        if held is None or time.monotonic() > held.renew_at:
            text = await self._request_token(audience, seconds)
            held = self._tokens[audience, seconds] = _Token(text, time.monotonic() + seconds * _RENEW_AFTER)
        return held.text

    async def sources(self, pod: Object, container: Container, *, address: str, host_address: str) -> Sources:
        """All that the container's environment refers to."""
        wanted = set(references(container.environment, container.environment_from))
        found = await asyncio.gather(*(self._texts(kind, name) for kind, name in sorted(wanted)))
        by_kind: dict[str, dict[str, Mapping[str, str]]] = {"ConfigMap": {}, "Secret": {}}
        for (kind, name), texts in zip(sorted(wanted), found, strict=True):
            if texts is not None:
                by_kind[kind][name] = texts
        return Sources(
            config_maps=by_kind["ConfigMap"],
            secrets=by_kind["Secret"],
            fields=pod_fields(pod, address=address, host_address=host_address),
            labels=pod["metadata"].get("labels", {}),
            annotations=pod["metadata"].get("annotations", {}),
        )

    async def _texts(self, kind: str, name: str) -> Mapping[str, str] | None:
        data = await (self.config_map(name) if kind == "ConfigMap" else self.secret(name))
        return None if data is None else dict(_as_text(data.items()))

    async def _get(self, plural: str, name: str) -> Object | None:
        try:
            return await self._api.get(build_path(plural, namespace=self._workload.namespace, name=name))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def _request_token(self, audience: str, seconds: int) -> str:
        pod = self._workload
        bound_to = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound_to}
        path = build_path("serviceaccounts", namespace=pod.namespace, name=pod.service_account, subresource="token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        text: str = (await self._api.create(path, body))["status"]["token"]
        return text


def _as_text(items: Iterable[tuple[str, bytes]]) -> Iterable[tuple[str, str]]:
    """Values as environment variables can hold them; a kubelet passes other bytes on, we replace them."""
    return ((key, value.decode(errors="replace")) for key, value in items)
