"""What shares a step, what a failing step takes down with it, and who waits for whom."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tandem_runtime.domain.errors import (
    BadRequest,
    DraftForgot,
    DraftLost,
    NotANumber,
    Overloaded,
    SessionLost,
    TandemError,
    TargetLost,
)
from tandem_runtime.domain.tokens import (
    Grammar,
    GrammarKind,
    Incarnation,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits, Row

LIFE = Incarnation("life-1")
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE)
CHAIN_AFTER_1 = (5, 3, 1, 2, 3, 0, 2, 4)
POISON = 6
"""A token whose presence in a row makes the model of this file fail."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class WatchedModel(ScriptedModel):
    """The chain model; notes every step, waits at a gate before each, and fails on `POISON` as told."""

    def __init__(self, failure: Callable[[], Exception] | None = None) -> None:
        super().__init__(chain_logits, max_length=1024, max_sessions=8)
        self.steps: list[tuple[Row, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self._failure = failure

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.steps.append(tuple(rows))
        self.entered.set()
        assert self.gate.wait(30)
        poisoned = [POISON in row.tokens for row in rows]
        if any(poisoned) and self._failure is not None:
            raise self._failure()
        outputs = super().forward(rows)
        nothing = np.full((1, self.vocab_size), np.nan)
        return [np.repeat(nothing, len(out), 0) if bad else out for bad, out in zip(poisoned, outputs, strict=True)]


def no_numbers_from(length: int) -> Script:
    """The chain model, whose logits are no numbers behind a prefix of that length or more."""
    return lambda prefix: chain_logits(prefix) if len(prefix) < length else [np.nan] * 7


def opening(name: str, prompt: tuple[TokenId, ...] = (1,)) -> OpenSession:
    greedy = SamplingParameters(seed=1, temperature=0.0)
    return OpenSession(SessionId(name), prompt, (), greedy, Verification.COUPLED, max_tokens=64)


def round_of(name: str, number: int = 0, offset: int = 0, ids: tuple[TokenId, ...] = ()) -> VerifyRound:
    return VerifyRound(SessionId(name), LIFE, number, offset, Proposal(ids))


def propose_of(name: str, k: int) -> ProposeRound:
    return ProposeRound(SessionId(name), LIFE, 0, (), k)


def target_of(model: WatchedModel, *, chunk: int = 256) -> BatchedTarget:
    return BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(chunk))


async def enter(model: WatchedModel) -> None:
    """Wait until the model's thread stands in a step."""
    await asyncio.to_thread(model.entered.wait, 30)
    model.entered.clear()


async def test_all_that_is_ready_shares_a_step() -> None:
    model = WatchedModel()
    with target_of(model) as target:
        for name in "abcd":
            await target.open(opening(name))
        model.gate.clear()
        first = asyncio.create_task(target.verify(round_of("a")))
        await enter(model)
        others = [
            asyncio.create_task(target.verify(round_of(name, ids=ids)))
            for name, ids in (("b", ()), ("c", (5, 3)), ("d", (5, 0, 0)))
        ]
        await asyncio.sleep(0)
        model.gate.set()
        verdicts = [await task for task in (first, *others)]
    assert [(verdict.accepted, verdict.token) for verdict in verdicts] == [(0, 5), (0, 5), (2, 1), (1, 3)]
    assert [[row.outputs for row in step] for step in model.steps] == [[1], [1, 3, 4]]


async def test_closing_a_session_ends_what_waits_behind_its_round_and_frees_its_place() -> None:
    """What waits there would be refused as soon as it began."""
    model = WatchedModel()
    with target_of(model, chunk=8) as target:
        await target.open(opening("a", (1,) * 40))
        model.gate.clear()
        reads = asyncio.create_task(target.verify(round_of("a")))
        await enter(model)
        stale = asyncio.create_task(target.verify(round_of("a", 1, offset=9)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(target.close(SessionId("a")))
        await asyncio.sleep(0)
        model.gate.set()
        await closing
        outcomes = await asyncio.gather(reads, stale, return_exceptions=True)
        for number in range(model.max_sessions):
            await target.open(opening(f"next {number}"))
    assert [type(outcome) for outcome in outcomes] == [SessionLost, SessionLost]


async def test_guessing_sessions_share_every_step_of_a_draft() -> None:
    model = WatchedModel()
    with BatchedDraft(model, FACTS, clock=SystemClock()) as draft:
        for name in "ab":
            await draft.open(opening(name))
        model.gate.clear()
        long = asyncio.create_task(draft.propose(propose_of("a", 5)))
        await enter(model)
        short = asyncio.create_task(draft.propose(propose_of("b", 2)))
        await asyncio.sleep(0)
        model.gate.set()
        assert [(await task).ids for task in (long, short)] == [CHAIN_AFTER_1[:5], CHAIN_AFTER_1[:2]]
    assert [len(step) for step in model.steps] == [1, 2, 2, 1, 1]


async def test_a_long_prompt_is_read_in_chunks_beside_those_who_decode() -> None:
    model = WatchedModel()
    with target_of(model, chunk=64) as target:
        await target.open(opening("long", prompt=(2,) * 150))
        await target.open(opening("also", prompt=(3,) * 100))
        await target.open(opening("short"))
        model.gate.clear()
        tasks = [asyncio.create_task(target.verify(round_of(name))) for name in ("long", "also", "short")]
        run = target.run(RunRounds(SessionId("short"), LIFE, 1, 1, 3))
        await enter(model)
        model.gate.set()
        for task in tasks:
            await task
        assert [verdict.token async for verdict in run] == [3, 1, 2]
    sizes = [sorted(len(row.tokens) for row in step) for step in model.steps]
    assert all(sum(size for size in step if size > 32) <= 64 for step in sizes)
    assert sum(map(sum, sizes)) == 150 + 100 + 1 + 3
    assert sum(row.outputs for step in model.steps for row in step) == 1 + 1 + 1 + 3


async def test_the_event_loop_turns_while_the_model_computes() -> None:
    model = WatchedModel()
    with target_of(model) as target:
        await target.open(opening("a"))
        model.gate.clear()
        asked = asyncio.create_task(target.verify(round_of("a")))
        await enter(model)
        assert not asked.done()
        model.gate.set()
        assert (await asked).token == 5


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (lambda: RuntimeError("kernel"), TargetLost),
        (MemoryError, Overloaded),
        (lambda: Overloaded("the device is out of memory"), Overloaded),
    ],
    ids=["fault", "memory", "device memory"],
)
async def test_a_failing_step_fails_its_own_requests_and_no_later_ones(
    failure: Callable[[], Exception], expected: type[TandemError], caplog: pytest.LogCaptureFixture
) -> None:
    model = WatchedModel(failure)
    with target_of(model) as target:
        for name, prompt in (("good", (1,)), ("bad", (POISON,))):
            await target.open(opening(name, prompt))
        before = await target.verify(round_of("good"))
        with pytest.raises(expected):
            await target.verify(round_of("bad"))
        after = await target.verify(round_of("good", 1, 1, CHAIN_AFTER_1[1:4]))
    assert (before.token, after.accepted, after.token) == (5, 3, CHAIN_AFTER_1[4])
    assert f"row failed error={type(failure()).__name__} at forward:" in caplog.text
    assert "kernel" not in caplog.text  # a fault's own words may hold what a user wrote


async def test_nan_logits_fail_their_own_session_only() -> None:
    model = WatchedModel()
    with target_of(model) as target:
        for name, prompt in (("first", (1,)), ("good", (1,)), ("bad", (POISON,))):
            await target.open(opening(name, prompt))
        model.gate.clear()
        first = asyncio.create_task(target.verify(round_of("first")))
        await enter(model)
        good, bad = (asyncio.create_task(target.verify(round_of(name))) for name in ("good", "bad"))
        await asyncio.sleep(0)
        model.gate.set()
        with pytest.raises(NotANumber):
            await bad
        assert (await first, (await good).token)[1] == 5
    assert [len(step) for step in model.steps] == [1, 2]


@pytest.mark.parametrize("mode", list(Verification))
async def test_a_row_without_a_law_ends_a_round_before_it(mode: Verification) -> None:
    """Plain decoding says 5 3 and fails, whoever guesses what and how much."""
    with BatchedTarget(ScriptedModel(no_numbers_from(3)), FACTS, clock=SystemClock()) as target:
        await target.open(replace(opening("a"), verification=mode))
        certain = tuple(SparseRow((token,), (1.0,)) for token in CHAIN_AFTER_1)
        proposal = Proposal(CHAIN_AFTER_1, certain)
        verdict = await target.verify(VerifyRound(SessionId("a"), LIFE, 0, 0, proposal))
        with pytest.raises(NotANumber):
            await target.verify(round_of("a", 1, 2))
    assert (verdict.accepted, verdict.token) == (1, 3)


@pytest.mark.parametrize("mode", list(Verification))
async def test_a_draft_offers_what_it_drew_before_a_row_without_a_law(mode: Verification) -> None:
    """Withheld because of where it led, a drawn token would come too rarely."""
    with BatchedDraft(ScriptedModel(no_numbers_from(3)), FACTS, clock=SystemClock()) as draft:
        await draft.open(replace(opening("a"), verification=mode))
        offered = await draft.propose(propose_of("a", 5))
        with pytest.raises(NotANumber):
            await draft.propose(ProposeRound(SessionId("a"), LIFE, 0, (5, 3), 5))
        scored = await draft.score(ScoreTokens(SessionId("a"), LIFE, 0, CHAIN_AFTER_1[:4]))
    assert offered.ids == CHAIN_AFTER_1[:2]
    assert scored == (True, True, False, False)


class FailingGrammars:
    """`ports.Grammars` that admit everything and cannot be followed behind two tokens."""

    def compile(self, grammar: Grammar) -> "FailingMatcher":
        return FailingMatcher()


class FailingMatcher:
    def __init__(self) -> None:
        self._said = 0

    def admitted(self) -> npt.NDArray[np.bool_]:
        if self._said >= 2:
            raise BadRequest("response_format became too complex to follow", parameter="response_format")
        return np.ones(7, np.bool_)

    def advance(self, token: TokenId) -> None:
        self._said += 1

    def roll_back(self, count: int) -> None:
        self._said -= count


async def test_a_grammar_that_fails_within_a_proposal_fails_where_plain_decoding_comes_to_it() -> None:
    facts = replace(FACTS, grammars=FailingGrammars())
    asked = opening("a")
    asked = replace(asked, parameters=replace(asked.parameters, grammar=Grammar(GrammarKind.REGEX, ".*")))
    with (
        BatchedTarget(ScriptedModel(chain_logits), facts, clock=SystemClock()) as target,
        BatchedDraft(ScriptedModel(chain_logits), facts, clock=SystemClock()) as draft,
    ):
        await target.open(asked)
        await draft.open(asked)
        offered = await draft.propose(propose_of("a", 5))
        other = await target.verify(round_of("a", 0, 0, (6, 6, 6)))
        verdict = await target.verify(round_of("a", 1, 1, CHAIN_AFTER_1[1:]))
        with pytest.raises(BadRequest, match="too complex") as refusal:
            await target.verify(round_of("a", 2, 2))
    assert offered.ids == CHAIN_AFTER_1[:2]
    assert (other.accepted, other.token) == (0, 5)
    assert (verdict.accepted, verdict.token) == (0, 3)
    assert refusal.value.parameter == "response_format"


async def test_a_drafts_own_fault_is_a_lost_draft_and_a_bad_request_is_one() -> None:
    with BatchedDraft(WatchedModel(lambda: RuntimeError("kernel")), FACTS, clock=SystemClock()) as draft:
        await draft.open(opening("a", prompt=(POISON,)))
        with pytest.raises(DraftLost):
            await draft.propose(propose_of("a", 2))
        for prompt in ((), (7,)):
            with pytest.raises(BadRequest):
                await draft.open(opening("b", prompt))
        with pytest.raises(DraftForgot, match="offset 9"):
            await draft.propose(ProposeRound(SessionId("a"), LIFE, 9, (), 2))


async def test_work_cancelled_in_a_step_takes_no_further_step() -> None:
    model = WatchedModel()
    with BatchedDraft(model, FACTS, clock=SystemClock()) as draft:
        await draft.open(opening("a"))
        model.gate.clear()
        asked = asyncio.create_task(draft.propose(propose_of("a", 50)))
        await enter(model)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        model.gate.set()
        await draft.close(SessionId("a"))
    assert len(model.steps) == 1


async def test_an_abandoned_run_takes_one_step_more_at_most() -> None:
    model = WatchedModel()
    with target_of(model) as target:
        await target.open(opening("a"))
        model.gate.clear()
        run = target.run(RunRounds(SessionId("a"), LIFE, 0, 0, 50))
        coming = asyncio.ensure_future(anext(run))
        await enter(model)
        coming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await coming
        model.gate.set()
        await target.close(SessionId("a"))
    assert len(model.steps) == 1


CALLS: dict[str, Callable[[BatchedTarget, BatchedDraft], Awaitable[object]]] = {
    "a target's open": lambda target, _: target.open(opening("c")),
    "verify": lambda target, _: target.verify(round_of("b")),
    "run": lambda target, _: anext(target.run(RunRounds(SessionId("b"), LIFE, 0, 0, 5))),
    "a target's close": lambda target, _: target.close(SessionId("b")),
    "a draft's open": lambda _, draft: draft.open(opening("c")),
    "propose": lambda _, draft: draft.propose(propose_of("b", 3)),
    "score": lambda _, draft: draft.score(ScoreTokens(SessionId("b"), LIFE, 0, (1, 2))),
    "a draft's close": lambda _, draft: draft.close(SessionId("b")),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_cancelled_call_ends_though_the_step_under_way_never_does(
    call: Callable[[BatchedTarget, BatchedDraft], Awaitable[object]],
) -> None:
    """As `ports` demands: who keeps a deadline has nothing else to keep it by."""
    models = WatchedModel(), WatchedModel()
    with target_of(models[0]) as target, BatchedDraft(models[1], FACTS, clock=SystemClock()) as draft:
        for take_in, model in zip((target.open, draft.open), models, strict=True):
            await take_in(opening("a"))
            await take_in(opening("b"))
            model.gate.clear()
        hanging = asyncio.gather(target.verify(round_of("a")), draft.propose(propose_of("a", 1)))
        await asyncio.gather(*map(enter, models))
        asked = asyncio.ensure_future(call(target, draft))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not hanging.done()
        for model in models:
            model.gate.set()
        await hanging


async def test_closing_a_session_fails_the_round_under_way_as_lost() -> None:
    model = WatchedModel()
    with target_of(model, chunk=64) as target:
        await target.open(opening("a", prompt=(1,) * 100))
        model.gate.clear()
        asked = asyncio.create_task(target.verify(round_of("a")))
        await enter(model)
        closing = asyncio.create_task(target.close(SessionId("a")))
        await asyncio.sleep(0)
        model.gate.set()
        await closing
        with pytest.raises(TargetLost):
            await asked
    assert model.blocks.used == 0


async def test_the_same_round_asked_twice_at_once_is_computed_once() -> None:
    model = WatchedModel()
    with target_of(model) as target:
        await target.open(opening("a"))
        verdicts = await asyncio.gather(*(target.verify(round_of("a", ids=(5,))) for _ in range(3)))
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert len(model.steps) == 1


async def test_stopping_fails_what_is_under_way_and_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    model, join = WatchedModel(), threading.Thread.join

    def open_the_gate_and_join(thread: threading.Thread, timeout: float | None = None) -> None:
        model.gate.set()
        join(thread, timeout)

    with target_of(model) as target:
        for name in "ab":
            await target.open(opening(name))
        model.gate.clear()
        run = target.run(RunRounds(SessionId("a"), LIFE, 0, 0, 50))
        first = asyncio.ensure_future(anext(run))
        await enter(model)
        asked = asyncio.create_task(target.verify(round_of("b")))
        await asyncio.sleep(0)
        monkeypatch.setattr(threading.Thread, "join", open_the_gate_and_join)
    assert (await first).token == 5
    with pytest.raises(TargetLost):
        await anext(run)
    for lost in (asked, target.verify(round_of("a", 1, 1))):
        with pytest.raises(TargetLost):
            await lost
    await target.close(SessionId("a"))


async def test_seconds_and_memory_are_told_with_the_verdict() -> None:
    model = WatchedModel()
    with target_of(model) as target:
        await target.open(opening("a", prompt=(1, 5, 3)))
        verdict = await target.verify(round_of("a"))
    assert verdict.queue_seconds >= 0
    assert verdict.forward_seconds > 0
    assert verdict.kv_used == 1 / (8 * 64)
