"""The driver against engines in this process: real loop, driver and session; the engines are small and can fail."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from tandem_runtime.domain.acceptance import UNKNOWN
from tandem_runtime.domain.commands import Emit, Finish, Request
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
from tandem_runtime.domain.lookahead import OFF, Bounds, Lookahead, Mode, Shared
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.states import State
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Capabilities,
    FinishReason,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.domain.verification import verify_coupled
from tandem_runtime.driver import Deadlines, Engines, generate
from tandem_runtime.ports import TargetEngine

ALWAYS_4 = Bounds(4, 4, Mode.ALWAYS)
PLAIN = "5 3 1 2 3 0 2 4 3 2 5 3 1 2 3 0"
"""What the chain model says after [1] (case C01)."""


def chain(prefix: Sequence[TokenId]) -> TokenId:
    return (3 + sum((i % 5 + 1) * (token + 1) for i, token in enumerate(prefix))) % 7


@dataclass
class HandClock:
    """Time that moves when an engine or a reader says so."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_000_000


Fault = Callable[[], Awaitable[None]]


def raising(error: Exception) -> Fault:
    async def fail() -> None:
        raise error

    return fail


async def hanging() -> None:
    await asyncio.Event().wait()


@dataclass
class Failing:
    """Faults by the number of the call, counted over all kinds of call; and what was asked."""

    faults: dict[int, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    holds: dict[SessionId, list[TokenId]] = field(default_factory=dict)

    async def called(self, name: str) -> None:
        number = len(self.calls)
        self.calls.append(name)
        if number in self.faults:
            await self.faults[number]()

    async def capabilities(self) -> Capabilities:
        return Capabilities("model", "tokenizer", 7, 1000, "Bitwise")

    async def open(self, request: OpenSession) -> Opened:
        await self.called("open")
        self.holds[request.session] = [*request.prompt, *request.output]
        self.prompt_tokens = len(request.prompt)
        return Opened(Incarnation("life"))

    async def close(self, session: SessionId) -> None:
        self.holds.pop(session, None)
        await self.called("close")


@dataclass
class ChainTarget(Failing):
    clock: HandClock = field(default_factory=HandClock)

    async def verify(self, request: VerifyRound) -> Verdict:
        await self.called("verify")
        self.clock.now += 0.018
        held = self._at(request.session, request.offset)
        ids = request.proposal.ids
        verified = verify_coupled(ids, [chain((*held, *ids[:count])) for count in range(len(ids) + 1)])
        held += [*ids[: verified.accepted], verified.token]
        return Verdict(request.round, request.offset, verified.accepted, verified.token, forward_seconds=0.018)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        for count in range(request.max_tokens):
            await self.called("run")
            self.clock.now += 0.015
            held = self._at(request.session, request.offset + count)
            held.append(chain(held))
            yield Verdict(request.round + count, request.offset + count, 0, held[-1], forward_seconds=0.015)

    def _at(self, session: SessionId, offset: int) -> list[TokenId]:
        if session not in self.holds:
            raise SessionLost("unknown session")
        if len(self.holds[session]) != self.prompt_tokens + offset:
            raise StaleOffset(f"{offset}")
        return self.holds[session]


@dataclass
class ChainDraft(Failing):
    clock: HandClock = field(default_factory=HandClock)

    async def propose(self, request: ProposeRound) -> Proposal:
        await self.called("propose")
        held = self.holds[request.session]
        held[self.prompt_tokens + request.base :] = request.committed
        known = len(held)
        for _ in range(request.k):
            self.clock.now += 0.004
            held.append(chain(held) if len(held) % 3 else (chain(held) + 1) % 7)
        return Proposal(tuple(held[known:]), draft_seconds=0.004 * request.k)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        raise AssertionError("only of a draft that listens are scores asked")


@dataclass
class Kept:
    rounds: list[Round] = field(default_factory=list)

    def round(self, round: Round) -> None:
        self.rounds.append(round)


@dataclass
class Stage:
    """One session with all that it is driven by."""

    target: ChainTarget = field(default_factory=ChainTarget)
    draft: ChainDraft | None = field(default_factory=ChainDraft)
    spare: ChainTarget | None = None
    bounds: Bounds = ALWAYS_4
    deadlines: Deadlines = field(default_factory=Deadlines)
    request: Request = field(
        default_factory=lambda: Request(
            session=SessionId("s"),
            prompt=(1,),
            parameters=SamplingParameters(0),
            verification=Verification.COUPLED,
            endings=Endings(16),
            decode=lambda ids: "".join(map(str, ids)),
            target_length=1000,
            draft_length=1000,
        )
    )

    def __post_init__(self) -> None:
        self.clock = self.target.clock
        if self.draft is not None:
            self.draft.clock = self.clock
        self.observer = Kept()
        self.lookahead = Lookahead()
        self.session = Session(self.request)

    async def reopen(self) -> TargetEngine:
        if self.spare is None:
            raise TargetLost("no other target")
        return self.spare

    def items(self) -> aclosing[AsyncGenerator[Emit | Finish, None]]:
        return aclosing(
            generate(
                self.session,
                engines=Engines(self.target, self.draft, self.reopen, self.deadlines),
                lookahead=self.lookahead,
                allowance=lambda: self.bounds,
                observer=self.observer,
                clock=self.clock,
            )
        )

    async def answer(self) -> str:
        text = ""
        async with self.items() as items:
            async for item in items:
                if isinstance(item, Emit):
                    text += item.text
                else:
                    assert item.reason is FinishReason.LENGTH
        return " ".join(text)


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


@dataclass
class SometimesDraft(ChainDraft):
    """Has something to offer at every fourth place only, and says so at no cost."""

    async def propose(self, request: ProposeRound) -> Proposal:
        if (request.base + len(request.committed)) % 4:
            held = self.holds[request.session]
            held[self.prompt_tokens + request.base :] = request.committed
            await self.called("propose")
            return Proposal()
        return await super().propose(request)


@pytest.mark.parametrize("is_free", [True, False])
async def test_a_draft_that_asking_costs_nothing_is_asked_again_behind_each_token(is_free: bool) -> None:
    request = replace(Stage().request, draft_is_free=is_free)
    stage = Stage(draft=SometimesDraft(), request=request, bounds=Bounds(2, 2, Mode.ALWAYS))
    assert await stage.answer() == PLAIN
    assert stage.draft is not None
    rounds, asked = stage.observer.rounds, stage.draft.calls.count("propose")
    assert rounds[0].proposed == 2
    assert asked == (len(rounds) - 1 if is_free else 2)  # behind the last token but one nothing fits any more
    assert (sum(round.proposed for round in rounds) > 2) == is_free


@dataclass
class SilentDraft(ChainDraft):
    """Never has anything to offer; remembers behind how many tokens it was asked."""

    asked: list[int] = field(default_factory=list)

    async def propose(self, request: ProposeRound) -> Proposal:
        await self.called("propose")
        self.asked.append(request.base + len(request.committed))
        return Proposal()


async def test_a_draft_that_is_silent_for_long_is_asked_less_and_less() -> None:
    draft = SilentDraft()
    request = replace(Stage().request, draft_is_free=True, endings=Endings(100))
    await Stage(draft=draft, request=request).answer()
    gaps = [later - earlier for earlier, later in pairwise(draft.asked)]
    assert gaps == [1] * 4 + [2] * 4 + [4] * 4 + [8] * 4 + [16] * 2


async def test_nothing_to_offer_is_no_rejection() -> None:
    request = replace(Stage().request, draft_is_free=True)
    stage = Stage(draft=SometimesDraft(), request=request, bounds=Bounds(1, 8))
    await stage.answer()
    belief, rounds = stage.lookahead.belief, stage.observer.rounds
    examined, accepted = sum(r.examined for r in rounds), sum(r.accepted for r in rounds)
    known = belief.acceptance.survivals(1)[0]
    assert (known < UNKNOWN.survivals(1)[0]) == (accepted < examined)
    assert belief.costs.plain is not None
    assert belief.costs.plain.level == pytest.approx(0.015)
    assert belief.costs.draft_token is not None  # learnt behind plain rounds too: such a draft is always warm


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


@dataclass
class ListeningDraft(ChainDraft):
    """Would have proposed `right` of what it is asked about, and says when it was asked."""

    right: bool = False
    scored: list[tuple[int, int]] = field(default_factory=list)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        await self.called("score")
        held = self.holds[request.session]
        held[self.prompt_tokens + request.base :] = request.ids
        self.scored.append((request.base, len(request.ids)))
        return (self.right,) * len(request.ids)


@dataclass
class YieldingTarget(ChainTarget):
    """Gives others a turn before each token, as one that computes does."""

    async def called(self, name: str) -> None:
        await super().called(name)
        for _ in range(4):
            await asyncio.sleep(0)


def unconvinced(*, right: bool, faults: dict[int, Fault] | None = None) -> tuple[Stage, ListeningDraft]:
    """A session that begins where proposals do not pay, as far as is known: costs are, and acceptance is low."""
    draft = ListeningDraft(right=right, faults=faults or {})
    stage = Stage(target=YieldingTarget(), draft=draft, bounds=Bounds(1, 8))
    stage.session = Session(replace(stage.request, endings=Endings(64)))
    cell = Shared()
    for k in (4, 0) * 20:
        round = Round(
            *(k, 0, 1, 0.02, 0.019),
            forward_seconds=0.018 if k else 0.0,
            drafting_seconds=0.004 * k,
            seconds=0.019 + 0.004 * k if k else 0.015,
        )
        cell.begin().learn(round, 100.0, warm=True)
    cell.hear(matched=0, examined=64)
    stage.lookahead = cell.begin()
    return stage, draft


async def test_while_nothing_is_proposed_the_draft_listens_beside_the_run() -> None:
    stage, draft = unconvinced(right=False)
    await stage.answer()
    assert draft.scored == [(base, 8) for base in range(draft.scored[0][0], 56, 8)][: len(draft.scored)]
    assert len(draft.scored) >= 4
    assert (draft.holds, sum(round.proposed for round in stage.observer.rounds)) == ({}, 0)


async def test_a_draft_that_is_heard_to_be_right_is_asked_again_and_the_text_stays() -> None:
    stage, _ = unconvinced(right=True)
    text = await stage.answer()
    proposing = [number for number, round in enumerate(stage.observer.rounds) if round.proposed]
    assert 8 <= proposing[0] <= 30
    alone, _ = unconvinced(right=False)
    assert text == await alone.answer()


async def test_a_draft_that_fails_while_it_listens_costs_nothing_but_its_help() -> None:
    stage, draft = unconvinced(right=True, faults={1: raising(DraftLost("gone"))})
    text = await stage.answer()
    assert draft.calls == ["open", "score", "close"]
    assert len(text.split()) == 64
