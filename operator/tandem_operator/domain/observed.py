"""Knows what one look at the world is made of: `Observed`, a frozen picture from which everything is decided.

Refuses to know how it was fetched and what follows from it. Absent is None, never a guess; `now` is a field, so that a
recorded picture gives the same decision on a laptop: `load(dump(seen)) == seen`. Children are kept as the API server
gave them (without managedFields), and read here through small views; pods are read at once, since they are many.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol, TypeVar

from tandem_operator.domain import progress, record
from tandem_operator.domain.manifests import REVISIONS_KEY
from tandem_operator.domain.nested import items, mapping, number, text, texts
from tandem_operator.domain.progress import Progress
from tandem_operator.domain.readings import Reading
from tandem_operator.domain.record import Moment
from tandem_operator.domain.revision import Edition, Revision, RevisionName, Role, RoleHash, content_of
from tandem_operator.domain.samples import Document, Scrape
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.domain.spec import DraftMethod

Found = TypeVar("Found")

MUTE_AFTER = timedelta(seconds=30)
"""A gateway that is ready and does not answer the operator for so long is mute, and replaced where another answers."""

NO_ANSWER = "NoAnswer"
"""The reason of `GatewayReady` where gateways are mute; its message begins with their names and a colon."""

GROUP = "tandem.dev"
LABEL_DEPLOYMENT = f"{GROUP}/deployment"
LABEL_ROLE = f"{GROUP}/role"
LABEL_ROLE_HASH = f"{GROUP}/role-hash"
ANNOTATION_VERDICT = f"{GROUP}/verdict"
ANNOTATION_REASON = f"{GROUP}/reason"
ANNOTATION_STABLE_SINCE = f"{GROUP}/stable-since"
ANNOTATION_MADE_STABLE_BY = f"{GROUP}/made-stable-by"
ANNOTATION_RECORD = f"{GROUP}/record"
ANNOTATION_METHOD = f"{GROUP}/draft-method"
ANNOTATION_CHANGED_AT = f"{GROUP}/changed-at"
ANNOTATION_ADAPTERS = f"{GROUP}/adapters"
ANNOTATION_TOKENIZER = f"{GROUP}/tokenizer"


class RevisionVerdict(StrEnum):
    """What is known of a pair: GOOD was promoted and stayed, BAD failed its analysis or was rolled back for cause."""

    UNKNOWN = "Unknown"
    GOOD = "Good"
    BAD = "Bad"


class MadeStableBy(StrEnum):
    """How a revision came to serve everybody; one that a rollback brought back is not rolled back by an alert."""

    FIRST_ROLLOUT = "FirstRollout"
    PROMOTION = "Promotion"
    ROLLBACK = "Rollback"
    ALERT = "Alert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The SpeculativeDeployment itself; `spec` and `status` as the API server holds them."""

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    status: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Child:
    """One child object but pods: `body` is the whole object without managedFields."""

    body: Mapping[str, object]

    @property
    def kind(self) -> str:
        return text(self.body, "kind")

    @property
    def name(self) -> str:
        return text(self.body, "metadata", "name")

    @property
    def annotations(self) -> Mapping[str, str]:
        return texts(self.body, "metadata", "annotations")

    @property
    def labels(self) -> Mapping[str, str]:
        return texts(self.body, "metadata", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment: `wanted` replicas in its spec, `total` pods, `updated` ones of its newest template, `ready` of all.

    `settled`: the Deployment's controller has seen its newest generation and every pod is of it.
    """

    name: str
    role: Role
    role_hash: str | None
    wanted: int
    total: int
    updated: int
    ready: int
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The termination message of a `fetch` container: digests of model and tokenizer, or the error.

    `taught_by` is the digest of the target that a draft's own manifest names.
    """

    digest: str | None = None
    tokenizer: str | None = None
    commit: str | None = None
    taught_by: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of ours; `waiting_reason` is a container's (ImagePullBackOff), `unschedulable` the scheduler's words.

    `gone_by` is the end of the grace of one that leaves. `memory_basis_points` is the engine container's working set in
    its limit, `kv_basis_points` the use of its KV cache, `preempting` whether sequences were pushed out lately; each
    None where nobody measured. `adapters` are the digests of what it was told to load, by content, and `adapter_faults`
    says why it did not load some; None where it was not asked, or did not answer.
    """

    name: str
    uid: str
    role: Role
    role_hash: str | None = None
    phase: str
    ready: bool = False
    leaving: bool = False
    gone_by: Moment | None = None
    restarts: int = 0
    started_at: Moment | None = None
    waiting_reason: str | None = None
    unschedulable: str | None = None
    unschedulable_since: Moment | None = None
    fetched: Fetched | None = None
    memory_basis_points: int | None = None
    kv_basis_points: int | None = None
    preempting: bool | None = None
    adapters: Mapping[str, str] | None = None
    adapter_faults: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapter:
    """An adapter of a stored revision: `content` stands for what it is made of, `digest` is that of what was loaded."""

    name: str
    content: str
    source: Mapping[str, str]
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRevision:
    """A ControllerRevision: the pair as it was rendered, and what was learned of it since.

    `name` is the short hash. The stable revision is the one with the latest `stable_since`, so that moving the
    pointer is one write of one annotation; the one before it is what a rollback returns to. `method` is how its draft
    proposed last, kept where it has no pods: the spec may change that without another revision. `tokenizer` is the
    digest that the first pod of its target reported.
    """

    name: str
    number: int
    pair: Revision
    data: Mapping[str, object] = field(default_factory=dict)
    verdict: RevisionVerdict = RevisionVerdict.UNKNOWN
    reason: str = ""
    stable_since: datetime | None = None
    made_stable_by: MadeStableBy | None = None
    record: Mapping[str, object] | None = None
    method: DraftMethod | None = None
    adapters: tuple[StoredAdapter, ...] = ()
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node's name and labels, where the operator may read nodes."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One look at one object and its children.

    `scrape` is what the gateways answered now, `baseline` what they had answered when the breaker's window began; it is
    None until the operator has watched that long. `nodes` is None where it may not read them. `terms` are the
    operator's settings, as far as decisions rest on them. `readings` are what Prometheus answered, where it was asked.
    `lacking_fields` are those that the served definition of the resource has not.
    `silent` says of each ready gateway that did not answer since when it has not, as far as the operator has watched;
    `unheard` are those that have not answered it once.
    """

    now: Moment
    resource: Resource
    terms: OperatorTerms
    children: tuple[Child, ...] = ()
    pods: tuple[Pod, ...] = ()
    scrape: Scrape | None = None
    baseline: Scrape | None = None
    nodes: tuple[Node, ...] | None = None
    readings: tuple[Reading, ...] = ()
    lacking_fields: tuple[str, ...] = ()
    silent: Mapping[str, Moment] = field(default_factory=dict)
    unheard: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> Iterator[Child]:
        return (child for child in self.children if child.kind == kind)

    def child(self, kind: str, name: str) -> Child | None:
        return next((child for child in self.of_kind(kind) if child.name == name), None)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """One whose role label was damaged counts as none until it is written again."""
        known = (child for child in self.of_kind("Deployment") if child.labels.get(LABEL_ROLE) in set(Role))
        return tuple(read_workload(child) for child in known)

    def workload(self, role: Role, role_hash: str | None) -> Workload | None:
        wanted = (role, role_hash)
        named = ((child, child.labels) for child in self.of_kind("Deployment"))
        found = (child for child, labels in named if (labels.get(LABEL_ROLE), labels.get(LABEL_ROLE_HASH)) == wanted)
        return next(map(read_workload, found), None)

    @property
    def records(self) -> tuple[Child, ...]:
        """The ControllerRevisions, and in place of one that was deleted while it is in use its second copy."""
        stored = tuple(self.of_kind("ControllerRevision"))
        names = {child.name for child in stored}
        copies = map(Child, items(self.config("revisions", REVISIONS_KEY), "revisions"))
        return (*stored, *(copy for copy in copies if copy.name not in names))

    @property
    def revisions(self) -> tuple[StoredRevision, ...]:
        """Oldest first."""
        prefix = f"{self.resource.name}-"
        stored = (read_revision(child, prefix) for child in self.records)
        return tuple(sorted(stored, key=lambda revision: revision.number))

    @property
    def pointed(self) -> tuple[StoredRevision, ...]:
        """The revisions that were made stable, in the order in which they last were."""
        held = (revision for revision in self.revisions if revision.stable_since is not None)
        return tuple(sorted(held, key=lambda revision: (revision.stable_since, revision.number)))

    @property
    def progress(self) -> Progress:
        """What status remembers; nothing, where it was dropped or damaged: what serves is not kept there."""
        try:
            return progress.read(self.resource.status) or Progress()
        except record.RecordError:
            return Progress()

    def config_text(self, suffix: str, key: str) -> str:
        """What lies under `key` of the ConfigMap `<name>-<suffix>`; "" where there is none."""
        child = self.child("ConfigMap", f"{self.resource.name}-{suffix}")
        return "" if child is None else text(child.body, "data", key)

    def config(self, suffix: str, key: str) -> object:
        """The JSON there; None where there is none, or somebody broke it."""
        found = self.config_text(suffix, key)
        try:
            return json.loads(found) if found else None
        except ValueError:
            return None

    @property
    def policy_since(self) -> datetime | None:
        """Since when the policy in force has been; None where there is none, or somebody broke its date."""
        child = self.child("ConfigMap", f"{self.resource.name}-policy")
        return None if child is None else _mark(child.annotations, ANNOTATION_CHANGED_AT, record.load_moment)

    @property
    def documents(self) -> Mapping[str, Document]:
        return {} if self.scrape is None else self.scrape.documents

    def follows(self, gateway: Pod, policy: int) -> bool:
        """Whether a gateway says that it has heard of this policy or a later one."""
        document = self.documents.get(gateway.name)
        return document is not None and document.policy >= policy

    def behind(self, policy: int) -> tuple[Pod, ...]:
        """The ready gateways that do not say that they have heard of this policy, by name."""
        late = (pod for pod in self.of_role(Role.GATEWAY) if pod.ready and not self.follows(pod, policy))
        return tuple(sorted(late, key=lambda pod: pod.name))

    def mute(self) -> tuple[str, ...]:
        """The gateways that have not answered for so long that it is no single look that went wrong.

        An operator that was started anew has watched for less: whom status names as mute, and who is, was so before.
        """
        told = self._told_mute
        return tuple(
            sorted(name for name, since in self.silent.items() if self.now - since >= MUTE_AFTER or name in told)
        )

    @property
    def _told_mute(self) -> Sequence[str]:
        found = (item for item in items(self.resource.status, "conditions") if text(item, "reason") == NO_ANSWER)
        return [name for item in found for name in text(item, "message").partition(":")[0].split(", ")]

    def of_role(self, role: Role) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if pod.role is role and not pod.leaving)


