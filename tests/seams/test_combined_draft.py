"""Several drafters as one, as a driver meets them: real drafting and patience over drafters that fail in every way."""

import asyncio
from dataclasses import replace

import pytest
from tests.seams.combined_stage import (
    FOUR,
    MODEL,
    SESSION,
    SUFFIX,
    VOCAB,
    Answer,
    Scripted,
    Stage,
    hanging,
    raising,
    saying,
    silent,
)

from tandem_runtime.domain.acceptance import UNKNOWN
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.errors import DraftForgot, DraftLost
from tandem_runtime.domain.lookahead import OFF
from tandem_runtime.domain.session import SCORED_TOKENS
from tandem_runtime.domain.tokens import (
    Drafter,
    Incarnation,
    Proposal,
    ProposeRound,
    Round,
    ScoreTokens,
    SparseRow,
    TokenId,
)

NAN = float("nan")
FAULTS = [
    pytest.param(raising(DraftLost("gone")), id="lost"),
    pytest.param(raising(ZeroDivisionError("a fault of its own")), id="a bug"),
    pytest.param(raising(TimeoutError()), id="times out by itself"),
    pytest.param(hanging, id="hangs"),
    pytest.param(saying(7, 7, 7, 7, 7), id="too many"),
    pytest.param(saying(7, rows=()), id="no q"),
    pytest.param(saying(7, rows=(SparseRow((7,), (1.0,)),) * 2), id="too much q"),
    pytest.param(saying(7, rows=(SparseRow((7, 8), (0.5, 0.4)),)), id="q that does not add up"),
    pytest.param(saying(7, rows=(SparseRow((7,), (NAN,)),)), id="q is NaN"),
    pytest.param(saying(7, rows=(SparseRow((7, 8), (-0.5, 1.5)),)), id="q below 0"),
    pytest.param(saying(7, rows=(SparseRow((7, 7), (0.5, 0.5)),)), id="an id twice"),
    pytest.param(saying(7, rows=(SparseRow((7, 8), (1.0,)),)), id="q is cut"),
    pytest.param(saying(7, rows=(SparseRow((8,), (1.0,)),)), id="not of its q"),
    pytest.param(saying(VOCAB, rows=(SparseRow((5,), (1.0,)),)), id="an id outside the vocabulary"),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_runtime.domain.patience.LONGEST_WAIT_SECONDS", 0.05)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("who", [MODEL, SUFFIX])
async def test_a_fault_costs_one_round_and_then_the_others_go_on(fault: Answer, who: Drafter) -> None:
    stage = Stage()
    faulty, healthy = (stage.model, stage.lookup) if who is MODEL else (stage.lookup, stage.model)
    faulty.instead, healthy.instead = fault, silent
    healthy.survivals = (0.9,) * 4
    await stage.opened()
    assert (await stage.round()).ids == ()
    healthy.instead = None
    assert [(await stage.round()).ids for _ in range(5)] == [(healthy.token,) * 4] * 5
    assert len(faulty.asked) == 1
    assert stage.patience[who].record.failures == 1


async def test_a_drafter_that_hangs_while_it_opens_is_as_one_that_hangs() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    stage = Stage()
    stage.model.open_instead = hang
    await stage.opened()
    assert [(await stage.round()).ids for _ in range(3)] == [(), (), ()]
    await stage.draft.close(SESSION)
    assert (stage.patience[MODEL].record.failures, stage.model.closed) == (1, 1)


async def test_after_its_rest_a_drafter_is_opened_again_with_all_that_was_said() -> None:
    stage = await Stage(model=Scripted(7, instead=raising(DraftLost("gone")))).opened()
    for _ in range(3):
        await stage.round()
    stage.model.instead = None
    stage.clock.now += 1.0
    assert (await stage.round(stood=2)).ids == (7, 7, 7, 7)
    assert [opened.output for opened in stage.model.opened] == [(), (50, 50, 50)]
    await stage.round()
    assert stage.model.heard == [50, 50, 50, 7, 7, 50]


async def test_while_a_drafter_is_tried_again_no_other_session_asks_it() -> None:
    first = Stage()
    second = Stage(model=Scripted(7), patience=first.patience, clock=first.clock)
    first.model.instead = raising(DraftLost("gone"))
    await first.opened()
    await second.opened()
    await first.round()
    first.clock.now += 1.0
    inside: list[tuple[TokenId, ...]] = []

    async def meanwhile(request: ProposeRound) -> Proposal:
        inside.append((await second.round()).ids)
        return Proposal((7,), (SparseRow((7,), (1.0,)),))

    first.model.instead = meanwhile
    assert (await first.round()).ids == (7,)
    assert inside == [()]
    assert (await second.round()).ids == (7, 7, 7, 7)


async def test_a_drafter_that_keeps_failing_is_asked_less_and_less_often() -> None:
    stage = await Stage(model=Scripted(7, instead=raising(DraftLost("gone")))).opened()
    for _ in range(1000):
        await stage.round()
        stage.clock.now += 0.1
    await stage.draft.close(SESSION)
    assert len(stage.model.asked) <= 7
    assert len(stage.model.asked) == stage.model.closed


async def test_a_hanging_drafter_costs_ten_times_its_usual_time() -> None:
    stage = await Stage().opened()
    for _ in range(3):
        await stage.round(stood=4)
    usual = stage.patience[MODEL].record
    assert usual.token_seconds is not None
    stage.patience[MODEL].record = replace(usual, token_seconds=0.0005)
    stage.model.instead = hanging
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await stage.round()).ids == ()
    assert loop.time() - began < 2.0  # of 4 s that a stranger is waited for


