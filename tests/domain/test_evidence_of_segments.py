"""What evidence keeps of segments and of stretches: over lives of gateways, and where slow begins."""

from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.domain import record
from tandem_operator.domain.evidence import Edge, Evidence, add, begin
from tandem_operator.domain.samples import (
    BUCKETS,
    SEGMENT_BUCKETS,
    Document,
    FirstTokens,
    Scrape,
    Segment,
    Stratum,
    has_grown,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
EDGES = (100, 115, 132, 152, 175, 201)


def row(first: int, length: int) -> tuple[int, ...]:
    return (first, *((0,) * (length - 1)))


def counted(revision: str, **segments: tuple[int, int]) -> Stratum:
    """A stratum with so many tokens accepted and examined in each segment."""
    held = {name: Segment(*(row(each, SEGMENT_BUCKETS) for each in sums)) for name, sums in segments.items()}
    return Stratum(policy=1, revision=revision, requests=1, segments=held)


def timed(revision: str, **bins: int) -> Stratum:
    """A stratum with so many stretches in each bin, by the letters a, b, c, ..."""
    rows = {str(ord(name) - ord("a")): row(count, BUCKETS) for name, count in bins.items()}
    return Stratum(policy=1, revision=revision, stretch=FirstTokens(EDGES, rows))


def look(
    before: Evidence, *strata: Stratum, boot: str = "b1", after: int = 30, factor: float | None = None
) -> Evidence:
    scrape = Scrape(NOW + timedelta(seconds=after), {"gateway-0": Document(boot=boot, policy=1, strata=strata)})
    return add(before, scrape, gateways=["gateway-0"], slot_seconds=20, stretch_factor=factor)


FRESH = begin("canary", "stable", since=1, now=NOW)


def sums(seen: Evidence) -> dict[str, tuple[int, int]]:
    held = seen.strata("canary")[1].segments
    return {name: (sum(segment.accepted), sum(segment.examined)) for name, segment in held.items()}


def test_segments_of_a_gateway_that_began_anew_add_up_and_each_life_counts_once() -> None:
    seen = look(look(FRESH, counted("canary", a=(3, 4))), counted("canary", a=(6, 8), b=(0, 2)), after=60)
    assert sums(seen) == {"a": (6, 8), "b": (0, 2)}
    for _ in range(2):
        seen = look(seen, counted("canary", b=(1, 1), c=(5, 5)), boot="b2", after=90)
    assert sums(seen) == {"a": (6, 8), "b": (1, 3), "c": (5, 5)}
    assert record.load(Evidence, record.dump(seen)) == seen


@pytest.mark.parametrize("shrunk", [{"a": (2, 4), "b": (1, 1)}, {"a": (3, 3), "b": (1, 1)}, {"a": (3, 4)}])
def test_a_segment_that_shrinks_or_goes_is_not_believed(shrunk: dict[str, tuple[int, int]]) -> None:
    known = counted("canary", a=(3, 4), b=(1, 1))
    assert not has_grown(known, counted("canary", **shrunk))
    assert sums(look(look(FRESH, known), counted("canary", **shrunk), after=60)) == {"a": (3, 4), "b": (1, 1)}
    assert has_grown(known, counted("canary", a=(3, 5), b=(1, 1), c=(0, 0)))


def test_where_a_stretch_is_slow_is_a_factor_beyond_stables_slowest_hundredth_up_to_an_edge() -> None:
    own = timed("canary", a=90, d=8, e=2)
    few = look(FRESH, timed("stable", a=490, b=9), own, factor=1.25)
    assert (few.stretch_edges, few.strata("canary")[1].stretches) == ((), None)
    seen = look(few, timed("stable", a=990, b=10), own, after=60, factor=1.25)
    assert seen.stretch_edges == (Edge(policy=1, milliseconds=132),)  # 99 in 100 take 100 ms; 125 lies below 132
    told = {name: seen.strata(name)[1].stretches for name in ("canary", "stable")}
    assert {name: (sum(held.slow), sum(held.examined)) for name, held in told.items() if held is not None} == {
        "canary": (10, 100),
        "stable": (0, 1000),
    }
    later = look(seen, timed("stable", a=990, b=10, f=500), own, after=90, factor=1.25)
    assert later.stretch_edges == seen.stretch_edges


def test_beyond_the_last_edge_everything_is_slow_that_lies_in_the_open_bin() -> None:
    seen = look(FRESH, timed("stable", f=600), timed("canary", f=5, g=3), factor=2.0)
    assert seen.stretch_edges == (Edge(policy=1, milliseconds=201),)
    held = seen.strata("canary")[1].stretches
    assert held is not None
    assert (sum(held.slow), sum(held.examined)) == (3, 8)


def test_where_nobody_asks_nothing_is_kept_of_stretches() -> None:
    seen = look(FRESH, timed("stable", a=600), timed("canary", a=600))
    assert (seen.stretch_edges, seen.strata("canary")[1].stretches) == ((), None)
    assert "stretch" not in str(record.dump(seen)["boots"])
