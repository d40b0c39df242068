"""Knows the seams of the operator: what it may ask of a cluster, of the gateways, and of time.

Refuses to know who answers: the Kubernetes API and real gateways, or the in-memory ones of `testing.py`.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

Json: TypeAlias = Mapping[str, object]
"""An object as the API writes it; domain parsers turn it into types."""


class Kind(StrEnum):
    """The kinds that the operator reads or writes, by their singular name in the API."""

    SPECULATIVE_DEPLOYMENT = "SpeculativeDeployment"
    CONTROLLER_REVISION = "ControllerRevision"
    DEPLOYMENT = "Deployment"
    POD_DISRUPTION_BUDGET = "PodDisruptionBudget"
    POD = "Pod"
    NODE = "Node"
    SERVICE = "Service"
    SERVICE_ACCOUNT = "ServiceAccount"
    CONFIG_MAP = "ConfigMap"
    ROLE = "Role"
    ROLE_BINDING = "RoleBinding"
    LEASE = "Lease"
    EVENT = "Event"
    RULES_REVIEW = "SelfSubjectRulesReview"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which SpeculativeDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells of: an object, or a child of one, and its resourceVersion, which is "" once it is gone."""

    key: Key
    kind: Kind
    name: str
    version: str


class Changes(Protocol):
    """The metadata of objects with a label whose value names the SpeculativeDeployment; raises only ClusterErrors."""

    async def list_changes(self, kind: Kind, namespace: str | None, *, label: str) -> tuple[tuple[Change, ...], str]:
        """All of them, and the version from which a watch goes on."""
        ...

    def watch_changes(
        self, kind: Kind, namespace: str | None, *, label: str, version: str
    ) -> AsyncGenerator[Change, None]:
        """What changes after that version, until the watch ends; what follows then is to be listed anew."""
        ...


class Cluster(Protocol):
    """The Kubernetes API as the operator uses it. Every call has a deadline and raises only ClusterErrors: Conflict
    (read again), Unavailable (again later), Forbidden (a right is missing), Refused (the object is invalid)."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """None: there is no such object."""
        ...

    async def list(self, kind: Kind, namespace: str | None, *, labels: Mapping[str, str]) -> tuple[Json, ...]:
        """All objects with these labels, in order of name; of nodes their metadata alone."""
        ...

    async def create(self, kind: Kind, body: Json) -> Json:
        """Not idempotent: an object that exists is a Conflict."""
        ...

    async def apply(self, kind: Kind, body: Json) -> Json:
        """Server-side apply under the operator's own field manager. Idempotent."""
        ...

    async def replace(self, kind: Kind, body: Json) -> Json:
        """Whole object under its resourceVersion; somebody else's write in between is a Conflict."""
        ...

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        """The status subresource under the resourceVersion in `body`."""
        ...

    async def annotate(self, kind: Kind, key: Key, annotations: Mapping[str, str | None]) -> Json:
        """Merge annotations; None removes one. Idempotent."""
        ...

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        """Idempotent: an object that is gone is fine; with `uid`, another object of that name is left alone."""
        ...


@dataclass(frozen=True, slots=True)
class Pressure:
    """What an engine says of its memory: bytes that cannot be dropped, KV cache in use, sequences pushed out lately."""

    working_set_bytes: int
    kv_basis_points: int
    preempting: bool


class Telemetry(Protocol):
    """What the running pods say of themselves."""

    async def evidence(self, address: str) -> bytes | None:
        """`/internal/evidence` of the gateway at this pod IP, as it came; None: no answer within the deadline."""
        ...

    async def pressure(self, address: str) -> Pressure | None:
        """`/internal/memory` of the engine at this pod IP; None: no answer within the deadline."""
        ...

    async def adapters(self, address: str) -> Mapping[str, str] | None:
        """The digests of the adapters that the target at this pod IP was told to load, by content; None: no answer."""
        ...

    async def load_adapter(self, address: str, content: str, source: Mapping[str, str]) -> str | None:
        """Have the target load what lies at `source` (uri, revision, digest); what it said where it did not, else None.
        Takes as long as the target needs to read it. Idempotent."""
        ...

    async def unload_adapter(self, address: str, content: str) -> str | None:
        """Have the target let it go; likewise. Idempotent."""
        ...


class Metrics(Protocol):
    """Where the user's own metrics are."""

    async def ask(self, query: str) -> bytes:
        """The answer to a PromQL query at this moment, as it came; raises ProviderError where none came in time."""
        ...


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time in UTC: what statuses and windows are made of."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: what leases and back-offs are made of."""
        ...
