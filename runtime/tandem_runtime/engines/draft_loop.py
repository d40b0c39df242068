"""Knows a draft as the driver sees it: sessions in which it guesses ahead, and rolls back to what the target said.

Refuses to know the wire, deadlines, and what model stands behind the steps.

Guessing k tokens is k jobs in a row for one session, each a row in the step that all guessing sessions share. Nothing
is ever undone by hand: a round states the committed output from `base` on, and the line of KV memory keeps what agrees
with it. After a full accept the draft has not yet read its own last guess: the next round begins with two tokens.

A failure keeps its kind, so that who asked can tell a draft's own fault from a request's. Text goes on with K = 0.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from statistics import fmean
from typing import ClassVar

from tandem_runtime.domain.errors import BadRequest, DraftForgot, DraftLost
from tandem_runtime.domain.tokens import (
    Ahead,
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
    refuse_foreign_ids,
)
from tandem_runtime.engines.ahead import Desk, Drafted, Guessing, Leads, Pauses, Preparation
from tandem_runtime.engines.batched import BatchedEngine
from tandem_runtime.engines.confidence import confidence
from tandem_runtime.engines.jobs import Work
from tandem_runtime.engines.lines import Want
from tandem_runtime.engines.offers import Offer, Offers, needed
from tandem_runtime.engines.sampler import coupled_choice, guess, has_law
from tandem_runtime.engines.sessions import Session
from tandem_runtime.ports import Logits

__all__ = ["BatchedDraft"]


class BatchedDraft(BatchedEngine):
    """`ports.DraftEngine` over any `StepModel`."""

    lost: ClassVar = DraftLost
    forgotten: ClassVar = DraftForgot

    @cached_property
    def _offers(self) -> Offers:
        return Offers()

    @cached_property
    def _guessing(self) -> Guessing:
        return Guessing(_guess, self._end_tokens, self._capabilities.max_length, Pauses(), Leads())

    @property
    def drafting_ahead(self) -> int:
        """Branches that are not done. May be read on any thread."""
        return self._loop.beside

    async def open(self, request: OpenSession) -> Opened:
        """Whatever the target answers with: this model drafts alone."""
        if not request.prompt:
            raise BadRequest("the prompt is empty; send at least one token", parameter="prompt")
        self._refuse_foreign((*request.prompt, *request.output))
        self._offers.forget(request.session)
        return await self._sessions.admit(replace(request, adapter=None))

    async def close(self, session: SessionId) -> None:
        self._offers.forget(session)  # who closes may be cancelled
        await super().close(session)

    async def propose(self, request: ProposeRound) -> Proposal:
        """At once, if enough is ready, while a step may be under way; else by what the model's thread makes of it."""
        home, arrived = asyncio.get_running_loop(), self._clock.monotonic()
        ready = self._offers.answer(request, arrived, self._guessing.pauses.seconds or 0.0)
        if ready is None:
            return await self._made(request, arrived, home)
        self._loop.go(request.session, self._follow(request, arrived, home, ready.ids))
        return ready

    async def _made(self, request: ProposeRound, arrived: float, home: asyncio.AbstractEventLoop) -> Proposal:
        try:
            return await self._loop.submit(request.session, self._propose(request, arrived, home))
        except BaseException:  # whoever did not get an answer has no use for the next one
            self._offers.forget(request.session)
            raise

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        """One bit per id; the ids then count as committed. An id beyond the draft's context scores false."""
        self._offers.forget(request.session)
        return await self._loop.submit(request.session, self._score(request))

    def _follow(
        self, request: ProposeRound, arrived: float, home: asyncio.AbstractEventLoop, ids: tuple[TokenId, ...]
    ) -> Work[None]:
        """Go on from what was answered already."""
        yield from ()
        session = self._sessions.find(request.session, request.incarnation)
        self._commit(session, request.base, request.committed)
        prepared, _ = _settled(session, arrived)
        drafted = Drafted() if prepared is None else prepared.first(len(ids))
        session.commit(len(session.output), ids)
        if tuple(drafted.ids) == ids:
            self._prepare(session, request, drafted, home, arrived)

    def _propose(self, request: ProposeRound, arrived: float, home: asyncio.AbstractEventLoop) -> Work[Proposal]:
        session = self._sessions.find(request.session, request.incarnation)
        self._commit(session, request.base, request.committed)
        prepared, ahead = _settled(session, arrived)
        began = self._loop.now()
        settled = len(session.prefix)
        drafted, ahead = _begun(prepared, ahead, 0 if request.stop is not None else request.k)
        session.commit(len(session.output), drafted.ids)
        confidences: list[int] = []
        sharers = yield from self._draft_on(request, session, drafted, confidences, settled=settled)
        self._prepare(session, request, drafted, home, self._loop.now())
        return Proposal(
            ids=tuple(drafted.ids),
            q=tuple(drafted.q) if session.request.verification is not Verification.COUPLED else None,
            draft_seconds=self._loop.now() - began,
            rows=round(fmean(sharers)) if sharers else 1,
            confidences=tuple(confidences),
            ahead=ahead,
        )

    def _draft_on(
        self, request: ProposeRound, session: Session, drafted: Drafted, confidences: list[int], *, settled: int
    ) -> Work[list[int]]:
        """Draft until there are as many tokens as are needed, if the draft can; how many sessions shared each step."""
        tokens, ids, sharers, k = session.prefix, drafted.ids, list[int](), needed(request)
        while len(ids) < k and len(tokens) <= self._capabilities.max_length and not self._has_ended(ids):
            seen = yield Want(session.line, tokens, first=len(tokens) - 1, settled=settled)
            sharers.append(seen.rows)
            guessed = _guess(session, seen.logits, len(ids))
            if guessed is None:
                break
            confidences += [_confidence(session, seen.logits)] if request.stop is not None else []
            drafted.logits.append(seen.logits)
            drafted.add(*guessed)
            tokens.append(ids[-1])
            session.commit(len(session.output), ids[-1:])  # the next round's base says how many of them stand
            if request.stop is not None and request.stop.ends(confidences):
                break
        return sharers

    def _has_ended(self, ids: Sequence[TokenId]) -> bool:
        return bool(ids) and ids[-1] in self._end_tokens

    def _prepare(
        self,
        session: Session,
        request: ProposeRound,
        drafted: Drafted,
        home: asyncio.AbstractEventLoop,
        answered_at: float,
    ) -> None:
        """Go on for the next round once this one has been answered."""
        if request.outlook is None or not drafted.ids:
            return
        ids = tuple(drafted.ids)
        has_q = session.request.verification is not Verification.COUPLED
        offer = Offer(request.incarnation, len(session.output) - len(ids), ids, has_q)
        tell = partial(self._loop.post, home)
        tell(partial(self._offers.make, request, offer))
        session.ahead = Preparation(
            session,
            drafted,
            request.outlook,
            loop=self._loop,
            guessing=self._guessing,
            desk=Desk(offer, tell, answered_at),
        )
        self._loop.soon(session.ahead.begin)

    def _score(self, request: ScoreTokens) -> Work[tuple[bool, ...]]:
        session = self._sessions.find(request.session, request.incarnation)
        self._commit(session, request.base, request.ids)
        session.let_go()
        first = len(session.request.prompt) + request.base - 1
        fed = session.prefix[:-1][: self._capabilities.max_length]
        if len(fed) <= first or not request.ids:
            return (False,) * len(request.ids)
        seen = yield Want(session.line, fed, first=first, settled=len(fed))
        session.commit(request.base, ())
        rows = session.processed(seen.logits, request.ids)
        session.commit(request.base, request.ids)
        return tuple(
            at < len(rows) and _would_guess(token, rows[at], session.parameters, request.base + at)
            for at, token in enumerate(request.ids)
        )

    def _commit(self, session: Session, base: int, ids: Sequence[TokenId]) -> None:
        """The output is what it was up to `base`, then `ids`."""
        if base > len(session.output):
            raise DraftForgot(f"the round begins at offset {base}; the draft has heard of {len(session.output)} tokens")
        self._refuse_foreign(ids)
        session.commit(base, ids)

    def _refuse_foreign(self, ids: Sequence[TokenId]) -> None:
        refuse_foreign_ids(ids, vocab_size=self._capabilities.vocab_size, parameter="prompt")