def dump(seen: Observed) -> dict[str, object]:
    """The recording of a look, as JSON."""
    recorded: dict[str, object] = record.dump(seen)
    return recorded


def load(recorded: object) -> Observed:
    """The look that was recorded; raises RecordError."""
    return record.load(Observed, recorded)


def read_workload(child: Child) -> Workload:
    """A Deployment's counts; until its controller has seen the newest generation, nothing counts as updated."""
    body, labels = child.body, child.labels
    wanted, seen = number(body, "spec", "replicas", default=1), number(body, "status", "observedGeneration")
    total, updated = number(body, "status", "replicas"), number(body, "status", "updatedReplicas")
    current = seen >= number(body, "metadata", "generation")
    return Workload(
        name=child.name,
        role=Role(labels[LABEL_ROLE]),
        role_hash=labels.get(LABEL_ROLE_HASH),
        wanted=wanted,
        total=total,
        updated=updated if current else 0,
        ready=number(body, "status", "readyReplicas"),
        settled=current and total == updated,
    )


def read_revision(child: Child, prefix: str) -> StoredRevision:
    """A ControllerRevision, whose name is `prefix` and the revision's own. A damaged mark counts as none."""
    marks = child.annotations
    return StoredRevision(
        name=RevisionName(child.name.removeprefix(prefix)),
        number=number(child.body, "revision"),
        pair=_pair(child.body),
        data=mapping(child.body, "data"),
        verdict=_mark(marks, ANNOTATION_VERDICT, RevisionVerdict) or RevisionVerdict.UNKNOWN,
        reason=marks.get(ANNOTATION_REASON, ""),
        stable_since=_mark(marks, ANNOTATION_STABLE_SINCE, record.load_moment),
        made_stable_by=_mark(marks, ANNOTATION_MADE_STABLE_BY, MadeStableBy),
        record=_mark(marks, ANNOTATION_RECORD, json.loads),
        method=_mark(marks, ANNOTATION_METHOD, DraftMethod),
        adapters=_adapters(child.body, _mark(marks, ANNOTATION_ADAPTERS, json.loads)),
        tokenizer=marks.get(ANNOTATION_TOKENIZER) or None,
    )


