"""Knows how the gateways' counters become the evidence of one canary: nothing lost, nothing counted twice.

Refuses to know thresholds and verdicts.

A gateway's sums belong to a boot and only grow, so the evidence of a boot is its newest sums, and the total is the sum
over boots; a look that is repeated, or an operator that restarts, changes nothing. What a gateway forgets after it was
read stays known here. A boot has *ended* when its pod is gone or reports another boot; its last sums go into `ended`,
once. Closed slots are listed by gateways for an hour only,
so they are added over gateways by (pod, slot, revision) and folded into sums up to a moment, `slots_until`. In an off
slot nobody speculates, so its unit is (pod, slot) over all revisions, kept under the target's hash; so is everybody's
time in on slots, which shows what a canary does to a stable that decodes plainly beside it. Stable's on slots count
where the canary decoded too (`together`), so that both are seen over the same time.

*First tokens* come as histograms, by bucket. Of them evidence keeps how many requests waited longer than an edge, the
90th percentile of stable's in the same stratum, which is chosen once, as soon as enough of stable's are known. So it is
with *stretches* of tokens, where somebody asks for them: their edge is so many times stable's 99th percentile.

All this lies in one document, the ConfigMap `<name>-evidence`. It is saved before a decision rests on it, and verdicts
are made from the saved document alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import add as sum_of
from operator import sub as difference_of
from typing import Annotated

from pydantic import Field

from tandem_operator.domain import record
from tandem_operator.domain.intervals import ERROR_RATIOS, PairSums, SlotSums, error_evidence
from tandem_operator.domain.readings import Reading
from tandem_operator.domain.record import Moment
from tandem_operator.domain.samples import (
    Arm,
    Buckets,
    Document,
    FirstTokens,
    Replayed,
    Scrape,
    Segment,
    Shadow,
    Slot,
    Stratum,
    Sums,
    Waits,
    has_grown,
    quantile,
)

SETTLING = timedelta(seconds=15)
"""After its end a slot is left alone this long, until every gateway has closed it."""
WAIT_FOR_SILENT_GATEWAYS = timedelta(seconds=120)
"""After this long a slot is taken as it is, though a gateway has not answered."""
ENOUGH_FOR_AN_EDGE = 50
"""First tokens of stable in a stratum, before its 90th percentile is taken."""
SLOWEST_SHARE = 0.1
ENOUGH_STRETCHES = 500
"""Stretches of stable in a stratum, before its 99th percentile is taken: five of them lie above it."""
SLOWEST_STRETCHES = 0.01

MOST_BYTES = 1_000_000
"""A ConfigMap holds 1,048,576 bytes; the API server refuses more, and with it everything that rests on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The newest sums of one life of a gateway."""

    pod: str
    strata: tuple[Stratum, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSums:
    """Slots of one stratum: of a revision in the arm on, of a target hash in the arm off.

    BESIDE, of a target hash too, is everybody in its on slots: those who speculate and those who decode beside them.
    """

    policy: int
    of: str
    arm: Arm
    sums: SlotSums


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSums:
    """Slots of one stratum in which stable and the canary decoded, in the arm on; stable's come first."""

    policy: int
    sums: PairSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where slow begins in a stratum."""

    policy: int
    milliseconds: int


LogRatios = Annotated[tuple[float, ...], Field(min_length=len(ERROR_RATIOS), max_length=len(ERROR_RATIOS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one canary against one stable, from the policy `since` on; `at` is when it was last added
    to.

    `errors` are the logarithms of the likelihood ratios of `intervals.ERROR_RATIOS`, `readings` Prometheus' newest
    answers. `forgotten`: a gateway had forgotten what policies up to this number counted before any of that life was
    saved; None: nothing is missing.
    """

    canary: str
    stable: str
    since: int
    at: Moment
    ended: tuple[Stratum, ...] = ()
    boots: Mapping[str, Boot] = field(default_factory=dict)
    slots: tuple[ArmSums, ...] = ()
    together: tuple[SharedSums, ...] = ()
    slots_until: Moment
    errors: LogRatios = (0.0,) * len(ERROR_RATIOS)
    readings: tuple[Reading, ...] = ()
    edges: tuple[Edge, ...] = ()
    stretch_edges: tuple[Edge, ...] = ()
    forgotten: int | None = None

    @property
    def gap(self) -> str:
        """That something is missing, in words; empty where nothing is."""
        if self.forgotten is None:
            return ""
        return f"; what a gateway counted under policies up to {self.forgotten} it had forgotten before it was read"

    def strata(self, revision: str) -> Mapping[int, Stratum]:
        """The sums of a revision by policy number, over all boots."""
        boots = (stratum for boot in self.boots.values() for stratum in boot.strata)
        known = (stratum for stratum in (*self.ended, *boots) if stratum.revision == revision)
        return {total.policy: total for total in _totals(known)}

    def arm(self, of: str, arm: Arm) -> Mapping[int, SlotSums]:
        """The slots of a revision (arm on) or a target hash (arm off) by policy number."""
        return {held.policy: held.sums for held in self.slots if (held.of, held.arm) == (of, arm)}

    def on_share(self, target: str, policy: int) -> float:
        """The part of all decode time on a target's pods that lay in on slots, under a policy; 0.0 without slots."""
        on, off = (self.arm(target, arm).get(policy, SlotSums()).y for arm in (Arm.BESIDE, Arm.OFF))
        return on / (on + off) if on else 0.0


