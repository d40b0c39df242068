"""Knows a draft as the driver sees it: sessions in which it guesses ahead, and rolls back to what the target said.

Refuses to know the wire, deadlines, and what model stands behind the steps.

Guessing k tokens is k jobs in a row for one session, each a row in the step that all guessing sessions share. Nothing
is ever undone by hand: a round states the committed output from `base` on, and the line of KV memory keeps what agrees
with it. After a full accept the draft has not yet read its own last guess: the next round begins with two tokens.

Every failure is a DraftLost: whatever the reason, the driver goes on with K = 0.
"""

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar, TypeVar

from tandem_runtime.domain.errors import BadRequest, DraftLost, TandemError
from tandem_runtime.domain.tokens import (
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    ScoreTokens,
    SparseRow,
    TokenId,
    Verification,
    refuse_foreign_ids,
)
from tandem_runtime.engines.batched import BatchedEngine
from tandem_runtime.engines.confidence import confidence
from tandem_runtime.engines.jobs import Work
from tandem_runtime.engines.lines import Want
from tandem_runtime.engines.sampler import coupled_choice, guess, has_law
from tandem_runtime.engines.sessions import Session
from tandem_runtime.ports import Logits

__all__ = ["BatchedDraft"]

Result = TypeVar("Result")


class BatchedDraft(BatchedEngine):
    """`ports.DraftEngine` over any `StepModel`."""

    lost: ClassVar = DraftLost
    forgotten: ClassVar = DraftLost

    async def open(self, request: OpenSession) -> Opened:
        """Whatever the target answers with: this model drafts alone."""
        return await _or_lost(self._admit(replace(request, adapter=None)))

    async def propose(self, request: ProposeRound) -> Proposal:
        return await _or_lost(self._loop.submit(request.session, self._propose(request)))

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        """One bit per id; the ids then count as committed. An id beyond the draft's context scores false."""
        return await _or_lost(self._loop.submit(request.session, self._score(request)))

    async def _admit(self, request: OpenSession) -> Opened:
        if not request.prompt:
            raise BadRequest("the prompt is empty; send at least one token", parameter="prompt")
        self._refuse_foreign((*request.prompt, *request.output))
        return await self._sessions.admit(request)

    def _propose(self, request: ProposeRound) -> Work[Proposal]:
        session = self._sessions.find(request.session, request.incarnation)
        self._commit(session, request.base, request.committed)
        began = self._loop.now()
        tokens = session.prefix
        settled = len(tokens)
        ids: list[TokenId] = []
        rows: list[SparseRow] = []
        confidences: list[int] = []
        sharers: list[int] = []
        while len(ids) < request.k and len(tokens) <= self._capabilities.max_length:
            seen = yield Want(session.line, tokens, first=len(tokens) - 1, settled=settled)
            sharers.append(seen.rows)
            guessed = _guess(session, seen.logits, ahead=len(ids))
            if guessed is None:
                break
            token, row = guessed
            ids.append(token)
            rows += [row] if row is not None else []
            confidences += [_confidence(session, seen.logits)] if request.stop is not None else []
            tokens.append(token)
            session.commit(len(session.output), [token])  # the next round's base says how many of them stand
            if token in self._end_tokens or (request.stop is not None and request.stop.ends(confidences)):
                break
        q = tuple(rows) if session.request.verification is not Verification.COUPLED else None
        shared = round(fmean(sharers)) if sharers else 1
        return Proposal(tuple(ids), q, self._loop.now() - began, rows=shared, confidences=tuple(confidences))

    def _score(self, request: ScoreTokens) -> Work[tuple[bool, ...]]:
        session = self._sessions.find(request.session, request.incarnation)
        self._commit(session, request.base, request.ids)
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
            raise DraftLost(f"the round begins at offset {base}; the draft has heard of {len(session.output)} tokens")
        self._refuse_foreign(ids)
        session.commit(base, ids)

    def _refuse_foreign(self, ids: Sequence[TokenId]) -> None:
        refuse_foreign_ids(ids, vocab_size=self._capabilities.vocab_size, parameter="prompt")


def _guess(session: Session, logits: Logits, *, ahead: int) -> tuple[TokenId, SparseRow | None] | None:
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


async def _or_lost(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await work
    except DraftLost:
        raise
    except TandemError as error:
        raise DraftLost(f"the draft cannot go on: {error}") from error
