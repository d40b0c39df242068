"""When the driver asks a draft, which has little to offer or listens: real loop, driver and session."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from tests.scenarios.driver_stage import PLAIN, ChainDraft, ChainTarget, Fault, Stage, raising

from tandem_runtime.domain.acceptance import ALIKE, UNKNOWN
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.errors import (
    DraftLost,
)
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.session import SCORED_TOKENS, Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    ScoreTokens,
    Verdict,
)


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
    acceptance, own = UNKNOWN, ALIKE
    for round in rounds:
        if round.proposed:
            acceptance, own = acceptance.observed(round.evidence, own)
    assert belief.acceptance.survivals(1) == pytest.approx(acceptance.survivals(1))
    assert belief.costs.plain is not None
    assert belief.costs.plain.level == pytest.approx(0.015)
    assert belief.costs.draft_token is not None  # learnt behind plain rounds too: such a draft is always warm


@dataclass
class ListeningDraft(ChainDraft):
    """Would have proposed `right` of what it is asked about, and says when it was asked."""

    right: bool = False
    scored: list[tuple[int, int]] = field(default_factory=list)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
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


@dataclass
class SometimesRightDraft(ListeningDraft):
    """At each fourth place: too little, and not without hope."""

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        await super().score(request)
        return tuple(place % 4 == 0 for place in range(request.base, request.base + len(request.ids)))


def unconvinced(
    *, right: bool, faults: dict[int, Fault] | None = None, matched: int = 0
) -> tuple[Stage, ListeningDraft]:
    """A session that begins where proposals do not pay, as far as is known: costs are, and acceptance is low; of 64
    guesses so many were right."""
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
    cell.hear(matched=matched, examined=64)
    stage.lookahead = cell.begin()
    return stage, draft


async def test_while_nothing_is_proposed_the_draft_listens_beside_the_run() -> None:
    stage, _ = unconvinced(right=False, matched=18)
    draft = stage.draft = SometimesRightDraft()
    draft.clock = stage.clock
    await stage.answer()
    assert draft.scored == [(base, 8) for base in range(draft.scored[0][0], 56, 8)][: len(draft.scored)]
    assert len(draft.scored) >= 4
    assert (draft.holds, sum(round.proposed for round in stage.observer.rounds)) == ({}, 0)


async def test_a_draft_without_hope_is_listened_to_less_and_less_and_reads_unscored_what_it_missed() -> None:
    stage, draft = unconvinced(right=False)
    stage.session = Session(replace(stage.request, endings=Endings(900)))
    await stage.answer()
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(draft.scored)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 128
    assert max(scored for _, scored in draft.scored) <= SCORED_TOKENS
    assert 1 <= draft.calls.count("propose") <= 3
    assert sum(round.proposed for round in stage.observer.rounds) == 0


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


@dataclass
class RunTarget(YieldingTarget):
    """Remembers at which offset each run began, and calls `news` after so many tokens."""

    news: tuple[int, Callable[[], None]] = (0, lambda: None)
    begun: list[int] = field(default_factory=list)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        self.begun.append(request.offset)
        async for verdict in super().run(request):
            after, tell = self.news
            if verdict.offset == after:
                tell()
            yield verdict


@pytest.mark.parametrize(("draft_length", "ends"), [(1000, True), (11, False)])
async def test_a_run_is_ended_for_proposals_only_where_one_has_room(draft_length: int, ends: bool) -> None:
    stage, _ = unconvinced(right=False)
    cell = stage.lookahead.shared
    stage.target = RunTarget(news=(20, lambda: cell.hear(matched=500, examined=500)), clock=stage.clock)
    stage.session = Session(replace(stage.request, endings=Endings(64), draft_length=draft_length))
    await stage.answer()
    assert isinstance(stage.target, RunTarget)
    assert (21 in stage.target.begun or any(round.proposed for round in stage.observer.rounds)) is ends


@dataclass
class ReticentDraft(ListeningDraft):
    """Is left alone for its first three scores."""

    turned_away: int = 3

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        if self.turned_away:
            self.turned_away -= 1
            await self.called("score")
            return None
        return await super().score(request)


async def test_a_draft_that_cannot_be_heard_now_is_no_lost_one_and_is_heard_later() -> None:
    stage, _ = unconvinced(right=False)
    plain = await stage.answer()
    stage, _ = unconvinced(right=False)
    draft = stage.draft = ReticentDraft()
    draft.clock = stage.clock
    assert await stage.answer() == plain
    assert draft.calls.count("open") == 1
    assert draft.turned_away == 0
    assert draft.scored[0][1] > 8


@pytest.mark.parametrize("bits", [0, 7, 9])
async def test_a_draft_that_scores_other_tokens_than_it_was_asked_for_is_lost(bits: int) -> None:
    @dataclass
    class Miscounting(ListeningDraft):
        async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
            await super().score(request)
            return (True,) * bits

    stage, _ = unconvinced(right=False)
    plain = await stage.answer()
    stage, _ = unconvinced(right=False)
    draft = stage.draft = Miscounting()
    draft.clock = stage.clock
    assert await stage.answer() == plain
    assert draft.calls == ["open", "score", "close"]
    assert sum(round.proposed for round in stage.observer.rounds) == 0


@pytest.mark.parametrize("who", ["draft", "target"])
async def test_an_engine_that_fails_to_let_a_session_go_costs_no_answer(who: str) -> None:
    stage = Stage(bounds=Bounds(4, 4, Mode.ALWAYS))
    engine = stage.draft if who == "draft" else stage.target
    assert engine is not None
    engine.close_fault = ZeroDivisionError("a fault of its own")
    assert await stage.answer() == PLAIN
