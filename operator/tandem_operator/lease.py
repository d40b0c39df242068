"""Knows whether this process may write: it holds one Lease, or it must keep still.

Refuses to know what is written.

Safety rests on the monotonic clock of this process alone. A renewal that *started* at time t proves leadership until
t + `renew_deadline`; rivals take the Lease only after `duration` without a change that they saw themselves, and
renew_deadline < duration. So when renewals fail, this process stops (and exits) before anybody else may begin. Two
leaders that overlap all the same (a suspended machine) are harmless: every write is idempotent or under a
resourceVersion.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tandem_operator.domain.errors import ClusterError, Unavailable
from tandem_operator.domain.nested import mapping, text
from tandem_operator.ports import Clock, Cluster, Json, Key, Kind

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Which Lease, who we are, and the three times. retry < renew_deadline < duration."""

    namespace: str
    name: str
    identity: str
    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A foreign holder's Lease as first seen in this state, on our own clock."""

    version: str
    at: float


def lease_body(terms: LeaseTerms, now: datetime, *, previous: Json | None) -> Json:
    """The Lease with us as holder; under the previous one's resourceVersion where there is one."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {
        "holderIdentity": terms.identity,
        "leaseDurationSeconds": round(terms.duration_seconds),
        "renewTime": stamp,
        "acquireTime": _acquired(previous, terms.identity) or stamp,
    }
    metadata: dict[str, object] = {"namespace": terms.namespace, "name": terms.name}
    if previous is not None:
        metadata["resourceVersion"] = _version(previous)
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _version(lease: Json) -> str:
    return text(lease, "metadata", "resourceVersion")


def _holder(lease: Json | None) -> str:
    return text(lease, "spec", "holderIdentity")


def _acquired(previous: Json | None, identity: str) -> str:
    return text(previous, "spec", "acquireTime") if _holder(previous) == identity else ""


class Leadership:
    """Take the Lease, keep it, and say at any moment whether we still have it."""

    def __init__(self, cluster: Cluster, clock: Clock, terms: LeaseTerms) -> None:
        self._cluster = cluster
        self._clock = clock
        self._terms = terms
        self._proved_at: float | None = None
        self._rival: Sighting | None = None

    def held(self) -> bool:
        """The fence before every write."""
        return self.left_seconds() > 0

    def left_seconds(self) -> float:
        """Until the renew deadline; 0 where nothing proves that we lead."""
        if self._proved_at is None:
            return 0.0
        return max(0.0, self._proved_at + self._terms.renew_deadline_seconds - self._clock.monotonic())

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        while not await self.attempt():  # noqa: ASYNC110  nobody tells us when it is free
            await asyncio.sleep(self._terms.retry_seconds)
        log.info("lease acquired name=%s identity=%s", self._terms.name, self._terms.identity)

    async def keep(self, lost: Callable[[], None]) -> None:
        """Renew until cancelled; call `lost` at the renew deadline, or when somebody else holds the Lease.

        Also after a fault of our own: a process that renews nothing more would stand there, and write nothing.
        """
        try:
            while self.held():
                await asyncio.sleep(min(self._terms.retry_seconds, self.left_seconds()))
                await self.attempt()
        except Exception as error:
            log.error("lease not renewed error=%s: %s", type(error).__name__, error)
        log.error("lease lost name=%s identity=%s", self._terms.name, self._terms.identity)
        lost()

    async def release(self) -> None:
        """Let the next one begin at once: an expired holder with no name. Best effort, on the way out."""
        if not self.held():
            return
        self._proved_at = None
        try:
            previous = await self._cluster.get(Kind.LEASE, self._terms.namespace, self._terms.name)
            if previous is None or _holder(previous) != self._terms.identity:
                return
            body = {**previous, "spec": {**mapping(previous, "spec"), "holderIdentity": ""}}
            await self._cluster.replace(Kind.LEASE, body)
        except ClusterError as error:
            log.warning("lease not released error=%s", error)

    async def attempt(self) -> bool:
        """Take or renew once; False: somebody else has it, or the API did not answer.

        One try gets half of the deadline, so that a single answer that never comes costs no leadership, and none goes
        on past the deadline: `keep` ends then, whatever hangs.
        """
        began, half = self._clock.monotonic(), self._terms.renew_deadline_seconds / 2
        try:
            async with asyncio.timeout(min(half, self.left_seconds() or half)):
                ours = await self._take()
        except TimeoutError:
            log.warning("lease not renewed error=no answer in time")
            return False
        except ClusterError as error:
            log.warning("lease not renewed error=%s", error)
            return False
        self._proved_at = began if ours else None
        return ours

    async def _take(self) -> bool:
        previous = await self._cluster.get(Kind.LEASE, self._terms.namespace, self._terms.name)
        if previous is None:
            await self._cluster.create(Kind.LEASE, lease_body(self._terms, self._clock.now(), previous=None))
            return True
        if not self._may_take(previous):
            return False
        await self._cluster.replace(Kind.LEASE, lease_body(self._terms, self._clock.now(), previous=previous))
        return True

    def _may_take(self, lease: Json) -> bool:
        if _holder(lease) in ("", self._terms.identity):
            return True
        version = _version(lease)
        if self._rival is None or self._rival.version != version:
            self._rival = Sighting(version, self._clock.monotonic())
            return False
        return self._clock.monotonic() - self._rival.at >= self._terms.duration_seconds


class NotLeading(Unavailable):
    """A write was stopped at the fence: this process no longer proves that it holds the Lease."""


class Fenced:
    """`Cluster` that asks before every write whether we still lead; reads pass."""

    def __init__(self, cluster: Cluster, leadership: Leadership) -> None:
        self._cluster = cluster
        self._leadership = leadership
        self.get = cluster.get
        self.list = cluster.list

    async def create(self, kind: Kind, body: Json) -> Json:
        return await self._passed("create", kind).create(kind, body)

    async def apply(self, kind: Kind, body: Json) -> Json:
        return await self._passed("apply", kind).apply(kind, body)

    async def replace(self, kind: Kind, body: Json) -> Json:
        return await self._passed("replace", kind).replace(kind, body)

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        return await self._passed("replace status of", kind).replace_status(kind, body)

    async def annotate(self, kind: Kind, key: Key, annotations: Mapping[str, str | None]) -> Json:
        return await self._passed("annotate", kind).annotate(kind, key, annotations)

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        await self._passed("delete", kind).delete(kind, namespace, name, uid=uid)

    def _passed(self, verb: str, kind: Kind) -> Cluster:
        if not self._leadership.held():
            raise NotLeading(f"{verb} {kind}", "the lease is not proved to be ours; another replica may lead")
        return self._cluster