async def test_an_answer_to_an_older_round_is_a_guess_like_any_other() -> None:
    """Its q is what it was drawn from, so the law stands; that it is late shows in acceptance."""
    stage = await Stage(model=Scripted(7, instead=saying(9, 9))).opened()
    for _ in range(3):
        assert (await stage.round()).ids == (9, 9)
    assert stage.output == [50, 50, 50]
    assert stage.patience[MODEL].record.failures == 0


async def test_ids_that_only_the_draft_knows_end_the_proposal_by_its_q_and_are_no_fault() -> None:
    rows = (SparseRow((7,), (1.0,)), SparseRow((7, VOCAB), (0.5, 0.5)))
    stage = await Stage(model=Scripted(7, instead=saying(7, 7, rows=rows))).opened()
    assert (await stage.round()).ids == (7,)
    assert stage.patience[MODEL].record.failures == 0


async def test_a_model_reads_in_one_pass_what_others_had_proposed() -> None:
    stage = await Stage(lookup=Scripted(8, survivals=(0.99,) * 4)).opened()
    assert [(await stage.round(stood=2)).drafter for _ in range(2)] == [SUFFIX, SUFFIX]
    assert stage.model.opened == []
    stage.lookup.instead = silent
    proposal = await stage.round(stood=1)
    assert (proposal.drafter, proposal.prefill) == (MODEL, True)
    assert stage.model.heard == [8, 8, 50, 8, 8, 50]
    proposal = await stage.round()
    assert (proposal.drafter, proposal.prefill) == (MODEL, False)
    assert stage.model.heard == stage.lookup.heard == stage.output[:-1]


async def test_lookups_know_the_adapter_and_the_model_does_not() -> None:
    stage = await Stage().opened()
    await stage.round()
    assert [opened.adapter for opened in (*stage.model.opened, *stage.lookup.opened)] == [None, "a"]


async def test_a_model_whose_context_is_full_leaves_the_session_to_the_lookups() -> None:
    stage = Stage(lookup=Scripted(8, survivals=(0.1,) * 4), model_length=6)
    await stage.opened()
    assert [(await stage.round()).drafter for _ in range(4)] == [MODEL, MODEL, MODEL, SUFFIX]
    assert [asked.k for asked in stage.model.asked] == [3, 2, 1]


async def test_a_round_that_does_not_continue_what_was_heard_is_refused() -> None:
    stage = await Stage().opened()
    await stage.round()
    for base in (9, -1):
        with pytest.raises(DraftForgot, match=f"offset {base}"):
            await stage.draft.propose(ProposeRound(SESSION, Incarnation("combined"), base, (), 4))


