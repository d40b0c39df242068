"""What a session of a gateway tells its target of a proposal: as much as was asked for, however much the draft drew."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from tests.domain.session_bench import request

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    ScoreTokens,
    SessionId,
    SparseRow,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.driver import Engines, generate
from tandem_runtime.ports import TargetEngine

FACTS = Capabilities("m", "t", 9, 1000, "Bitwise")


@dataclass
class Ticking:
    """A millisecond passes between two looks."""

    now: float = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def wall(self) -> float:
        return self.now


class Unseen:
    def round(self, round: Round) -> None: ...


@dataclass
class Noting:
    """Accepts nothing, and notes what it is asked to judge."""

    asked: list[VerifyRound] = field(default_factory=list)

    async def capabilities(self) -> Capabilities:
        return FACTS

    async def open(self, request: OpenSession) -> Opened:
        return Opened(Incarnation("life"))

    async def verify(self, request: VerifyRound) -> Verdict:
        self.asked.append(request)
        return Verdict(request.round, request.offset, 0, 5)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        for count in range(request.max_tokens):
            yield Verdict(request.round + count, request.offset + count, 0, 5)

    async def close(self, session: SessionId) -> None: ...


@dataclass
class Ending:
    """Draws an end token after so many."""

    guesses: int
    asked: list[int] = field(default_factory=list)
    """For so many."""

    async def capabilities(self) -> Capabilities:
        return FACTS

    async def open(self, request: OpenSession) -> Opened:
        return Opened(Incarnation("draft"))

    async def propose(self, request: ProposeRound) -> Proposal:
        self.asked.append(request.k)
        ids = (1,) * min(self.guesses, request.k)
        return Proposal(ids, tuple(SparseRow((one,), (1.0,)) for one in ids))

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        return (False,) * len(request.ids)

    async def close(self, session: SessionId) -> None: ...


async def told(bounds: Bounds, draft: Ending) -> list[tuple[int, int]]:
    """How many guesses and how many beliefs come with each round."""
    target, clock, drafting = (
        Noting(),
        Ticking(),
        Drafting((Drafter.MODEL,), Beliefs(Segments(), Segment("pair"), Looks())),
    )
    combined = CombinedDraft([Member(Drafter.MODEL, draft, Patience(), 1000)], drafting, clock, 9)

    async def none_left() -> TargetEngine:
        raise AssertionError("no target is lost here")

    items = generate(
        Session(request(endings=Endings(9), verification=Verification.BLOCK, vocab_size=9)),
        engines=Engines(target, combined, none_left),
        lookahead=drafting,
        allowance=lambda: bounds,
        observer=Unseen(),
        clock=clock,
    )
    async with aclosing(items):
        async for _ in items:
            pass
    return [(len(each.proposal.ids), len(each.survivals)) for each in target.asked]


@pytest.mark.parametrize("guesses", [1, 2, 3, 4])
async def test_a_target_is_told_of_all_that_was_asked_for_however_soon_drafting_ended(guesses: int) -> None:
    draft = Ending(guesses)
    found = await told(Bounds(2, 4, Mode.ALWAYS), draft)
    assert found == [(min(guesses, k), k) for k in draft.asked] != []


async def test_a_target_is_told_nothing_where_k_is_fixed_and_leaves_nothing_out() -> None:
    draft = Ending(2)
    assert await told(Bounds(4, 4, Mode.ALWAYS), draft) == [(min(2, k), 0) for k in draft.asked] != []