def _adapters(body: Mapping[str, object], noted: object) -> tuple[StoredAdapter, ...]:
    """`noted` are the digests by content. What the user pinned needs no note."""
    found = []
    for values in items(body, "data", "values", "adapters"):
        source, content = texts(values), content_of(values)
        digest = source.get("digest") or text(noted, content) or None
        kept = {name: value for name, value in source.items() if name != "name"}
        found.append(StoredAdapter(name=text(values, "name"), content=content, source=kept, digest=digest))
    return tuple(found)


def _mark(marks: Mapping[str, str], name: str, read: Callable[[str], Found]) -> Found | None:
    try:
        return read(marks[name])
    except (KeyError, ValueError):
        return None


def _pair(body: Mapping[str, object]) -> Revision:
    draft = text(body, "data", "draft")
    return Revision(
        target=RoleHash(text(body, "data", "target")),
        draft=RoleHash(draft) if draft else None,
        adapters=RoleHash(text(body, "data", "adapters")),
        edition=Edition(**{role: number(body, "data", "edition", role) for role in Role}),
    )


def read_pod(body: Mapping[str, object]) -> Pod:
    """A pod as the API server gives it; what only metrics know stays None."""
    labels, status = texts(body, "metadata", "labels"), mapping(body, "status")
    unplaced = _condition(status, "PodScheduled", "False")
    return Pod(
        name=text(body, "metadata", "name"),
        uid=text(body, "metadata", "uid"),
        role=Role(labels[LABEL_ROLE]),
        role_hash=labels.get(LABEL_ROLE_HASH),
        phase=text(status, "phase"),
        ready=_condition(status, "Ready", "True") is not None,
        leaving=bool(text(body, "metadata", "deletionTimestamp")),
        gone_by=moment(body, "metadata", "deletionTimestamp"),
        restarts=sum(number(item, "restartCount") for item in items(status, "containerStatuses")),
        started_at=moment(status, "startTime"),
        waiting_reason=_waiting(status),
        unschedulable=None if unplaced is None else text(unplaced, "message"),
        unschedulable_since=None if unplaced is None else moment(unplaced, "lastTransitionTime"),
        fetched=_fetched(status),
    )


