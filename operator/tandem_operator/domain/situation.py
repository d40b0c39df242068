"""Knows how a look reads: which revision is stable, which one the spec means, what is ready, and what was decided so
far.

Refuses to know rules. `Situation` is the look in the words of a decision; `Course` is what the rules make of it, one
after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tandem_operator.domain import gates
from tandem_operator.domain.decision import CheckResult, Event, GateResult, JsonObject, Mark, Weight
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.evidence import Evidence
from tandem_operator.domain.nested import items, number, text
from tandem_operator.domain.observed import Observed, RevisionVerdict, StoredRevision
from tandem_operator.domain.progress import Progress, Upgrade
from tandem_operator.domain.revision import Edition, Revision, RevisionName, Role, RoleHash, revision_of
from tandem_operator.domain.spec import DraftMethod, Spec, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One look at an object whose spec can be read.

    `current` is the revision that the spec means, in the edition that a command asked for (`upgrade`), or else in the
    one that served last (`served`); `refusal` is why it cannot be made. `policies` are the kept ones, newest first.
    `previous` is what a rollback would return to. `spec` is the one in force: that which was `given`, with earlier
    settings of speculation where its own were undone.
    """

    seen: Observed
    given: Spec
    spec: Spec
    served: Edition
    upgrade: Upgrade | None
    current: RevisionName
    current_pair: Revision
    refusal: str | None
    revisions: Mapping[str, StoredRevision]
    stable: StoredRevision | None
    previous: StoredRevision | None
    policies: Sequence[JsonObject]

    @property
    def next_policy(self) -> int:
        """The number of the next change; none comes twice.

        A policy that was deleted by hand still has its number at the gateways, and where these do not answer in status.
        Progress, which is kept before the policy that it rests on, may name the next one already.
        """
        told = [document.policy for document in self.seen.documents.values()]
        told.append(number(self.seen.resource.status, "gateway", "policy"))
        return max(*told, *(number(policy, "number") for policy in self.policies[:1]), self._known_policy - 1) + 1

    @property
    def _known_policy(self) -> int:
        held = self.seen.progress
        changes = (change.number for change in held.policies[:1])
        return max(held.breaker.first_policy, held.rollout.first_policy, held.hampered or 0, *changes)

    @property
    def policy_in_force(self) -> int:
        """The number of the newest policy; of the next one where there is none."""
        return number(self.policies[0], "number") if self.policies else self.next_policy

    @property
    def shares_in_force(self) -> Sequence[JsonObject]:
        """The revisions of the newest policy."""
        return items(self.policies[0], "revisions") if self.policies else ()

    @property
    def is_just_back(self) -> bool:
        """Whether stable had given way under the policy in force or the one before it, and could not do what it can.

        So it is with every policy that came while its pods were still coming up.
        """
        hampered = self.seen.progress.hampered
        if hampered is not None and self.policy_in_force <= hampered:
            return True
        told = (share for document in self.policies[:2] for share in items(document, "revisions"))
        return any(text(share, "name") == self.stable_name and share.get("speculate") is False for share in told)

    @property
    def is_whole(self) -> bool:
        """Whether stable has a target pod, and a draft pod where any is asked for: what had given way is back."""
        if self.stable is None or not self.ready(Role.TARGET, self.stable.pair.target):
            return False
        draft = self.stable.pair.draft
        return draft is None or not self.wanted(Role.DRAFT, draft) or self.ready(Role.DRAFT, draft) > 0

    @property
    def is_heard(self) -> bool:
        """Whether every ready gateway follows the newest policy."""
        ready = (pod for pod in self.seen.of_role(Role.GATEWAY) if pod.ready)
        return all(self.seen.follows(pod, self.policy_in_force) for pod in ready)

    def under(self, held: Progress) -> "Situation":
        """The same look with the settings of speculation and the edition that this progress has in force."""
        speculation = self.given.speculation if held.undone is None else held.undone.back_to.settings
        if (speculation, held.upgrade) == (self.spec.speculation, self.upgrade):
            return self
        pair = _meant(self.given, held.upgrade, self.served)
        spec = replace(self.given, speculation=speculation)
        meant = replace(self, spec=spec, upgrade=held.upgrade, current=pair.name, current_pair=pair)
        return replace(meant, refusal=_refusal(self.seen, spec, self.stable, pair))

    @property
    def next_number(self) -> int:
        """Of the next revision."""
        return max((revision.number for revision in self.revisions.values()), default=0) + 1

    def is_of_spec(self, stored: StoredRevision) -> bool:
        """Whether a stored revision is made of the spec's values, in whichever edition."""
        return revision_of(self.given, stored.pair.edition) == stored.pair

    @property
    def stable_name(self) -> str:
        return "" if self.stable is None else self.stable.name

    @property
    def tokenizers(self) -> Mapping[RoleHash, str]:
        """By target hash: what was noted of the first pod's. The oldest note counts."""
        held = sorted(self.revisions.values(), key=lambda stored: -stored.number)
        return {stored.pair.target: stored.tokenizer for stored in held if stored.tokenizer is not None}

    def pair(self, name: str) -> Revision | None:
        """The pair of a revision that is stored or that the spec means."""
        stored = self.revisions.get(name)
        if stored is not None:
            return stored.pair
        return self.current_pair if name == self.current else None

    def method(self, name: str) -> DraftMethod | None:
        """How the draft of a revision proposes; None where nobody knows it any more.

        What the spec says of it is said of the spec's own revision. Another one keeps what it served with: it is on its
        record, or, of one that an older operator made, in the last policy that it was in.
        """
        stored = self.revisions.get(name)
        if stored is None:
            return self.given.draft.method if name == self.current else None
        if stored.pair.draft is not None:
            return DraftMethod.MODEL
        return self.given.draft.method if self.is_of_spec(stored) else stored.method or self._told_method(name)

    def _told_method(self, name: str) -> DraftMethod | None:
        told = (share for policy in self.policies for share in items(policy, "revisions"))
        mine = next((share for share in told if text(share, "name") == name), {})
        return next((method for method in DraftMethod if mine.get("lookups") == [method]), None)

    def looks_up(self, name: str) -> bool:
        """Whether every gateway proposes for a revision by itself."""
        method = self.method(name)
        return method is not None and method.looks_up

    def proposes(self, name: str) -> bool:
        """Whether anything drafts for a revision."""
        pair = self.pair(name)
        return pair is not None and (pair.draft is not None or self.looks_up(name))

    def is_bad(self, name: str) -> bool:
        return name in self.revisions and self.revisions[name].verdict is RevisionVerdict.BAD

    def is_marked(self, name: str, annotations: Mapping[str, str]) -> bool:
        """Whether these annotations stand on a revision."""
        child = self.seen.child("ControllerRevision", f"{self.seen.resource.name}-{name}")
        return child is not None and annotations.items() <= child.annotations.items()

    def wanted(self, role: Role, role_hash: str | None) -> int:
        """Pods of a role hash that its Deployment asks for now."""
        workload = self.seen.workload(role, role_hash)
        return 0 if workload is None else workload.wanted

    def ready(self, role: Role, role_hash: RoleHash) -> int:
        """Ready pods of a role hash."""
        workload = self.seen.workload(role, role_hash)
        return 0 if workload is None else workload.ready

    def admitted(self, role: Role, role_hash: RoleHash, count: int) -> bool:
        """Whether every ready gateway says that it reaches `count` pods of a role hash; False without a gateway.

        None is ready while nothing serves: then those count that answer.
        """
        documents, known = self.seen.documents, self.seen.of_role(Role.GATEWAY)
        gateways = [pod.name for pod in known if pod.ready] or [pod.name for pod in known if pod.name in documents]
        if not gateways or any(name not in documents for name in gateways):
            return False
        reached = (documents[name].admitted for name in gateways)
        counts = ((one.targets if role is Role.TARGET else one.drafts).get(role_hash, 0) for one in reached)
        return all(held >= count for held in counts)


