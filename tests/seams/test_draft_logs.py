"""No id of what was asked, guessed or said is ever logged, however a draft fails, and whatever it was asked for."""

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from tests.domain.session_bench import request

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.commands import Emit
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.errors import BadRequest, DraftLost, NotANumber, SessionLost
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
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
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.driver import Engines, generate
from tandem_runtime.ports import TargetEngine

MARK, VOCAB, TOKENS = 7_130_000, 8_000_000, 24
MARKED = re.compile(r"7[_,]?13\d[_,]?\d\d\d")
FACTS = Capabilities("m", "t", VOCAB, 1000, "Bitwise")


@dataclass
class StandingClock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Unseen:
    def round(self, round: Round) -> None: ...


class MarkedTarget:
    """Says one marked id after the other."""

    async def capabilities(self) -> Capabilities:
        return FACTS

    async def open(self, request: OpenSession) -> Opened:
        return Opened(Incarnation("life"))

    async def verify(self, request: VerifyRound) -> Verdict:
        return Verdict(request.round, request.offset, 0, MARK + request.offset)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        for count in range(request.max_tokens):
            await asyncio.sleep(0)  # as a step takes time, in which a draft may listen
            yield Verdict(request.round + count, request.offset + count, 0, MARK + request.offset + count)

    async def close(self, session: SessionId) -> None: ...


@dataclass
class MarkedDraft:
    """Does all that is asked but one thing, of which it says what it was about."""

    fails_to: str
    fault: Callable[[object], Exception]
    offers: Proposal = field(default_factory=Proposal)
    failures: int = 0

    def _tried(self, what: str, about: object) -> None:
        if what == self.fails_to:
            self.failures += 1
            raise self.fault(about)

    async def capabilities(self) -> Capabilities:
        return FACTS

    async def open(self, request: OpenSession) -> Opened:
        self._tried("open", request)
        return Opened(Incarnation("draft"))

    async def propose(self, request: ProposeRound) -> Proposal:
        self._tried("propose", (request.committed, MARK))
        return self.offers

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        self._tried("score", request.ids)
        return (True,) * len(request.ids)

    async def close(self, session: SessionId) -> None:
        self._tried("close", (session, MARK))


class Attentive(Drafting):
    @property
    def listens(self) -> int | None:
        return 1


async def answer(draft: MarkedDraft, bounds: Bounds, verification: Verification) -> list[TokenId]:
    """What a gateway's session says over that draft; it listens where nothing is proposed."""
    clock = StandingClock()
    drafting = Attentive((Drafter.MODEL,), Beliefs(Segments(), Segment("pair"), Looks()))
    combined = CombinedDraft([Member(Drafter.MODEL, draft, Patience(), 1000)], drafting, clock, VOCAB)
    asked = request(
        (MARK + 900, MARK + 901), endings=Endings(TOKENS), decode=repr, verification=verification, vocab_size=VOCAB
    )

    async def none_left() -> TargetEngine:
        raise AssertionError("no target is lost here")

    items = generate(
        Session(asked),
        engines=Engines(MarkedTarget(), combined, none_left),
        lookahead=drafting,
        allowance=lambda: bounds,
        observer=Unseen(),
        clock=clock,
    )
    said: list[TokenId] = []
    async with aclosing(items):
        async for item in items:
            clock.now += 10.0  # so that a draft that was left alone is asked again
            said += item.tokens if isinstance(item, Emit) else ()
    return said


FAULTS: dict[str, Callable[[object], Exception]] = {
    "a bug": lambda about: ValueError(f"what is {about}"),
    "a missing key": KeyError,
    "lost": lambda about: DraftLost(f"lost with {about}"),
    "restarted": lambda about: SessionLost(f"no {about}"),
    "refuses": lambda about: BadRequest(f"{about} is refused", parameter=f"{about}"),
    "no number": lambda about: NotANumber(f"NaN after {about}"),
}
ALWAYS_4 = Bounds(4, 4, Mode.ALWAYS)
WHERE = [("open", ALWAYS_4), ("propose", ALWAYS_4), ("close", ALWAYS_4), ("open", OFF), ("score", OFF), ("close", OFF)]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("where", "bounds"), WHERE, ids=[f"{one} at K = {each.maximum}" for one, each in WHERE])
async def test_a_draft_that_fails_costs_no_text_and_logs_none(
    where: str, bounds: Bounds, fault: Callable[[object], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    draft = MarkedDraft(where, fault)
    said = await answer(draft, bounds, Verification.COUPLED)
    gc.collect()  # a task whose failure nobody looked at says so now
    assert said == [MARK + at for at in range(TOKENS)]
    assert draft.failures > 0
    assert not MARKED.search(caplog.text)


def guesses(*ids: TokenId, rows: tuple[SparseRow, ...] = ()) -> Proposal:
    return Proposal(ids, rows or tuple(SparseRow((one,), (1.0,)) for one in ids))


NONE = {
    "ids that nobody knows": guesses(MARK + 1_000_000),
    "too many": guesses(*range(MARK, MARK + 5)),
    "q of another token": guesses(MARK, rows=(SparseRow((MARK + 1,), (1.0,)),)),
    "q that is no law": guesses(MARK, rows=(SparseRow((MARK, MARK + 1), (0.5, 0.25)),)),
    "q below 0": guesses(MARK, rows=(SparseRow((MARK, MARK + 1), (1.5, -0.5)),)),
    "an id twice": guesses(MARK, rows=(SparseRow((MARK, MARK), (0.5, 0.5)),)),
    "wrong ones": guesses(MARK + 77),
}


@pytest.mark.parametrize("offers", NONE.values(), ids=NONE)
@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
async def test_proposals_that_are_none_or_fall_are_not_logged(
    offers: Proposal, verification: Verification, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    draft = MarkedDraft("nothing", AssertionError, offers)
    said = await answer(draft, ALWAYS_4, verification)
    gc.collect()
    assert said == [MARK + at for at in range(TOKENS)]
    assert not MARKED.search(caplog.text)


async def test_the_mark_is_found_where_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for shown in (MARK + 17, [MARK], f"{MARK:_}", f"{MARK:,}"):
        caplog.clear()
        logging.getLogger("any").info("said %s", shown)
        assert MARKED.search(caplog.text)
