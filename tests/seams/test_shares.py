"""Whose rows a step takes and whose wait, and that one request's fault, end or haste costs nobody else anything."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.seams.stepped_targets import (
    BACKGROUND,
    BATCH,
    FACTS,
    GUESSES,
    INTERACTIVE,
    LIFE,
    Everybody,
    SteppedModel,
    SystemClock,
)
from tests.seams.wire_peers import connected, served

from tandem_runtime.domain.errors import DraftLost, Overloaded, TandemError, TargetLost
from tandem_runtime.domain.tokens import (
    OpenSession,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    SessionId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits, Row
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.roles import TargetRole


async def test_what_is_less_urgent_joins_where_a_step_has_room() -> None:
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(8, 64)) as target:
        people = Everybody(target, model)
        for name, first, priority in (("a", 1, INTERACTIVE), ("b", 2, BATCH), ("c", 3, BACKGROUND), ("d", 4, BATCH)):
            await people.open(name, first, priority)
        holding = people.round("d", 0)
        await people.stand()
        rounds = [people.round(name, 0, ids) for name, ids in (("c", ()), ("b", GUESSES), ("a", (6, 6)))]
        await people.step()
        await people.step()
        people.let_go()
        await asyncio.gather(holding, *rounds)
    assert model.steps == [[(4, 1)], [(1, 3), (3, 1)], [(2, 6)]]


async def test_a_prompt_of_a_batch_takes_what_the_decoding_rows_leave_of_a_chunk() -> None:
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(40, 64)) as target:
        people = Everybody(target, model)
        await people.open("now", 1)
        await people.open("later", 2, BATCH, length=100)
        holding = people.round("now", 0)
        await people.stand()
        asked = [people.round("later", 0), people.round("now", 1, GUESSES)]
        people.let_go()
        await asyncio.gather(holding, *asked)
    assert model.steps[:3] == [[(1, 1)], [(1, 6), (2, 34)], [(2, 40)]]


async def test_a_tenant_with_many_sessions_has_its_share_of_the_rows_and_no_more() -> None:
    """40 sessions against 20, of which many wait while some take note of their answers; a step holds 8 rounds, and
    shares are 1 to 3."""
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(256, 48)) as target:
        people = Everybody(target, model)
        for at in range(60):
            await people.open(str(at), 1 if at < 40 else 2, weight=1.0 if at < 40 else 3.0)
        ended = asyncio.Event()

        async def ask(name: str) -> None:
            number = offset = 0
            while not ended.is_set():
                verdict = await people.round(name, number, GUESSES, offset=offset)
                number, offset = number + 1, offset + verdict.accepted + 1

        asking = [asyncio.create_task(ask(str(at))) for at in range(60)]
        await people.stand()
        for _ in range(4):  # until all have arrived
            await people.step()
        model.steps.clear()
        for _ in range(60):
            await people.step()
        counts = model.rows_by_prompt()
        ended.set()
        people.let_go()
        await asyncio.gather(*asking)
    assert sum(counts.values()) >= 57 * 48
    assert abs(counts[1] / sum(counts.values()) - 1 / 4) < 0.05


async def test_a_draft_shares_its_steps_as_a_target_does() -> None:
    """40 sessions of one tenant guess 20 tokens each, and 20 of another; a step holds 32 rows."""
    model = SteppedModel()
    with BatchedDraft(model, FACTS, clock=SystemClock(), size=StepSize(256, 32)) as draft:
        for at in range(60):
            first = 1 if at < 40 else 2
            greedy = SamplingParameters(seed=1, temperature=0.0)
            await draft.open(
                OpenSession(
                    SessionId(str(at)), (first,), (), greedy, Verification.COUPLED, 400, tenant=f"tenant-{first}"
                )
            )
        rounds = [
            asyncio.create_task(draft.propose(ProposeRound(SessionId(str(at)), LIFE, 0, (), 20))) for at in range(60)
        ]
        await asyncio.to_thread(model.entered.acquire, timeout=30)
        model.let.release(100_000)
        await asyncio.gather(*rounds)
    both = [Counter(first for first, _ in step) for step in model.steps[2:25]]
    assert both == [{1: 16, 2: 16}] * 23


async def test_a_tenant_with_many_sessions_pushes_out_its_own_before_anothers_first_one() -> None:
    """Room for eight blocks: two sessions of one tenant hold four each when another one's first session comes, and the
    earlier of the two keeps what it has."""
    model = SteppedModel(kv_blocks=8, max_length=128)
    with BatchedTarget(model, FACTS, clock=SystemClock(), patience_seconds=3600.0) as target:
        people = Everybody(target, model)
        people.let_go()
        for name, first, length in (("a", 1, 50), ("b", 2, 10), ("c", 1, 50)):
            await people.open(name, first, length=length)
        computed = []
        for name, number in (("a", 0), ("c", 0), ("b", 0), ("a", 1), ("c", 1)):
            if (name, number) == ("c", 1):
                await target.close(SessionId("b"))
            before = sum(target.memory.computed.values())
            await people.round(name, number)
            computed.append(sum(target.memory.computed.values()) - before)
        assert target.memory.preemptions == 1
    assert computed == [50, 50, 10, 1, 3]  # of the third session's, two blocks and the token were taken over


FAULTS: list[tuple[Callable[[], Exception], type[TandemError]]] = [
    (lambda: RuntimeError("kernel"), TargetLost),
    (MemoryError, Overloaded),
    (lambda: ValueError("shape"), TargetLost),
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=["fault", "memory", "shape"])
@pytest.mark.parametrize("place", ["extend", "settle", "adopt"])
async def test_an_error_of_the_books_fails_the_jobs_at_hand_and_the_loop_goes_on_from_empty_ones(
    fault: Callable[[], Exception], expected: type[TandemError], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock()) as target:
        people = Everybody(target, model)
        people.let_go()
        await people.open("a", 1, length=40)
        await people.open("b", 2, length=40)
        first = await people.round("a", 0)

        def broken(*_: object) -> None:
            raise fault()

        with monkeypatch.context() as patched:
            patched.setattr(model.blocks, place, broken)
            with pytest.raises(expected):
                await people.round("b", 0)
        assert model.blocks.used == model.blocks.idle == 0
        again = await people.round("a", 0)
        after = await people.round("a", 1)
        await people.round("b", 0)
        for name in "ab":
            await target.close(SessionId(name))
    assert again == first
    assert (after.offset, model.blocks.used) == (1, 0)


async def test_a_step_without_memory_is_answered_to_its_jobs_and_no_others() -> None:
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock()) as target:
        people = Everybody(target, model)
        for name, first in (("a", 1), ("b", 2)):
            await people.open(name, first)
        asked = people.round("a", 0)
        await people.stand()
        other = people.round("b", 0)
        await asyncio.sleep(0)
        model.error = MemoryError()
        people.let_go()
        with pytest.raises(Overloaded) as told:
            await asked
        await other
        await people.round("a", 0)
    assert told.value.retry_after_seconds >= 1


class Choking(SteppedModel):
    """Cannot compute token 6."""

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        if any(6 in row.tokens for row in rows):
            raise RuntimeError("kernel")
        return super().forward(rows)


async def test_a_row_that_the_model_cannot_compute_fails_alone() -> None:
    model = Choking()
    with BatchedTarget(model, FACTS, clock=SystemClock()) as target:
        people = Everybody(target, model)
        for name, first in (("h", 5), ("a", 1), ("b", 2), ("c", 3), ("d", 4)):
            await people.open(name, first)
        holding = people.round("h", 0)
        await people.stand()
        beside = [people.round(name, 0, (0,)) for name in "abd"]
        bad = people.round("c", 0, (6,))
        await asyncio.sleep(0)
        people.let_go()
        with pytest.raises(TargetLost, match="RuntimeError"):
            await bad
        told = await asyncio.gather(holding, *beside)
        alone = await people.round("c", 1, offset=0)
    assert [verdict.offset for verdict in (*told, alone)] == [0] * 5
    assert [len(step) for step in model.steps] == [1, 2, 1, 1]


class SecondsPerStep(SteppedModel):
    """Each step takes a second of its own clock."""

    now = 0.0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        outputs = super().forward(rows)
        self.now += 1.0
        return outputs

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


STEADY = {
    "room beside it": (2, 60, True),
    "none for half a minute": (1, 60, False),
    "none for less": (1, 25, True),
}
"""What a prompt's chunk holds, and seconds of interactive work in each step: is a batch's round answered?"""


@pytest.mark.parametrize(("chunk", "seconds", "answered"), STEADY.values(), ids=STEADY)
async def test_a_batch_beside_steady_work_goes_on_or_is_told(chunk: int, seconds: int, answered: bool) -> None:
    model = SecondsPerStep()
    with BatchedTarget(model, FACTS, clock=model, size=StepSize(chunk, 32)) as target:
        people = Everybody(target, model)
        await people.open("now", 1)
        await people.open("later", 2, BATCH)
        run = target.run(RunRounds(SessionId("now"), LIFE, 0, 0, seconds))
        going = asyncio.ensure_future(anext(run))
        await people.stand()
        asked = people.round("later", 0)
        await asyncio.sleep(0)
        people.let_go()
        if answered:
            assert (await asked).offset == 0
        else:
            with pytest.raises(Overloaded, match="steps are full"):
                await asked
        await going
        assert len([verdict async for verdict in run]) == seconds - 1
    assert model.rows_by_prompt()[2] == answered


async def all_of(run: AsyncIterator[Verdict]) -> list[Verdict]:
    return [verdict async for verdict in run]


STAGES = {
    "waiting behind a step": (1, 1, 0),
    "within a prompt": (1, 400, 2),
    "starving": (500, 100, 9),
}
"""Tokens of the prompt before, of the prompt that is given up, and steps until then."""


@pytest.mark.parametrize("runs", [False, True], ids=["a round", "a run"])
@pytest.mark.parametrize(("before", "length", "steps"), [*STAGES.values(), (1, 1, 3)], ids=[*STAGES, "under way"])
async def test_whoever_waits_no_longer_is_computed_no_longer(before: int, length: int, steps: int, runs: bool) -> None:
    """A caller's deadline is a cancellation here, and takes effect before the next step."""
    model = SteppedModel(kv_blocks=32)
    with BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(64, 64), patience_seconds=3600.0) as target:
        people = Everybody(target, model)
        await people.open("first", 1, length=before)
        await people.open("late", 2, length=length)
        run = target.run(RunRounds(SessionId("first"), LIFE, 0, 0, 10))
        going = asyncio.ensure_future(anext(run))
        await people.stand()
        alone = target.run(RunRounds(SessionId("late"), LIFE, 0, 0, 50))
        asked: asyncio.Task[Any] = asyncio.create_task(all_of(alone)) if runs else people.round("late", 0)
        for _ in range(steps):
            await people.step()
        under_way = len(model.steps)
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asked
        people.let_go()
        await going
        assert len([verdict async for verdict in run]) == 9
        await asyncio.gather(target.close(SessionId("late")), target.close(SessionId("first")))
    assert not [step for step in model.steps[under_way + 1 :] if 2 in dict(step)]
    assert model.blocks.used == 0