def read(seen: Observed) -> Situation:
    """The situation; raises SpecError when the spec cannot be read at all."""
    spec = parse(seen.resource.spec)
    revisions = {revision.name: revision for revision in seen.revisions}
    pointed = seen.pointed
    # The one that status names serves; where its record is gone, an older pointer says nothing of what serves now.
    served = text(seen.resource.status, "stableRevision")
    stable = pointed[-1] if pointed and served in ("", *revisions) else None
    edition = _served(spec, pointed)
    asked = seen.progress.upgrade
    pair = _meant(spec, asked, edition)
    return Situation(
        seen=seen,
        given=spec,
        spec=spec,
        served=edition,
        upgrade=asked,
        current=pair.name,
        current_pair=pair,
        refusal=_refusal(seen, spec, stable, pair),
        revisions=revisions,
        stable=stable,
        previous=_previous(pointed, seen.progress),
        policies=_policies(seen),
    )


def _meant(spec: Spec, asked: Upgrade | None, served: Edition) -> Revision:
    """In the edition that a command asked for, as long as the spec is the one that it was asked for."""
    if asked is not None and asked.of == revision_of(spec).name:
        return revision_of(spec, asked.edition)
    return revision_of(spec, served)


def _served(spec: Spec, pointed: Sequence[StoredRevision]) -> Edition:
    """Each role in the edition in which the spec's values of it served last; what never served is in its first.

    A draft that is edited leaves the target's pods alone, in whichever edition they are.
    """
    found = Edition()
    for stored in pointed:
        same, edition = revision_of(spec, stored.pair.edition), stored.pair.edition
        found = Edition(
            target=edition.target if same.target == stored.pair.target else found.target,
            draft=edition.draft if same.draft == stored.pair.draft else found.draft,
            gateway=edition.gateway if same == stored.pair else found.gateway,
        )
    return found


