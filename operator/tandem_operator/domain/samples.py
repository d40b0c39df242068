"""Knows what a gateway reports about the traffic it carried, and what of it is kept when that gateway is gone.

Refuses to know what the numbers prove (`evidence`) and how they are fetched.

A *stratum* is one policy number: while it lasts, the shares of the revisions are constant. Counters belong to a *boot*,
one life of a gateway's process, and only grow. Sums are integers, made at one moment, so that squares match sums.
Acceptance and shadow sums lie in 128 *buckets* by hash(unit), where the unit is what the policy assigns (a request, or
a session). A *slot* is a short span of one target pod's time in which speculation is on or off for everybody.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import gt, le
from typing import Annotated, TypeVar

from pydantic import AfterValidator, FailFast, Field

from tandem_operator.domain.record import Moment

BUCKETS = 128
LARGEST = 2**53
"""Whole numbers up to here are exact as floats; no gateway lives to count as far."""
Count = Annotated[int, Field(ge=0, lt=LARGEST)]
Row = Annotated[tuple[Count, ...], FailFast(), Field(min_length=BUCKETS, max_length=BUCKETS)]
"""One number per bucket. Reading stops at the first fault: an answer of nothing but faults would fill the memory."""
NO_BUCKETS: Row = (0,) * BUCKETS
SEGMENT_BUCKETS = 64
SegmentRow = Annotated[tuple[Count, ...], FailFast(), Field(min_length=SEGMENT_BUCKETS, max_length=SEGMENT_BUCKETS)]
NO_SEGMENT_BUCKETS: SegmentRow = (0,) * SEGMENT_BUCKETS


class Arm(StrEnum):
    """`ON`: speculation allowed; `OFF`: K = 0 for everybody on that pod; `BESIDE`: not allowed where others may."""

    ON = "on"
    OFF = "off"
    BESIDE = "beside"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Acceptance of the arm on: per bucket, tokens accepted, tokens examined (accepted + rejections) and requests."""

    accepted: Row = NO_BUCKETS
    examined: Row = NO_BUCKETS
    requests: Row = NO_BUCKETS

    @property
    def rows(self) -> tuple[Row, Row, Row]:
        return (self.accepted, self.examined, self.requests)


@dataclass(frozen=True, slots=True)
class Shadow:
    """Per bucket: emitted tokens that the draft would have proposed, of those that it looked at."""

    matched: Row = NO_BUCKETS
    examined: Row = NO_BUCKETS

    @property
    def rows(self) -> tuple[Row, Row]:
        return (self.matched, self.examined)


@dataclass(frozen=True, slots=True)
class Segment:
    """Acceptance of a named segment of the traffic: per bucket, of half as many, tokens accepted and examined."""

    accepted: SegmentRow = NO_SEGMENT_BUCKETS
    examined: SegmentRow = NO_SEGMENT_BUCKETS

    @property
    def rows(self) -> tuple[SegmentRow, SegmentRow]:
        return (self.accepted, self.examined)


@dataclass(frozen=True, slots=True)
class Waits:
    """Per bucket: what took longer than the stratum's edge, of all; requests for their first token, or stretches."""

    slow: Row = NO_BUCKETS
    examined: Row = NO_BUCKETS

    @property
    def rows(self) -> tuple[Row, Row]:
        return (self.slow, self.examined)


