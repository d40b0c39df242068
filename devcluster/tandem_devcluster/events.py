"""Writes the events that `kubectl describe pod` shows.

It decides nothing. An event is a courtesy: when it cannot be written, that is logged and the pod goes on.
"""

import asyncio
import logging
import secrets

import aiohttp

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.errors import ApiError
from tandem_devcluster.moments import now_seconds
from tandem_devcluster.workload import Workload

_log = logging.getLogger(__name__)


class PodEvents:
    """Events about one pod, from one node. Writing goes on in the background."""

    def __init__(self, api: Api, workload: Workload, node: str) -> None:
        self._api = api
        self._workload = workload
        self._node = node
        self._writing: set[asyncio.Task[None]] = set()

    def normal(self, reason: str, message: str) -> None:
        self._begin("Normal", reason, message)

    def warning(self, reason: str, message: str) -> None:
        self._begin("Warning", reason, message)

    def _begin(self, kind: str, reason: str, message: str) -> None:
        task = asyncio.create_task(self._write(kind, reason, message))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, kind: str, reason: str, message: str) -> None:
        pod, now = self._workload, now_seconds()
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        event = {
            "metadata": {"name": f"{pod.name}.{secrets.token_hex(6)}", "namespace": pod.namespace},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "process-node", "host": self._node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(build_path("events", namespace=pod.namespace), event)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.info("event %s of %s/%s not written: %s", reason, pod.namespace, pod.name, error)