def begin(canary: str, stable: str, *, since: int, now: datetime) -> Evidence:
    """No evidence yet."""
    return Evidence(canary=canary, stable=stable, since=since, at=now, slots_until=now)


def read(saved: str) -> Evidence | None:
    """The saved document; None where none was saved or somebody broke it: the canary then gathers anew."""
    try:
        return record.read(Evidence, saved) if saved else None
    except record.RecordError:
        return None


def is_due(kept: Evidence | None, now: datetime, *, interval_seconds: int) -> bool:
    """Whether it is time to add to the saved evidence."""
    return kept is None or now - kept.at >= timedelta(seconds=interval_seconds)


def add(
    before: Evidence,
    scrape: Scrape,
    *,
    gateways: Iterable[str],
    slot_seconds: int,
    readings: tuple[Reading, ...] = (),
    stretch_factor: float | None = None,
) -> Evidence:
    """The evidence with what the gateways and Prometheus answered now; adding the same twice changes nothing.

    `gateways` are the names of the gateway pods that exist. `stretch_factor`: a stretch is slow that takes longer than
    so many times stable's 99th percentile; None where nobody asks.
    """
    present = frozenset(gateways)
    edged = _choose_edges(before, scrape)
    if stretch_factor is not None:
        edged = _choose_stretch_edges(edged, scrape, stretch_factor)
    after = _keep_boots(edged, scrape, present)
    after = _close_slots(after, scrape, present, timedelta(seconds=slot_seconds))
    weighed, missing = _weigh_errors(before, after), _forgotten_unread(before, scrape)
    return replace(after, errors=weighed, at=scrape.at, readings=readings, forgotten=missing)


def same_sums(left: Evidence, right: Evidence) -> bool:
    """Whether two looks saw the same traffic, so that the later one need not be saved."""
    return replace(left, at=right.at, slots_until=right.slots_until) == right


def plus(left: Stratum, right: Stratum) -> Stratum:
    """The sums of two boots in one stratum."""
    return _merge(left, right, sum_of)


def minus(left: Stratum, right: Stratum) -> Stratum:
    """What one boot added since `right`."""
    return _merge(left, right, difference_of)


def _choose_edges(before: Evidence, scrape: Scrape) -> Evidence:
    """An edge for every stratum in which stable has enough first tokens; one that is chosen stays."""
    known = _untimed(before, scrape, before.edges, lambda held: held.first_token)
    new = (
        Edge(policy=policy, milliseconds=quantile(parts, 1 - SLOWEST_SHARE))
        for policy, parts in known
        if _timed(parts) >= ENOUGH_FOR_AN_EDGE
    )
    return replace(before, edges=(*before.edges, *new))


def _choose_stretch_edges(before: Evidence, scrape: Scrape, factor: float) -> Evidence:
    """Likewise for stretches; rounded up to an edge of the gateways', so that what counts as slow certainly is."""
    known = _untimed(before, scrape, before.stretch_edges, lambda held: held.stretch)
    new = (
        Edge(policy=policy, milliseconds=_edge_from(parts, factor * quantile(parts, 1 - SLOWEST_STRETCHES)))
        for policy, parts in known
        if _timed(parts) >= ENOUGH_STRETCHES
    )
    return replace(before, stretch_edges=(*before.stretch_edges, *new))


