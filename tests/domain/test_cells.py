"""What sessions of a segment share, and what each has for itself."""

from dataclasses import replace
from itertools import count

import pytest
from tests.domain.known_pair import WIDE, a_round, belief, costs, firm, plane, rounds

from tandem_runtime.domain.ahead import Belief as Foreseen
from tandem_runtime.domain.ahead import Foresight, Mean, OnDemand, Overlap
from tandem_runtime.domain.cells import (
    LISTEN_TOKENS,
    LONGEST_REST,
    SILENCE_TOKENS,
    START_SECONDS,
    UNHEARD_TOKENS,
    Lookahead,
    Shared,
)
from tandem_runtime.domain.lessons import SpelledOut
from tandem_runtime.domain.lookahead import OFF, Belief, Bounds, Choice, Mode, Rule
from tandem_runtime.domain.noise import Salt, uniform_at
from tandem_runtime.domain.tokens import Ahead, Round

BOUNDS = Bounds(1, 8)


def timed(k: int, accepted: int, *, rows: int = 1, slowed: float = 1.0) -> Round:
    """t_d 4, t_v 18, o 1 and t_b 15 milliseconds."""
    forward, drafting = (0.018 if k else 0.015) * slowed, 0.004 * k * slowed
    seconds = forward + drafting + (0.001 if k else 0.0)
    return Round(k, accepted, accepted + 1, drafting, forward, forward, drafting, seconds=seconds, rows=rows)


def settled(alpha: int = 8, *, plain: bool = True) -> Shared:
    """A cell that knows its costs, of whose ten proposed tokens so many stood."""
    cell = Shared()
    lookahead = cell.begin()
    for number in range(200):
        lookahead.learn(timed(1, int(number % 10 < alpha)), 0.0, warm=True)
        if plain:
            lookahead.learn(timed(0, 0), 0.0, warm=True)
    return cell


def choose(lookahead: Lookahead, bounds: Bounds = BOUNDS, most: int = 8) -> Choice:
    return lookahead.choose(bounds, most, 0.0, warm=True)


def test_each_round_is_chosen_anew_by_all_that_was_seen() -> None:
    lookahead = settled().begin()
    first = choose(lookahead)
    lookahead.learn(timed(first.k, 0), 0.0, warm=True)
    assert choose(lookahead).survivals[0] < first.survivals[0]


@pytest.mark.parametrize(
    "other", [Bounds(1, 3), Bounds(1, 8, Mode.ALWAYS), Bounds(1, 8, min_gain=0.2), Bounds(1, 8, early_stop=True)]
)
def test_a_choice_keeps_to_the_bounds_of_its_round(other: Bounds) -> None:
    lookahead = settled().begin()
    assert choose(lookahead).why.bounds == BOUNDS
    assert choose(lookahead, other).why.bounds == other


def test_a_choice_is_for_the_company_that_the_last_round_met() -> None:
    lookahead = settled().begin()
    lookahead.learn(timed(choose(lookahead).k, 1, rows=2), 0.0, warm=True)
    assert choose(lookahead).why.view.batch.rows == 2


def test_a_choice_is_cut_to_the_room_and_whole_again() -> None:
    lookahead = settled().begin()
    first = choose(lookahead)
    cut = choose(lookahead, most=2)
    assert (cut.k, cut.survivals) == (2, first.survivals[:2])
    assert choose(lookahead).survivals == first.survivals


def test_what_is_ready_in_time_has_no_part_in_how_much_is_offered_where_there_is_one_k() -> None:
    lookahead, bounds = settled().begin(), Bounds(4, 4, overlap=Overlap.ON)
    choice = choose(lookahead, bounds)
    assert choice.outlook is not None
    assert (choice.k, len(choice.outlook.survivals), choice.outlook.enough) == (4, 4, None)


