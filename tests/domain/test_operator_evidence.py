"""Numbers here were worked out by hand from the equations in `intervals`, not by running it."""

import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain import record
from tandem_operator.domain.evidence import Edge, Evidence, SharedSums, add, begin, in_window, read, same_sums
from tandem_operator.domain.intervals import (
    Estimate,
    PairSums,
    SlotSums,
    combine,
    difference,
    error_evidence,
    faster,
    faster_together,
    half_width,
    log_e_value,
    log_time_per_token,
    ratio,
)
from tandem_operator.domain.samples import (
    BUCKETS,
    Arm,
    Buckets,
    Document,
    FirstTokens,
    Scrape,
    Slot,
    Stratum,
    Waits,
    quantile,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


# Intervals


@pytest.mark.parametrize(
    ("error", "units", "expected"),
    [
        (0.01, 10**9, 0.0360100),  # sqrt(1.04 x (9.21034 + 3.25810)) hundredths: that of the normal mixture
        (0.05, 10**9, 0.2225251),  # sqrt(2 x (9.21034 + 0.69315)) / 20
        (0.01, 100, 0.0370745),  # q = 12.46844, k = 1/26: sqrt(99 x .132801 / (1 - 1.132801 / 26)) hundredths
        (0.05, 12, math.inf),  # q / n = .825, and exp of it halved is above 1
        (0.0, 8, 0.0),
    ],
)
def test_the_half_width_is_that_of_the_mixture_over_t(error: float, units: int, expected: float) -> None:
    assert half_width(Estimate(0.0, error**2, units), 0.05, 0.01) == pytest.approx(expected, abs=1e-6)


def test_a_ratio_of_two_buckets_has_the_variance_of_its_residuals() -> None:
    assert ratio([1, 2, 0], [2, 2, 0]) == Estimate(0.75, 0.0625, 2)


def test_one_filled_bucket_has_no_variance_and_gives_no_estimate() -> None:
    assert ratio([5, 0], [10, 0]) is None


def test_a_perfect_draft_is_not_certain_beyond_what_it_was_asked() -> None:
    found = ratio([10, 10], [10, 10])
    assert found is not None
    assert found.value == 1.0
    assert found.variance == pytest.approx(21 / 22 * 1 / 22 / 20)


def test_slots_give_the_logarithm_of_time_per_token() -> None:
    sums = SlotSums().plus(100, 1000).plus(100, 1200).plus(200, 2200)
    assert sums == SlotSums(3, 400, 4400, 60000, 660000, 7280000)
    (found,) = log_time_per_token([sums])
    assert found.value == pytest.approx(math.log(11))
    assert found.variance == pytest.approx(1.5 * 20000 / 4400**2)  # residuals -100, 100, 0


def test_the_spread_of_a_slot_is_pooled_over_strata() -> None:
    wide = SlotSums().plus(100, 900).plus(100, 1100)
    narrow = SlotSums().plus(100, 1000).plus(100, 1000).plus(100, 1000)
    first, second = log_time_per_token([wide, narrow])
    spread = (0.1**2 + 0.1**2) / (1 + 2)
    assert first.variance == pytest.approx(spread / 2)
    assert second.variance == pytest.approx(spread / 3)


def test_faster_is_positive_where_the_second_needs_less_time() -> None:
    off = {1: SlotSums().plus(100, 2000).plus(100, 2000)}
    on = {1: SlotSums().plus(100, 1000).plus(100, 1000), 2: SlotSums().plus(1, 1)}
    found = faster(off, on)
    assert found is not None
    assert found.value == pytest.approx(math.log(2))
    assert faster(off, {2: on[1]}) is None  # another stratum is no comparison


def test_slots_of_both_are_compared_slot_by_slot() -> None:
    """Both slow down together in every second slot: the ratio is 11 / 10 throughout, and nothing is left to chance."""
    equal = PairSums().plus((100, 1100), (50, 500)).plus((100, 2200), (50, 1000)).plus((100, 1100), (50, 500))
    found = faster_together([equal])
    assert found is not None
    assert found.value == pytest.approx(math.log(1.1))
    assert (found.variance < 1e-11, found.units) == (True, 3)


def test_the_variance_of_slots_of_both_is_that_of_their_differences() -> None:
    held = PairSums().plus((100, 900), (100, 1000)).plus((100, 1100), (100, 1000))
    found = faster_together([held])
    assert found is not None
    assert found.value == pytest.approx(0)
    assert found.variance == pytest.approx((0.1**2 + 0.1**2) / (2 * 1))
    assert faster_together([PairSums().plus((1, 1), (1, 1))]) is None


def test_strata_are_combined_by_information() -> None:
    found = combine([Estimate(0.8, 0.01, 40), Estimate(0.6, 0.03, 50)])
    assert found is not None
    assert found.value == pytest.approx((0.8 * 100 + 0.6 * 100 / 3) / (100 + 100 / 3))
    assert found.variance == pytest.approx(0.0075)
    assert found.units == 90
    assert combine([]) is None


def test_errors_are_weighed_against_the_share_of_requests() -> None:
    found = error_evidence(3, 1, 0.5)
    assert found[1] == pytest.approx(3 * math.log(2) - 4 * math.log(1.5))
    assert found[5] == pytest.approx(3 * math.log(30) - 4 * math.log(15.5))
    assert log_e_value([0.0, math.log(3)]) == pytest.approx(math.log(2))


# A canary that equals stable, looked at often


def bursts(chance: random.Random, requests: int, mean: float) -> tuple[list[int], list[int]]:
    """Buckets of requests of 20 examined tokens, whose acceptance differs from one request to the next."""
    accepted, examined = [0] * BUCKETS, [0] * BUCKETS
    for _ in range(requests):
        bucket, rate = chance.randrange(BUCKETS), chance.betavariate(mean * 4, (1 - mean) * 4)
        accepted[bucket] += sum(chance.random() < rate for _ in range(20))
        examined[bucket] += 20
    return accepted, examined


def outcomes(seed: int, canary_mean: float, *, looks: int, alpha: float = 0.01) -> tuple[str, bool]:
    """(verdict of the sequential test, whether a z test polled at the same looks would have failed the canary)."""
    chance = random.Random(seed)
    arms = {name: ([0] * BUCKETS, [0] * BUCKETS) for name in ("canary", "stable")}
    naive = False
    for _ in range(looks):
        for name, mean, requests in (("canary", canary_mean, 25), ("stable", 0.8, 75)):
            more = bursts(chance, requests, mean)
            arms[name] = tuple(
                [a + b for a, b in zip(old, new, strict=True)] for old, new in zip(arms[name], more, strict=True)
            )  # type: ignore[assignment] # two rows
        canary, stable = ratio(*arms["canary"]), ratio(*arms["stable"])
        assert canary is not None
        assert stable is not None
        drop = difference(canary, stable)
        trials = [sum(arms[name][1]) for name in arms]
        z = drop.value / math.sqrt(0.8 * 0.2 * sum(1 / trial for trial in trials))
        naive = naive or z < -2.326
        h = half_width(drop, 0.05, alpha)
        if drop.value + h < 0 and drop.value - h <= -0.05:
            return "Fail", naive
        if drop.value - h > -0.05:
            return "Pass", naive
    return "Inconclusive", naive


def test_a_sound_canary_passes_where_a_polled_z_test_would_abort_many() -> None:
    found = [outcomes(seed, 0.8, looks=40) for seed in range(60)]
    verdicts = [verdict for verdict, _ in found]
    assert verdicts.count("Fail") == 0
    assert verdicts.count("Pass") >= 57
    assert sum(naive for _, naive in found) >= 12  # a fifth at a nominal hundredth


def test_a_real_drop_is_found() -> None:
    verdicts = [outcomes(seed, 0.7, looks=40)[0] for seed in range(40)]
    assert verdicts.count("Fail") >= 39
    assert "Pass" not in verdicts


# Gathering


def stratum(revision: str, requests: int, *, policy: int = 5, errors: int = 0) -> Stratum:
    row = (requests,) + (0,) * (BUCKETS - 1)
    buckets = Buckets(accepted=row, examined=tuple(2 * held for held in row), requests=row)
    return Stratum(policy=policy, revision=revision, requests=requests, errors=errors, acceptance=buckets)


def scrape(seconds: int, **documents: tuple[str, int]) -> Scrape:
    """Gateways by pod name, each with its boot and the requests of the canary so far."""
    at = NOW + timedelta(seconds=seconds)
    return Scrape(
        at,
        {
            pod: Document(boot=boot, policy=5, strata=(stratum("canary", count), stratum("stable", 9 * count)))
            for pod, (boot, count) in documents.items()
        },
    )


def fresh() -> Evidence:
    return begin("canary", "stable", since=5, now=NOW)


def counted(held: Evidence) -> int:
    return held.strata("canary")[5].requests


def test_the_same_answers_added_twice_change_nothing() -> None:
    once = add(fresh(), scrape(30, a=("x", 10), b=("y", 20)), gateways=["a", "b"], slot_seconds=20)
    twice = add(once, scrape(60, a=("x", 10), b=("y", 20)), gateways=["a", "b"], slot_seconds=20)
    assert counted(once) == 30
    assert same_sums(once, twice)


def test_a_gateway_that_restarts_keeps_what_it_had_counted() -> None:
    held = add(fresh(), scrape(30, a=("x", 10), b=("y", 20)), gateways=["a", "b"], slot_seconds=20)
    held = add(held, scrape(60, a=("x2", 3), b=("y", 25)), gateways=["a", "b"], slot_seconds=20)
    assert counted(held) == 10 + 3 + 25
    held = add(held, scrape(90, b=("y", 26)), gateways=["b"], slot_seconds=20)
    assert counted(held) == 10 + 3 + 26


def test_a_gateway_that_does_not_answer_for_a_while_is_not_counted_twice() -> None:
    held = add(fresh(), scrape(30, a=("x", 10), b=("y", 20)), gateways=["a", "b"], slot_seconds=20)
    held = add(held, scrape(60, b=("y", 25)), gateways=["a", "b"], slot_seconds=20)
    assert counted(held) == 35
    held = add(held, scrape(90, a=("x", 12), b=("y", 25)), gateways=["a", "b"], slot_seconds=20)
    assert counted(held) == 37


def test_evidence_from_before_the_canary_and_of_others_is_left_out() -> None:
    document = Document(boot="x", policy=6, strata=(stratum("canary", 7, policy=4), stratum("other", 7)))
    held = add(fresh(), Scrape(NOW, {"a": document}), gateways=["a"], slot_seconds=20)
    assert (held.strata("canary"), held.strata("other")) == ({}, {})


def test_what_a_gateway_forgets_after_it_was_read_stays_known() -> None:
    held = add(fresh(), scrape(30, a=("x", 10)), gateways=["a"], slot_seconds=20)
    later = Document(boot="x", policy=9, forgotten=5, strata=(stratum("canary", 3, policy=8),))
    held = add(held, Scrape(NOW + timedelta(days=2), {"a": later}), gateways=["a"], slot_seconds=20)
    assert {policy: sums.requests for policy, sums in held.strata("canary").items()} == {5: 10, 8: 3}
    assert held.gap == ""


def test_what_a_gateway_forgot_before_it_was_read_is_told_apart_from_what_never_was() -> None:
    """The document of evidence was deleted by hand, or the operator was away for a day."""
    later = Document(boot="x", policy=9, forgotten=5, strata=(stratum("canary", 3, policy=8),))
    held = add(fresh(), Scrape(NOW + timedelta(days=2), {"a": later}), gateways=["a"], slot_seconds=20)
    assert held.gap == "; what a gateway counted under policies up to 5 it had forgotten before it was read"
    held = add(held, Scrape(NOW + timedelta(days=3), {"a": later}), gateways=["a"], slot_seconds=20)
    assert held.forgotten == 5
    assert read(json.dumps(record.dump(held))) == held
    before_the_canary = replace(later, forgotten=4)
    assert add(fresh(), Scrape(NOW, {"a": before_the_canary}), gateways=["a"], slot_seconds=20).gap == ""


def slot(pod: str, number: int, arm: Arm, tokens: int, *, revision: str = "canary") -> Slot:
    return Slot(
        pod=pod, target="t", slot=number, arm=arm, policy=5, revision=revision, tokens=tokens, milliseconds=tokens * 10
    )


def test_slots_are_added_over_gateways_and_folded_once() -> None:
    first = int((NOW - record.EPOCH).total_seconds()) // 20
    slots = [
        Document(boot="x", policy=5, slots=(slot("p", first, Arm.ON, 100), slot("p", first + 1, Arm.OFF, 50))),
        Document(
            boot="y",
            policy=5,
            slots=(slot("p", first, Arm.ON, 40), slot("p", first + 1, Arm.OFF, 7, revision="stable")),
        ),
    ]
    held = fresh()
    for seconds in (30, 40, 60, 90):
        answers = Scrape(NOW + timedelta(seconds=seconds), {"a": slots[0], "b": slots[1]})
        held = add(held, answers, gateways=["a", "b"], slot_seconds=20)
    assert held.arm("canary", Arm.ON) == {5: SlotSums().plus(140, 1400)}
    assert held.arm("t", Arm.OFF) == {5: SlotSums().plus(57, 570)}


def test_stable_counts_where_the_canary_decoded_too() -> None:
    first = int((NOW - record.EPOCH).total_seconds()) // 20
    slots = (
        slot("p", first, Arm.ON, 100),
        slot("p", first, Arm.ON, 40, revision="stable"),
        slot("q", first, Arm.ON, 30, revision="stable"),
        slot("p", first + 1, Arm.OFF, 50),
        slot("p", first + 1, Arm.OFF, 50, revision="stable"),
    )
    answers = Scrape(NOW + timedelta(seconds=90), {"a": Document(boot="x", policy=5, slots=slots)})
    held = add(fresh(), answers, gateways=["a"], slot_seconds=20)
    assert held.together == (SharedSums(policy=5, sums=PairSums().plus((40, 400), (100, 1000))),)
    assert held.arm("stable", Arm.ON) == {}


def test_everybody_in_on_slots_counts_together_whether_he_may_speculate_or_not() -> None:
    first = int((NOW - record.EPOCH).total_seconds()) // 20
    slots = (
        slot("p", first, Arm.ON, 100),
        slot("p", first, Arm.BESIDE, 40, revision="stable"),
        slot("q", first, Arm.BESIDE, 30, revision="stable"),
        slot("p", first + 1, Arm.OFF, 50),
        slot("p", first + 1, Arm.OFF, 50, revision="stable"),
    )
    answers = Scrape(NOW + timedelta(seconds=90), {"a": Document(boot="x", policy=5, slots=slots)})
    held = add(fresh(), answers, gateways=["a"], slot_seconds=20)
    assert held.arm("t", Arm.BESIDE) == {5: SlotSums().plus(140, 1400).plus(30, 300)}
    assert held.arm("t", Arm.OFF) == {5: SlotSums().plus(100, 1000)}
    assert held.arm("canary", Arm.ON) == {5: SlotSums().plus(100, 1000)}
    assert (held.arm("stable", Arm.BESIDE), held.together) == ({}, ())


def test_a_slot_waits_for_every_gateway_but_not_for_ever() -> None:
    first = int((NOW - record.EPOCH).total_seconds()) // 20
    document = Document(boot="x", policy=5, slots=(slot("p", first, Arm.ON, 100),))
    held = add(fresh(), Scrape(NOW + timedelta(seconds=60), {"a": document}), gateways=["a", "b"], slot_seconds=20)
    assert held.arm("canary", Arm.ON) == {}
    held = add(held, Scrape(NOW + timedelta(seconds=150), {"a": document}), gateways=["a", "b"], slot_seconds=20)
    assert held.arm("canary", Arm.ON) == {5: SlotSums().plus(100, 1000)}


def test_errors_are_weighed_once_however_often_they_are_seen() -> None:
    strata = (stratum("canary", 100, errors=3), stratum("stable", 100, errors=1))
    held = fresh()
    for seconds in (30, 60, 90):
        answers = Scrape(NOW + timedelta(seconds=seconds), {"a": Document(boot="x", policy=5, strata=strata)})
        held = add(held, answers, gateways=["a"], slot_seconds=20)
    assert held.errors == pytest.approx(error_evidence(3, 1, 0.5))


def test_an_error_rate_six_times_as_high_is_found_and_an_equal_one_is_not() -> None:
    chance = random.Random(3)
    wrong, equal = [0.0] * 6, [0.0] * 6
    for _ in range(80):
        counts = [sum(chance.random() < rate for _ in range(50)) for rate in (0.012, 0.002, 0.002)]
        wrong = [a + b for a, b in zip(wrong, error_evidence(counts[0], counts[1], 0.5), strict=True)]
        equal = [a + b for a, b in zip(equal, error_evidence(counts[2], counts[1], 0.5), strict=True)]
    assert log_e_value(wrong) > math.log(100)
    assert log_e_value(equal) < math.log(100)


def test_saved_evidence_comes_back_equal() -> None:
    held = add(fresh(), scrape(30, a=("x", 10), b=("y", 20)), gateways=["a"], slot_seconds=20)
    assert read(json.dumps(record.dump(held))) == held
    assert read("") is None


def test_a_window_counts_what_each_boot_added() -> None:
    before, now = scrape(0, a=("x", 10), b=("y", 20)), scrape(300, a=("x", 15), b=("z", 4))
    found = in_window(now, before, "canary")
    assert found is not None
    assert (found.requests, found.acceptance and found.acceptance.accepted[0]) == (9, 9)
    assert in_window(now, None, "canary") is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.booleans()), max_size=12))
