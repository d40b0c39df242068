"""What the suites of several drafters are played on: a session of a model and a lookup that do as they are told."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    TokenId,
    Verification,
)

MODEL, SUFFIX = Drafter.MODEL, Drafter.SUFFIX
VOCAB = 100
SESSION = SessionId("s")
PLAIN = SamplingParameters(1)
FOUR = Bounds(4, 4, Mode.ALWAYS)


@dataclass
class HandClock:
    """Time that moves when a test says so."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


Answer = Callable[[ProposeRound], Awaitable[Proposal]]


@dataclass
class Scripted:
    """A drafter that offers k times the token that stands for it, or does what it is told instead."""

    token: TokenId
    survivals: tuple[float, ...] = ()
    instead: Answer | None = None
    open_instead: Callable[[], Awaitable[None]] | None = None
    score_instead: Callable[[ScoreTokens], Awaitable[tuple[bool, ...] | None]] | None = None
    close_instead: Callable[[], Awaitable[None]] | None = None
    heard: list[TokenId] = field(default_factory=list)
    opened: list[OpenSession] = field(default_factory=list)
    asked: list[ProposeRound] = field(default_factory=list)
    closed: int = 0

    async def capabilities(self) -> Capabilities:
        return Capabilities("m", "t", VOCAB, 1000, "Bitwise")

    async def open(self, request: OpenSession) -> Opened:
        if self.open_instead is not None:
            await self.open_instead()
        self.opened.append(request)
        self.heard = list(request.output)
        return Opened(Incarnation(f"life {len(self.opened)}"))

    async def propose(self, request: ProposeRound) -> Proposal:
        assert request.incarnation == f"life {len(self.opened)}"
        assert request.base <= len(self.heard)
        self.heard[request.base :] = request.committed
        self.asked.append(request)
        if self.instead is not None:
            return await self.instead(request)
        ids = (self.token,) * request.k
        return Proposal(ids, tuple(SparseRow((one,), (1.0,)) for one in ids), survivals=self.survivals[: request.k])

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        assert request.incarnation == f"life {len(self.opened)}"
        if self.score_instead is not None:
            return await self.score_instead(request)
        self.heard[request.base :] = request.ids
        return tuple(one == self.token for one in request.ids)

    async def close(self, session: SessionId) -> None:
        if self.close_instead is not None:
            await self.close_instead()
        self.closed += 1


@dataclass
class Stage:
    """A session of a model and a lookup that offers nothing, unless the test says otherwise; K = 4 in every round."""

    model: Scripted = field(default_factory=lambda: Scripted(7))
    lookup: Scripted = field(default_factory=lambda: Scripted(8, instead=silent))
    verification: Verification = Verification.REJECTION
    model_length: int = 1000
    prompt: tuple[TokenId, ...] = (1, 2, 3)
    parameters: SamplingParameters = PLAIN
    bounds: Bounds = FOUR
    patience: dict[Drafter, Patience] = field(default_factory=lambda: {MODEL: Patience(), SUFFIX: Patience()})
    beliefs: Beliefs = field(default_factory=lambda: Beliefs(Segments(), Segment("pair"), Looks()))
    clock: HandClock = field(default_factory=HandClock)

    def __post_init__(self) -> None:
        members = [
            Member(MODEL, self.model, self.patience[MODEL], self.model_length),
            Member(SUFFIX, self.lookup, self.patience[SUFFIX], 1000),
        ]
        self.drafting = Drafting((MODEL, SUFFIX), self.beliefs)
        self.draft = CombinedDraft(members, self.drafting, self.clock, VOCAB)
        self.output: list[TokenId] = []
        self.told = 0

    async def opened(self) -> "Stage":
        request = OpenSession(
            SESSION,
            self.prompt,
            tuple(self.output),
            self.parameters,
            self.verification,
            100,
            adapter="a",
        )
        await self.draft.open(request)
        self.told = len(self.output)
        return self

    async def round(self, *, stood: int = 0) -> Proposal:
        """The proposal of a round, of which `stood` tokens stand; the next token is 50."""
        choice = self.drafting.choose(self.bounds, 8, self.clock.now, warm=True)
        committed = tuple(self.output[self.told :])
        request = ProposeRound(SESSION, Incarnation("combined"), self.told, committed, 4, outlook=choice.outlook)
        proposal = await self.draft.propose(request)
        self.told = len(self.output) + min(stood, len(proposal.ids))
        self.output += [*proposal.ids[:stood], 50]
        return proposal


async def silent(request: ProposeRound) -> Proposal:
    return Proposal()


async def hanging(request: ProposeRound) -> Proposal:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def raising(error: BaseException) -> Answer:
    async def fail(request: ProposeRound) -> Proposal:
        raise error

    return fail


def saying(*ids: TokenId, rows: tuple[SparseRow, ...] | None = None, confidences: tuple[int, ...] = ()) -> Answer:
    certain = tuple(SparseRow((one,), (1.0,)) for one in ids)

    async def say(request: ProposeRound) -> Proposal:
        return Proposal(ids, certain if rows is None else rows, confidences=confidences)

    return say
