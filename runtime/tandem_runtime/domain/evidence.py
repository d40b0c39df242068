"""Knows what a gateway has seen of each revision, as integer sums that the operator's tests are computed from.

Refuses to know HTTP, policies beyond their number, and what the sums mean for a canary.

The document is `GET /internal/evidence` of docs/contracts.md. It is built in one call between two rounds, so that all
its sums belong together (sums scraped one by one would be torn, and squares would not match sums).

What counts where, and why. *Requests and errors* count always: a pod that fails while it warms up has failed.
*Everything else* counts only for ordinary requests (one that steers its own speculation, or is of a segment that
decodes plainly, says nothing about the deployment) on pods that have warmed up by this gateway's own requests. *Slots*
(see `domain.slots`) are the unit of speed-up: a round counts in the slot of its pod's time in whose counted part it
lies wholly. A request's first round is prefill and never counts there.

*What is forgotten.* A policy that is over keeps its sums for as long as somebody may still look back at them, and all
together hold a bounded lot of numbers. Policies go in the order of their numbers and never come back, so one number
tells them all: what is not listed above it was never counted, and at or below it nobody knows any more.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NotRequired, TypedDict

from tandem_runtime.domain.policy import RevisionName, RoleHash
from tandem_runtime.domain.replay import Tally
from tandem_runtime.domain.routing import BUCKETS
from tandem_runtime.domain.tokens import Round

VERSION = 1
FIRST_TOKEN_EDGES_MILLISECONDS = (
    10, 20, 30, 50, 70, 100, 140, 200, 280, 400, 560, 800, 1100, 1600, 2200, 3200, 4500, 6400, 9000, 12800, 25600, 60000
)  # fmt: skip
"""Upper edges, about a factor of 1.4 apart: stable's p90 is known to within that factor. One count more: beyond."""
STRETCH_TOKENS = 32
"""Time per token is taken over so many of one request: a round delivers several tokens at once, and gaps between
deliveries grow with K where the pace does not (decision 0012)."""
STRETCH_EDGES_MILLISECONDS = tuple(round(20 * 1.15**step) for step in range(60))
"""Upper edges of what a stretch takes, a factor of 1.15 apart: .6 ms to 2.4 s a token. One count more: beyond."""
SEGMENT_BUCKETS = 64
"""Half of the whole's: there may be sixteen segments in every stratum, and 32 filled buckets are enough to judge."""
KEPT_SECONDS = 3900.0
"""Closed slots stay for the hour that the contract promises and for a late reader's five minutes more."""
KEPT_OVER_SECONDS = 90_000.0
"""The sums of a policy that is over stay 25 hours after they moved last: the operator's longest window is a day, and
begins up to a sixtieth of it earlier. A canary may last longer, but what is read of it is saved."""
MOST_NUMBERS = 500_000
"""In all strata: 2 to 4 MB as text and 20 in memory, and some 50 ms for the loop that makes the document."""


class AcceptanceFields(TypedDict):
    """Each a list of 128."""

    accepted: list[int]
    examined: list[int]
    requests: list[int]


class ShadowFields(TypedDict):
    matched: list[int]
    examined: list[int]


class FirstTokenFields(TypedDict):
    """Of first tokens, and of stretches. `bins` by index of the edge that holds them, those with something in them
    alone; each a list of 128."""

    edgesMilliseconds: list[int]
    bins: dict[str, list[int]]


class SegmentFields(TypedDict):
    """Each a list of 64."""

    accepted: list[int]
    examined: list[int]


class ExactnessFields(TypedDict):
    """Answers by what their replay showed; `plain` ones had nothing proposed, where rounding may split them too.
    `tokens` are those that were compared."""

    equal: int
    different: int
    uncertain: int
    skipped: int
    dropped: int
    failed: int
    plainEqual: int
    plainUncertain: int
    tokens: int
    plainTokens: int


class StratumFields(TypedDict):
    policy: int
    revision: str
    requests: int
    errors: int
    acceptance: AcceptanceFields
    rounds: int
    proposed: int
    emitted: int
    speculating: int
    shadow: ShadowFields
    exactness: ExactnessFields
    firstToken: FirstTokenFields
    stretch: FirstTokenFields
    segments: dict[str, SegmentFields]


class SlotFields(TypedDict):
    pod: str
    target: str
    slot: int
    arm: str
    policy: int
    revision: str
    tokens: int
    milliseconds: int


class EvidenceDocument(TypedDict):
    version: int
    boot: str
    policy: int
    forgotten: int
    admitted: Mapping[str, Mapping[str, int]]
    adapters: NotRequired[Mapping[str, Mapping[str, int]]]
    """By target hash and digest, the target pods that have it; absent where none has any."""
    serving: bool
    strata: list[StratumFields]
    slots: list[SlotFields]