def test_no_order_of_scrapes_and_restarts_loses_or_doubles_a_request(steps: list[tuple[str, int, bool]]) -> None:
    """Every request that was seen before its gateway's life ended is in the total, once."""
    lives = {"a": ("a0", 0), "b": ("b0", 0)}
    held, total = fresh(), 0
    for number, (pod, more, restarts) in enumerate(steps, start=1):
        boot, count = (f"{pod}{number}", 0) if restarts else lives[pod]
        lives[pod] = (boot, count + more)
        total += more
        held = add(held, scrape(30 * number, **lives), gateways=["a", "b"], slot_seconds=20)
        assert counted(held) == total


# First tokens


def timed(policy: int, revision: str, counts: dict[int, int], *, bucket: int = 0) -> Stratum:
    """A stratum with so many requests by bin, all of one bucket; the edges are 10, 20, 40 ms."""
    rows = {str(index): tuple(count * (place == bucket) for place in range(BUCKETS)) for index, count in counts.items()}
    return Stratum(policy=policy, revision=revision, first_token=FirstTokens((10, 20, 40), rows))


def answered(*strata: Stratum, boot: str = "b1", after: int = 30) -> Scrape:
    return Scrape(NOW + timedelta(seconds=after), {"gateway-0": Document(boot=boot, policy=1, strata=strata)})