def owner_uids(body: Mapping[str, object]) -> tuple[str, ...]:
    """Who owns an object of the API."""
    return tuple(text(owner, "uid") for owner in items(body, "metadata", "ownerReferences"))


class Dated(Protocol):
    """A scrape, in whichever form it is kept."""

    @property
    def at(self) -> datetime: ...


DatedT = TypeVar("DatedT", bound=Dated)


def newest_before(kept: Iterable[DatedT], moment_before: datetime) -> DatedT | None:
    """The newest of the kept scrapes from `moment_before` or earlier: the baseline of a window that starts there."""
    old = (scrape for scrape in kept if scrape.at <= moment_before)
    return max(old, key=lambda scrape: scrape.at, default=None)


def _condition(status: Mapping[str, object], kind: str, value: str) -> Mapping[str, object] | None:
    matching = (item for item in items(status, "conditions") if text(item, "type") == kind)
    return next((item for item in matching if text(item, "status") == value), None)


def _waiting(status: Mapping[str, object]) -> str | None:
    all_items = (*items(status, "initContainerStatuses"), *items(status, "containerStatuses"))
    reasons = (text(item, "state", "waiting", "reason") for item in all_items)
    return next((reason for reason in reasons if reason not in ("", "PodInitializing", "ContainerCreating")), None)


def _fetched(status: Mapping[str, object]) -> Fetched | None:
    for item in items(status, "initContainerStatuses"):
        if text(item, "name") == "fetch":
            last = text(item, "lastState", "terminated", "message")
            return _read_fetched(text(item, "state", "terminated", "message") or last)
    return None


def _read_fetched(message: str) -> Fetched | None:
    """A message that is no JSON was cut or written by somebody else: it is the error, in the container's own words."""
    if not message:
        return None
    try:
        return record.read(Fetched, message)
    except ValueError:
        return Fetched(error=message)


def moment(body: object, *path: str) -> datetime | None:
    """The moment at a path, None where there is none."""
    found = text(body, *path)
    return record.load_moment(found) if found else None
