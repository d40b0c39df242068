"""Which answers are prepared, how much of one is enough, and whether preparing pays."""

from dataclasses import replace

import pytest

from tandem_runtime.domain.ahead import (
    BRANCHES,
    COMPARED_EVERY,
    COMPARED_FIRST,
    PRIOR_HITS,
    Belief,
    Foresight,
    Mean,
    Overlap,
    enough,
    extended,
    goes_on,
    head_start,
    learn,
    look,
)
from tandem_runtime.domain.costs import NO_HEAD_START
from tandem_runtime.domain.tokens import Ahead, Outlook, Round

SURVIVALS = (0.8, 0.64, 0.51, 0.41)
T_D, R = 0.004, 0.019
MOST = 8
FURTHER = extended(SURVIVALS, 6)

MISS = Round(
    proposed=4,
    accepted=2,
    emitted=3,
    draft_seconds=0.0165,
    verify_seconds=0.0185,
    drafting_seconds=0.016,
    seconds=0.035,
    ahead=Ahead(hit=False, wasted=20),
    prepares=True,
)
HIT = replace(MISS, draft_seconds=0.0005, drafting_seconds=0.0, seconds=R, ahead=Ahead(hit=True, wasted=16))
IDLE = replace(MISS, ahead=None, prepares=False)


def after(*rounds: Round) -> Belief:
    belief = Belief()
    for round in rounds:
        belief = learn(belief, round)
    return belief


def is_ahead(belief: Belief, overlap: Overlap = Overlap.AUTO) -> bool:
    outlook, _ = look(belief._replace(looks=COMPARED_FIRST + 1), SURVIVALS, MOST, overlap)
    return outlook is not None


@pytest.mark.parametrize(("acceptance", "found"), [(0.5, 1), (0.8, 2), (0.9, 3), (1.0, 4)])
def test_prepared_tokens_are_enough_once_the_next_one_is_not_worth_its_step(acceptance: float, found: int) -> None:
    assert enough([acceptance**i for i in range(1, 9)], T_D, R) == found


def test_k_counts_on_what_was_ready_with_the_verdicts_of_late() -> None:
    seen = after(*[HIT, HIT, HIT, MISS] * 40)
    found = head_start(seen, Overlap.AUTO)
    assert (found.hits, found.tokens) == pytest.approx((0.75, 4.0), abs=0.02)
    harmed = seen._replace(is_ahead=False, while_idle=Mean().told(MISS.verify_seconds / 2))
    assert head_start(seen, Overlap.OFF) == head_start(harmed, Overlap.AUTO) == NO_HEAD_START
    assert head_start(harmed, Overlap.ON) == found


def test_what_was_drafted_behind_a_verdict_was_not_ready_with_it() -> None:
    """As where K is fixed: one of four was there, and three more were drafted on demand."""
    late = replace(HIT, drafting_seconds=3 * T_D, draft_seconds=3 * T_D + 0.0005, seconds=R + 3 * T_D)
    assert head_start(after(MISS, *[late] * 20), Overlap.ON).tokens == pytest.approx(1.0)


def test_k_does_not_count_on_a_draft_that_was_asked_to_work_ahead_and_never_does() -> None:
    ignored = replace(MISS, ahead=None)
    belief = Belief()
    for _ in range(60):
        belief = learn(belief, ignored, asked=True)
    assert head_start(belief, Overlap.AUTO).hits < 0.2
    assert head_start(learn(Belief(), ignored), Overlap.AUTO).hits == pytest.approx(PRIOR_HITS), "nothing was asked"


@pytest.mark.parametrize("sessions", [1, 4])
def test_it_is_counted_on_again_some_hundred_plain_tokens_later(sessions: int) -> None:
    """Else a draft that pays only so, and was once in company, would never be asked again."""
    crowd = [replace(MISS, draft_rows=rows, drafting_seconds=0.004 * rows) for rows in (3, 5, 9, 17)]
    _, belief = look(after(*crowd * 10), SURVIVALS, MOST, Overlap.AUTO)
    plain = replace(IDLE, proposed=0, accepted=0, emitted=1, rows=sessions)
    for _ in range(500 * sessions):
        belief = learn(belief, plain)
    assert head_start(belief, Overlap.AUTO) == NO_HEAD_START
    for _ in range(500 * sessions):
        belief = learn(belief, plain)
    assert head_start(belief, Overlap.AUTO) == head_start(belief, Overlap.ON)
    assert is_ahead(belief)


def test_before_the_first_hit_as_much_is_ready_as_the_draft_has_time_for() -> None:
    assert tuple(head_start(after(IDLE), Overlap.AUTO)) == pytest.approx((PRIOR_HITS, R / T_D - 1))
    assert head_start(Belief(), Overlap.AUTO).tokens == 0


