"""Whose trouble a fault of a draft is: sessions over one draft that fails in every way, and what each does then."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf

import pytest
from tests.seams.combined_stage import (
    MODEL,
    PLAIN,
    SESSION,
    Answer,
    Scripted,
    Stage,
    hanging,
    raising,
    saying,
    silent,
)

from tandem_runtime.combined import Member
from tandem_runtime.domain.errors import (
    BadRequest,
    DraftForgot,
    DraftLost,
    NotANumber,
    NothingAdmitted,
    OutOfOrder,
    Overloaded,
    SessionLost,
    StaleOffset,
    TargetLost,
)
from tandem_runtime.domain.patience import LONG_READ_TOKENS
from tandem_runtime.domain.tokens import (
    Drafter,
    Grammar,
    GrammarKind,
    Incarnation,
    Proposal,
    ProposeRound,
    SamplingParameters,
    ScoreTokens,
    TokenId,
)

LONG = (1,) * (LONG_READ_TOKENS + 1)
A_DAY = 86_400.0
ANY = replace(PLAIN, grammar=Grammar(GrammarKind.REGEX, ".*"))
PENALTY = replace(PLAIN, presence_penalty=0.5)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_runtime.domain.patience.LONGEST_WAIT_SECONDS", 0.05)


def two_sessions(
    prompt: tuple[TokenId, ...] = (1, 2, 3), parameters: SamplingParameters = PLAIN
) -> tuple[Stage, Stage]:
    """That ask one draft, each through its own end; what is parametrised is the first one's."""
    first = Stage(model=Scripted(7), prompt=prompt, parameters=parameters)
    return first, Stage(model=Scripted(7), patience=first.patience, clock=first.clock)


def member(stage: Stage, drafter: Drafter = MODEL) -> Member:
    return next(one for one in stage.draft.members if one.drafter is drafter)


def rest_seconds(stage: Stage) -> float:
    """How long the session does not ask its model."""
    now, one = stage.clock.now, member(stage)
    return max((each.record.rests_until - now for each in (one.patience, one.own) if each.rests(now)), default=0.0)


FAULTS = [
    pytest.param(raising(DraftLost("gone")), 1.0, 1.0, id="lost"),
    pytest.param(raising(TargetLost("the link broke")), 1.0, 1.0, id="link broken"),
    pytest.param(raising(ZeroDivisionError("a fault of its own")), 1.0, 1.0, id="a bug"),
    pytest.param(raising(OutOfOrder("a bug")), 1.0, 1.0, id="our bug"),
    pytest.param(raising(TimeoutError()), 1.0, 1.0, id="times out by itself"),
    pytest.param(hanging, 1.0, 1.0, id="hangs"),
    pytest.param(saying(7, 7, 7, 7, 7), 1.0, 1.0, id="too many"),
    pytest.param(saying(7, rows=()), 1.0, 1.0, id="no q"),
    pytest.param(saying(7, 7, confidences=(9,)), 1.0, 1.0, id="confidences of other guesses"),
    pytest.param(raising(DraftForgot("who?")), 0.0, 0.0, id="forgot"),
    pytest.param(raising(SessionLost("who?")), 0.0, 0.0, id="restarted"),
    pytest.param(raising(StaleOffset("3 is not 5")), 0.0, 0.0, id="stale"),
    pytest.param(raising(Overloaded("full", retry_after_seconds=7)), 7.0, 0.0, id="overloaded"),
    pytest.param(raising(NotANumber()), 1.0, 0.0, id="not a number"),
    pytest.param(raising(BadRequest("no", parameter="k")), inf, 0.0, id="refuses"),
    pytest.param(raising(NothingAdmitted("nothing is left")), inf, 0.0, id="nothing admitted"),
]