class Arm(StrEnum):
    """`BESIDE`: a session that may not speculate, in a slot in which others may."""

    ON = "on"
    OFF = "off"
    BESIDE = "beside"


class StratumKey(NamedTuple):
    """The policy under which a request began, and the revision that served it."""

    policy: int
    revision: RevisionName


class SlotKey(NamedTuple):
    """A stretch of one target pod's time, by the policy in force and the revision of the sessions in it."""

    pod: str
    target: RoleHash
    slot: int
    arm: Arm
    policy: int
    revision: RevisionName


def _zeros() -> list[int]:
    return [0] * BUCKETS


def _few_zeros() -> list[int]:
    return [0] * SEGMENT_BUCKETS


@dataclass(slots=True)
class SegmentSums:
    """Acceptance of one segment of the traffic."""

    accepted: list[int] = field(default_factory=_few_zeros)
    examined: list[int] = field(default_factory=_few_zeros)


@dataclass(slots=True)
class Stratum:
    """Sums of one (policy, revision); they only grow."""

    requests: int = 0
    errors: int = 0
    rounds: int = 0
    proposed: int = 0
    emitted: int = 0
    speculating: int = 0
    accepted: list[int] = field(default_factory=_zeros)
    examined: list[int] = field(default_factory=_zeros)
    bucket_requests: list[int] = field(default_factory=_zeros)
    shadow_matched: list[int] = field(default_factory=_zeros)
    shadow_examined: list[int] = field(default_factory=_zeros)
    exactness: Tally = field(default_factory=Tally)
    first_tokens: dict[int, list[int]] = field(default_factory=dict)
    stretches: dict[int, list[int]] = field(default_factory=dict)
    segments: dict[str, SegmentSums] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """Another number after anything was counted."""
        return self.requests + self.rounds + sum(self.shadow_examined) + self.exactness.answers

    @property
    def numbers(self) -> int:
        """How many it holds."""
        rows = 5 + len(self.first_tokens) + len(self.stretches)
        return rows * BUCKETS + 2 * len(self.segments) * SEGMENT_BUCKETS

    def know(self, segments: Iterable[str]) -> None:
        """Have sums of these, if only zeros: what is not listed is not counted."""
        for name in segments:
            self.segments.setdefault(name, SegmentSums())

    def add(self, round: Round, *, bucket: int, segments: Iterable[str] = ()) -> None:
        self.rounds += 1
        self.proposed += round.proposed
        self.emitted += round.emitted
        if round.proposed:
            self.speculating += 1
            self.accepted[bucket] += round.accepted
            self.examined[bucket] += round.examined
            for name in segments:
                self.segments[name].accepted[bucket % SEGMENT_BUCKETS] += round.accepted
                self.segments[name].examined[bucket % SEGMENT_BUCKETS] += round.examined

    def add_first_token(self, seconds: float, *, bucket: int) -> None:
        index = bin_of(seconds, FIRST_TOKEN_EDGES_MILLISECONDS)
        self.first_tokens.setdefault(index, _zeros())[bucket] += 1

    def add_stretch(self, seconds: float, *, tokens: int, bucket: int) -> None:
        """Count a stretch, by what `STRETCH_TOKENS` of its tokens took."""
        index = bin_of(seconds * STRETCH_TOKENS / tokens, STRETCH_EDGES_MILLISECONDS)
        self.stretches.setdefault(index, _zeros())[bucket] += 1


@dataclass(slots=True)
class SlotSums:
    """Decode time summed over sequences, and the tokens it gave. `ends_at` is in seconds since 1970."""

    ends_at: float
    tokens: int = 0
    seconds: float = 0.0


def bin_of(seconds: float, edges_milliseconds: Sequence[int]) -> int:
    """Index of the first edge at or above; the last bin is open."""
    return bisect_left(edges_milliseconds, seconds * 1000)


