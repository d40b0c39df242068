"""Whose proposal a round takes: the model's expected speed-up against what a lookup says of its guess."""

from dataclasses import replace

import pytest

from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.drafting import (
    LOOK_AFTER_ROUNDS,
    SWITCH_GAIN,
    Beliefs,
    Drafting,
    Looks,
    Turn,
    best_turn,
    token_price,
    turn_of_asking,
    turn_of_guess,
)
from tandem_runtime.domain.lookahead import OFF, Belief, Bounds, Mode
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.tokens import Drafter, Round

MODEL, SUFFIX, NGRAM = Drafter.MODEL, Drafter.SUFFIX, Drafter.NGRAM
BOUNDS = Bounds(1, 8)
DRAFT_SECONDS = {MODEL: 0.004, SUFFIX: 0.0, NGRAM: 0.0}


def round_of(drafter: Drafter, proposed: int, accepted: int) -> Round:
    """On the rig: draft 4 ms a token or nothing, verify 18 ms, plain step 15 ms, network 1 ms."""
    drafting = DRAFT_SECONDS[drafter] * proposed
    forward = 0.018 if proposed else 0.015
    return Round(
        proposed=proposed,
        accepted=accepted,
        emitted=accepted + 1,
        draft_seconds=drafting,
        verify_seconds=forward + 0.001,
        forward_seconds=forward,
        drafting_seconds=drafting,
        seconds=drafting + forward + 0.001,
        drafter=drafter,
    )


@pytest.mark.parametrize(("least", "overlap"), [(1, Overlap.OFF), (8, Overlap.OFF), (8, Overlap.ON)])
def test_a_model_that_drafts_all_that_it_is_asked_for_is_judged_by_all_of_it(least: int, overlap: Overlap) -> None:
    """Though beside lookups that bring as much, a part of that would be worth more."""
    choice = taught(MODEL).choose(Bounds(least, 8, Mode.ALWAYS, overlap=overlap), 8, 5.0, warm=True)
    turn = turn_of_asking(MODEL, choice, pace=3.5)
    assert turn is not None
    assert turn.k == 8
    assert turn.tokens == pytest.approx(1 + sum(choice.survivals))
    assert turn.speed_up == pytest.approx(token_price(choice.why.costs, 8) * turn.tokens)


def nothing_known() -> Beliefs:
    return Beliefs(Segments(), Segment("pair"), Looks())


def taught(*drafters: Drafter, acceptance: float = 0.8, beliefs: Beliefs | None = None) -> Drafting:
    """A session of a gateway that has seen 40 rounds of each, all of 4 tokens, and some plain ones."""
    beliefs = beliefs or nothing_known()
    for drafter in drafters:
        lookahead = beliefs.of(drafter).begin()
        for number in range(40):
            stood = 4 if (number * acceptance) % 1 < acceptance else 0
            lookahead.learn(round_of(drafter, 4, stood), number / 10, warm=True)
            lookahead.learn(round_of(drafter, 0, 0), number / 10, warm=True)
    drafting = Drafting(tuple(drafters), beliefs)
    drafting.choose(BOUNDS, 8, 5.0, warm=True)
    return drafting


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ((0.99,) * 8, SUFFIX),
        ((0.95, 0.9, 0.85, 0.8, 0.75), SUFFIX),
        ((0.5, 0.2), MODEL),
        ((), MODEL),
    ],
)
def test_a_guess_that_is_likely_enough_beats_the_model(chances: tuple[float, ...], expected: Drafter) -> None:
    turn = taught(MODEL, SUFFIX, acceptance=0.6).turn({SUFFIX: chances}, able=True)
    assert turn is not None
    assert turn.drafter is expected


def test_the_worth_of_a_guess_is_that_of_its_best_part() -> None:
    drafting = taught(SUFFIX)
    for number in range(40):
        for k, seconds in ((4, 0.018), (8, 0.03)):
            round = replace(round_of(SUFFIX, k, 0), forward_seconds=seconds, seconds=seconds + 0.001)
            drafting.learn(round, 5.0 + number / 10, warm=True)
    choice = drafting.choose(Bounds(1, 8, Mode.ALWAYS), 8, 10.0, warm=True)._replace(k=8)
    assert token_price(choice.why.costs, 4) == pytest.approx(16 / 19, rel=0.02)
    turn = turn_of_guess(SUFFIX, (0.9, 0.8, 0.6, 0.01, 0.01), choice, pace=1.0)
    assert turn is not None
    assert turn.k == 3
    assert turn.speed_up == pytest.approx(token_price(choice.why.costs, 3) * 3.3)


def test_a_guess_that_would_cost_more_than_it_brings_is_not_proposed() -> None:
    drafting = taught(SUFFIX)
    assert drafting.turn({SUFFIX: (0.02,)}, able=False) is None
    drafting.choose(Bounds(1, 8, Mode.ALWAYS), 8, 5.0, warm=True)
    turn = drafting.turn({SUFFIX: (0.02,)}, able=False)
    assert turn is not None
    assert turn.k == 1


