"""What is ready before it is asked for, on the side of those who ask: whose it is, what it wastes, that none stays."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tests.seams.port_models import SLOTS, hashed_logits
from tests.seams.port_words import LIFE, draft_of, opening, propose_of

from tandem_runtime.domain.errors import DraftForgot
from tandem_runtime.domain.tokens import Ahead, Outlook, Proposal, ProposeRound, SessionId, TokenId
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.offers import Offer, Offers
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.ports import Logits, Row

BEST = TokenId(7)


def asked(base: int, committed: Sequence[TokenId] = ()) -> ProposeRound:
    return replace(propose_of(base, committed, 2), outlook=Outlook((0.7, 0.5), 12, 1))


def offer(*, due: float | None = None) -> Offer:
    """Behind two proposed tokens of which one stands: one more is ready, and another for another verdict."""
    made = Offer(LIFE, 0, (TokenId(1), TokenId(2)), has_q=False)
    made.add((TokenId(1), BEST), (TokenId(3), None), due)
    made.add((TokenId(1), TokenId(8)), (TokenId(4), None), None)
    return made


def test_what_is_ready_answers_the_round_that_comes_next_and_no_other() -> None:
    offers, first = Offers(), asked(0)
    assert offers.answer(first, 0.0, 1.0) is None
    offers.make(first, offer())
    assert offers.answer(asked(1, (BEST,)), 0.0, 1.0) == Proposal((TokenId(3),), ahead=Ahead(True, 1))
    assert offers.answer(asked(1, (BEST,)), 0.0, 1.0) is None


def test_what_is_told_of_a_round_when_the_next_has_begun_is_no_offer() -> None:
    offers, first = Offers(), asked(0)
    offers.answer(first, 0.0, 1.0)
    offers.answer(asked(0, (BEST,)), 0.0, 1.0)
    offers.make(first, offer())
    assert offers.answer(asked(1, (BEST,)), 0.0, 1.0) is None


def test_what_is_told_of_a_session_that_was_closed_is_kept_nowhere() -> None:
    offers, first = Offers(), asked(0)
    offers.answer(first, 0.0, 1.0)
    offers.forget(first.session)
    offers.make(first, offer())
    assert not held(offers)


def test_the_tokens_of_the_step_under_way_are_wasted_too() -> None:
    found = offer(due=9.0).answer(asked(1, (BEST,)), 0.0, 1.0)
    assert found == Proposal((TokenId(3),), ahead=Ahead(True, 2))


def held(offers: Offers) -> bool:
    return any(vars(offers).values())


class GatedModel(ScriptedModel):
    """Takes no step while its gate is shut."""

    def __init__(self) -> None:
        super().__init__(hashed_logits, max_length=64, max_sessions=SLOTS)
        self.gate, self.stands = threading.Event(), threading.Event()
        self.gate.set()

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.stands.set()
        assert self.gate.wait(30)
        return super().forward(rows)


async def prepared(draft: BatchedDraft) -> None:
    await draft.close(SessionId("nobody"))
    while draft.drafting_ahead:
        await asyncio.sleep(0.001)


async def test_who_is_cancelled_while_it_closes_leaves_nothing_behind() -> None:
    model = GatedModel()
    with draft_of(model) as draft:
        await draft.open(opening())
        await draft.open(opening("b"))
        await draft.propose(asked(0))
        await prepared(draft)
        assert held(draft._offers)
        model.gate.clear()
        model.stands.clear()
        other = asyncio.create_task(draft.propose(propose_of(0, (), 1, name="b")))
        await asyncio.to_thread(model.stands.wait, 30)
        closing = asyncio.create_task(draft.close(SessionId("a")))
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        model.gate.set()
        await other
        await draft.close(SessionId("b"))
        assert not held(draft._offers)
        assert model.blocks.used == 0


async def test_a_session_that_a_draft_does_not_know_leaves_nothing_behind() -> None:
    with draft_of(GatedModel()) as draft:
        with suppress(DraftForgot):
            await draft.propose(asked(0))
        assert not held(draft._offers)


async def test_rounds_that_others_took_meanwhile_say_nothing_of_the_time_for_preparing() -> None:
    with draft_of(GatedModel()) as draft:
        await draft.open(opening())
        first = await draft.propose(asked(0))
        await prepared(draft)
        await draft.propose(asked(0, (*first.ids, BEST, BEST)))
        assert draft._guessing.pauses.seconds is None
        await prepared(draft)
        await draft.propose(asked(len(first.ids) + 2, (BEST,)))
        assert draft._guessing.pauses.seconds is not None