class NotingTarget(BatchedTarget):
    """Says when a round's caller has its answer or is gone."""

    left: asyncio.Event

    async def verify(self, request: VerifyRound) -> Verdict:
        try:
            return await super().verify(request)
        finally:
            self.left.set()


async def test_a_deadline_passed_at_the_gateway_ends_the_work_behind_the_wire() -> None:
    model = SteppedModel()
    with NotingTarget(model, FACTS, clock=SystemClock(), size=StepSize(64, 64)) as target:
        target.left = asyncio.Event()
        async with served(TargetRole(target)) as server, connected(RemoteTarget, server.port) as remote:
            people = Everybody(remote, model)
            await people.open("a", 1, length=400)
            asked = people.round("a", 0)
            await people.stand()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asked
            await target.left.wait()
            people.let_go()
    assert len(model.steps) == 1, "a prompt of 400 takes seven steps"


async def test_what_is_less_urgent_and_never_has_room_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_runtime.engines.step_loop.LONGEST_WAIT_SECONDS", 0.0)
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(1, 32)) as target:
        people = Everybody(target, model)
        await people.open("now", 1)
        await people.open("some time", 2, BACKGROUND)
        run = target.run(RunRounds(SessionId("now"), LIFE, 0, 0, 50))
        going = asyncio.ensure_future(anext(run))
        await people.stand()
        asked = people.round("some time", 0)
        await asyncio.sleep(0)
        people.let_go()
        with pytest.raises(Overloaded, match="steps are full"):
            await asked
        await going
        assert [verdict.offset async for verdict in run] == list(range(1, 50))
    assert model.rows_by_prompt()[2] == 0


async def test_rounds_that_wait_are_counted() -> None:
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=SystemClock()) as target:
        people = Everybody(target, model)
        for name in "ab":
            await people.open(name, 1)
        rounds = [people.round("a", 0)]
        await people.stand()
        rounds.append(people.round("b", 0))
        await people.step()
        assert target.waiting == 1
        people.let_go()
        await asyncio.gather(*rounds)
        assert target.waiting == 0


async def test_a_lost_draft_is_all_that_a_drafts_fault_comes_to() -> None:
    model = SteppedModel()
    model.error = ValueError("shape")
    model.let.release(100)
    with BatchedDraft(model, FACTS, clock=SystemClock()) as draft:
        greedy = SamplingParameters(seed=1, temperature=0.0)
        await draft.open(OpenSession(SessionId("a"), (1,), (), greedy, Verification.COUPLED, 400))
        with pytest.raises(DraftLost):
            await draft.propose(ProposeRound(SessionId("a"), LIFE, 0, (), 3))
        assert len((await draft.propose(ProposeRound(SessionId("a"), LIFE, 0, (), 3))).ids) == 3