def test_a_model_that_cannot_be_asked_leaves_the_round_to_the_guess_or_to_nobody() -> None:
    drafting = taught(MODEL, SUFFIX)
    turn = drafting.turn({SUFFIX: (0.5, 0.3)}, able=False)
    assert turn is not None
    assert turn.drafter is SUFFIX
    assert drafting.turn({SUFFIX: ()}, able=False) is None


def test_within_bounds_of_nothing_nobody_proposes() -> None:
    drafting = taught(MODEL, SUFFIX)
    assert drafting.choose(OFF, 8, 5.0, warm=True).k == 0
    assert drafting.turn({SUFFIX: (0.9,) * 8}, able=True) is None


@pytest.mark.parametrize(("last", "drafter"), [(None, SUFFIX), (SUFFIX, SUFFIX), (MODEL, MODEL)])
def test_who_proposed_last_keeps_a_near_tie(last: Drafter | None, drafter: Drafter) -> None:
    turns = [Turn(MODEL, 4, 3.0, 2.0), Turn(SUFFIX, 4, 3.0, 2.0 * (1 + SWITCH_GAIN / 2))]
    chosen = best_turn(turns, last, pace=1.5)
    assert chosen is not None
    assert chosen.drafter is drafter


def test_nobody_is_chosen_of_nobody() -> None:
    assert best_turn([], MODEL, pace=1.0) is None


def test_each_learns_from_its_own_rounds_and_all_from_plain_ones() -> None:
    beliefs = nothing_known()
    drafting = Drafting((MODEL, SUFFIX), beliefs)
    drafting.learn(round_of(SUFFIX, 4, 4), 1.0, warm=True)
    assert beliefs.of(SUFFIX).belief != Belief()
    assert beliefs.of(MODEL).belief == Belief()
    drafting.learn(round_of(MODEL, 0, 0), 1.1, warm=True)
    for drafter in (MODEL, SUFFIX):
        assert beliefs.of(drafter).belief.costs.plain is not None


@pytest.mark.parametrize(("rounds_of_others", "teaches"), [(0, True), (6, True), (7, False)])
def test_a_model_that_was_passed_over_for_long_teaches_no_cost(rounds_of_others: int, teaches: bool) -> None:
    beliefs = nothing_known()
    drafting = Drafting((MODEL, SUFFIX), beliefs)
    drafting.learn(round_of(MODEL, 4, 4), 1.0, warm=True)
    assert beliefs.of(MODEL).belief.costs.draft_token is None  # it read the session's text
    for drafter in (*[SUFFIX] * rounds_of_others, MODEL):
        drafting.learn(round_of(drafter, 4, 4), 1.1, warm=True)
    assert (beliefs.of(MODEL).belief.costs.draft_token is not None) is teaches


def test_a_model_that_is_never_best_has_a_look_less_and_less_often() -> None:
    beliefs = nothing_known()
    taught(MODEL, SUFFIX, acceptance=0.5, beliefs=beliefs)
    sessions = [Drafting((MODEL, SUFFIX), beliefs) for _ in range(2)]
    looked = []
    for number in range(8 * LOOK_AFTER_ROUNDS):
        drafting = sessions[number % 2]
        drafting.choose(BOUNDS, 8, 5.0, warm=True)
        turn = drafting.turn({SUFFIX: (0.99,) * 8}, able=True)
        assert turn is not None
        if turn.drafter is MODEL:
            looked.append(number)
    assert looked == [LOOK_AFTER_ROUNDS, 3 * LOOK_AFTER_ROUNDS + 1, 7 * LOOK_AFTER_ROUNDS + 2]


def test_before_costs_are_known_the_guess_and_the_model_are_compared_by_tokens() -> None:
    for chances, expected in (((0.95,) * 8, SUFFIX), ((0.3,), MODEL)):
        drafting = Drafting((MODEL, SUFFIX), nothing_known())
        drafting.choose(BOUNDS, 8, 0.0, warm=True)
        turn = drafting.turn({SUFFIX: chances}, able=True)
        assert turn is not None
        assert turn.drafter is expected


@pytest.mark.parametrize("plain_seconds", [0.0, 1e-12])
@pytest.mark.parametrize("seconds", [0.0, 0.019])
def test_rounds_that_no_clock_can_tell_from_none_price_a_turn(seconds: float, plain_seconds: float) -> None:
    drafting = Drafting((MODEL, SUFFIX), nothing_known())
    for number in range(40):
        for k, took in ((4, seconds), (0, plain_seconds)):
            told = Round(k, k, k + 1, 0.0, took, took, seconds=took, drafter=(MODEL, SUFFIX)[number % 2])
            drafting.choose(Bounds(1, 8, Mode.ALWAYS), 8, number / 10, warm=True)
            turn = drafting.turn({SUFFIX: (0.9, 0.8)}, able=True)
            assert turn is not None
            assert 0 < turn.speed_up <= 9
            drafting.learn(told, number / 10, warm=True)
    assert drafting.pace >= 1