MOST_EDGES = 64
MOST_SEGMENTS = 16
SegmentName = Annotated[str, Field(max_length=63)]


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Requests by the time to their first token, or stretches of tokens by what they took.

    A row per bin, by the index of the first edge that is not below. The bin behind the last edge is open; a bin with
    nothing in it is absent.
    """

    edges_milliseconds: Annotated[tuple[Count, ...], FailFast(), Field(min_length=1, max_length=MOST_EDGES)]
    bins: Annotated[Mapping[str, Row], FailFast(), Field(max_length=MOST_EDGES + 1)] = field(default_factory=dict)

    def above(self, milliseconds: int) -> Row:
        """Requests per bucket in bins that reach beyond an edge."""
        return _added(row for edge, row in self._rows() if edge is None or edge > milliseconds)

    def all(self) -> Row:
        return _added(row for _, row in self._rows())

    def counted(self) -> Mapping[int, int]:
        """Requests by the edge that holds them; those beyond the last one are left out."""
        return {edge: sum(row) for edge, row in self._rows() if edge is not None}

    def _rows(self) -> Iterator[tuple[int | None, Row]]:
        edges = dict(enumerate(self.edges_milliseconds))
        return ((edges.get(int(index)), row) for index, row in self.bins.items())


def quantile(parts: Sequence[FirstTokens], share: float) -> int:
    """The first edge that at least this share of all requests do not exceed; the last one where none is."""
    wanted, below = share * sum(sum(part.all()) for part in parts), 0
    edges = sorted({edge for part in parts for edge in part.edges_milliseconds})
    for edge in edges:
        below += sum(part.counted().get(edge, 0) for part in parts)
        if below >= wanted:
            return edge
    return edges[-1]


def _added(rows: Iterator[Row]) -> Row:
    return tuple(map(sum, zip(NO_BUCKETS, *rows, strict=True)))


def _bins_of_edges(tokens: FirstTokens) -> FirstTokens:
    names = {str(index) for index in range(len(tokens.edges_milliseconds) + 1)}
    if not tokens.bins.keys() <= names or list(tokens.edges_milliseconds) != sorted(set(tokens.edges_milliseconds)):
        raise ValueError("edges that do not rise, or a bin of none of them")
    return tokens


Sums = TypeVar("Sums", Buckets, Shadow, Waits, Segment)


def _parts_of_wholes(sums: Sums) -> Sums:
    if any(map(gt, sums.rows[0], sums.examined)):
        raise ValueError("more accepted, matched or slow than examined")
    return sums


@dataclass(frozen=True, slots=True)
class Replayed:
    """Answers that a gateway made again with speculation off, by what the comparison proves.

    `plain` ones had nothing proposed themselves, and were replayed because their target's answers may split by
    rounding. `tokens` are those that were compared, up to a difference.
    """

    equal: Count = 0
    different: Count = 0
    uncertain: Count = 0
    plain_equal: Count = 0
    plain_uncertain: Count = 0
    tokens: Count = 0
    plain_tokens: Count = 0

    @property
    def row(self) -> tuple[int, ...]:
        answers = (self.equal, self.different, self.uncertain, self.plain_equal, self.plain_uncertain)
        return (*answers, self.tokens, self.plain_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """What one revision did under one policy number, since the boot.

    Gateways tell `first_token` and `stretch` whole; of them evidence keeps `waits` and `stretches`, against the edges
    of the stratum.
    """

    policy: Count
    revision: str
    requests: Count = 0
    errors: Count = 0
    rounds: Count = 0
    speculating: Count = 0
    proposed: Count = 0
    emitted: Count = 0
    acceptance: Annotated[Buckets, AfterValidator(_parts_of_wholes)] | None = None
    shadow: Annotated[Shadow, AfterValidator(_parts_of_wholes)] | None = None
    exactness: Replayed | None = None
    first_token: Annotated[FirstTokens, AfterValidator(_bins_of_edges)] | None = None
    waits: Annotated[Waits, AfterValidator(_parts_of_wholes)] | None = None
    stretch: Annotated[FirstTokens, AfterValidator(_bins_of_edges)] | None = None
    stretches: Annotated[Waits, AfterValidator(_parts_of_wholes)] | None = None
    segments: Annotated[
        Mapping[SegmentName, Annotated[Segment, AfterValidator(_parts_of_wholes)]],
        FailFast(),
        Field(max_length=MOST_SEGMENTS),
    ] = field(default_factory=dict)


def _no_stratum_twice(strata: tuple[Stratum, ...]) -> tuple[Stratum, ...]:
    if len({(stratum.policy, stratum.revision) for stratum in strata}) < len(strata):
        raise ValueError("two strata of one policy and revision")
    return strata


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One gateway's share of a closed slot of a target pod: tokens and milliseconds decoded, over its sequences."""

    pod: str
    target: str
    slot: Count
    arm: Arm
    policy: Count
    revision: str
    tokens: Count
    milliseconds: Count


Admissions = Annotated[Mapping[str, Count], FailFast()]


@dataclass(frozen=True, slots=True)
class Admitted:
    """Pods per role hash to which a gateway has a working connection."""

    targets: Admissions = field(default_factory=dict)
    drafts: Admissions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What `GET /internal/evidence` answered; `serving` is the gateway's own check with a real request.

    `adapters` are the target pods, of those admitted, that have each content of an adapter, by role hash and digest.
    What policies up to `forgotten` counted is gone, and not told; one above it that has no stratum counted nothing.
    """

    boot: str
    policy: Count
    forgotten: Count = 0
    admitted: Admitted = field(default_factory=Admitted)
    adapters: Mapping[str, Admissions] | None = None
    serving: bool = False
    strata: Annotated[tuple[Stratum, ...], FailFast(), AfterValidator(_no_stratum_twice)] = ()
    slots: Annotated[tuple[Slot, ...], FailFast()] = ()


@dataclass(frozen=True, slots=True)
class Scrape:
    """The documents of all gateways at one moment, by pod name; a gateway that did not answer is absent."""

    at: Moment
    documents: Mapping[str, Document]


def has_grown(before: Stratum, after: Stratum) -> bool:
    """Whether `after` can be a later answer of the same boot: no sum of it is smaller, and none is gone."""
    pairs = zip(_rows(before), _rows(after), strict=True)
    of_segments = ((held.rows, after.segments.get(name)) for name, held in before.segments.items())
    return all(old is None or (new is not None and all(map(le, old, new))) for old, new in pairs) and all(
        new is not None and all(all(map(le, *rows)) for rows in zip(old, new.rows, strict=True))
        for old, new in of_segments
    )


def _rows(stratum: Stratum) -> Iterator[tuple[int, ...] | None]:
    """Every number of a stratum; None in place of the sums that it does not have yet."""
    counts = (stratum.requests, stratum.errors, stratum.rounds, stratum.speculating)
    yield (stratum.policy, *counts, stratum.proposed, stratum.emitted)
    yield from (None, None, None) if stratum.acceptance is None else stratum.acceptance.rows
    yield from (None, None) if stratum.shadow is None else stratum.shadow.rows
    yield from (None, None) if stratum.waits is None else stratum.waits.rows
    yield from (None, None) if stratum.stretches is None else stratum.stretches.rows
    yield None if stratum.exactness is None else stratum.exactness.row