def waits(evidence: Evidence) -> dict[str, tuple[int, int]]:
    """(slow, examined) by revision, over all policies and buckets."""
    found = {}
    for name in ("canary", "stable"):
        held = [stratum.waits or Waits() for stratum in evidence.strata(name).values()]
        found[name] = (sum(sum(each.slow) for each in held), sum(sum(each.examined) for each in held))
    return found


def test_a_quantile_is_the_first_edge_that_holds_the_share_over_all_gateways() -> None:
    tokens = [timed(1, "s", counts).first_token for counts in ({0: 50, 1: 39}, {1: 1, 2: 6, 3: 4})]
    parts = [part for part in tokens if part is not None]
    shares = (0.5, 0.9, 0.91, 0.96, 0.97, 1.0)
    assert [quantile(parts, share) for share in shares] == [10, 20, 40, 40, 40, 40]


def test_the_edge_waits_for_fifty_of_stables_requests_and_then_counts_all_from_the_first() -> None:
    early = timed(1, "stable", {0: 40, 1: 9}), timed(1, "canary", {0: 3, 2: 2})
    seen = add(begin("canary", "stable", since=1, now=NOW), answered(*early), gateways=["gateway-0"], slot_seconds=20)
    assert (seen.edges, waits(seen)) == ((), {"canary": (0, 0), "stable": (0, 0)})
    later = timed(1, "stable", {0: 40, 1: 9, 3: 1}), early[1]
    seen = add(seen, answered(*later, after=60), gateways=["gateway-0"], slot_seconds=20)
    assert (seen.edges, waits(seen)) == ((Edge(policy=1, milliseconds=20),), {"canary": (2, 5), "stable": (1, 50)})
    assert record.load(Evidence, record.dump(seen)) == seen


