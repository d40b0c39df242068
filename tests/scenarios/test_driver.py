"""The driver against engines in this process: real loop, driver and session; the engines are small and can fail."""

import asyncio
from dataclasses import replace

import pytest
from tests.scenarios.driver_stage import ALWAYS_4, PLAIN, ChainDraft, ChainTarget, Fault, Stage, hanging, raising

from tandem_runtime.domain.commands import Emit, Finish
from tandem_runtime.domain.errors import (
    BadRequest,
    DraftLost,
    NotANumber,
    Overloaded,
    SessionLost,
    StaleOffset,
    TandemError,
    TargetLost,
)
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.states import State
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import Priority
from tandem_runtime.driver import Deadlines


@pytest.mark.parametrize("bounds", [OFF, Bounds(1, 1, Mode.ALWAYS), ALWAYS_4, Bounds(1, 8)])
async def test_the_text_is_that_of_the_target_alone(bounds: Bounds) -> None:
    stage = Stage(bounds=bounds)
    assert await stage.answer() == PLAIN
    assert (stage.target.calls[-1], stage.target.holds) == ("close", {})
    assert stage.draft is not None
    assert stage.draft.calls == [] if bounds is OFF else stage.draft.calls[-1] == "close"


async def test_without_a_draft_no_k_is_asked_for() -> None:
    stage = Stage(draft=None)
    assert await stage.answer() == PLAIN
    assert "verify" not in stage.target.calls


@pytest.mark.parametrize(
    "fault",
    [
        raising(DraftLost("gone")),
        raising(Overloaded("full")),
        raising(SessionLost("who?")),
        raising(NotANumber()),
        raising(ZeroDivisionError("a fault of its own")),
        hanging,
    ],
)
@pytest.mark.parametrize("call", [0, 1, 2, 3])
async def test_a_draft_that_fails_in_any_way_costs_no_text(fault: Fault, call: int) -> None:
    stage = Stage(draft=ChainDraft({call: fault}), deadlines=Deadlines(propose_seconds=0.01, open_seconds=0.01))
    assert await stage.answer() == PLAIN
    assert "run" in stage.target.calls


@pytest.mark.parametrize("fault", [raising(SessionLost("restarted")), raising(StaleOffset("moved"))])
@pytest.mark.parametrize("bounds", [OFF, ALWAYS_4])
@pytest.mark.parametrize("call", [1, 2, 3])
async def test_a_target_that_denies_the_session_is_opened_again_with_the_committed_tokens(
    fault: Fault, bounds: Bounds, call: int
) -> None:
    stage = Stage(target=ChainTarget({call: fault}), bounds=bounds)
    assert await stage.answer() == PLAIN
    assert stage.target.calls.count("open") == 2


@pytest.mark.parametrize("fault", [raising(TargetLost("gone")), hanging])
@pytest.mark.parametrize("bounds", [OFF, ALWAYS_4])
@pytest.mark.parametrize("call", [0, 1, 3])
async def test_a_lost_target_is_replaced_and_both_are_released(fault: Fault, bounds: Bounds, call: int) -> None:
    spare = ChainTarget()
    deadlines = Deadlines(open_seconds=0.01, verify_seconds=0.01)
    stage = Stage(target=ChainTarget({call: fault}), spare=spare, bounds=bounds, deadlines=deadlines)
    assert await stage.answer() == PLAIN
    assert (stage.target.calls[-1], spare.calls[-1]) == ("close", "close")
    assert (stage.target.holds, spare.holds) == ({}, {})
    assert (stage.target.calls.count("open"), spare.calls.count("open")) == (1, 1)


def patient(stage: Stage) -> Stage:
    return replace(stage, request=replace(stage.request, priority=Priority.BATCH))


@pytest.mark.parametrize("bounds", [OFF, ALWAYS_4])
async def test_a_batch_waits_for_longer_than_who_reads_along(bounds: Bounds) -> None:
    """Its prompt is read in what room others leave, which takes as long as it takes."""

    async def slow() -> None:
        await asyncio.sleep(0.05)

    deadlines = Deadlines(verify_seconds=0.01)
    stage = patient(Stage(target=ChainTarget({1: slow}), spare=ChainTarget(), bounds=bounds, deadlines=deadlines))
    assert await stage.answer() == PLAIN
    assert stage.target.calls.count("open") == 1


@pytest.mark.parametrize("bounds", [OFF, ALWAYS_4])
async def test_a_batch_that_waited_in_vain_is_told_of_a_full_house_and_begins_nowhere_anew(bounds: Bounds) -> None:
    spare, deadlines = ChainTarget(), Deadlines(verify_seconds=0.01, patient_verify_seconds=0.02)
    stage = patient(Stage(target=ChainTarget({1: hanging}), spare=spare, bounds=bounds, deadlines=deadlines))
    with pytest.raises(Overloaded, match="more urgent") as told:
        await stage.answer()
    assert told.value.retry_after_seconds == 60
    assert (spare.calls, stage.target.holds) == ([], {})


