"""The operator's statistics agree with a plain reference in exact arithmetic, and its evidence with what passed."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.agreement.plain_evidence import (
    Plain,
    Unit,
    by_information,
    evidence_of_errors,
    mixture,
    ratio_of_units,
    times_per_token,
    times_per_token_together,
)

from tandem_operator.domain.evidence import add, begin
from tandem_operator.domain.intervals import (
    ERROR_RATIOS,
    Estimate,
    PairSums,
    SlotSums,
    combine,
    error_evidence,
    faster,
    faster_together,
    half_width,
    log_time_per_token,
    ratio,
)
from tandem_operator.domain.samples import BUCKETS, NO_BUCKETS, Buckets, Document, FirstTokens, Scrape, Stratum

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RELATIVE = 1e-9


def is_near(found: float, exact: Fraction) -> bool:
    return math.isclose(found, float(exact), rel_tol=RELATIVE, abs_tol=1e-12)


def agrees(found: Estimate | None, exact: Plain) -> bool:
    return found is not None and is_near(found.value, exact.value) and is_near(found.variance, exact.variance)


def is_log_of(found: Estimate, exact: Plain) -> bool:
    return is_near(math.exp(found.value), exact.value) and is_near(found.variance, exact.variance)


shares = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair)))
buckets = st.lists(shares, min_size=2, max_size=40)
slots = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 90_000)), min_size=2, max_size=12)
pairs = st.lists(st.tuples(*[st.tuples(st.integers(1, 3000), st.integers(1, 90_000))] * 2), min_size=2, max_size=12)


def spreads(units: list[Unit]) -> bool:
    """Whether the units speak of their own spread: two of them at least, and not all alike."""
    filled = [(y, x) for y, x in units if x]
    return len({Fraction(y, x) for y, x in filled}) > 1


@given(buckets)
def test_a_ratio_of_buckets(units: list[Unit]) -> None:
    assume(spreads(units))
    assert agrees(ratio([y for y, _ in units], [x for _, x in units]), ratio_of_units(units))


@given(st.lists(buckets.filter(spreads), min_size=1, max_size=4))
def test_strata_by_information(strata: list[list[Unit]]) -> None:
    found = combine(
        known for units in strata if (known := ratio([y for y, _ in units], [x for _, x in units])) is not None
    )
    assert agrees(found, by_information(ratio_of_units(units) for units in strata))


def summed(slots: list[Unit]) -> SlotSums:
    sums = SlotSums()
    for tokens, milliseconds in slots:
        sums = sums.plus(tokens, milliseconds)
    return sums


def summed_pairs(slots: list[tuple[Unit, Unit]]) -> PairSums:
    sums = PairSums()
    for stable, canary in slots:
        sums = sums.plus(stable, canary)
    return sums


@given(st.lists(slots, min_size=1, max_size=3))
def test_time_per_token_of_slots(strata: list[list[Unit]]) -> None:
    exact = times_per_token(strata)
    assume(all(part.variance > Fraction(1, 10**6) for part in exact))
    found = log_time_per_token([summed(slots) for slots in strata])
    assert all(is_log_of(one, other) for one, other in zip(found, exact, strict=True))


@given(slots, slots)
def test_one_arm_over_the_other(slow: list[Unit], fast: list[Unit]) -> None:
    one, other = times_per_token([slow])[0], times_per_token([fast])[0]
    assume(min(one.variance, other.variance) > Fraction(1, 10**6))
    found = faster({1: summed(slow)}, {1: summed(fast)})
    assert found is not None
    assert is_log_of(found, Plain(one.value / other.value, one.variance + other.variance))


@given(pairs)
def test_both_revisions_slot_by_slot(together: list[tuple[Unit, Unit]]) -> None:
    (exact,) = times_per_token_together([together])
    assume(exact.variance > Fraction(1, 10**6))
    found = faster_together([summed_pairs(together)])
    assert found is not None
    assert is_log_of(found, exact)


@given(st.lists(pairs, min_size=2, max_size=3))
def test_the_spread_of_slots_of_both_is_common_to_the_strata(strata: list[list[tuple[Unit, Unit]]]) -> None:
    exact = times_per_token_together(strata)
    assume(all(part.variance > Fraction(1, 10**6) for part in exact))
    found = faster_together(map(summed_pairs, strata))
    assert found is not None
    assert is_near(found.variance, 1 / sum((1 / part.variance for part in exact), Fraction(0)))
    weights = [1 / part.variance for part in exact]
    mean = sum(float(weight) * math.log(part.value) for weight, part in zip(weights, exact, strict=True))
    assert found.value == pytest.approx(mean / float(sum(weights)), rel=RELATIVE, abs=1e-12)


spans = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.fractions(Fraction(1, 100), Fraction(99, 100))), max_size=6
)


@given(spans)
def test_errors_of_spans(found_in: list[tuple[int, int, Fraction]]) -> None:
    logs = [error_evidence(own, others, float(share)) for own, others, share in found_in]
    found = [math.fsum(column) for column in zip((0.0,) * len(ERROR_RATIOS), *logs, strict=True)]
    for log_ratio, times in zip(found, ERROR_RATIOS, strict=True):
        assert is_near(math.exp(log_ratio), evidence_of_errors(found_in, Fraction(times)))


@given(
    st.integers(8, 5000),
    st.floats(1e-4, 0.05),
    st.floats(0.005, 0.2),
    st.floats(0.002, 0.05),
)
def test_the_half_width_is_where_the_mixture_says_one_in_alpha(
    units: int, error: float, scale: float, alpha: float
) -> None:
    h = half_width(Estimate(0.0, error**2, units), scale, alpha)
    assume(math.isfinite(h))
    likelihood = mixture(Fraction(h), Fraction(error**2), units=units, scale=Fraction(scale))
    assert float(likelihood) * alpha**2 == pytest.approx(1.0, rel=1e-6)


# What passed through gateways, against what the evidence holds


@st.composite
def lives(draw: st.DrawFn) -> list[list[tuple[int, str, int, int, int, bool, bool]]]:
    """The requests of each life of one gateway: (policy, revision, bucket, accepted, rejections, failed, slow)."""
    request = st.tuples(
        st.integers(1, 3),
        st.sampled_from(["canary", "stable"]),
        st.integers(0, BUCKETS - 1),
        st.integers(0, 9),
        st.integers(0, 4),
        st.booleans(),
        st.booleans(),
    )
    return draw(st.lists(st.lists(request, max_size=30), min_size=1, max_size=4))


class Counting:
    """One life of a gateway."""

    def __init__(self) -> None:
        self.strata: dict[tuple[int, str], Stratum] = {}

    def count(self, request: tuple[int, str, int, int, int, bool, bool]) -> None:
        policy, revision, bucket, accepted, rejections, failed, slow = request
        held = self.strata.get((policy, revision), Stratum(policy=policy, revision=revision))
        known, timed = held.acceptance or Buckets(), held.first_token or FirstTokens((100,))
        index = str(int(slow))
        self.strata[policy, revision] = replace(
            held,
            requests=held.requests + 1,
            errors=held.errors + failed,
            acceptance=Buckets(
                plus(known.accepted, bucket, accepted),
                plus(known.examined, bucket, accepted + rejections),
                plus(known.requests, bucket, 1),
            ),
            first_token=FirstTokens((100,), {**timed.bins, index: plus(timed.bins.get(index, NO_BUCKETS), bucket, 1)}),
        )


def plus(row: tuple[int, ...], place: int, more: int) -> tuple[int, ...]:
    return (*row[:place], row[place] + more, *row[place + 1 :])


@given(lives())
def test_evidence_over_lives_of_gateways_is_what_passed_and_each_request_once(
    requests: list[list[tuple[int, str, int, int, int, bool, bool]]],
) -> None:
    known = begin("canary", "stable", since=2, now=NOW)
    at = NOW
    for number, life in enumerate(requests):
        gateway = Counting()
        for request in life:
            gateway.count(request)
            at += timedelta(seconds=30)
            document = Document(boot=f"life-{number}", policy=3, strata=tuple(gateway.strata.values()))
            for _ in range(2):  # a look that is repeated changes nothing
                known = add(known, Scrape(at, {"gateway": document}), gateways=["gateway"], slot_seconds=20)
    passed = [request for life in requests for request in life if request[0] >= 2]
    for name in ("canary", "stable"):
        strata = known.strata(name)
        own = [request for request in passed if request[1] == name]
        assert {policy: stratum.requests for policy, stratum in strata.items()} == {
            policy: sum(request[0] == policy for request in own) for policy in {request[0] for request in own}
        }
        for policy, stratum in strata.items():
            here = [request for request in own if request[0] == policy]
            assert stratum.errors == sum(request[5] for request in here)
            assert stratum.acceptance is not None
            for bucket in range(BUCKETS):
                mine = [request for request in here if request[2] == bucket]
                assert stratum.acceptance.accepted[bucket] == sum(request[3] for request in mine)
                assert stratum.acceptance.examined[bucket] == sum(request[3] + request[4] for request in mine)
