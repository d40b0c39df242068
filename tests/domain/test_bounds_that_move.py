"""Bounds on K that change in the middle of a request: K follows at once, and then stays as it would have without."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from tests.domain.known_pair import WIDE, belief, rounds

from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.lookahead import MEASURED_TOKENS, OFF, Bounds, Mode

PERIOD, SETTLING, SEEDS = 100, 3, range(3)
"""Rounds under one pair of bounds, of which the first few may differ."""
MOVED = (WIDE, Bounds(1, 3), Bounds(6, 9), WIDE, Bounds(2, 4, Mode.ALWAYS), OFF, WIDE)


def played(alpha: float, seed: int, bounds: Callable[[int], Bounds]) -> list[int]:
    return list(rounds(Shared(belief(alpha, o=1)).begin(), alpha, PERIOD * len(MOVED), seed, bounds=bounds))


def moved(number: int) -> Bounds:
    return MOVED[number // PERIOD]


def changes(ks: Sequence[int]) -> list[int]:
    """By period: how often K was another than in the round before, once it has settled."""
    starts = range(SETTLING, len(ks), PERIOD)
    return [sum(one != other for one, other in pairwise(ks[at : at + PERIOD - SETTLING])) for at in starts]


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_k_changes_no_more_often_after_its_bounds_moved_than_where_they_stand_still(alpha: float) -> None:
    still = {
        bounds: max(max(changes(played(alpha, seed, lambda _, stands=bounds: stands))) for seed in SEEDS)  # type: ignore[misc]
        for bounds in set(MOVED)
    }
    for seed in SEEDS:
        for bounds, seen in zip(MOVED, changes(played(alpha, seed, moved)), strict=True):
            assert seen <= still[bounds] + 2, bounds


def test_a_draft_that_pays_never_falls_silent_when_its_bounds_move() -> None:
    """But for a look at what a plain token costs."""
    for seed in SEEDS:
        ks = played(0.9, seed, moved)
        for place, bounds in enumerate(MOVED):
            period = ks[PERIOD * place + SETTLING : PERIOD * (place + 1)]
            assert sum(k == 0 for k in period) <= (len(period) if bounds is OFF else MEASURED_TOKENS), bounds


def test_k_keeps_within_bounds_that_moved_from_the_very_next_round_on() -> None:
    ks = played(0.9, 1, moved)
    for number, k in enumerate(ks):
        bounds = moved(number)
        assert k == 0 or bounds.minimum <= k <= bounds.maximum
    assert [ks[PERIOD * place] for place, bounds in enumerate(MOVED) if bounds.maximum == 0] == [0]