def _settled(session: Session, arrived: float) -> tuple[Drafted | None, Ahead | None]:
    """What was prepared for the output as it is now, and what came of preparing; `arrived` is when that was told."""
    preparation, session.ahead = session.ahead, None
    return (None, None) if preparation is None else preparation.settle(arrived)


def _begun(prepared: Drafted | None, ahead: Ahead | None, k: int) -> tuple[Drafted, Ahead | None]:
    """The first k of the tokens that were prepared, and what came of preparing; nothing, where nothing was."""
    if prepared is None or ahead is None:
        return Drafted(), ahead
    beyond = max(len(prepared.ids) - k, 0)
    return prepared.first(k), replace(ahead, wasted=ahead.wasted + beyond)


def _guess(session: Session, logits: Logits, ahead: int) -> tuple[TokenId, SparseRow | None] | None:
    """What comes after `logits` [1, vocab], `ahead` guesses into the round; None where nothing can.

    Guesses that led to a row without a law are offered all the same: withheld, they would make what is proposed depend
    on what was drawn. Raises NotANumber if the model's first row is none, BadRequest if a grammar fails there.
    """
    try:
        (row,) = session.processed(logits, ())
    except BadRequest:
        if ahead == 0:
            raise
        return None
    if session.leaves_nothing(row) or (ahead and not has_law(row, session.parameters)):
        return None
    asked = session.request.verification
    return guess(row, session.parameters, verification=asked, position=len(session.output), ahead=ahead)


def _confidence(session: Session, logits: Logits) -> int:
    """In the guess that comes after `logits` [1, vocab]."""
    asked = session.request
    return confidence(logits[0], session.parameters, verification=asked.verification, position=len(session.output))


def _would_guess(token: TokenId, row: Logits, parameters: SamplingParameters, position: int) -> bool:
    return has_law(row, parameters) and coupled_choice(row, parameters, position) == token
