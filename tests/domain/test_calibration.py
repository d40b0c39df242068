"""Calibration: what a confidence is worth follows what stood, and drafting ends where the next token would lose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.calibration import PRIOR_ACCEPTANCE, Calibration
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.lookahead import OFF, Bounds, Choice, Mode
from tandem_runtime.domain.tokens import CONFIDENCE_KINDS, Proposal, Round, SparseRow, Stop, kind_of

SURE, UNSURE = 200, 40


def taught(*, times: int = 300) -> Calibration:
    """Of ten sure guesses nine stood, of ten unsure ones three."""
    calibration = Calibration()
    for turn in range(times):
        calibration = calibration.learned((SURE, UNSURE), (float(turn % 10 < 9), float(turn % 10 < 3)))
    return calibration


def round_of(confidences: tuple[int, ...], *, accepted: int, k: int) -> Round:
    return Round(
        proposed=k,
        accepted=accepted,
        emitted=accepted + 1,
        draft_seconds=0.004 * k,
        verify_seconds=0.018,
        forward_seconds=0.018,
        drafting_seconds=0.004 * k,
        seconds=0.019 + 0.004 * k,
        confidences=confidences,
    )


def test_before_anything_is_known_every_confidence_is_worth_the_prior() -> None:
    assert Calibration().acceptance == (PRIOR_ACCEPTANCE,) * CONFIDENCE_KINDS


def test_what_stood_more_often_is_worth_more() -> None:
    worth = taught().acceptance
    assert worth[kind_of(SURE)] == pytest.approx(0.9, abs=0.04)
    assert worth[kind_of(UNSURE)] == pytest.approx(0.3, abs=0.05)
    assert worth[0] == pytest.approx(taught().mean)


def test_a_draft_that_got_worse_is_believed_less() -> None:
    calibration = taught()
    for _ in range(300):
        calibration = calibration.learned((SURE,), (0.0,))
    assert calibration.acceptance[kind_of(SURE)] < 0.3


def test_credits_teach_as_outcomes_do() -> None:
    by_credit = Calibration().learned((SURE,) * 4, (0.75,) * 4)
    assert by_credit.acceptance[kind_of(SURE)] == pytest.approx((3 + 16 * by_credit.mean) / 20, abs=0.01)


def test_drafting_ends_behind_the_guess_that_makes_the_next_a_loss() -> None:
    calibration = taught()
    stop = calibration.stop(marginal_share=0.25)
    assert stop.least == pytest.approx(0.25 / calibration.mean)
    assert not stop.ends((SURE,) * 3)
    assert stop.ends((SURE, UNSURE))
    assert stop.ends((SURE,) * 9)


def test_a_session_that_does_worse_than_others_ends_sooner() -> None:
    calibration = taught()
    usual, worse = calibration.stop(0.2), calibration.stop(0.2, level=0.3)
    assert usual.acceptance == pytest.approx(calibration.acceptance)
    assert all(lower < higher for lower, higher in zip(worse.acceptance, usual.acceptance, strict=True))
    assert worse.least > usual.least
    assert worse.ends((SURE,) * 2)
    assert not usual.ends((SURE,) * 2)


def test_where_a_token_costs_nothing_drafting_ends_only_with_k() -> None:
    assert not taught().stop(marginal_share=0.0).ends((UNSURE,) * 20)


def test_where_a_token_costs_more_than_it_can_bring_one_is_offered() -> None:
    assert taught().stop(marginal_share=3.0).ends((SURE,))


@given(st.lists(st.tuples(st.integers(0, 255), st.floats(0, 1)), max_size=60), st.floats(0, 9))
def test_whatever_was_learnt_stays_a_chance(seen: list[tuple[int, float]], share: float) -> None:
    calibration = Calibration()
    for confidence, credit in seen:
        calibration = calibration.learned((confidence,), (credit,))
    stop = calibration.stop(share)
    assert all(0 <= chance <= 1 for chance in (*stop.acceptance, stop.least, calibration.mean))


def test_the_first_guesses_keep_their_confidences() -> None:
    proposal = Proposal((1, 2), (SparseRow((1,), (1.0,)),) * 2, confidences=(SURE, UNSURE))
    assert proposal.first(1) == Proposal((1,), (SparseRow((1,), (1.0,)),), confidences=(SURE,))


# In the choice of K ---------------------------------------------------------------------------------------------------

MEAN, EARLY = Bounds(1, 8, Mode.ALWAYS), Bounds(1, 8, Mode.ALWAYS, early_stop=True)


def believing(rounds: int, *, confidences: bool = True) -> Lookahead:
    """After so many rounds of four tokens, the last of which fell."""
    lookahead = Lookahead()
    for _ in range(rounds):
        told = (SURE, SURE, SURE, UNSURE) if confidences else ()
        lookahead.learn(round_of(told, accepted=3, k=4), 0.0, warm=True)
    return lookahead


def chosen(lookahead: Lookahead, bounds: Bounds, *, most: int = 99) -> Choice:
    return lookahead.choose(bounds, most, 0.0, warm=True)


def test_a_choice_says_where_to_stop_only_where_the_bounds_allow_it() -> None:
    assert chosen(believing(20), MEAN).stop is None


def test_nothing_proposed_needs_no_stop() -> None:
    assert chosen(believing(20), OFF).stop is None


def test_before_a_cost_is_known_drafting_is_not_ended_early_but_confidence_is_asked_for() -> None:
    assert chosen(Lookahead(), EARLY).stop == Stop(0.0, (PRIOR_ACCEPTANCE,) * CONFIDENCE_KINDS)


def test_a_known_draft_may_go_on_to_the_most_and_stops_by_what_a_token_must_earn() -> None:
    choice, mean = chosen(believing(20), EARLY), chosen(believing(20), MEAN)
    assert (choice.k, len(choice.survivals)) == (8, 8)
    assert mean.k < 8
    assert choice.stop is not None
    costs = mean.why.costs
    assert costs is not None
    rate = (1 + sum(mean.survivals)) / costs.cost(mean.k)
    assert choice.stop.least == pytest.approx(rate * costs.per_token / mean.survivals[0])
    assert choice.stop.ends((SURE, SURE, SURE, UNSURE, UNSURE))
    assert not choice.stop.ends((SURE, SURE))


def test_a_draft_that_tells_no_confidence_gets_the_mean_k() -> None:
    early, mean = (chosen(believing(20, confidences=False), bounds) for bounds in (EARLY, MEAN))
    assert early.k == mean.k


def test_a_session_without_room_cuts_k_and_keeps_the_stop() -> None:
    choice = chosen(believing(20), EARLY, most=2)
    assert (choice.k, len(choice.survivals), choice.stop is None) == (2, 2, False)
