"""Knows how several drafters serve one session as one draft: who is asked, how long it is waited for, and what it
has missed.

Refuses to know how drafters guess, and to choose among them (`domain.drafting`) or to judge their faults
(`domain.patience`).

A session's lookups are asked in every round, the model when the round is its own: it is opened then, and reads in one
pass what others had proposed meanwhile. One that fails, in whatever way, is closed, and opened again with the output so
far once its rest is over; the round ends with nothing proposed, so that no round waits for two that fail. Nor does it
go on with another's guess, as what a model says may have depended on what it drew, and then the law of the answer would
(rejection and block verification).

One that has a long text to read, or a grammar to compile, is left at it when the wait is over: rounds go on without it,
and it is asked again when it has done so. What it says then about the older round is not taken.

Who closes does not wait for ever, and may be cancelled: every closing is a task of its own, and ends by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, assert_never

from tandem_runtime.asking import in_time, proposed, scored
from tandem_runtime.domain.drafting import NEWS_TOKENS, Drafting
from tandem_runtime.domain.errors import BadRequest, DraftForgot, DraftLost, TandemError, origin
from tandem_runtime.domain.patience import (
    LONG_READ_TOKENS,
    LONGEST_READ_SECONDS,
    LONGEST_WAIT_SECONDS,
    Patience,
    Trouble,
    Whose,
    trouble_of,
)
from tandem_runtime.domain.session import SCORED_TOKENS
from tandem_runtime.domain.tokens import (
    NOTHING,
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


class Reading(NamedTuple):
    """What a drafter was asked at `since` and is left at; at its end stands what came of it."""

    since: float
    task: asyncio.Task[Proposal | TandemError]


@dataclass(slots=True)
class Member:
    """One drafter of the session. `patience` is shared by all sessions that ask it; the rest is its own."""

    drafter: Drafter
    engine: DraftEngine
    patience: Patience
    max_length: int
    own: Patience = field(default_factory=Patience)
    """What says nothing of the drafter and much of this session."""
    incarnation: Incarnation | None = None
    """Absent while the session is not open there."""
    heard: int = 0
    """Of the output so many tokens."""
    closing: asyncio.Task[None] | None = None
    """Of the session that failed there."""
    unread: bool = True
    """It has not answered since it was opened."""
    touched: bool = False
    """It was asked to open the session, and may hold it whatever came of that."""
    reading: Reading | None = None

    def rests(self, now: float) -> bool:
        """Whether this session is not to ask it now."""
        reads = self.reading is not None and not self.reading.task.done()
        return reads or self.patience.rests(now) or self.own.rests(now)

    def is_behind(self, offset: int) -> bool:
        """Whether it has more to read than a round or a run brings."""
        return self.unread or offset - self.heard > NEWS_TOKENS

    def is_burdened(self, request: OpenSession, offset: int) -> bool:
        """Whether what this session has it do before it can answer may take any time. Rules that go beyond sampling are
        made ready where grammars are compiled, behind those of others."""
        to_read = offset + len(request.prompt) if self.unread else offset - self.heard
        return to_read > LONG_READ_TOKENS or (self.unread and not request.parameters.is_plain)

    def answered(self, now: float, *, seconds: float, tokens: int, read: bool) -> None:
        self.patience.answered(now, seconds=seconds, tokens=tokens, read=read)
        self.own.answered(now)
        self.unread = False

    def failed(self, now: float, trouble: Trouble, *, asked_at: float) -> None:
        match trouble.whose:
            case Whose.DRAFTER:
                self.patience.failed(now, asked_at=asked_at)
            case Whose.SESSION:
                self.own.failed(now, asked_at=asked_at, least_seconds=trouble.least_seconds)
                self.patience.gave_up(now, asked_at=asked_at)
            case _:
                assert_never(trouble.whose)

    def forget(self, session: SessionId) -> None:
        """Have it let the session go. Nobody waits for that: it may hang."""
        self.incarnation, self.unread = None, True
        reading, self.reading = self.reading, None
        if reading is not None:
            reading.task.cancel()
        if self.touched:
            self.touched = False
            self.closing = asyncio.create_task(_close(self.engine, session, after=reading))


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
            member.forget(request.session)
        return Opened(INCARNATION)

    async def propose(self, request: ProposeRound) -> Proposal:
        """Raises DraftForgot where the round does not continue what was heard."""
        began = self.clock.monotonic()
        self._commit(request.base, request.committed)
        guesses: dict[Drafter, Proposal] = {}
        for member in self.members:
            if member.drafter is not Drafter.MODEL and not member.rests(began):
                guess = await self._ask(member, request, self.drafting.k_of(member.drafter))
                if guess is None:
                    return self._offer(Proposal(draft_seconds=self.clock.monotonic() - began))
                guesses[member.drafter] = guess
        return self._offer(await self._best(request, guesses, began))

    async def _best(self, request: ProposeRound, guesses: Mapping[Drafter, Proposal], began: float) -> Proposal:
        """A lookup's guess or the model's proposal; an empty one where nothing is worth a round, or the model fails."""
        model = next((member for member in self.members if member.drafter is Drafter.MODEL), None)
        able = model is not None and self._room(model) > 0 and not model.rests(began)
        turn = self.drafting.turn({drafter: guess.survivals for drafter, guess in guesses.items()}, able=able)
        proposal: Proposal | None = None
        if turn is not None and turn.drafter is not Drafter.MODEL:
            proposal = guesses[turn.drafter].first(turn.k)
        elif turn is not None and model is not None:
            proposal = await self._ask(model, request, min(turn.k, self._room(model)))
            if proposal is not None:
                return proposal
        return replace(proposal or Proposal(), draft_seconds=self.clock.monotonic() - began)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        """As the first member would have proposed. None while it is left alone, and where it fails."""
        member, asked_at = self.members[0], self.clock.monotonic()
        self._commit(request.base, ())
        if member.rests(asked_at) or not await self._keeps_up(member, request):
            return None
        limit_seconds = member.patience.ask(asked_at, 1, reads=True)
        bits = await self._answer(member, asked_at, _told(limit_seconds, self._scored(member, request)))
        if bits is None:
            return None
        member.answered(self.clock.monotonic(), seconds=0.0, tokens=0, read=True)
        self._output += request.ids
        member.heard = len(self._output)
        return bits

    async def _keeps_up(self, member: Member, request: ScoreTokens) -> bool:
        """Have it read what is long by a guess that nobody takes, and say whether it has: to score it is more work."""
        if not self._has_read(member):
            return False
        missed = 0 if member.incarnation is None else len(self._output) - member.heard
        if missed <= SCORED_TOKENS and not self._is_burdened(member):
            return True
        guess = await self._ask(member, ProposeRound(request.session, INCARNATION, request.base, (), 1), 1)
        return guess is not None

    async def _scored(self, member: Member, request: ScoreTokens) -> tuple[bool, ...] | None:
        """What it has not heard yet is scored along with it."""
        incarnation = await self._open(member)
        missed = tuple(self._output[member.heard :])
        asked = replace(request, incarnation=incarnation, base=member.heard, ids=(*missed, *request.ids))
        bits = await scored(member.engine, asked)
        return None if bits is None else bits[len(missed) :]

    async def close(self, session: SessionId) -> None:
        """Returns when all have let it go. Who is cancelled meanwhile leaves them at it."""
        for member in self.members:
            member.forget(session)
        closing = [member.closing for member in self.members if member.closing is not None]
        if closing:
            await asyncio.wait(closing)

    def _commit(self, base: int, committed: Sequence[TokenId]) -> None:
        """The output is what it was, with our last offer behind it, up to `base`, then `committed`."""
        heard, offered = len(self._output), self._offered.ids
        if self._request is None or not heard <= base <= heard + len(offered):
            raise DraftForgot(f"the round begins at offset {base}; this draft has heard of {heard} tokens")
        self._output += (*offered[: base - heard], *committed)
        self._offered = NOTHING

    def _offer(self, proposal: Proposal) -> Proposal:
        self._offered = proposal
        return proposal

    def _room(self, member: Member) -> int:
        """Tokens that it can still guess in its context."""
        prompt = 0 if self._request is None else len(self._request.prompt)
        return member.max_length - prompt - len(self._output)

    async def _ask(self, member: Member, request: ProposeRound, k: int) -> Proposal | None:
        """Its proposal, if it gives a good one in time."""
        asked_at = self.clock.monotonic()
        if not self._has_read(member):
            return None
        reads = member.is_behind(len(self._output))
        limit_seconds = member.patience.ask(asked_at, k, reads=reads)
        answer = self._proposed(member, request, k)
        told = self._read(member, limit_seconds, answer) if self._is_burdened(member) else _told(limit_seconds, answer)
        proposal = await self._answer(member, asked_at, told)
        if proposal is None:
            return None
        now, prefill = self.clock.monotonic(), member.unread and member.drafter is Drafter.MODEL
        member.answered(now, seconds=now - asked_at, tokens=len(proposal.ids), read=reads)
        survivals = proposal.survivals or (self.drafting.survivals_of(member.drafter, k) if proposal.ids else ())
        return proposal.of(member.drafter, survivals, prefill=prefill)

    async def _read(
        self, member: Member, limit_seconds: float, answer: Coroutine[Any, Any, Proposal]
    ) -> Proposal | TandemError | None:
        """What it tells in time; None where it is left at it."""
        task = asyncio.create_task(_told(LONGEST_READ_SECONDS, answer))
        member.reading = Reading(self.clock.monotonic(), task)
        await asyncio.wait((task,), timeout=limit_seconds)
        if not task.done():
            return None
        member.reading = None
        return task.result()

    def _has_read(self, member: Member) -> bool:
        """Whether it has done what it was left at, if anything."""
        reading = member.reading
        if reading is None or not reading.task.done():
            return reading is None
        member.reading = None
        outcome = reading.task.result()
        if isinstance(outcome, TandemError):
            self._judge(member, outcome, asked_at=reading.since, burdened=True)
            return False
        member.unread = False
        return True

    async def _answer(
        self, member: Member, asked_at: float, told: Awaitable[Answer | TandemError | None]
    ) -> Answer | None:
        """What it answers; None where it does not, and then it is judged for that unless it is left at it."""
        outcome: Answer | TandemError | None = None
        try:
            outcome = await told
        finally:
            if outcome is None:  # or who asked is cancelled
                member.patience.gave_up(self.clock.monotonic(), asked_at=asked_at)
        if isinstance(outcome, TandemError):
            self._judge(member, outcome, asked_at=asked_at, burdened=self._is_burdened(member))
            return None
        return outcome

    def _judge(self, member: Member, error: TandemError, *, asked_at: float, burdened: bool) -> None:
        """It failed, and is left alone for a while, by this session or by all."""
        assert self._request is not None
        trouble = trouble_of(error, burdened=burdened)
        log.info("drafter %s failed: %s, a trouble of this %s", member.drafter, origin(error), trouble.whose)
        member.failed(self.clock.monotonic(), trouble, asked_at=asked_at)
        member.forget(self._request.session)

    def _is_burdened(self, member: Member) -> bool:
        assert self._request is not None
        return member.is_burdened(self._request, len(self._output))

    async def _proposed(self, member: Member, request: ProposeRound, k: int) -> Proposal:
        """Raises DraftLost where it is none that can be sent on."""
        incarnation = await self._open(member)
        heard = len(self._output)
        told = tuple(self._output[member.heard :])
        stop, outlook = self.drafting.stop_of(member.drafter), self.drafting.outlook_of(member.drafter, k)
        asked = ProposeRound(request.session, incarnation, member.heard, told, k, stop, outlook)
        proposal = await proposed(member.engine, asked)
        member.heard = heard
        return self._admitted(proposal)

    def _admitted(self, proposal: Proposal) -> Proposal:
        """As much of it as the target can know. Raises DraftLost where nobody can have drawn it."""
        assert self._request is not None
        known = admissible(proposal, vocab_size=self.vocab_size)
        try:
            refuse_bad_proposal(known, self._request.verification, vocab_size=self.vocab_size)
        except BadRequest as bad:
            raise DraftLost(f"its proposal is none: {bad}") from bad
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


async def _told(limit_seconds: float, answer: Awaitable[Answer]) -> Answer | TandemError:
    try:
        return await in_time(limit_seconds, answer)
    except TandemError as error:
        return error


async def _close(engine: DraftEngine, session: SessionId, *, after: Reading | None) -> None:
    """Its limit also keeps the task alive: of itself, a loop does not."""
    if after is not None:
        await asyncio.wait((after.task,))
    with suppress(TandemError):
        await in_time(LONGEST_WAIT_SECONDS, engine.close(session))