def k_of_a_slow_draft(overlap: Overlap, *, hit: bool) -> int:
    """What is proposed in the end, three of five guesses standing, where three that are drafted on demand take longer
    than a plain token: with 8 ms for each, the best K brings .9 of plain decoding."""
    cell, bounds = settled(6), Bounds(1, 8, overlap=overlap)
    lookahead = cell.begin()
    for number in range(400):
        choice = choose(lookahead, bounds)
        k = min(choice.k, 3)
        prepared = hit and choice.outlook is not None
        drafting = 0.0 if prepared else 0.008 * k
        done = replace(
            timed(k, min(k, number % 2 + number % 5 // 4)), drafting_seconds=drafting, draft_seconds=drafting
        )
        beside = 0.019 if k else 0.015
        ahead = None if choice.outlook is None else Ahead(hit=hit, wasted=3)
        lookahead.learn(
            replace(done, seconds=beside + drafting, ahead=ahead, prepares=choice.outlook is not None), 0.0, warm=True
        )
    return choice.k


@pytest.mark.parametrize(
    ("overlap", "hit", "proposes"),
    [(Overlap.OFF, False, False), (Overlap.AUTO, True, True), (Overlap.ON, True, True), (Overlap.ON, False, False)],
)
def test_a_draft_that_pays_only_because_it_works_ahead_is_asked(overlap: Overlap, hit: bool, proposes: bool) -> None:
    assert (k_of_a_slow_draft(overlap, hit=hit) > 0) is proposes


def test_a_draft_that_is_asked_to_work_ahead_and_never_does_is_found_out() -> None:
    cell, bounds = settled(), Bounds(1, 8, overlap=Overlap.AUTO)
    unprepared, hits = replace(timed(2, 1), prepares=True), []
    for lookahead in (cell.begin(), cell.begin()):
        for _ in range(50):
            choose(lookahead, bounds)
            lookahead.learn(unprepared, 0.0, warm=True)
            hits.append(cell.head_start(bounds).hits)
    assert hits[0] == pytest.approx(0.7), "nothing was asked before a session's first round"
    assert hits[1] < hits[0]
    assert hits[50] > hits[49]
    assert hits[-1] < 0.2


def test_a_probe_s_one_token_does_not_say_that_drafting_ahead_harms_more_than_it_brings() -> None:
    """Twenty wasted tokens take 7 ms from three others; one that is ready saves 4 ms, and three save 12."""
    crowded = OnDemand(proposals=30, rows=30 * 4, rows_squared=30 * 16, seconds=30 * 0.004, rows_seconds=30 * 4 * 0.004)
    known = Foreseen(hits=Mean(27, 30), wasted=Mean(30 * 20, 30), on_demand=crowded)
    bounds = Bounds(1, 8, overlap=Overlap.AUTO)
    cell = Shared(belief(0.3, k=0)._replace(plain_rounds=128), Foresight(known))
    assert cell.head_start(bounds).hits > 0.8
    assert choose(cell.begin(), bounds).why.rule is Rule.PROBE
    assert cell.foresight.belief is known


def overhead_after(*rounds: tuple[float, int]) -> float:
    """What rounds are believed to cost beside steps, 1 ms before, after hits that took 13: when, and beside how many
    guesses of three others."""
    cell = settled(6)
    lookahead = cell.begin()
    for now, beside in rounds:
        hit = replace(
            timed(4, 2, rows=4), beside=beside, draft_seconds=0, drafting_seconds=0, ahead=Ahead(hit=True, wasted=3)
        )
        lookahead.learn(replace(hit, seconds=0.031), now, warm=True)
    assert cell.belief.costs.overhead is not None
    return cell.belief.costs.overhead.level


def test_a_hit_that_waits_for_a_step_of_plain_rows_does_not_tell_what_it_would_take_if_all_proposed() -> None:
    mixed, all_propose = [(number / 100, 0) for number in range(20)], [(number / 100, 12) for number in range(20)]
    assert overhead_after(*mixed) == pytest.approx(0.001, abs=1e-5)
    assert overhead_after(*all_propose) > 0.008


def test_where_no_other_hit_was_met_for_a_second_it_tells_what_there_is() -> None:
    """Others never propose there, as those of another segment."""
    assert overhead_after(*[(number / 10, 0) for number in range(30)]) > 0.008
    assert overhead_after(*[(number / 10, 12 if number % 8 == 7 else 0) for number in range(30)]) < 0.005


def test_what_a_session_that_begins_would_propose_is_foretold_as_it_then_chooses() -> None:
    cell, bounds = settled(), Bounds(1, 8, overlap=Overlap.ON)
    lookahead = cell.begin()
    for _ in range(20):
        k = choose(lookahead, bounds).k
        ahead = Ahead(hit=True, wasted=3)
        lookahead.learn(replace(timed(k, 2), drafting_seconds=0.0, seconds=0.019, ahead=ahead), 0.0, warm=True)
    foretold = cell.foretold(bounds, 0.0)
    chosen = choose(cell.begin(), bounds)
    assert foretold.why.costs == chosen.why.costs
    assert foretold.why.view.head_start.hits > 0.8
    assert chosen.survivals[: foretold.k] == foretold.survivals


def test_rounds_of_sessions_that_are_gone_were_learnt_from() -> None:
    cell = settled()
    before = cell.belief
    cell.begin().learn(timed(4, 0), 0.0, warm=True)
    assert cell.begin().belief.acceptance.survivals(1) < before.acceptance.survivals(1)


def test_a_session_wakes_once_its_draft_is_heard_to_be_right() -> None:
    lookahead = settled(1).begin()
    choose(lookahead)
    assert not lookahead.wakes(0.0)
    lookahead.hear(matched=64, examined=64)
    assert lookahead.wakes(0.0)
    assert lookahead.wakes(0.0)
    assert choose(lookahead).k > 0


def test_only_one_of_many_sessions_takes_a_probe() -> None:
    cell = Shared(belief(0.3)._replace(k=0, plain_rounds=8))
    assert [cell.begin().choose(WIDE, 16, 0.0, warm=False).k for _ in range(4)] == [1, 0, 0, 0]


def test_only_one_of_many_sessions_has_its_draft_listen_and_another_takes_over() -> None:
    cell = Shared(belief(0.2, k=0))
    first, second = cell.begin(), cell.begin()
    for each in (first, second):
        each.choose(WIDE, 16, 0.0, warm=False)
    assert (first.listens, second.listens, first.listens) == (LISTEN_TOKENS, None, LISTEN_TOKENS)
    del first
    assert second.listens == LISTEN_TOKENS
    second.choose(OFF, 16, 0.0, warm=False)
    assert second.listens is None


def test_a_session_that_is_held_by_its_reader_does_not_listen_for_all_for_ever() -> None:
    cell = Shared(belief(0.2, k=0))
    held, second, third = cell.begin(), cell.begin(), cell.begin()
    for each in (held, second, third):
        each.choose(WIDE, 16, 0.0, warm=False)
    assert held.listens == LISTEN_TOKENS
    assert [second.listens for _ in range(UNHEARD_TOKENS)] == [None] * UNHEARD_TOKENS
    held.hear(matched=0, examined=8)
    assert [each.listens for _ in range(UNHEARD_TOKENS // 2) for each in (second, third)] == [None] * UNHEARD_TOKENS
    assert [each.listens for each in (third, second, held)] == [LISTEN_TOKENS, None, None]


def test_a_session_whose_draft_cannot_be_heard_lends_its_ear_to_another_until_it_chooses_again() -> None:
    cell = Shared(belief(0.2, k=0))
    first, second = cell.begin(), cell.begin()
    for each in (first, second):
        each.choose(WIDE, 16, 0.0, warm=False)
    assert (first.listens, second.listens) == (LISTEN_TOKENS, None)
    first.unheard()
    assert (first.listens, second.listens) == (None, LISTEN_TOKENS)
    first.choose(WIDE, 16, 0.0, warm=False)
    assert (first.listens, second.listens) == (None, LISTEN_TOKENS)
    second.unheard()
    assert (first.listens, second.listens) == (LISTEN_TOKENS, None)


def tokens_until_it_listens(lookahead: Lookahead) -> int:
    return next(tokens for tokens in count(1) if lookahead.listens)


def test_to_a_draft_without_hope_nobody_listens_for_longer_each_time() -> None:
    cell = Shared(belief(0.02, k=0))
    lookahead, waits = cell.begin(), []
    for _ in range(9):
        lookahead.choose(WIDE, 16, 0.0, warm=True)
        lookahead.hear(matched=0, examined=LISTEN_TOKENS)
        waits.append(tokens_until_it_listens(lookahead))
    assert waits == [8, 16, 32, 64, 128, 256, 512, 1024, LONGEST_REST]
    lookahead.hear(matched=8, examined=8)
    assert tokens_until_it_listens(lookahead) == 1, "there is hope again"


def test_what_was_heard_lapses_where_answers_are_too_short_to_be_listened_to() -> None:
    cell, said = Shared(belief(0.02, k=0)), 0
    cell.begin().hear(matched=0, examined=LISTEN_TOKENS)
    while cell.belief.heard:
        short = cell.begin()
        short.choose(WIDE, 16, 0.0, warm=False)
        said += len([short.listens for _ in range(LISTEN_TOKENS - 1)])
    assert SILENCE_TOKENS < said <= SILENCE_TOKENS + LISTEN_TOKENS
    short.hear(matched=0, examined=LISTEN_TOKENS)
    short.choose(WIDE, 16, 0.0, warm=False)
    assert short.listens is None
    assert cell.begin().belief.heard == LISTEN_TOKENS, "a word ends the silence"


def test_while_all_rest_a_token_of_any_session_counts_and_then_one_listens() -> None:
    cell = Shared(belief(0.02, k=0))
    first, second = cell.begin(), cell.begin()
    for each in (first, second):
        each.choose(WIDE, 16, 0.0, warm=True)
    for _ in range(3):
        first.hear(matched=0, examined=LISTEN_TOKENS)
    heard = [each.listens for _ in range(16) for each in (first, second)]
    assert heard == [None] * 31 + [LISTEN_TOKENS]
    assert (first.listens, second.listens) == (None, LISTEN_TOKENS)


def test_a_draft_that_loses_and_may_become_better_is_listened_to_as_ever() -> None:
    lookahead = Shared(belief(0.3, k=0)).begin()
    for number in range(40):
        lookahead.choose(WIDE, 16, 0.0, warm=True)
        lookahead.hear(matched=2 + number % 2, examined=LISTEN_TOKENS)
        assert tokens_until_it_listens(lookahead) == 1


def test_what_plain_tokens_cost_wakes_no_session_within_its_run() -> None:
    """They are dearer by far, so that proposals pay: the next choice, some tokens later, finds it."""
    lookahead = Shared(belief(0.5, k=0)).begin()
    assert choose(lookahead).why.rule is Rule.LOSES
    for _ in range(40):
        lookahead.learn(replace(a_round(0, 0, seconds=0.04)), 0.0, warm=True)
    assert not lookahead.wakes(0.0)
    assert choose(lookahead).why.rule is Rule.PAYS


def test_one_of_many_sessions_tries_what_proposals_cost_and_another_if_it_ends() -> None:
    cell = Shared()
    first, second = cell.begin(), cell.begin()

    def rule(lookahead: Lookahead, now: float) -> Rule:
        return lookahead.choose(Bounds(1, 8), 16, now, warm=True).why.rule

    assert [rule(first, 0.0), rule(second, 0.0), rule(first, 0.5)] == [Rule.COLD_START, Rule.AWAITED, Rule.COLD_START]
    assert second.choose(Bounds(1, 8), 16, 0.5, warm=True).k == 0
    assert second.choose(Bounds(1, 8, Mode.ALWAYS), 16, 0.5, warm=True).k == 5
    del first
    assert rule(second, 0.5) is Rule.COLD_START
    assert rule(cell.begin(), 0.5 + START_SECONDS) is Rule.AWAITED
    assert rule(cell.begin(), 0.6 + START_SECONDS) is Rule.COLD_START


def test_a_session_that_begins_meets_the_batch_that_others_are_in() -> None:
    """A cell that knows sixteen sessions to a step does not price the seventeenth as if it were alone."""
    crowded = replace(costs(), forward=plane(18)._replace(per_session=0.004))
    cell = Shared(Belief(SpelledOut(firm(0.85), crowded), 5))
    assert cell.begin().choose(WIDE, 16, 0.0, warm=True).k > 0
    cell.begin().learn(replace(a_round(0, 0, seconds=0.015), rows=16), 0.0, warm=True)
    assert cell.begin().choose(WIDE, 16, 0.0, warm=True).k == 0


def test_k_falls_to_what_the_target_s_budget_judges_and_seldom_tries_one_more() -> None:
    cell = Shared(belief(0.9, k=None))
    lookahead, asked = cell.begin(), []
    for number in range(120):
        k = lookahead.choose(WIDE, 16, 0.0, warm=True).k
        judged, accepted = min(k, 2), 0
        while accepted < judged and uniform_at(1, number, Salt.ACCEPT, accepted) < 0.9:
            accepted += 1
        lookahead.learn(replace(a_round(k, accepted), unjudged=k - judged), 0.0, warm=True)
        asked.append(k)
    assert asked[0] > 4
    assert asked[8:].count(2) >= 0.85 * len(asked[8:])
    assert max(asked[20:]) == 3
    assert cell.begin().choose(WIDE, 16, 0.0, warm=True).k <= 3, "a session that begins knows it"


def test_where_no_guess_is_judged_none_is_made_until_a_probe_is() -> None:
    lookahead = Shared(belief(0.8)).begin()
    for _ in range(6):
        k = lookahead.choose(WIDE, 16, 0.0, warm=True).k
        lookahead.learn(replace(a_round(k, 0), unjudged=k), 0.0, warm=True)
    assert lookahead.choose(WIDE, 16, 0.0, warm=True).why.rule is Rule.LOSES
    assert not lookahead.wakes(0.0)
    ks = list(rounds(lookahead, 0.8, 400, 1))
    assert sum(k > 0 for k in ks[-100:]) > 80
