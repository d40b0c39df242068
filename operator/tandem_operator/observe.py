"""Knows how to fill an `Observed`: which objects are read, and what pods are asked, all at once, each with a deadline.

Refuses to know what follows from it; it only reads. What may not be read, or does not answer, is None.
"""

import asyncio
import json
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tandem_operator.definition import Definition
from tandem_operator.domain import queries, readings, record
from tandem_operator.domain.errors import Forbidden, ProviderError
from tandem_operator.domain.nested import held, items, mapping, number, text, texts
from tandem_operator.domain.observed import (
    LABEL_DEPLOYMENT,
    Child,
    Node,
    Observed,
    Pod,
    Resource,
    newest_before,
    owner_uids,
    read_pod,
)
from tandem_operator.domain.quantity import amount
from tandem_operator.domain.revision import NOTHING, Role
from tandem_operator.domain.samples import Document, Scrape
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.loads import Loads
from tandem_operator.ports import Clock, Cluster, Json, Key, Kind, Metrics, Telemetry
from tandem_operator.steady import Found, Steady, without_managed_fields

CHILD_KINDS = (
    Kind.CONTROLLER_REVISION,
    Kind.DEPLOYMENT,
    Kind.POD_DISRUPTION_BUDGET,
    Kind.SERVICE,
    Kind.SERVICE_ACCOUNT,
    Kind.CONFIG_MAP,
    Kind.ROLE,
    Kind.ROLE_BINDING,
)
MOST_SCRAPES = 60
"""Per object and window: a baseline is then older than asked for by a sixtieth of the window at most."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedScrape:
    """An earlier scrape. It is packed, and without slots, which a window takes from the newest answer: a document with
    its buckets takes a hundred kilobytes per gateway and revision as it is, and three so."""

    at: datetime
    packed: bytes

    @classmethod
    def of(cls, scrape: Scrape) -> "PackedScrape":
        documents = {pod: replace(document, slots=()) for pod, document in scrape.documents.items()}
        text = json.dumps(record.dump(replace(scrape, documents=documents)))
        return cls(scrape.at, zlib.compress(text.encode(), level=1))

    def scrape(self) -> Scrape:
        return record.read(Scrape, zlib.decompress(self.packed))


@dataclass(slots=True)
class ScrapeHistory:
    """Earlier scrapes, in memory only: after a restart the breaker's window fills anew, which only makes it wait."""

    _kept: dict[Key, deque[PackedScrape]] = field(default_factory=dict)
    _silent: dict[Key, Mapping[str, datetime]] = field(default_factory=dict)
    _heard: dict[Key, frozenset[str]] = field(default_factory=dict)

    def add(self, key: Key, scrape: Scrape, window: timedelta) -> None:
        """Remember `scrape` unless one is kept from just before, and forget what the window cannot reach, but for one
        older scrape as its baseline."""
        kept = self._kept.setdefault(key, deque())
        if not kept or scrape.at - kept[-1].at >= window / MOST_SCRAPES:
            kept.append(PackedScrape.of(scrape))
        while len(kept) > 1 and kept[1].at <= scrape.at - window:
            kept.popleft()

    def baseline(self, key: Key, moment: datetime) -> Scrape | None:
        """Where a window that starts at `moment` begins to count."""
        found = newest_before(self._kept.get(key, ()), moment)
        return None if found is None else found.scrape()

    def silent(self, key: Key, scrape: Scrape, ready: Iterable[str]) -> Mapping[str, datetime]:
        """Since which look each of the ready gateways has not answered; those that do are not named."""
        before = self._silent.pop(key, {})
        found = {name: before.get(name, scrape.at) for name in ready if name not in scrape.documents}
        if found:
            self._silent[key] = found
        return found

    def unheard(self, key: Key, scrape: Scrape, gateways: Iterable[str]) -> tuple[str, ...]:
        """The gateways that have never answered yet."""
        there = frozenset(gateways)
        heard = self._heard[key] = (self._heard.get(key, frozenset()) | scrape.documents.keys()) & there
        return tuple(sorted(there - heard))

    def forget(self, key: Key) -> None:
        self._kept.pop(key, None)
        self._silent.pop(key, None)
        self._heard.pop(key, None)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a look comes from, and the settings that decisions rest on.

    `loads` are what pods are being told of adapters; `steady` remembers objects at rest, `definition` what the served
    one lacks. `metrics` is None without a Prometheus; `keep` gets each look that reads everything, to record it.
    """

    cluster: Cluster
    telemetry: Telemetry
    clock: Clock
    terms: OperatorTerms
    history: ScrapeHistory = field(default_factory=ScrapeHistory)
    loads: Loads = field(default_factory=Loads)
    steady: Steady = field(default_factory=Steady)
    definition: Definition = field(default_factory=Definition)
    metrics: Metrics | None = None
    keep: Callable[[Observed], None] = lambda _: None


async def find(resource: Json, cluster: Cluster) -> Found:
    """Everything that the API server holds of `resource` (its body as just read)."""
    namespace, labels = text(resource, "metadata", "namespace"), {LABEL_DEPLOYMENT: text(resource, "metadata", "name")}
    listings = [cluster.list(kind, namespace, labels=labels) for kind in (*CHILD_KINDS, Kind.POD)]
    nodes, (*listed, pods) = await asyncio.gather(_nodes(cluster), asyncio.gather(*listings))
    children = children_of(text(resource, "metadata", "uid"), [body for found in listed for body in found])
    deployments = {text(body, "metadata", "name") for body in children if text(body, "kind") == Kind.DEPLOYMENT}
    return Found(
        resource=without_managed_fields(resource),
        children=children,
        pods=tuple(_what_counts(body) for body in pods if _made_by(deployments, body)),
        nodes=nodes,
    )


async def observe(found: Found, sources: Sources, *, window: timedelta) -> Observed:
    """One look: what was found, and what pods, and Prometheus, say now. `window` is the breaker's."""
    resource = read_resource(found.resource)
    key, now = Key(resource.namespace, resource.name), sources.clock.now()
    bodies = {text(body, "metadata", "uid"): body for body in found.pods}
    pods, children = tuple(map(read_pod, bodies.values())), tuple(map(Child, found.children))
    held = Observed(
        now=now,
        resource=resource,
        terms=sources.terms,
        children=children,
        pods=pods,
        nodes=found.nodes,
        lacking_fields=sources.definition.lacking,
    )
    scrape, pressed, answered = await asyncio.gather(
        _scrape(pods, bodies, sources.telemetry, now),
        asyncio.gather(*(_asked(key, pod, bodies[pod.uid], sources, adapted=_has_adapters(held)) for pod in pods)),
        asyncio.gather(*(_reading(query, sources.metrics) for query in queries.due(held))),
    )
    baseline = sources.history.baseline(key, now - window)
    sources.history.add(key, scrape, window)
    silent = sources.history.silent(key, scrape, (pod.name for pod in held.of_role(Role.GATEWAY) if pod.ready))
    unheard = sources.history.unheard(key, scrape, (pod.name for pod in held.of_role(Role.GATEWAY)))
    seen = replace(held, pods=tuple(pressed), scrape=scrape, baseline=baseline, silent=silent, unheard=unheard)
    return replace(seen, readings=tuple(answered))


