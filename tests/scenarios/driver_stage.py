"""What the driver's suites are played on: a target and a draft of one rule that can fail, and a clock moved by hand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Finish, Request
from tandem_runtime.domain.errors import (
    SessionLost,
    StaleOffset,
    TargetLost,
)
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.session import Session
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
    close_fault: Exception | None = None

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
        if self.close_fault is not None:
            raise self.close_fault


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

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
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