def _previous(pointed: Sequence[StoredRevision], progress: Progress) -> StoredRevision | None:
    """The one that served last before the stable one, unless it was taken back itself."""
    taken_back = {progress.refused, "" if progress.rolled_back is None else progress.rolled_back.revision}
    good = [held for held in pointed[:-1] if held.verdict is not RevisionVerdict.BAD and held.name not in taken_back]
    return good[-1] if good else None


def _refusal(seen: Observed, spec: Spec, stable: StoredRevision | None, wanted: Revision) -> str | None:
    try:
        gates.admit(spec, seen.terms.accelerators, seen.nodes)
        if seen.progress.rollout.revision != wanted.name:  # what is on its way has got its pods
            gates.admit_surge(spec.canary.surge, None if stable is None else stable.pair, wanted)
    except SpecError as refused:
        return str(refused)
    return None


def _policies(seen: Observed) -> Sequence[JsonObject]:
    return items(seen.config("policy", "history.json"), "policies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the rules made of a situation so far.

    `weighed` is the canary's evidence, to be saved first where `save` says so; `switch` is a command about speculation.
    """

    progress: Progress
    events: tuple[Event, ...] = ()
    marks: tuple[Mark, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    weighed: Evidence | None = None
    save: bool = False
    switch: bool | None = None
    stalled: GateResult | None = None

    def say(self, reason: str, note: str, weight: Weight = Weight.NORMAL, *, cause: str = "") -> "Course":
        return replace(self, events=(*self.events, Event(weight, reason, note, cause)))

    def warn(self, reason: str, note: str, *, cause: str = "") -> "Course":
        return self.say(reason, note, Weight.WARNING, cause=cause)

    def mark(self, revision: str, annotations: Mapping[str, str], why: str) -> "Course":
        return replace(self, marks=(*self.marks, Mark(revision, annotations, why)))

    def judge(self, revision: str, annotations: Mapping[str, str], why: str) -> "Course":
        """A mark that follows from what progress says: progress remembers it until it is written."""
        kept = {**self.progress.marks, revision: {**self.progress.marks.get(revision, {}), **annotations}}
        return replace(self.mark(revision, annotations, why), progress=replace(self.progress, marks=kept))