class Ledger:
    """The sums of one life of a gateway. Not safe for threads: one event loop writes and reads it."""

    def __init__(self, *, boot: str) -> None:
        self._boot = boot
        self._strata: dict[StratumKey, Stratum] = {}
        self._moved: dict[StratumKey, tuple[int, float]] = {}
        """What had been counted when a stratum was seen to move last, and when that was."""
        self._forgotten = 0
        self._slots: OrderedDict[SlotKey, SlotSums] = OrderedDict()

    def stratum(self, key: StratumKey) -> Stratum:
        """The sums of `key`, all zero at first; those of a forgotten policy are told to nobody."""
        return Stratum() if key.policy <= self._forgotten else self._strata.setdefault(key, Stratum())

    def add_decode(self, key: SlotKey, *, ends_at: float, tokens: int, seconds: float) -> None:
        """Count a decode round that lay wholly in the counted part of a slot that ends at `ends_at`."""
        sums = self._slots.get(key)
        if sums is None:
            sums = self._slots[key] = SlotSums(ends_at=ends_at)
        sums.tokens += tokens
        sums.seconds += seconds

    def closed_slots(self, *, wall: float) -> list[tuple[SlotKey, SlotSums]]:
        """Slots whose time is over, oldest first; older ones than the contract keeps are forgotten."""
        for key in [key for key, sums in self._slots.items() if sums.ends_at < wall - KEPT_SECONDS]:
            del self._slots[key]
        closed = [(key, sums) for key, sums in self._slots.items() if sums.ends_at <= wall]
        return sorted(closed, key=lambda item: (item[1].ends_at, item[0]))

    def document(
        self,
        *,
        wall: float,
        policy: int,
        admitted: Mapping[str, Mapping[str, int]],
        serving: bool,
        adapters: Mapping[str, Mapping[str, int]] | None = None,
    ) -> EvidenceDocument:
        """The evidence as JSON values, made at one moment; `policy` is the number of the one in force, 0 without."""
        self._forget(wall=wall, policy=policy)
        document: EvidenceDocument = {
            "version": VERSION,
            "boot": self._boot,
            "policy": policy,
            "forgotten": self._forgotten,
            "admitted": admitted,
            "serving": serving,
            "strata": [_stratum_fields(key, sums) for key, sums in sorted(self._strata.items())],
            "slots": _slot_fields(self.closed_slots(wall=wall)),
        }
        if adapters:
            document["adapters"] = adapters
        return document

    def _forget(self, *, wall: float, policy: int) -> None:
        """The oldest policies, as far as they are over and nobody can need them, or there is no room for them."""
        if policy <= self._forgotten:  # numbers began anew, since the policy was deleted while nobody could ask us
            self._forgotten = max(policy - 1, 0)
        self._note_what_moved(wall)
        held = sum(sums.numbers for sums in self._strata.values())
        for key in sorted(key for key in self._strata if key.policy < policy):
            is_over = wall - self._last_move(key.policy) > KEPT_OVER_SECONDS
            if not is_over and held <= MOST_NUMBERS and key.policy > self._forgotten:
                break
            held -= self._strata.pop(key).numbers
            del self._moved[key]
            self._forgotten = key.policy

    def _note_what_moved(self, wall: float) -> None:
        for key, sums in self._strata.items():
            if key not in self._moved or self._moved[key][0] != sums.counted:
                self._moved[key] = sums.counted, wall

    def _last_move(self, policy: int) -> float:
        """Of any stratum of a policy that has some."""
        return max(moment for key, (_, moment) in self._moved.items() if key.policy == policy)


def _stratum_fields(key: StratumKey, sums: Stratum) -> StratumFields:
    return {
        "policy": key.policy,
        "revision": key.revision,
        "requests": sums.requests,
        "errors": sums.errors,
        "acceptance": {
            "accepted": list(sums.accepted),
            "examined": list(sums.examined),
            "requests": list(sums.bucket_requests),
        },
        "rounds": sums.rounds,
        "proposed": sums.proposed,
        "emitted": sums.emitted,
        "speculating": sums.speculating,
        "shadow": {"matched": list(sums.shadow_matched), "examined": list(sums.shadow_examined)},
        "exactness": _exactness_fields(sums.exactness),
        "firstToken": _binned(sums.first_tokens, FIRST_TOKEN_EDGES_MILLISECONDS),
        "stretch": _binned(sums.stretches, STRETCH_EDGES_MILLISECONDS),
        "segments": {name: _segment_fields(held) for name, held in sorted(sums.segments.items())},
    }


def _segment_fields(sums: SegmentSums) -> SegmentFields:
    return {"accepted": list(sums.accepted), "examined": list(sums.examined)}


def _binned(bins: Mapping[int, list[int]], edges: Sequence[int]) -> FirstTokenFields:
    filled = {str(index): list(bins[index]) for index in sorted(bins)}
    return {"edgesMilliseconds": list(edges), "bins": filled}


def _exactness_fields(tally: Tally) -> ExactnessFields:
    return {
        "equal": tally.equal,
        "different": tally.different,
        "uncertain": tally.uncertain,
        "skipped": tally.skipped,
        "dropped": tally.dropped,
        "failed": tally.failed,
        "plainEqual": tally.plain_equal,
        "plainUncertain": tally.plain_uncertain,
        "tokens": tally.tokens,
        "plainTokens": tally.plain_tokens,
    }


def _slot_fields(slots: Iterable[tuple[SlotKey, SlotSums]]) -> list[SlotFields]:
    return [
        {
            "pod": key.pod,
            "target": key.target,
            "slot": key.slot,
            "arm": key.arm.value,
            "policy": key.policy,
            "revision": key.revision,
            "tokens": sums.tokens,
            "milliseconds": round(sums.seconds * 1000),
        }
        for key, sums in slots
    ]