async def test_a_batch_that_cannot_even_open_a_session_goes_elsewhere() -> None:
    spare, deadlines = ChainTarget(), Deadlines(open_seconds=0.01)
    stage = patient(Stage(target=ChainTarget({0: hanging}), spare=spare, deadlines=deadlines))
    assert await stage.answer() == PLAIN
    assert spare.calls[0] == "open"


async def test_a_lost_target_that_nobody_replaces_fails_the_request_after_true_tokens() -> None:
    stage = Stage(target=ChainTarget({3: raising(TargetLost("gone"))}), bounds=OFF)
    with pytest.raises(TargetLost, match="no other target"):
        await stage.answer()
    assert stage.session.output == (5, 3)
    assert stage.target.calls[-1] == "close"


async def test_a_target_that_denies_every_session_fails_the_request() -> None:
    stage = Stage(target=ChainTarget({call: raising(SessionLost("who?")) for call in range(20)}))
    with pytest.raises(SessionLost, match="who"):
        await stage.answer()


@pytest.mark.parametrize("refusal", [BadRequest("no", parameter="seed"), Overloaded("full"), NotANumber("NaN")])
async def test_what_the_target_refuses_reaches_the_caller(refusal: TandemError) -> None:
    stage = Stage(target=ChainTarget({1: raising(refusal)}))
    with pytest.raises(type(refusal)) as raised:
        await stage.answer()
    assert raised.value is refusal
    assert stage.target.holds == {}


@pytest.mark.parametrize("bounds", [OFF, ALWAYS_4])
async def test_a_reader_that_leaves_releases_both_engines(bounds: Bounds) -> None:
    stage = Stage(bounds=bounds)
    async with stage.items() as items:
        await anext(aiter(items))
    assert stage.session.state is State.CANCELLED
    assert stage.target.calls[-1] == "close"
    assert stage.draft is not None
    assert stage.draft.holds == {}


@pytest.mark.parametrize(("bounds", "calls"), [(OFF, 3), (ALWAYS_4, 2)])
async def test_a_cancelled_task_releases_both_engines_and_stays_cancelled(bounds: Bounds, calls: int) -> None:
    waiting = asyncio.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    stage = Stage(target=ChainTarget({calls: wait}), bounds=bounds)
    task = asyncio.create_task(stage.answer())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.session.state is State.CANCELLED
    assert stage.target.calls[-1] == "close"


async def test_a_reader_that_leaves_during_the_release_leaves_no_session_behind() -> None:
    """A gateway cancels its pump as soon as it has the last item: then the release has begun and has freed nothing."""
    stage = Stage(bounds=Bounds(4, 4, Mode.ALWAYS))
    last = asyncio.Event()

    async def read() -> None:
        async with stage.items() as items:
            async for item in items:
                if isinstance(item, Finish):
                    last.set()

    task = asyncio.create_task(read())
    await last.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.target.calls[-1] == "close"
    assert stage.draft is not None
    assert stage.draft.calls[-1] == "close"


async def test_an_engine_that_cannot_be_closed_holds_nobody_up() -> None:
    stage = Stage(target=ChainTarget({17: hanging}), bounds=OFF, deadlines=Deadlines(close_seconds=0.01))
    assert await stage.answer() == PLAIN
    assert stage.target.calls[17:] == ["close"]


async def test_the_allowance_is_asked_every_round() -> None:
    stage = Stage()
    async with stage.items() as items:
        async for item in items:
            stage.bounds = OFF if isinstance(item, Emit) else stage.bounds
    assert [round.proposed for round in stage.observer.rounds] == [4] + [0] * 13


async def test_rounds_tell_what_they_cost_and_when_they_were() -> None:
    stage = Stage(request=replace(Stage().request, endings=Endings(6)))
    await stage.answer()
    first, second = stage.observer.rounds
    assert (first.proposed, first.accepted, first.emitted, first.prefill) == (4, 2, 3, True)
    assert (second.proposed, second.accepted, second.emitted, second.prefill) == (2, 2, 3, False)
    spent = (second.draft_seconds, second.drafting_seconds, second.verify_seconds, second.forward_seconds)
    assert spent == pytest.approx((0.008, 0.008, 0.018, 0.018))
    assert (second.seconds, second.started) == pytest.approx((0.026, first.ended))
    assert first.started == pytest.approx(1_000_100)


@pytest.mark.parametrize("bounds", [OFF, ALWAYS_4])
async def test_a_slow_reader_is_no_part_of_a_rounds_time(bounds: Bounds) -> None:
    stage = Stage(bounds=bounds)
    async with stage.items() as items:
        async for _ in items:
            stage.clock.now += 10
    assert all(round.seconds < 0.04 for round in stage.observer.rounds)
    assert sum(round.emitted for round in stage.observer.rounds) == 16


async def test_the_shared_belief_learns_from_every_round() -> None:
    stage = Stage(bounds=Bounds(1, 8))
    await stage.answer()
    costs = stage.lookahead.belief.costs
    assert costs.draft_token is not None
    assert costs.draft_token.level == pytest.approx(0.004)