@pytest.mark.parametrize(("fault", "this", "another"), FAULTS)
@pytest.mark.parametrize("rounds_before", [0, 3])
async def test_who_rests_after_a_fault_and_for_how_long(
    fault: Answer, this: float, another: float, rounds_before: int
) -> None:
    first, second = two_sessions()
    for stage in (first, second):
        await stage.opened()
        for _ in range(rounds_before):
            await stage.round()
    first.model.instead = fault
    assert (await first.round()).ids == ()
    assert (rest_seconds(first), rest_seconds(second)) == (this, another)
    assert (await second.round()).ids == (() if another else (7,) * 4)
    first.model.instead = None
    first.clock.now += min(this, A_DAY)
    assert (await first.round()).ids == (() if this == inf else (7,) * 4)
    assert this == inf or first.model.heard == first.output[:-1]


BURDENS = [
    pytest.param(LONG, PLAIN, id="a long prompt"),
    pytest.param((1,), ANY, id="a grammar"),
    pytest.param((1,), PENALTY, id="a rule that is prepared where grammars are"),
    pytest.param(LONG, ANY, id="both"),
]


@pytest.mark.parametrize(("prompt", "parameters"), BURDENS)
@pytest.mark.parametrize("late", ["open", "propose"])
async def test_a_draft_with_much_to_read_is_left_at_it_and_is_asked_when_it_has_read(
    late: str, prompt: tuple[TokenId, ...], parameters: SamplingParameters
) -> None:
    first, second = burdened_session(prompt, parameters)
    done = asyncio.Event()
    hold(first, late, done)
    await first.opened()
    await second.opened()
    assert [(await first.round()).ids for _ in range(3)] == [(), (), ()]
    assert (await second.round()).ids == (7,) * 4
    assert (len(first.model.opened) + len(first.model.asked)) == (0 if late == "open" else 2)
    first.model.instead = None
    done.set()
    await settled()
    assert ((await first.round()).ids, first.model.heard) == ((7,) * 4, [50, 50, 50])
    assert (len(first.model.opened), first.patience[MODEL].record.failures) == (1, 0)