async def _reading(query: queries.Query, metrics: Metrics | None) -> readings.Reading:
    return replace(await _answer(query, metrics), query=query.written)


async def _answer(query: queries.Query, metrics: Metrics | None) -> readings.Reading:
    if metrics is None:
        return readings.provider_error(query.name, "the operator has no Prometheus: set the chart's prometheus.url")
    try:
        return readings.read(query.name, await metrics.ask(query.promql))
    except ProviderError as error:
        return readings.provider_error(query.name, str(error))


def read_resource(body: Json) -> Resource:
    return Resource(
        name=text(body, "metadata", "name"),
        namespace=text(body, "metadata", "namespace"),
        uid=text(body, "metadata", "uid"),
        generation=number(body, "metadata", "generation"),
        annotations=texts(body, "metadata", "annotations"),
        spec=mapping(body, "spec"),
        status=mapping(body, "status"),
    )


def children_of(uid: str, bodies: list[Json]) -> tuple[Json, ...]:
    """Those that name the resource as their owner; another's object under our label is not ours."""
    return tuple(without_managed_fields(body) for body in bodies if uid in owner_uids(body))


def _made_by(deployments: set[str], pod: Json) -> bool:
    """Whether a Deployment of ours made the pod, by way of its ReplicaSet; anybody can put our label on a pod."""
    makers = [text(owner, "name") for owner in items(pod, "metadata", "ownerReferences")]
    template = texts(pod, "metadata", "labels").get("pod-template-hash")
    return any(f"{name}-{template}" in makers for name in deployments)


