"""What a round of one request tells: what was examined, credited, left unjudged, and believed beforehand."""

import pytest
from tests.domain.session_bench import request

from tandem_runtime.domain.commands import (
    Propose,
    Spent,
    Verify,
)
from tandem_runtime.domain.errors import DraftLost, TargetLost
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Drafter,
    Incarnation,
    Opened,
    Outlook,
    Proposal,
    Round,
    Stop,
    Verdict,
)


def verified(credits: tuple[float, ...], *, accepted: int, ended: bool = False, unjudged: int = 0) -> Round:
    session = Session(request(endings=Endings(16, frozenset({9}) if ended else frozenset())))
    session.opened(Opened(Incarnation("t")))
    session.chosen(3)
    session.draft_opened(Opened(Incarnation("d")))
    session.proposed(Proposal((4, 9, 4), rows=3))
    verdict = Verdict(0, 0, accepted, 5, credits=credits, rows=7, unjudged=unjudged)
    return session.verified(verdict, Spent(1.0))


def test_a_round_tells_who_shared_its_steps_and_what_was_credited() -> None:
    round = verified((0.75, 1.0, 0.25), accepted=2)
    assert (round.rows, round.draft_rows, round.credits, round.evidence) == (7, 3, *((0.75, 1.0, 0.25),) * 2)


def test_what_lies_beyond_an_ending_is_credited_to_nobody() -> None:
    assert verified((0.75, 1.0, 0.25), accepted=3, ended=True).evidence == (0.75, 1.0)


def test_where_the_target_credits_nothing_the_bare_outcome_speaks() -> None:
    assert verified((), accepted=2).evidence == (1.0, 1.0, 0.0)
    assert verified((), accepted=0).evidence == (0.0,)


def test_credits_of_other_positions_than_were_examined_are_a_lost_target() -> None:
    with pytest.raises(TargetLost, match="credited 3 positions where it examined 2"):
        verified((0.5, 0.5, 0.5), accepted=1)


def drafting(
    stop: Stop | None,
    outlook: Outlook | None = None,
    *,
    vocab_size: int | None = None,
    beliefs: tuple[float, ...] = (),
) -> Session:
    """A session that has asked for three tokens."""
    session = Session(request(endings=Endings(16), vocab_size=vocab_size))
    session.opened(Opened(Incarnation("t")))
    session.chosen(3, beliefs, stop=stop, outlook=outlook)
    session.draft_opened(Opened(Incarnation("d")))
    return session


def test_a_draft_is_told_where_to_stop_and_a_round_tells_its_confidence_where_it_was_examined() -> None:
    stop = Stop(0.5, (0.7,) * 16)
    session = drafting(stop)
    asked = session.next()
    assert isinstance(asked, Propose)
    assert asked.request.stop == stop
    session.proposed(Proposal((4, 2), confidences=(90, 30)))
    assert session.verified(Verdict(0, 0, 0, 5), Spent(1.0)).confidences == (90,)


@pytest.mark.parametrize(
    ("drafter", "outlook", "prepares"),
    [
        (Drafter.MODEL, Outlook((0.9, 0.8, 0.7), 4), True),
        (Drafter.SUFFIX, Outlook((0.9, 0.8, 0.7), 4), False),
        (Drafter.MODEL, None, False),
    ],
)
def test_a_draft_prepares_while_its_own_proposal_is_verified_and_no_other(
    drafter: Drafter, outlook: Outlook | None, prepares: bool
) -> None:
    session = drafting(None, outlook)
    session.proposed(Proposal((4, 2), drafter=drafter))
    assert session.verified(Verdict(0, 0, 0, 5), Spent(1.0)).prepares is prepares


def test_a_draft_that_tells_confidences_of_other_guesses_is_lost() -> None:
    with pytest.raises(DraftLost, match="1 confidences of 2 tokens"):
        drafting(None).proposed(Proposal((4, 2), confidences=(90,)))


BELIEFS = [
    pytest.param((0.9, 0.8, 0.7), (), (0.9, 0.8, 0.7), id="of all that was asked for"),
    pytest.param((0.9, 0.8, 0.7), (0.5, 0.4, 0.3), (0.5, 0.4, 0.3), id="the drafter's own"),
    pytest.param((), (0.5, 0.4, 0.3), (), id="nothing may be left out"),
]


@pytest.mark.parametrize(("chosen", "own", "sent"), BELIEFS)
@pytest.mark.parametrize("guesses", range(1, 4))
def test_beliefs_go_with_a_proposal_as_if_nothing_had_stopped_it(
    chosen: tuple[float, ...], own: tuple[float, ...], sent: tuple[float, ...], guesses: int
) -> None:
    session = Session(request(vocab_size=5))
    session.opened(Opened(Incarnation("t")))
    session.chosen(3, chosen)
    session.draft_opened(Opened(Incarnation("d")))
    session.proposed(Proposal((1, 2, 3)[:guesses], survivals=own))
    asked = session.next()
    assert isinstance(asked, Verify)
    assert asked.request.survivals == sent


def test_beliefs_outlast_the_guesses_that_the_target_cannot_know() -> None:
    session = drafting(None, vocab_size=5, beliefs=(0.9, 0.8, 0.7))
    session.proposed(Proposal((1, 7, 3), survivals=(0.5, 0.4, 0.3)))
    asked = session.next()
    assert isinstance(asked, Verify)
    assert (asked.request.proposal.ids, asked.request.survivals) == ((1,), (0.5, 0.4, 0.3))


UNJUDGED = [
    pytest.param(0, 1, False, (0, 1, 0), id="one rejected of two"),
    pytest.param(2, 1, False, (2, 2, 0), id="all that were judged stand"),
    pytest.param(2, 1, True, (2, 2, 0), id="an end token among them"),
    pytest.param(0, 3, False, (0, 0, 0), id="none judged"),
    pytest.param(1, 2, True, (1, 1, 0), id="nothing beyond it was judged"),
]


@pytest.mark.parametrize(("accepted", "unjudged", "ended", "expected"), UNJUDGED)
def test_what_was_not_judged_is_neither_accepted_nor_rejected(
    accepted: int, unjudged: int, ended: bool, expected: tuple[int, int, int]
) -> None:
    round = verified((), accepted=accepted, unjudged=unjudged, ended=ended)
    assert (round.accepted, round.examined, round.cut) == expected
    assert (round.proposed, round.judged, round.unjudged) == (3, 3 - unjudged, unjudged)


def test_an_ending_within_what_was_judged_leaves_the_rest_unjudged() -> None:
    round = verified((), accepted=2, unjudged=0, ended=True)
    assert (round.emitted, round.cut, round.unjudged) == (2, 1, 0)