def test_nothing_is_prepared_for_a_round_without_a_proposal() -> None:
    assert look(Belief(), (), MOST, Overlap.ON) == (None, Belief())


def test_it_is_tried_while_no_cost_is_known() -> None:
    assert look(Belief(), SURVIVALS, MOST, Overlap.AUTO)[0] == Outlook(FURTHER, BRANCHES, enough=4)


def test_what_is_known_of_costs_says_how_much_is_enough() -> None:
    assert look(after(MISS), SURVIVALS, MOST, Overlap.ON)[0] == Outlook(FURTHER, BRANCHES, enough=2)


@pytest.mark.parametrize(("most", "prepared"), [(4, 4), (5, 5), (8, 6)])
def test_more_is_prepared_than_pays_on_demand_where_it_fits(most: int, prepared: int) -> None:
    outlook, _ = look(Belief(), SURVIVALS, most, Overlap.ON)
    assert outlook is not None
    assert len(outlook.survivals) == prepared
    assert outlook.survivals[:4] == SURVIVALS


@pytest.mark.parametrize(
    ("survivals", "length", "found"),
    [((0.5,), 3, (0.5, 0.25, 0.125)), ((0.8, 0.4), 3, (0.8, 0.4, 0.2)), ((0.0,), 2, (0.0, 0.0)), ((0.5,), 1, (0.5,))],
)
def test_further_tokens_are_as_likely_to_stand_as_the_last(
    survivals: tuple[float, ...], length: int, found: tuple[float, ...]
) -> None:
    assert extended(survivals, length) == pytest.approx(found)


def test_a_draft_of_its_own_is_not_left_idle() -> None:
    assert is_ahead(after(*[MISS, IDLE, HIT, HIT] * 10))


def test_a_draft_that_many_share_is_left_to_what_is_asked_for() -> None:
    shared = [replace(MISS, draft_rows=rows, drafting_seconds=0.004 * rows) for rows in (3, 5, 9, 17)]
    assert not is_ahead(after(*shared * 10))
    assert is_ahead(after(*shared * 10), Overlap.ON)


def test_many_may_share_a_draft_whose_steps_hardly_get_longer() -> None:
    shared = [replace(MISS, draft_rows=rows, drafting_seconds=0.016 + 1e-6 * rows) for rows in (3, 5, 9, 17)]
    assert is_ahead(after(*[*shared, HIT, HIT, HIT, HIT] * 10))


def test_a_machine_that_draft_and_target_share_is_left_to_the_target() -> None:
    slow = replace(MISS, verify_seconds=0.064, seconds=0.080)
    assert not is_ahead(after(*[IDLE] * 3, *[slow] * 8))


def test_a_wait_for_the_targets_step_is_no_harm_of_drafting_ahead() -> None:
    """As where three others began meanwhile: they would have been waited for all the same."""
    waiting = replace(MISS, verify_seconds=0.064, forward_seconds=0.0185, seconds=0.080)
    assert is_ahead(after(*[IDLE] * 3, *[waiting] * 8))


def test_a_choice_against_it_is_tried_again_once_what_was_known_has_faded() -> None:
    slow = replace(MISS, verify_seconds=0.064, seconds=0.080)
    belief = after(*[IDLE] * 3, *[slow] * 8)
    rounds = 0
    while not is_ahead(belief):
        belief, rounds = learn(belief, IDLE), rounds + 1
    assert 100 < rounds < 400


def test_some_rounds_go_without_it_to_compare() -> None:
    cell = Foresight()
    outlooks = [cell.look(SURVIVALS, MOST, Overlap.AUTO) for _ in range(2 * COMPARED_EVERY)]
    assert [at for at, outlook in enumerate(outlooks) if outlook is None] == [
        COMPARED_FIRST,
        COMPARED_EVERY + COMPARED_FIRST,
    ]


@pytest.mark.parametrize("round", [replace(HIT, prefill=True), replace(HIT, proposed=0, ahead=None)])
def test_a_round_that_read_a_prompt_or_proposed_nothing_tells_nothing(round: Round) -> None:
    assert learn(Belief(), round) == Belief()


def test_off_is_off() -> None:
    assert not is_ahead(after(HIT, HIT, MISS), Overlap.OFF)


@pytest.mark.parametrize(
    ("ready", "late", "found"),
    [
        (1, -0.001, True),
        (3, 0.0, True),
        (1, 0.004, True),
        (2, 0.003, True),
        (2, 0.004, False),
        (3, 0.001, True),
        (3, 0.004, False),
    ],
)
def test_a_branch_takes_a_step_that_is_worth_being_late_for(ready: int, late: float, found: bool) -> None:
    assert goes_on(SURVIVALS, ready, late_seconds=late, round_seconds=R) is found