def _what_counts(pod: Json) -> Json:
    """A pod without what no decision rests on; most of its spec is the template's."""
    containers = [
        {name: held(body, name) for name in ("name", "resources")} for body in items(pod, "spec", "containers")
    ]
    return {**without_managed_fields(pod), "spec": {"containers": containers}}


async def _scrape(pods: tuple[Pod, ...], bodies: Mapping[str, Json], telemetry: Telemetry, now: datetime) -> Scrape:
    gateways = [pod for pod in pods if pod.role is Role.GATEWAY and text(bodies[pod.uid], "status", "podIP")]
    raw = await asyncio.gather(*(telemetry.evidence(text(bodies[pod.uid], "status", "podIP")) for pod in gateways))
    read = {pod.name: _document(pod.name, answer) for pod, answer in zip(gateways, raw, strict=True)}
    return Scrape(now, {name: document for name, document in read.items() if document is not None})


def _document(pod: str, answer: bytes | None) -> Document | None:
    if answer is None:
        return None
    try:
        return record.read(Document, answer)
    except record.RecordError as error:
        # Evidence of another version counts as no answer: it neither promotes nor fails anything.
        log.warning("evidence cannot be read pod=%s error=%s", pod, error)
        return None


def _has_adapters(seen: Observed) -> bool:
    """Whether target pods may hold any: those of a revision that is over are let go too."""
    return any(stored.pair.adapters not in ("", NOTHING) for stored in seen.revisions)


def addresses(pods: Iterable[Json]) -> Mapping[str, str]:
    """Pod IPs by uid."""
    return {text(body, "metadata", "uid"): text(body, "status", "podIP") for body in pods}


async def _asked(key: Key, pod: Pod, body: Json, sources: Sources, *, adapted: bool) -> Pod:
    """The pod with what it says of itself."""
    pressed = await _with_pressure(pod, body, sources.telemetry)
    if not adapted or pod.role is not Role.TARGET or not pod.ready:
        return pressed
    held = await sources.telemetry.adapters(text(body, "status", "podIP"))
    return replace(pressed, adapters=held, adapter_faults=sources.loads.faults(key, pod.uid) or None)


async def _with_pressure(pod: Pod, body: Json, telemetry: Telemetry) -> Pod:
    address = text(body, "status", "podIP")
    if pod.role is Role.GATEWAY or not pod.ready or not address:
        return pod
    pressure = await telemetry.pressure(address)
    if pressure is None:
        return pod
    limit = memory_limit(body)
    share = None if limit is None else pressure.working_set_bytes * 10000 // limit
    kv, preempting = pressure.kv_basis_points, pressure.preempting
    return replace(pod, memory_basis_points=share, kv_basis_points=kv, preempting=preempting)


def memory_limit(pod: Json) -> int | None:
    """Bytes that the engine container may use; None where it has no limit, which a limit of 0 also says."""
    for container in items(pod, "spec", "containers"):
        limit = held(container, "resources", "limits", "memory")
        if text(container, "name") == "engine" and isinstance(limit, str):
            return int(amount(limit)) or None
    return None


async def _nodes(cluster: Cluster) -> tuple[Node, ...] | None:
    try:
        bodies = await cluster.list(Kind.NODE, None, labels={})
    except Forbidden:
        return None
    return tuple(Node(text(body, "metadata", "name"), texts(body, "metadata", "labels")) for body in bodies)
