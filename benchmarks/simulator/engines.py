"""Knows draft and target as the driver's ports want them, over stations: which tokens are said and guessed, and when.

Refuses to know arithmetic and chance: a text's tokens are stated, whether a guess is right is `acceptance`'s, and when
an answer comes is the station's. A session's text is told by the first id of its prompt.

The gateway's hop to either engine takes half of the rig's `network` per cycle, there and back in equal parts.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from benchmarks.simulator.acceptance import WRONG, Acceptance, truth
from benchmarks.simulator.stations import Asker, Need, Station, Took
from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.errors import DraftLost, SessionLost, TandemError
from tandem_runtime.domain.tokens import (
    Capabilities,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    ScoreTokens,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.domain.verification import Verified, verify_coupled

TEXTS = 997
"""So many are told apart; after that they come again."""
LIFE = Incarnation("simulated")
LENGTH = 1 << 20
CAPABLE = Capabilities("simulated", "simulated", 1024, LENGTH, "Bitwise")


def prompt(text: int, tokens: int) -> tuple[TokenId, ...]:
    """So many tokens, the first of which tells the text."""
    return (text % TEXTS, *([1] * (tokens - 1)))


@dataclass(slots=True)
class Held:
    """A session in an engine: how many tokens of prompt and output its memory holds."""

    opening: OpenSession
    read: int = 0
    used_at: float | None = None
    """When the last step for it ended."""

    @property
    def text(self) -> int:
        return self.opening.prompt[0]

    @property
    def claim(self) -> Claim:
        return Claim(self.opening.tenant, self.opening.weight, self.opening.priority)

    def needs_up_to(self, offset: int, outputs: int, ahead: int = 0, survivals: tuple[float, ...] = ()) -> Need:
        """To read the output up to `offset` and `ahead` guesses behind it. What was read beyond is taken back."""
        length = len(self.opening.prompt) + offset
        self.read = min(self.read, length - 1)
        need = Need(length + ahead - self.read, outputs, survivals)
        self.read = length + ahead
        return need


@dataclass(slots=True)
class Engine:
    """What both have in common. `hop_seconds` is one way between gateway and engine."""

    station: Station
    hop_seconds: float
    sessions: dict[SessionId, Held] = field(default_factory=dict)

    async def capabilities(self) -> Capabilities:
        return CAPABLE

    async def open(self, request: OpenSession) -> Opened:
        """Free: an opening goes with the first round's message."""
        self.sessions[request.session] = Held(request)
        return Opened(LIFE)

    async def close(self, session: SessionId) -> None:
        self.sessions.pop(session, None)
        self.station.forget(session)

    def held(self, session: SessionId, lost: type[TandemError]) -> Held:
        if session not in self.sessions:
            raise lost(f"no session {session} is held here")
        return self.sessions[session]


@dataclass(slots=True, kw_only=True)
class RigTarget(Engine):
    """`ports.TargetEngine` that says the session's text."""

    acceptance: Acceptance

    async def verify(self, request: VerifyRound) -> Verdict:
        held, ids, at = self.held(request.session, SessionLost), request.proposal.ids, request.offset
        need = held.needs_up_to(at, len(ids) + 1, len(ids), request.survivals)
        (took,) = await self.station.meet(
            held.claim, [need], hop_seconds=self.hop_seconds, used_at=held.used_at, asker=Asker(request.session)
        )
        held.used_at = asyncio.get_running_loop().time() - self.hop_seconds
        held.read -= took.left_out
        ids = ids[: len(ids) - took.left_out]
        verified = verify_coupled(ids, [truth(position) for position in range(at, at + len(ids) + 1)])
        judged = range(at, at + min(verified.accepted + 1, len(ids)))
        credits = [self.acceptance.credit(held.text, place) for place in judged]
        known = tuple(credit for credit in credits if credit is not None)
        return replace(_verdict(request.round, at, took, verified), credits=known)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        held = self.held(request.session, SessionLost)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Verdict] = asyncio.Queue()
        made = iter(range(request.max_tokens))

        def told(took: Took) -> None:
            step, held.used_at = next(made), loop.time()
            at = request.offset + step
            verdict = _verdict(request.round + step, at, took, Verified(0, truth(at)))
            loop.call_later(self.hop_seconds, arrived.put_nowait, verdict)

        first = held.needs_up_to(request.offset, 1)
        rest = [held.needs_up_to(request.offset + step, 1) for step in range(1, request.max_tokens)]
        job = self.station.begin(
            held.claim,
            [first, *rest],
            told,
            hop_seconds=self.hop_seconds,
            used_at=held.used_at,
            asker=Asker(request.session, plainly=True),
        )
        try:
            for _ in range(request.max_tokens):
                yield await arrived.get()
        finally:
            self.station.drop(job)


@dataclass(slots=True, kw_only=True)
class RigDraft(Engine):
    """`ports.DraftEngine` that guesses as `acceptance` says."""

    acceptance: Acceptance

    async def propose(self, request: ProposeRound) -> Proposal:
        held, at = self.held(request.session, DraftLost), request.base + len(request.committed)
        places = range(at, at + request.k)
        offered = list(takewhile(lambda place: self.acceptance.offered(held.text, place), places))
        needs = [held.needs_up_to(at, 1), *(Need(1) for _ in offered[1:])]
        held.read += len(needs) - 1
        took = await self.station.meet(held.claim, needs, hop_seconds=self.hop_seconds)
        return Proposal(
            ids=tuple(self.guess(held.text, place) for place in offered),
            draft_seconds=sum(step.forward_seconds for step in took) + sum(step.queue_seconds for step in took[1:]),
            rows=round(sum(step.sessions for step in took) / len(took)),
        )

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        held, count = self.held(request.session, DraftLost), len(request.ids)
        need = held.needs_up_to(request.base + count, count)
        await self.station.meet(held.claim, [need], hop_seconds=self.hop_seconds)
        return tuple(self.acceptance.right(held.text, request.base + position) for position in range(count))

    def guess(self, text: int, position: int) -> TokenId:
        return truth(position) if self.acceptance.right(text, position) else WRONG


def _verdict(number: int, offset: int, took: Took, verified: Verified) -> Verdict:
    return Verdict(
        round=number,
        offset=offset,
        accepted=verified.accepted,
        token=verified.token,
        queue_seconds=took.queue_seconds,
        forward_seconds=took.forward_seconds,
        rows=took.sessions,
        beside=took.beside,
        unjudged=took.left_out,
    )