def _untimed(
    before: Evidence, scrape: Scrape, chosen: Iterable[Edge], read: Callable[[Stratum], FirstTokens | None]
) -> list[tuple[int, list[FirstTokens]]]:
    """Stable's times of the strata that have no edge yet."""
    done = {edge.policy for edge in chosen}
    listed = [stratum for document in scrape.documents.values() for stratum in document.strata]
    stable = [held for held in listed if held.revision == before.stable and held.policy >= before.since]
    known: dict[int, list[FirstTokens]] = {}
    for held in stable:
        times = read(held)
        if times is not None and held.policy not in done:
            known.setdefault(held.policy, []).append(times)
    return sorted(known.items())


def _timed(parts: Iterable[FirstTokens]) -> int:
    return sum(sum(part.all()) for part in parts)


def _edge_from(parts: Iterable[FirstTokens], milliseconds: float) -> int:
    """The first edge at or above; the last one where none is."""
    edges = sorted({edge for part in parts for edge in part.edges_milliseconds})
    return next((edge for edge in edges if edge >= milliseconds), edges[-1])


def _keep_boots(before: Evidence, scrape: Scrape, present: frozenset[str]) -> Evidence:
    """Newest sums of living boots; those of ended ones move into the totals."""
    living = {document.boot: pod for pod, document in scrape.documents.items()}
    fresh = {document.boot: _boot(before, pod, document) for pod, document in scrape.documents.items()}
    restarted = set(scrape.documents)
    gone = {
        name: boot
        for name, boot in before.boots.items()
        if name not in living and (boot.pod not in present or boot.pod in restarted)
    }
    kept = {name: boot for name, boot in before.boots.items() if name not in gone}
    ended = _totals((*before.ended, *(stratum for boot in gone.values() for stratum in boot.strata)))
    return replace(before, ended=ended, boots=dict(sorted({**kept, **fresh}.items())))


def _boot(evidence: Evidence, pod: str, document: Document) -> Boot:
    """The newest sums of a boot; one that contradicts its own earlier sums is not believed, and those stand."""
    both = (evidence.canary, evidence.stable)
    held_now = (held for held in document.strata if held.policy >= evidence.since and held.revision in both)
    edges, stretch_edges = (
        {edge.policy: edge.milliseconds for edge in known} for known in (evidence.edges, evidence.stretch_edges)
    )
    chosen = {
        _key(held): _with_waits(held, edges.get(held.policy), stretch_edges.get(held.policy)) for held in held_now
    }
    kept = evidence.boots.get(document.boot)
    for stratum in () if kept is None else kept.strata:
        if _key(stratum) not in chosen or not has_grown(stratum, chosen[_key(stratum)]):
            chosen[_key(stratum)] = stratum
    return Boot(pod=pod, strata=tuple(chosen.values()))


def _forgotten_unread(before: Evidence, scrape: Scrape) -> int | None:
    """The newest of this canary's policies that a gateway forgot before anything of its life was saved."""
    told = (document for document in scrape.documents.values() if document.boot not in before.boots)
    found = [document.forgotten for document in told if document.forgotten >= before.since]
    return max([*found, *([] if before.forgotten is None else [before.forgotten])], default=None)


def _with_waits(stratum: Stratum, edge: int | None, stretch_edge: int | None) -> Stratum:
    """The stratum with its times cut down to what is above the edges; before there are some, with none."""
    stretches = None if stretch_edge is None else _waits(stratum.stretch, stretch_edge)
    waits = _waits(stratum.first_token, edge)
    return replace(stratum, first_token=None, stretch=None, waits=waits, stretches=stretches)


def _waits(times: FirstTokens | None, edge: int | None) -> Waits | None:
    if times is None:
        return None
    return Waits() if edge is None else Waits(times.above(edge), times.all())


def _key(stratum: Stratum) -> tuple[int, str]:
    return (stratum.policy, stratum.revision)


def _totals(strata: Iterable[Stratum]) -> tuple[Stratum, ...]:
    totals: dict[tuple[int, str], Stratum] = {}
    for stratum in strata:
        key = _key(stratum)
        totals[key] = plus(totals[key], stratum) if key in totals else stratum
    return tuple(totals[key] for key in sorted(totals))


