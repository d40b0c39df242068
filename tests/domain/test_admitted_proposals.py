"""What a session makes of a proposal before the target sees it: cut to what the target knows, or a lost draft."""

import pytest

from tandem_runtime.domain.commands import Request, Verify
from tandem_runtime.domain.errors import DraftLost
from tandem_runtime.domain.session import Session, State
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Incarnation,
    Opened,
    Proposal,
    SamplingParameters,
    SessionId,
    SparseRow,
    Verification,
)

ONE, WIDE = SparseRow((1,), (1.0,)), SparseRow((1, 9), (0.5, 0.5))


def proposing(verification: Verification, *, vocab_size: int | None = 7) -> Session:
    """A session that has asked for four guesses."""
    session = Session(
        Request(
            session=SessionId("s"),
            prompt=(1,),
            parameters=SamplingParameters(seed=0),
            verification=verification,
            endings=Endings(max_tokens=16),
            decode=lambda ids: "x" * len(ids),
            target_length=100,
            draft_length=100,
            vocab_size=vocab_size,
        )
    )
    session.opened(Opened(Incarnation("target")))
    session.chosen(4)
    session.draft_opened(Opened(Incarnation("draft")))
    assert session.state is State.PROPOSING
    return session


def sent(session: Session, proposal: Proposal) -> Proposal | None:
    """What the target is asked to judge; None: nothing, the session runs."""
    session.proposed(proposal)
    command = session.next()
    return command.request.proposal if isinstance(command, Verify) else None


@pytest.mark.parametrize("drawn", [Verification.REJECTION, Verification.BLOCK])
def test_a_proposal_is_cut_where_an_unknown_id_could_have_come(drawn: Verification) -> None:
    assert sent(proposing(drawn), Proposal((1, 1), (ONE, WIDE))) == Proposal((1,), (ONE,))
    assert sent(proposing(drawn), Proposal((1, 1), (WIDE, ONE))) is None
    assert sent(proposing(drawn), Proposal((1, 1), (ONE, ONE))) == Proposal((1, 1), (ONE, ONE))


def test_a_coupled_proposal_is_cut_at_the_unknown_id() -> None:
    assert sent(proposing(Verification.COUPLED), Proposal((1, 6, 7, 2))) == Proposal((1, 6))
    assert sent(proposing(Verification.COUPLED), Proposal((7,))) is None


@pytest.mark.parametrize(
    "bad",
    [
        Proposal((1,)),
        Proposal((1, 2), (ONE,)),
        Proposal((2,), (ONE,)),
        Proposal((1,), (SparseRow((1,), (0.5,)),)),
        Proposal((1,), (SparseRow((1, 2), (float("nan"), 1.0)),)),
    ],
    ids=str,
)
def test_a_proposal_that_nobody_can_have_drawn_is_a_lost_draft_and_the_session_runs(bad: Proposal) -> None:
    session = proposing(Verification.BLOCK)
    with pytest.raises(DraftLost, match="the draft's proposal is none"):
        session.proposed(bad)
    session.draft_lost()
    assert session.state is State.RUNNING


def test_without_a_vocabulary_a_proposal_goes_on_as_it_came() -> None:
    assert sent(proposing(Verification.COUPLED, vocab_size=None), Proposal((1, 7))) == Proposal((1, 7))