@pytest.mark.parametrize(("prompt", "parameters"), BURDENS)
@pytest.mark.parametrize("late", ["open", "propose"])
async def test_one_that_reads_for_ever_is_given_up_by_its_own_session(
    late: str, prompt: tuple[TokenId, ...], parameters: SamplingParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_runtime.combined.LONGEST_READ_SECONDS", 0.1)
    first, second = burdened_session(prompt, parameters)
    hold(first, late, asyncio.Event())
    await first.opened()
    await second.opened()
    await first.round()
    await settled()
    assert (await first.round()).ids == ()
    assert (rest_seconds(first), rest_seconds(second)) == (1.0, 0.0)
    await first.draft.close(SESSION)
    assert first.model.closed == 1


async def test_a_lost_connection_while_it_reads_is_everybodys() -> None:
    first, second = burdened_session(LONG, PLAIN)
    broken = asyncio.Event()

    async def breaks(request: ProposeRound) -> Proposal:
        await broken.wait()
        raise DraftLost("the link broke")

    first.model.instead = breaks
    await first.opened()
    await second.opened()
    await first.round()
    broken.set()
    await settled()
    assert (await first.round()).ids == ()
    assert (rest_seconds(first), rest_seconds(second)) == (1.0, 1.0)


async def test_who_closes_while_the_draft_reads_has_it_read_no_more() -> None:
    first, _ = burdened_session(LONG, PLAIN)
    hold(first, "propose", asyncio.Event())
    await first.opened()
    await first.round()
    await first.draft.close(SESSION)
    assert (first.model.closed, asyncio.all_tasks()) == (1, {asyncio.current_task()})


async def test_a_draft_that_takes_long_to_give_up_an_opening_lets_the_session_go_behind_it() -> None:
    order: list[str] = []

    async def opens() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            order.append("gave up")

    async def closes() -> None:
        order.append("closed")

    first, _ = burdened_session(LONG, PLAIN)
    first.model.open_instead, first.model.close_instead = opens, closes
    await first.opened()
    await first.round()
    await first.draft.close(SESSION)
    assert order == ["gave up", "closed"]


async def test_a_draft_that_only_listens_reads_a_long_prompt_first() -> None:
    first, _ = burdened_session(LONG, PLAIN)
    done = asyncio.Event()
    hold(first, "propose", done)
    await first.opened()
    assert [await scoring(first, 0, 7, 8) for _ in range(2)] == [None, None]
    done.set()
    await settled()
    assert await scoring(first, 0, 7, 8, 7) == (True, False, True)
    assert len(first.model.asked) == 1


def burdened_session(prompt: tuple[TokenId, ...], parameters: SamplingParameters) -> tuple[Stage, Stage]:
    first, second = two_sessions(prompt, parameters)
    first.draft.members[0].max_length = 10_000
    return first, second


def hold(stage: Stage, what: str, done: asyncio.Event) -> None:
    """Its draft opens or proposes when `done` is set."""

    async def wait() -> None:
        await done.wait()

    async def late(request: ProposeRound) -> Proposal:
        await done.wait()
        return await saying(7)(request)

    if what == "open":
        stage.model.open_instead = wait
    else:
        stage.model.instead = late


async def test_a_short_prompt_excuses_nobody() -> None:
    first, second = two_sessions()
    first.model.open_instead = never
    await first.opened()
    await second.opened()
    await first.round()
    assert (rest_seconds(first), rest_seconds(second)) == (1.0, 1.0)


async def test_a_draft_that_has_read_its_prompt_is_waited_for_as_any_other() -> None:
    first, second = burdened_session(LONG, ANY)
    await first.opened()
    await second.opened()
    assert (await first.round()).ids == (7,) * 4
    first.model.instead = hanging
    assert (await first.round()).ids == ()
    assert rest_seconds(second) == 1.0


async def test_who_failed_reads_all_again_and_is_given_the_time() -> None:
    stage = await Stage().opened()
    await stage.round()
    assert not member(stage).is_behind(len(stage.output))
    stage.model.instead = raising(DraftForgot("who?"))
    await stage.round()
    assert member(stage).is_behind(len(stage.output))


async def test_a_session_that_fails_for_itself_ever_again_is_asked_less_and_less() -> None:
    stage = await Stage(model=Scripted(7, instead=raising(DraftForgot("who?")))).opened()
    for _ in range(1000):
        stage.clock.now += 0.1
        await stage.round()
    assert len(stage.model.asked) <= 8
    assert stage.patience[MODEL].record.failures == 0


ALONE = [
    pytest.param(raising(Overloaded("full")), id="overloaded"),
    pytest.param(raising(BadRequest("no")), id="refused"),
    pytest.param(raising(NotANumber()), id="not a number"),
    pytest.param(raising(DraftForgot("who?")), id="forgot"),
    pytest.param(raising(asyncio.CancelledError()), id="cancelled"),
]


@pytest.mark.parametrize("fault", ALONE)
async def test_who_tries_a_rested_draft_and_has_trouble_of_its_own_lets_the_next_one_try(fault: Answer) -> None:
    first, second = two_sessions()
    first.model.instead = raising(DraftLost("gone"))
    await first.opened()
    await second.opened()
    await first.round()
    first.clock.now += 1.0
    first.model.instead = fault
    trying = asyncio.create_task(first.round())
    await asyncio.wait((trying,))
    assert trying.cancelled() or not trying.result().ids
    assert (await second.round()).ids == (7,) * 4


def scoring(stage: Stage, base: int, *ids: TokenId) -> Awaitable[tuple[bool, ...] | None]:
    return stage.draft.score(ScoreTokens(SESSION, Incarnation("combined"), base, ids))


def failing(answer: Answer) -> Callable[[ScoreTokens], Awaitable[tuple[bool, ...] | None]]:
    async def fail(request: ScoreTokens) -> tuple[bool, ...] | None:
        await answer(ProposeRound(request.session, request.incarnation, request.base, (), 1))
        return (True,) * (len(request.ids) + 1)

    return fail


@pytest.mark.parametrize(("fault", "this", "another"), FAULTS)
async def test_a_score_that_fails_is_judged_likewise_and_is_no_loss(fault: Answer, this: float, another: float) -> None:
    first, second = two_sessions()
    await first.opened()
    await second.opened()
    first.model.score_instead = failing(fault)
    assert await scoring(first, 0, 7, 8) is None
    assert (rest_seconds(first), rest_seconds(second)) == (this, another)
    first.model.score_instead = None
    if this:
        assert await scoring(first, 0, 7, 8) is None
    first.clock.now += min(this, A_DAY)
    assert await scoring(first, 0, 7, 8, 7) == (None if this == inf else (True, False, True))


async def test_what_a_resting_draft_did_not_score_it_reads_later() -> None:
    stage = await Stage(model=Scripted(7, score_instead=failing(raising(DraftLost("gone"))))).opened()
    assert await scoring(stage, 0, 7, 8) is None
    stage.model.score_instead, stage.clock.now = None, stage.clock.now + 1.0
    stage.output = [7, 8]
    assert (await stage.round()).ids == (7,) * 4
    assert stage.model.heard == [7, 8]


async def test_two_drafters_that_hang_cost_one_wait() -> None:
    stage = await Stage(model=Scripted(7, instead=hanging), lookup=Scripted(8, instead=hanging)).opened()
    assert (await stage.round()).ids == ()
    assert (len(stage.lookup.asked), len(stage.model.asked)) == (1, 0)
    assert (await stage.round()).ids == ()
    assert (len(stage.lookup.asked), len(stage.model.asked)) == (1, 1)


async def never() -> None:
    await asyncio.Event().wait()


async def test_who_is_cancelled_while_it_closes_leaves_the_closing_at_it() -> None:
    """A driver waits for 2 s; a draft may take longer."""
    begun, released = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await released.wait()

    stage = await Stage(
        model=Scripted(7, close_instead=slow), lookup=Scripted(8, instead=silent, close_instead=slow)
    ).opened()
    await stage.round()
    closing = asyncio.create_task(stage.draft.close(SESSION))
    await begun.wait()
    closing.cancel()
    await asyncio.wait((closing,))
    assert closing.cancelled()
    released.set()
    await settled()
    assert (stage.model.closed, stage.lookup.closed) == (1, 1)


async def test_who_closes_while_an_earlier_closing_is_under_way_waits_for_that_one() -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await released.wait()

    model = Scripted(7, instead=raising(DraftLost("gone")), close_instead=slow)
    stage = await Stage(model=model).opened()
    await stage.round()
    closing = asyncio.create_task(stage.draft.close(SESSION))
    await begun.wait()
    assert not closing.done()
    released.set()
    await closing
    assert (stage.model.closed, stage.lookup.closed) == (1, 1)


async def test_a_draft_is_opened_again_only_when_it_has_let_the_session_go() -> None:
    order: list[str] = []
    released = asyncio.Event()

    async def slow() -> None:
        await released.wait()
        order.append("closed")

    async def opening() -> None:
        order.append("opened")

    model = Scripted(7, instead=raising(DraftForgot("who?")), close_instead=slow, open_instead=opening)
    stage = await Stage(model=model).opened()
    await stage.round()
    stage.model.instead = None
    again = asyncio.create_task(stage.round())
    await asyncio.sleep(0)
    released.set()
    assert (await again).ids == (7,) * 4
    assert order == ["opened", "closed", "opened"]


async def test_a_drafter_whose_closing_fails_harms_nobody() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    stage = await Stage(lookup=Scripted(8, instead=silent, close_instead=broken)).opened()
    await stage.round()
    await stage.draft.close(SESSION)
    assert stage.model.closed == 1


async def settled() -> None:
    """All other tasks have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)