def _close_slots(evidence: Evidence, scrape: Scrape, present: frozenset[str], length: timedelta) -> Evidence:
    patience = SETTLING if present <= set(scrape.documents) else WAIT_FOR_SILENT_GATEWAYS
    until = max(evidence.slots_until, scrape.at - patience)
    listed = (slot for document in scrape.documents.values() for slot in document.slots)
    after, to = _seconds(evidence.slots_until), _seconds(until)
    due = [slot for slot in listed if after < _end(slot, length) <= to and slot.policy >= evidence.since]
    return replace(evidence, slots=_by_arm(evidence, due), together=_by_both(evidence, due), slots_until=until)


def _by_arm(evidence: Evidence, due: Sequence[Slot]) -> tuple[ArmSums, ...]:
    """The canary's on slots, everybody's off slots, and everybody's on slots."""
    sums = {(held.policy, held.of, held.arm): held.sums for held in evidence.slots}
    apart = units(slot for slot in due if slot.arm is not Arm.BESIDE)
    everybody = units(replace(slot, arm=Arm.BESIDE) for slot in due if slot.arm is not Arm.OFF)
    for key, tokens, milliseconds in (*apart, *everybody):
        if key[2] is not Arm.ON or key[1] == evidence.canary:
            sums[key] = sums.get(key, SlotSums()).plus(tokens, milliseconds)
    return tuple(ArmSums(policy=key[0], of=key[1], arm=key[2], sums=sums[key]) for key in sorted(sums))


def _by_both(evidence: Evidence, due: Iterable[Slot]) -> tuple[SharedSums, ...]:
    sums = {held.policy: held.sums for held in evidence.together}
    on = sorted((slot for slot in due if slot.arm is Arm.ON), key=_place)
    for (policy, _, _), group in groupby(on, key=_place):
        members = list(group)
        stable, canary = (_decoded(members, revision) for revision in (evidence.stable, evidence.canary))
        if all(stable) and all(canary):
            sums[policy] = sums.get(policy, PairSums()).plus(stable, canary)
    return tuple(SharedSums(policy=policy, sums=sums[policy]) for policy in sorted(sums))


def _place(slot: Slot) -> tuple[int, str, int]:
    return (slot.policy, slot.pod, slot.slot)


def _decoded(slots: Iterable[Slot], revision: str) -> tuple[int, int]:
    """Tokens and milliseconds of a revision, over gateways."""
    own = [slot for slot in slots if slot.revision == revision]
    return sum(slot.tokens for slot in own), sum(slot.milliseconds for slot in own)


def _end(slot: Slot, length: timedelta) -> float:
    """When a slot ends, in seconds since 1970; gateways may name one that no calendar reaches."""
    return (slot.slot + 1) * length.total_seconds()


def _seconds(moment: datetime) -> float:
    return (moment - record.EPOCH).total_seconds()


def units(slots: Iterable[Slot]) -> Iterable[tuple[tuple[int, str, Arm], int, int]]:
    """The slots added over gateways: (policy, revision or target hash, arm), tokens, milliseconds; none empty."""
    for key, group in groupby(sorted(slots, key=_unit), key=_unit):
        members = list(group)
        tokens, milliseconds = sum(slot.tokens for slot in members), sum(slot.milliseconds for slot in members)
        if tokens and milliseconds:
            yield (key[0], key[1], key[2]), tokens, milliseconds


def _unit(slot: Slot) -> tuple[int, str, Arm, str, int]:
    return (slot.policy, slot.revision if slot.arm is Arm.ON else slot.target, slot.arm, slot.pod, slot.slot)


def _weigh_errors(before: Evidence, after: Evidence) -> tuple[float, ...]:
    """The likelihood ratios with the errors that are new, each stratum with its own share of the requests.

    The share is that of the whole stratum so far, since a request counts when it begins and an error when it ends.
    """
    canary, stable = after.strata(after.canary), after.strata(after.stable)
    old_canary, old_stable = before.strata(after.canary), before.strata(after.stable)
    weighed = after.errors
    for policy in sorted(canary.keys() & stable.keys()):
        requests = canary[policy].requests + stable[policy].requests
        if not canary[policy].requests or not stable[policy].requests:
            continue
        new_canary = canary[policy].errors - _errors(old_canary, policy)
        new_stable = stable[policy].errors - _errors(old_stable, policy)
        more = error_evidence(new_canary, new_stable, canary[policy].requests / requests)
        weighed = tuple(held + new for held, new in zip(weighed, more, strict=True))
    return weighed


