"""Writes the events that `kubectl describe pod` shows.

It decides nothing. An event is a courtesy: when it cannot be written, that is logged and the pod goes on.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass

import aiohttp

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.errors import ApiError
from tandem_devcluster.moments import now_seconds
from tandem_devcluster.workload import Workload

_log = logging.getLogger(__name__)

_NOT_FOUND = 404


@dataclass(slots=True)
class _Written:
    """An event that is in the cluster already, and how often it has happened."""

    name: str
    count: int


class PodEvents:
    """Events about one pod, from one node. Writing goes on in the background; what repeats is counted, not repeated."""

    def __init__(self, api: Api, workload: Workload, node: str) -> None:
        self._api = api
        self._workload = workload
        self._node = node
        self._writing: set[asyncio.Task[None]] = set()
        self._written: dict[tuple[str, str], _Written] = {}
        self._in_order = asyncio.Lock()

    def normal(self, reason: str, message: str) -> None:
        self._begin("Normal", reason, message)

    def warning(self, reason: str, message: str) -> None:
        self._begin("Warning", reason, message)

    def _begin(self, kind: str, reason: str, message: str) -> None:
        task = asyncio.create_task(self._write(kind, reason, message))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, kind: str, reason: str, message: str) -> None:
        try:
            async with self._in_order:
                known = self._written.get((reason, message))
                if known is None or not await self._count_again(known):
                    self._written[reason, message] = await self._create(kind, reason, message)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            pod = self._workload
            _log.info("event %s of %s/%s not written: %s", reason, pod.namespace, pod.name, error)

    async def _create(self, kind: str, reason: str, message: str) -> _Written:
        pod, now = self._workload, now_seconds()
        name = f"{pod.name}.{secrets.token_hex(6)}"
        event = {
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "process-node", "host": self._node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._api.create(build_path("events", namespace=pod.namespace), event)
        return _Written(name, 1)

    async def _count_again(self, known: _Written) -> bool:
        """Whether the event is still there; the API server forgets each after an hour."""
        known.count += 1
        path = build_path("events", namespace=self._workload.namespace, name=known.name)
        try:
            await self._api.patch(path, {"count": known.count, "lastTimestamp": now_seconds()})
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True