def test_a_round_without_an_offer_is_no_rejection_for_who_was_asked() -> None:
    drafting = taught(MODEL, SUFFIX)
    believed = [drafting._beliefs.of(drafter).belief.acceptance for drafter in (MODEL, SUFFIX)]
    drafting.unanswered()
    assert [drafting._beliefs.of(drafter).belief.acceptance for drafter in (MODEL, SUFFIX)] == believed


def test_a_dear_round_is_left_out_where_the_last_ones_brought_more_for_their_time() -> None:
    """Where copying goes at 3 times plain speed, a model at 1.4 would be slower than one plain token and a guess."""
    drafting = taught(MODEL, SUFFIX)
    asked = drafting.turn({SUFFIX: ()}, able=True)
    assert asked is not None
    assert asked.drafter is MODEL
    for _ in range(20):
        drafting.choose(BOUNDS, 8, 5.0, warm=True)
        assert drafting.turn({SUFFIX: (0.98,) * 8}, able=True) is not None
        drafting.learn(round_of(SUFFIX, 8, 8), 5.0, warm=True)
    assert drafting.pace > 3
    drafting.choose(BOUNDS, 8, 5.0, warm=True)
    assert drafting.turn({SUFFIX: ()}, able=True) is None
    for _ in range(20):
        drafting.learn(round_of(SUFFIX, 0, 0), 5.0, warm=True)
    assert drafting.pace == pytest.approx(1.0, abs=0.3)
    drafting.choose(BOUNDS, 8, 5.0, warm=True)
    asked = drafting.turn({SUFFIX: ()}, able=True)
    assert asked is not None
    assert asked.drafter is MODEL


AHEAD = replace(BOUNDS, overlap=Overlap.ON)


def test_only_the_model_drafts_ahead_and_by_its_own_outlook() -> None:
    """Whoever has the greatest K: what a lookup is believed to bring says nothing of what the model will."""
    beliefs = nothing_known()
    taught(MODEL, acceptance=0.5, beliefs=beliefs)
    taught(SUFFIX, acceptance=1.0, beliefs=beliefs)
    drafting = Drafting((MODEL, SUFFIX), beliefs)
    choice = drafting.choose(AHEAD, 8, 5.0, warm=True)
    alone = Drafting((MODEL,), beliefs).choose(AHEAD, 8, 5.0, warm=True)
    assert choice.k == drafting.k_of(SUFFIX) > drafting.k_of(MODEL) > 0
    assert alone.outlook is not None
    assert choice.outlook == drafting.outlook_of(MODEL, choice.k) == alone.outlook
    assert drafting.outlook_of(MODEL, 1) == alone.outlook.first(1)
    assert drafting.outlook_of(SUFFIX, choice.k) is None


def test_a_lookup_proposes_no_more_where_models_draft_ahead() -> None:
    drafting = taught(SUFFIX)
    k = drafting.k_of(SUFFIX)
    assert (drafting.choose(AHEAD, 8, 5.0, warm=True).k, k > 0) == (k, True)


def test_a_model_whose_turns_bring_nothing_leaves_them_to_others_more_and_more() -> None:
    drafting = taught(MODEL, SUFFIX)
    turns: list[Drafter | None] = []
    for _ in range(20):
        drafting.choose(BOUNDS, 8, 5.0, warm=True)
        turn = drafting.turn({SUFFIX: ()}, able=True)
        turns.append(None if turn is None else turn.drafter)
        drafting.unanswered()
        drafting.learn(round_of(SUFFIX, 0, 0), 5.0, warm=True)
    assert [at for at, drafter in enumerate(turns) if drafter is MODEL] == [0, 3, 8, 17]


def test_a_model_that_has_something_to_say_again_is_asked_as_before() -> None:
    drafting = taught(MODEL, SUFFIX)
    for number in range(8):
        drafting.choose(BOUNDS, 8, 5.0, warm=True)
        turn = drafting.turn({SUFFIX: ()}, able=True)
        if turn is not None and number == 0:
            drafting.unanswered()
        proposed = 0 if turn is None or number == 0 else 4
        drafting.learn(round_of(MODEL, proposed, proposed), 5.0, warm=True)
        assert (turn is None) == (number in (1, 2))


def test_a_model_that_drafts_alone_stands_in_nobodys_way() -> None:
    drafting = taught(MODEL)
    assert drafting.turn({}, able=True) is not None
    drafting.unanswered()
    assert drafting.turn({}, able=True) is not None