async def test_closing_closes_who_was_opened_and_nobody_else() -> None:
    stage = await Stage(lookup=Scripted(8, survivals=(0.99,) * 4)).opened()
    await stage.round()
    await stage.draft.close(SESSION)
    assert (stage.model.closed, stage.lookup.closed) == (0, 1)


async def test_a_proposal_tells_what_is_believed_of_it() -> None:
    stage = await Stage(lookup=Scripted(8, survivals=(0.9, 0.8, 0.7, 0.6))).opened()
    assert (await stage.round()).survivals == (0.9, 0.8, 0.7, 0.6)
    stage.lookup.instead = silent
    assert (await stage.round()).survivals == UNKNOWN.survivals(4)


async def test_a_score_is_the_first_members_and_counts_as_committed() -> None:
    stage = await Stage().opened()
    bits = await stage.draft.score(ScoreTokens(SESSION, Incarnation("combined"), 0, (7, 8)))
    assert bits == (True, False)
    assert (await stage.draft.capabilities()).vocab_size == VOCAB
    stage.output, stage.told = [7, 8], 2
    await stage.round()
    assert stage.lookup.heard == [7, 8]


@pytest.mark.parametrize(("missed", "guesses"), [(SCORED_TOKENS, 0), (SCORED_TOKENS + 1, 1)])
async def test_a_model_that_missed_much_reads_it_by_a_guess_before_it_scores(missed: int, guesses: int) -> None:
    stage = await Stage().opened()
    assert await stage.draft.score(ScoreTokens(SESSION, Incarnation("combined"), 0, (7,))) == (True,)
    news = (50,) * missed
    stage.drafting.choose(OFF, 8, stage.clock.now, warm=True)
    await stage.draft.propose(ProposeRound(SESSION, Incarnation("combined"), 1, news, 1))
    assert await stage.draft.score(ScoreTokens(SESSION, Incarnation("combined"), 1 + missed, (7, 8))) == (True, False)
    assert [(asked.k, len(asked.committed)) for asked in stage.model.asked] == [(1, missed)] * guesses


async def test_rounds_teach_whose_proposal_they_took() -> None:
    stage = await Stage(lookup=Scripted(8, survivals=(0.99,) * 4)).opened()
    proposal = await stage.round(stood=4)
    stage.drafting.learn(Round(4, 4, 5, 0.0, 0.02, drafter=proposal.drafter), 1.0, warm=True)
    assert stage.beliefs.of(SUFFIX).belief.acceptance != UNKNOWN
    assert stage.beliefs.of(MODEL).belief.acceptance == UNKNOWN


async def test_who_is_cancelled_while_the_draft_opens_closes_what_may_have_been_opened() -> None:
    opening, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        opening.set()
        await never.wait()

    stage = await Stage(model=Scripted(7, open_instead=hang)).opened()
    asking = asyncio.create_task(stage.round())
    await opening.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await stage.draft.close(SESSION)
    assert (asking.cancelled(), stage.model.closed) == (True, 1)


async def test_opening_again_closes_what_was_open() -> None:
    stage = await Stage().opened()
    await stage.round()
    await stage.opened()
    await stage.draft.close(SESSION)
    assert (stage.model.closed, stage.lookup.closed) == (1, 1)


async def test_each_is_asked_by_its_own_outlook_and_a_lookup_by_none() -> None:
    stage = await Stage(bounds=replace(FOUR, overlap=Overlap.ON)).opened()
    lookahead = stage.beliefs.of(MODEL).begin()
    for number in range(8):
        lookahead.learn(Round(4, 3, 4, 0.016, 0.018, 0.018, 0.016, seconds=0.035), number / 10, warm=True)
    await stage.round()
    (asked,), (looked,) = stage.model.asked, stage.lookup.asked
    assert asked.outlook is not None
    assert asked.outlook == stage.drafting.outlook_of(MODEL, asked.k)
    assert looked.outlook is None
