"""Knows how several drafters serve one session as one draft: who is asked, how long it is waited for, and what it
has missed.

Refuses to know how drafters guess, and to choose among them (`domain.drafting`) or to judge their faults
(`domain.patience`).

A session's lookups are asked in every round, the model when the round is its own: it is opened then, and reads in one
pass what others had proposed meanwhile. One that fails, in whatever way, is closed, and opened again with the output so
far once its rest is over; the round goes on with nothing proposed. It does not go on with another's guess, as what a
model says may have depended on what it drew, and then the law of the answer would (rejection and block verification).
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tandem_runtime.domain.drafting import NEWS_TOKENS, Drafting
from tandem_runtime.domain.errors import DraftLost, TandemError, origin
from tandem_runtime.domain.patience import LONGEST_WAIT_SECONDS, Patience
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    ScoreTokens,
    SessionId,
    TokenId,
)
from tandem_runtime.domain.verification import admissible, refuse_bad_proposal
from tandem_runtime.ports import Clock, DraftEngine

Answer = TypeVar("Answer")

INCARNATION = Incarnation("combined")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Member:
    """One drafter of the session. `patience` is shared by all sessions that ask it; `max_length` is its own."""

    drafter: Drafter
    engine: DraftEngine
    patience: Patience
    max_length: int
    incarnation: Incarnation | None = None
    """Absent while the session is not open there."""
    heard: int = 0
    """Of the output so many tokens."""
    closing: asyncio.Task[None] | None = None
    """Of the session that failed there."""
    unread: bool = True
    """It has not proposed since it was opened."""
    touched: bool = False
    """It was asked to open the session, and may hold it whatever came of that."""

    def is_behind(self, offset: int) -> bool:
        """Whether it has more to read than a round or a run brings."""
        return self.unread or offset - self.heard > NEWS_TOKENS


@dataclass(slots=True)
class CombinedDraft:
    """`ports.DraftEngine` of one session, over others. `vocab_size` is the target's."""

    members: Sequence[Member]
    drafting: Drafting
    clock: Clock
    vocab_size: int
    _request: OpenSession | None = field(default=None, init=False)
    _output: list[TokenId] = field(default_factory=list, init=False)
    _offered: Proposal = field(default_factory=Proposal, init=False)

    async def capabilities(self) -> Capabilities:
        return await self.members[0].engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        """Asks nobody yet: a drafter that hangs would hold up those that do not."""
        self._request, self._output, self._offered = request, list(request.output), Proposal()
        for member in self.members:
            if member.touched:
                self._forget(member, request.session)
        return Opened(INCARNATION)

    async def propose(self, request: ProposeRound) -> Proposal:
        """Raises DraftLost where the round does not continue what was heard."""
        began = self.clock.monotonic()
        self._commit(request.base, request.committed)
        guesses: dict[Drafter, Proposal] = {}
        for member in self.members:
            if member.drafter is not Drafter.MODEL:
                guesses[member.drafter] = await self._ask(member, request, self.drafting.k_of(member.drafter))
        model = next((member for member in self.members if member.drafter is Drafter.MODEL), None)
        able = model is not None and self._room(model) > 0 and not model.patience.rests(began)
        turn = self.drafting.turn({drafter: guess.survivals for drafter, guess in guesses.items()}, able=able)
        if turn is None:
            return self._offer(Proposal(draft_seconds=self.clock.monotonic() - began))
        if model is not None and turn.drafter is Drafter.MODEL:
            return self._offer(await self._ask(model, request, min(turn.k, self._room(model))))
        chosen = guesses[turn.drafter].first(turn.k)
        return self._offer(replace(chosen, draft_seconds=self.clock.monotonic() - began))

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        """As the first member would have proposed. Raises DraftLost where it cannot say."""
        member, asked_at = self.members[0], self.clock.monotonic()
        self._commit(request.base, ())
        if member.patience.rests(asked_at):
            raise DraftLost("it failed lately and is left alone for a while")
        try:
            bits = await _in_time(member.patience.ask(asked_at, 1, reads=True), self._scored(member, request))
        except DraftLost:
            member.patience.failed(self.clock.monotonic(), asked_at=asked_at)
            self._forget(member, request.session)
            raise
        member.patience.answered(self.clock.monotonic(), seconds=0.0, tokens=0, read=True)
        self._output += request.ids
        member.heard = len(self._output)
        return bits

    async def _scored(self, member: Member, request: ScoreTokens) -> tuple[bool, ...]:
        """What it has not heard yet is scored along with it."""
        incarnation = await self._open(member)
        missed = tuple(self._output[member.heard :])
        asked = replace(request, incarnation=incarnation, base=member.heard, ids=(*missed, *request.ids))
        bits = await member.engine.score(asked)
        if len(bits) != len(asked.ids):
            raise DraftLost(f"it scored {len(bits)} tokens where {len(asked.ids)} were asked for")
        member.unread = False
        return bits[len(missed) :]

    async def close(self, session: SessionId) -> None:
        opened = [member for member in self.members if member.touched]
        closing = [member.closing for member in self.members if member.closing is not None]
        await asyncio.gather(*closing, *(_close(member, session) for member in opened))

    def _commit(self, base: int, committed: Sequence[TokenId]) -> None:
        """The output is what it was, with our last offer behind it, up to `base`, then `committed`."""
        heard, offered = len(self._output), self._offered.ids
        if self._request is None or not heard <= base <= heard + len(offered):
            raise DraftLost(f"the round begins at offset {base}; this draft has heard of {heard} tokens")
        self._output += (*offered[: base - heard], *committed)
        self._offered = Proposal()

    def _offer(self, proposal: Proposal) -> Proposal:
        self._offered = proposal
        return proposal

    def _room(self, member: Member) -> int:
        """Tokens that it can still guess in its context."""
        prompt = 0 if self._request is None else len(self._request.prompt)
        return member.max_length - prompt - len(self._output)

    async def _ask(self, member: Member, request: ProposeRound, k: int) -> Proposal:
        """Its proposal, if it gives a good one in time; else an empty one, and it is left alone for a while."""
        asked_at = self.clock.monotonic()
        if member.patience.rests(asked_at):
            return Proposal()
        reads = member.is_behind(len(self._output))
        limit_seconds = member.patience.ask(asked_at, k, reads=reads)
        try:
            proposal = await _in_time(limit_seconds, self._proposed(member, request, k))
        except DraftLost as lost:
            log.info("drafter %s failed and is left alone for a while: %s", member.drafter, origin(lost))
            member.patience.failed(self.clock.monotonic(), asked_at=asked_at)
            self._forget(member, request.session)
            return Proposal()
        now = self.clock.monotonic()
        member.patience.answered(now, seconds=now - asked_at, tokens=len(proposal.ids), read=reads)
        survivals = proposal.survivals or self.drafting.survivals_of(member.drafter, k)
        prefill = member.unread and member.drafter is Drafter.MODEL
        member.unread = False
        return replace(proposal, drafter=member.drafter, survivals=survivals, prefill=prefill)

    async def _proposed(self, member: Member, request: ProposeRound, k: int) -> Proposal:
        """Raises DraftLost or BadRequest where it is none that can be sent on."""
        incarnation = await self._open(member)
        told = tuple(self._output[member.heard :])
        stop = self.drafting.stop_of(member.drafter)
        asked = replace(request, incarnation=incarnation, base=member.heard, committed=told, k=k, stop=stop)
        proposal = await member.engine.propose(asked)
        member.heard = len(self._output)
        if len(proposal.ids) > k:
            raise DraftLost(f"it offered {len(proposal.ids)} tokens where {k} were asked for")
        return self._admitted(proposal)

    def _admitted(self, proposal: Proposal) -> Proposal:
        """As much of it as the target can know. Raises BadRequest where nobody can have drawn it."""
        assert self._request is not None
        known = admissible(proposal, vocab_size=self.vocab_size)
        refuse_bad_proposal(known, self._request.verification, vocab_size=self.vocab_size)
        return known

    async def _open(self, member: Member) -> Incarnation:
        if member.closing is not None:
            await asyncio.shield(member.closing)  # else it would close what is opened now
            member.closing = None
        if member.incarnation is None:
            assert self._request is not None
            alone = member.drafter is Drafter.MODEL
            adapter = None if alone else self._request.adapter
            output = tuple(self._output)
            member.touched = True  # who is cancelled here may have been let in
            opened = await member.engine.open(replace(self._request, output=output, adapter=adapter))
            member.incarnation, member.heard, member.unread = opened.incarnation, len(output), True
        return member.incarnation

    def _forget(self, member: Member, session: SessionId) -> None:
        """Have it let the session go. Nobody waits for that: it may hang."""
        member.incarnation, member.touched = None, False
        member.closing = asyncio.create_task(_close_after(member.closing, member, session))


async def _close_after(before: asyncio.Task[None] | None, member: Member, session: SessionId) -> None:
    if before is not None:
        await before
    await _close(member, session)


async def _close(member: Member, session: SessionId) -> None:
    with suppress(DraftLost):
        await _in_time(LONGEST_WAIT_SECONDS, member.engine.close(session))


async def _in_time(limit_seconds: float, answer: Awaitable[Answer]) -> Answer:
    """The answer; whatever goes wrong with a drafter is DraftLost, since text goes on without it."""
    try:
        async with asyncio.timeout(limit_seconds):
            return await answer
    except TimeoutError as late:
        raise DraftLost(f"no answer in {limit_seconds:.3g} s") from late
    except TandemError as failed:
        raise DraftLost(str(failed)) from failed
    except Exception as fault:
        log.error("a drafter failed: %s", origin(fault))  # a traceback may quote what was said
        raise DraftLost("it failed") from fault