def test_an_edge_once_chosen_stays_and_every_stratum_has_its_own() -> None:
    first = timed(1, "stable", {0: 100}), timed(1, "canary", {1: 7})
    seen = add(begin("canary", "stable", since=1, now=NOW), answered(*first), gateways=["gateway-0"], slot_seconds=20)
    slower = timed(1, "stable", {0: 100, 2: 900}), first[1], timed(2, "stable", {2: 60}), timed(2, "canary", {3: 4})
    seen = add(seen, answered(*slower, after=60), gateways=["gateway-0"], slot_seconds=20)
    assert seen.edges == (Edge(policy=1, milliseconds=10), Edge(policy=2, milliseconds=40))
    assert waits(seen) == {"canary": (7 + 4, 11), "stable": (900, 1060)}


def test_first_tokens_of_a_gateway_that_is_gone_stay_counted_once() -> None:
    strata = timed(1, "stable", {0: 95, 3: 5}), timed(1, "canary", {0: 8, 3: 2}, bucket=9)
    seen = add(begin("canary", "stable", since=1, now=NOW), answered(*strata), gateways=["gateway-0"], slot_seconds=20)
    for after in (60, 90):
        again = answered(*strata, boot="b2", after=after)
        seen = add(seen, again, gateways=["gateway-0"], slot_seconds=20)
    assert waits(seen) == {"canary": (4, 20), "stable": (10, 200)}
    held = seen.strata("canary")[1].waits
    assert held is not None
    assert (held.slow[9], held.examined[9]) == (4, 20)


def test_a_gateway_that_times_nothing_adds_nothing() -> None:
    bare = Stratum(policy=1, revision="canary", requests=5), Stratum(policy=1, revision="stable", requests=500)
    seen = add(begin("canary", "stable", since=1, now=NOW), answered(*bare), gateways=["gateway-0"], slot_seconds=20)
    assert [stratum.waits for stratum in seen.strata("canary").values()] == [None]


# Documents
