"""The traffic of `canary_power` misleads tests that are naive, and its figures are those of its runs."""

import math

import pytest
from benchmarks.canary_power import (
    IN_PARTS,
    SEED,
    SEGMENT_DROP,
    WORSE_IN,
    Ending,
    Run,
    Runs,
    all_runs,
    figures_of,
    upper_bound,
    watch,
)
from benchmarks.canary_traffic import Drop

EQUAL = Run(Ending.PROMOTED, (), 3000, 60, naive=False, pooled=True)
WORSE = Run(Ending.FAILED, ("acceptanceDrop",), 400, 20, naive=True, pooled=True)
IN_ONE = Run(Ending.FAILED, ("segments",), 700, 40, naive=False, pooled=False)


def test_an_equal_canary_is_promoted_and_one_that_accepts_less_is_found_soon() -> None:
    equal = watch(SEED)
    assert (equal.ending, equal.failed, equal.pooled) == (Ending.PROMOTED, (), True)
    worse = watch(SEED, drop=Drop(0.1), most_requests=2001)
    assert (worse.ending, worse.failed) == (Ending.FAILED, ("acceptanceDrop",))
    assert worse.requests < 2000


def test_in_parts_an_equal_canary_is_promoted_and_one_that_is_bad_in_one_segment_is_found_by_that() -> None:
    assert watch(SEED, rules=IN_PARTS).ending is Ending.PROMOTED
    worse = watch(SEED, drop=Drop(segment=WORSE_IN, more=SEGMENT_DROP), rules=IN_PARTS, most_requests=2001)
    assert (worse.ending, worse.failed) == (Ending.FAILED, ("segments",))


def test_a_seed_gives_the_same_run_in_whichever_process() -> None:
    shared, alone = all_runs(2, 1, 2), all_runs(2, 1, 1)
    assert (shared, len(shared.equal), len(shared.equal_in_parts)) == (alone, 2, 1)


@pytest.mark.parametrize(
    ("hits", "runs", "bound"),
    [(0, 2000, 1 - 0.05 ** (1 / 2000)), (0, 1, 0.95), (1, 1, 1.0), (1, 2, math.sqrt(0.95))],
)
def test_the_upper_bound_is_where_so_few_would_have_a_chance_of_one_in_twenty(
    hits: int, runs: int, bound: float
) -> None:
    assert upper_bound(hits, runs) == pytest.approx(bound, abs=1e-9)


def test_figures_follow_from_the_runs() -> None:
    late = Run(Ending.FAILED, ("acceptanceDrop",), 2001, 90, naive=True, pooled=True)
    missed = Run(Ending.EXPIRED, (), 2005, 90, naive=False, pooled=False)
    wrong = Run(Ending.FAILED, ("errors",), 50, 3, naive=False, pooled=False)
    unlucky = Run(Ending.FAILED, ("segments",), 50, 3, naive=False, pooled=False)
    figures = figures_of(Runs([EQUAL, EQUAL, EQUAL, wrong], [WORSE, WORSE, late, missed], [EQUAL, unlucky], [IN_ONE]))
    assert {
        name: figures[name]
        for name in (
            "false_abort_rate",
            "false_errors",
            "false_acceptance",
            "pooled_abort_rate",
            "power_drop_5_at_2000",
            "parts_false_abort_rate",
            "parts_false_segments",
            "parts_false_interTokenLatency",
            "power_segment_drop_at_2000",
        )
    } == {
        "false_abort_rate": 0.25,
        "false_errors": 0.25,
        "false_acceptance": 0.0,
        "pooled_abort_rate": 0.75,
        "power_drop_5_at_2000": 0.5,
        "parts_false_abort_rate": 0.5,
        "parts_false_segments": 0.5,
        "parts_false_interTokenLatency": 0.0,
        "power_segment_drop_at_2000": 1.0,
    }
    assert (figures["requests_to_promotion_median"], figures["requests_to_drop_5_median"]) == (3000, 400)
