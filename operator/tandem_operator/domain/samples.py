"""Knows what a gateway reports about the traffic it carried, and what of it is kept when that gateway is gone.

Refuses to know what the numbers prove (`evidence`) and how they are fetched.

A *stratum* is one policy number: while it lasts, the shares of the revisions are constant. Counters belong to a *boot*,
one life of a gateway's process, and only grow. Sums are integers, made at one moment, so that squares match sums.
Acceptance and shadow sums lie in 128 *buckets* by hash(unit), where the unit is what the policy assigns (a request, or
a session). A *slot* is a short span of one target pod's time in which speculation is on or off for everybody.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tandem_operator.domain import record

BUCKETS = 128
LARGEST = 2**53
"""Whole numbers up to here are exact as floats; no gateway lives to count as far."""
NO_BUCKETS: tuple[int, ...] = (0,) * BUCKETS


class Arm(StrEnum):
    """`ON`: speculation allowed; `OFF`: K = 0 for everybody on that pod."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Acceptance of the arm on: per bucket, tokens accepted, tokens examined (accepted + rejections) and requests."""

    accepted: tuple[int, ...] = NO_BUCKETS
    examined: tuple[int, ...] = NO_BUCKETS
    requests: tuple[int, ...] = NO_BUCKETS


@dataclass(frozen=True, slots=True)
class Shadow:
    """Per bucket: emitted tokens that the draft would have proposed, of those that it looked at."""

    matched: tuple[int, ...] = NO_BUCKETS
    examined: tuple[int, ...] = NO_BUCKETS


@dataclass(frozen=True, slots=True)
class Replayed:
    """Answers that a gateway made again with speculation off, by what the comparison proves."""

    equal: int = 0
    different: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """What one revision did under one policy number, since the boot."""

    policy: int
    revision: str
    requests: int = 0
    errors: int = 0
    rounds: int = 0
    speculating: int = 0
    proposed: int = 0
    emitted: int = 0
    acceptance: Buckets | None = None
    shadow: Shadow | None = None
    exactness: Replayed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One gateway's share of a closed slot of a target pod: tokens and milliseconds decoded, over its sequences."""

    pod: str
    target: str
    slot: int
    arm: Arm
    policy: int
    revision: str
    tokens: int
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """Pods per role hash to which a gateway has a working connection."""

    targets: Mapping[str, int] = field(default_factory=dict)
    drafts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What `GET /internal/evidence` answered; `serving` is the gateway's own check with a real request."""

    boot: str
    policy: int
    admitted: Admitted = field(default_factory=Admitted)
    serving: bool = False
    strata: tuple[Stratum, ...] = ()
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Scrape:
    """The documents of all gateways at one moment, by pod name; a gateway that did not answer is absent."""

    at: datetime
    documents: Mapping[str, Document]


class UnreadableDocument(ValueError):
    """A gateway answered something that is no evidence: it counts as no answer."""


def read_document(raw: object) -> Document:
    """The document in a gateway's answer; raises UnreadableDocument, also for sums that no traffic can have.

    Sums that a young stratum does not have yet stay absent, which is not the same as zero.
    """
    try:
        document = record.load(Document, raw)
    except record.RecordError as refused:
        raise UnreadableDocument(str(refused)) from refused
    wrong = next((number for number in _numbers(record.dump(document)) if not 0 <= number < LARGEST), None)
    if wrong is not None:
        raise UnreadableDocument(f"{wrong} is no count: wanted 0 to {LARGEST - 1}")
    if len({(stratum.policy, stratum.revision) for stratum in document.strata}) < len(document.strata):
        raise UnreadableDocument("two strata of one policy and revision")
    for stratum in document.strata:
        _demand_whole_buckets(stratum)
        _demand_parts_below_wholes(stratum)
    return document


def _numbers(value: object) -> Iterator[int]:
    """Every whole number in a dumped value."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, dict | list):
        for held in value.values() if isinstance(value, dict) else value:
            yield from _numbers(held)


def _demand_parts_below_wholes(stratum: Stratum) -> None:
    """No more is accepted or matched than was examined."""
    pairs: list[tuple[int, int]] = []
    if stratum.acceptance is not None:
        pairs += zip(stratum.acceptance.accepted, stratum.acceptance.examined, strict=True)
    if stratum.shadow is not None:
        pairs += zip(stratum.shadow.matched, stratum.shadow.examined, strict=True)
    if any(part > whole for part, whole in pairs):
        raise UnreadableDocument(f"revision {stratum.revision}, policy {stratum.policy}: more accepted than examined")


def has_grown(before: Stratum, after: Stratum) -> bool:
    """Whether `after` can be a later answer of the same boot: no sum of it is smaller."""
    old, new = record.dump(before), record.dump(after)
    return all(name in new for name in old) and all(
        one <= other for name in old for one, other in zip(_numbers(old[name]), _numbers(new[name]), strict=True)
    )


def _demand_whole_buckets(stratum: Stratum) -> None:
    parts = (stratum.acceptance, stratum.shadow)
    rows = [row for part in parts if part is not None for row in (record.dump(part)).values()]
    if any(len(row) != BUCKETS for row in rows):
        raise UnreadableDocument(f"revision {stratum.revision}, policy {stratum.policy}: wanted {BUCKETS} buckets")
