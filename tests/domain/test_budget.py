"""Which proposed tokens a step judges, by beliefs, tenants and what steps cost; and how that cost is learnt."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.budget import NOTHING_MEASURED, UNKNOWN, Measured, Offer, StepSeconds, kept_slots
from tandem_runtime.domain.tokens import Priority

SLOPED = StepSeconds(0.010, 0.001)


def one(*survivals: float, tenant: str | None = None, rows: int = 1, weight: float = 1.0) -> Offer:
    return Offer(Claim(tenant, weight), rows, survivals)


def of_alpha(alpha: float, k: int, tenant: str | None = None) -> Offer:
    return one(*accumulate([alpha] * k, mul), tenant=tenant)


CASES = {
    "nobody offers anything": ([], []),
    "no slots": ([one(), one()], [0, 0]),
    "a lone proposal is its gateway's own choice": ([one(), one(0.01, 0.001)], [0, 2]),
    "the worse of two": ([one(0.9, 0.8), one(0.2, 0.1)], [2, 0]),
    "a beginning of each": ([one(0.9, 0.1), one(0.8, 0.6, 0.05)], [1, 2]),
    "many guesses that are equally good": ([one(*[0.5] * 4)] * 2, [4, 4]),
    "many sessions make a slot dear": ([of_alpha(0.8, 4)] * 32, [1] * 32),
}


@pytest.mark.parametrize(("offers", "kept"), CASES.values(), ids=CASES)
def test_slots_are_taken_while_they_bring_more_than_the_step_does(offers: list[Offer], kept: list[int]) -> None:
    assert kept_slots(offers, SLOPED) == kept


def test_where_a_slot_costs_nothing_every_proposal_is_judged_whole() -> None:
    assert kept_slots([of_alpha(0.1, 8)] * 3, UNKNOWN) == [8, 8, 8]


def test_beside_a_prompts_chunk_a_slot_is_cheap() -> None:
    offers = [of_alpha(0.7, 4)] * 4
    assert kept_slots(offers, SLOPED) == [2] * 4
    assert kept_slots(offers, replace(SLOPED, fixed=0.1)) == [4] * 4


def test_beyond_what_one_step_holds_a_slot_takes_the_place_of_another_sessions_token() -> None:
    offers = [of_alpha(0.8, 4)] * 6
    assert kept_slots(offers, SLOPED) == [2] * 6
    assert kept_slots(offers, replace(SLOPED, rows=8)) == [1, 1, 0, 0, 0, 0]


def brought(offers: Sequence[Offer], kept: Sequence[int], seconds: StepSeconds) -> float:
    tokens = len(offers) + sum(sum(offer.survivals[:count]) for offer, count in zip(offers, kept, strict=True))
    return tokens / seconds.of(sum(offer.rows for offer in offers) + sum(kept))


survivals = st.lists(st.integers(0, 8), max_size=4).map(lambda eighths: tuple(sorted(n / 8 for n in eighths)[::-1]))
costs = st.builds(
    StepSeconds, st.integers(0, 20).map(float), st.integers(1, 5).map(float), st.none() | st.integers(1, 9)
)


@given(st.lists(st.tuples(st.integers(1, 3), survivals), min_size=2, max_size=4), costs)
def test_no_other_cut_brings_more(rows: list[tuple[int, tuple[float, ...]]], seconds: StepSeconds) -> None:
    offers = [one(*believed, rows=count) for count, believed in rows]
    kept = kept_slots(offers, seconds)
    if sum(1 for offer in offers if offer.survivals) < 2:
        assert kept == [len(offer.survivals) for offer in offers]
        return
    cuts = product(*(range(len(offer.survivals) + 1) for offer in offers))
    best = max(brought(offers, cut, seconds) for cut in cuts)
    assert brought(offers, kept, seconds) >= best * (1 - 1e-12)


@given(st.lists(survivals, min_size=1, max_size=3), st.lists(survivals, min_size=1, max_size=5), costs)
def test_nobodys_claims_cut_another_tenants_slots(
    mine: list[tuple[float, ...]], theirs: list[tuple[float, ...]], seconds: StepSeconds
) -> None:
    mine = [*mine, (0.9, 0.5), (0.3,)]
    own = [one(*believed, tenant="a") for believed in mine]
    others = [one(*believed, tenant="b") for believed in theirs]
    boasting = [one(*(1.0,) * 9, tenant="b")] * 50
    honest, beside = kept_slots([*own, *others], seconds), kept_slots([*own, *boasting], seconds)
    assert honest[: len(own)] == beside[: len(own)]


def test_a_crowd_fills_its_own_share_and_a_weight_is_a_larger_one() -> None:
    few, many = [of_alpha(0.8, 4, "few")] * 2, [of_alpha(0.8, 4, "many")] * 20
    seconds = StepSeconds(0.02, 0.001)
    assert kept_slots([*few, *many], seconds) == [4, 4, *[1] * 20]
    heavy = [replace(offer, claim=Claim("many", 9.0)) for offer in many]
    assert kept_slots([*few, *heavy], seconds) == [2] * 22


def test_priorities_are_accounts_apart() -> None:
    urgent, later = of_alpha(0.8, 4), replace(of_alpha(1.0, 8), claim=Claim(priority=Priority.BATCH))
    alone = kept_slots([urgent, replace(later, survivals=(0.1,))], SLOPED)
    assert kept_slots([urgent, later], SLOPED)[0] == alone[0]


# What steps cost ------------------------------------------------------------------------------------------------------


def after(steps: Sequence[tuple[int, float]], measured: Measured = NOTHING_MEASURED, begins: float = 100.0) -> Measured:
    """Steps one behind the other, each (rows, seconds)."""
    now = begins
    for rows, seconds in steps:
        now += seconds
        measured = measured.learned(rows, seconds, now=now)
    return measured


def linear(rows: int) -> tuple[int, float]:
    return rows, 0.01 + 0.001 * rows


MIXED = [linear(rows) for rows in (1, 5, 9, 3) * 25]


def test_steps_of_different_sizes_tell_what_a_row_costs() -> None:
    seconds = after(MIXED).seconds(now=102.0)
    assert (seconds.fixed, seconds.per_row) == pytest.approx((0.01, 0.001), rel=0.05)


@pytest.mark.parametrize("steps", [[], MIXED[:7], [linear(5)] * 100], ids=["none", "few", "of one size"])
def test_steps_that_tell_nothing_cut_nothing(steps: list[tuple[int, float]]) -> None:
    assert after(steps).seconds(now=101.0).per_row == 0


def test_chance_is_not_taken_for_a_cost() -> None:
    noisy = [(1 + at % 2, 0.01 + 0.001 * (at * 7 % 5)) for at in range(40)]
    assert after(noisy).seconds(now=101.0).per_row == 0
    assert after([(rows, 0.01) for rows in (1, 2, 3, 4) * 9]).seconds(now=101.0).per_row == 0
    falling = [(rows, 0.1 - 0.001 * rows) for rows in (1, 2, 3, 4) * 9]
    assert after(falling).seconds(now=103.0).per_row == 0


def test_no_more_is_believed_than_that_a_step_is_all_rows() -> None:
    steep = [(rows, 0.001 * rows**2) for rows in (4, 5, 6) * 9]
    seconds = after(steep).seconds(now=101.0)
    assert seconds.fixed < 0.005


def test_another_machine_is_learnt_within_a_minute() -> None:
    slower = after([(rows, 3 * seconds) for rows, seconds in MIXED * 30], after(MIXED))
    assert slower.seconds(now=160.0).per_row == pytest.approx(0.003, rel=0.05)


def test_a_suspended_machine_counts_as_a_slow_step() -> None:
    once = after(MIXED).learned(5, 900.0, now=1000.0)
    assert once.seconds(now=1000.0).of(5) < 0.06
    assert after(MIXED, once, begins=1000.0).seconds(now=1002.0).of(5) == pytest.approx(0.015, rel=0.05)


@pytest.mark.parametrize(("later", "known"), [(1790.0, True), (1810.0, False)])
def test_what_was_not_measured_for_long_is_not_known(later: float, known: bool) -> None:
    measured = after(MIXED)
    assert (measured.seconds(now=101.5 + later).per_row > 0) is known
    assert (measured.learned(3, 0.5, now=101.5 + later).steps > 1) is known


def test_a_clock_that_goes_back_neither_ages_nor_costs_anything() -> None:
    measured = after(MIXED)
    back = measured.learned(*linear(5), now=50.0)
    assert back.seconds(now=50.0).of(5) == pytest.approx(0.015, rel=0.05)
    assert measured.learned(5, -3.0, now=50.0).seconds(now=50.0).of(5) > 0.01


ROUNDS = {
    "nobody does anything else": (0.02, 0.0, 0.0),
    "two groups in turn": (0.04, 1.0, 0.0),
    "one group that drafts between its steps": (0.06, 0.0, 0.04),
    "drafting for long, and half come during another's step": (0.09, 0.5, 0.04),
}
"""Seconds between verdicts, who came during another step, and by how much a step seems longer, of 20 ms."""


@pytest.mark.parametrize(("cycle", "came_during", "apart"), ROUNDS.values(), ids=ROUNDS)
def test_a_slot_costs_those_whom_it_delays(cycle: float, came_during: float, apart: float) -> None:
    measured = before = after(MIXED)
    for _ in range(60):
        measured = measured.shared(cycle, came_during, 0.02)
    seconds, without = measured.seconds(now=102.0), before.seconds(now=102.0)
    assert seconds.per_row == without.per_row
    assert seconds.fixed == pytest.approx(without.fixed + apart, rel=0.01)


def test_a_night_without_requests_is_forgotten_in_a_few_steps() -> None:
    measured = after(MIXED).shared(30_000.0, 0.0, 0.015)
    for _ in range(20):
        measured = measured.shared(0.015, 0.0, 0.015)
    assert measured.apart < 0.002
