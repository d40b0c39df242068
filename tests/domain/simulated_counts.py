"""How the simulated world's gateways count: sums by bucket, and which revisions propose at all."""

from collections.abc import Mapping
from typing import Any

from tandem_operator.domain.samples import SEGMENT_BUCKETS, Segment, Stratum


def with_segment(
    policy: Mapping[str, Any], stratum: Stratum, of: str, counts: tuple[int, int, int]
) -> Mapping[str, Segment]:
    """The segments of a policy, with a request of one of them: (bucket, accepted, examined)."""
    bucket, accepted, examined = counts
    known = {each["name"]: stratum.segments.get(each["name"], Segment()) for each in policy.get("segments", ())}
    if of in known:
        place = bucket % SEGMENT_BUCKETS
        rows = (plus(known[of].accepted, place, accepted), plus(known[of].examined, place, examined))
        known[of] = Segment(*rows)
    return known


def drafts(revision: Mapping[str, Any]) -> bool:
    return revision["draft"] is not None or "lookups" in revision


def plus(row: tuple[int, ...], place: int, more: int) -> tuple[int, ...]:
    return (*row[:place], row[place] + more, *row[place + 1 :])