def _errors(strata: Mapping[int, Stratum], policy: int) -> int:
    return strata[policy].errors if policy in strata else 0


def _merge(left: Stratum, right: Stratum, with_: Callable[[int, int], int]) -> Stratum:
    return Stratum(
        policy=left.policy,
        revision=left.revision,
        requests=with_(left.requests, right.requests),
        errors=with_(left.errors, right.errors),
        rounds=with_(left.rounds, right.rounds),
        speculating=with_(left.speculating, right.speculating),
        proposed=with_(left.proposed, right.proposed),
        emitted=with_(left.emitted, right.emitted),
        acceptance=_merge_rows(Buckets, left.acceptance, right.acceptance, with_),
        shadow=_merge_rows(Shadow, left.shadow, right.shadow, with_),
        waits=_merge_rows(Waits, left.waits, right.waits, with_),
        stretches=_merge_rows(Waits, left.stretches, right.stretches, with_),
        segments=_merge_segments(left.segments, right.segments, with_),
        exactness=_merge_replayed(left.exactness, right.exactness, with_),
    )


def _merge_rows(
    kind: type[Sums], left: Sums | None, right: Sums | None, with_: Callable[[int, int], int]
) -> Sums | None:
    """Sums that one side does not have yet are nothing to add or to take away."""
    if left is None or right is None:
        return left or right
    return kind(*(tuple(map(with_, one, other)) for one, other in zip(left.rows, right.rows, strict=True)))


def _merge_segments(
    left: Mapping[str, Segment], right: Mapping[str, Segment], with_: Callable[[int, int], int]
) -> Mapping[str, Segment]:
    merged = {name: _merge_rows(Segment, left.get(name), right.get(name), with_) for name in left.keys() | right.keys()}
    return {name: merged[name] or Segment() for name in sorted(merged)}


def _merge_replayed(left: Replayed | None, right: Replayed | None, with_: Callable[[int, int], int]) -> Replayed | None:
    if left is None or right is None:
        return left or right
    return Replayed(*map(with_, left.row, right.row))


def total_of(strata: Iterable[Stratum]) -> Stratum | None:
    """The sums over several strata of one revision; the policy number is the first one's."""
    total: Stratum | None = None
    for stratum in strata:
        total = stratum if total is None else plus(total, replace(stratum, policy=total.policy))
    return total


def in_window(now: Scrape, baseline: Scrape | None, revision: str) -> Stratum | None:
    """What a revision did since the baseline, over all policies; a boot that it does not know counts whole."""
    if baseline is None:
        return None
    earlier = {document.boot: document for document in baseline.documents.values()}
    parts = []
    for document in now.documents.values():
        known = _by_policy(earlier.get(document.boot), revision)
        for policy, stratum in _by_policy(document, revision).items():
            if known.get(policy) == stratum:
                continue  # most policies are over, and their sums stand still
            continued = policy in known and has_grown(known[policy], stratum)
            parts.append(minus(stratum, known[policy]) if continued else stratum)
    return total_of(parts)


def _by_policy(document: Document | None, revision: str) -> dict[int, Stratum]:
    strata = () if document is None else document.strata
    return {stratum.policy: stratum for stratum in strata if stratum.revision == revision}


def slots_in_window(now: Scrape, *, window_seconds: int, slot_seconds: int) -> Mapping[tuple[int, str, Arm], SlotSums]:
    """The closed slots that ended within the window, by (policy, revision or target hash, arm)."""
    length, start = timedelta(seconds=slot_seconds), _seconds(now.at) - window_seconds
    listed = (slot for document in now.documents.values() for slot in document.slots)
    sums: dict[tuple[int, str, Arm], SlotSums] = {}
    for key, tokens, milliseconds in units(slot for slot in listed if _end(slot, length) > start):
        sums[key] = sums.get(key, SlotSums()).plus(tokens, milliseconds)
    return sums
