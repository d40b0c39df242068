"""Knows a target as the driver sees it: sessions whose proposals are judged, round by round or in a run of its own.

Refuses to know the wire, deadlines, and what model stands behind the steps.

A session moves only on the model's thread. Its state is the prompt, the committed output, and the verdict of the last
verified round: the same round again returns that verdict, so that a caller who lost a reply may ask once more (with
another proposal it is not the same round, and is stale). A run
commits tokens that its reader may never see, since the step under way goes on when the reader leaves; so a later round
may begin at any offset within the run, and what the run made beyond it is taken back. Any other offset is stale.

A proposal that no draft can have drawn is refused before anything is done for it: an id outside the vocabulary, or q
that is no law. The session stays as it was.

How likely a prompt's tokens were is read off the rows before each. Those of a prefix that memory knows are computed
again for it, as memory holds keys and values and no logits; a few rows at a time, since a row of logits is as wide as
the vocabulary.
"""

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from tandem_runtime.domain.errors import BadRequest, NotANumber, SessionLost, StaleOffset, TargetLost
from tandem_runtime.domain.tokens import (
    Opened,
    OpenSession,
    PromptRead,
    Proposal,
    ReadPrompt,
    RunRounds,
    TokenId,
    TokenLogprob,
    Verdict,
    VerifyRound,
    refuse_foreign_ids,
)
from tandem_runtime.domain.verification import Verified, refuse_bad_proposal
from tandem_runtime.engines.batched import BatchedEngine
from tandem_runtime.engines.jobs import Work
from tandem_runtime.engines.lines import Want
from tandem_runtime.engines.rejection import verify
from tandem_runtime.engines.sampler import refuse_lawless, report_logprob
from tandem_runtime.engines.sessions import Session
from tandem_runtime.engines.step_loop import Emit
from tandem_runtime.ports import Logits

__all__ = ["BatchedTarget"]

ROWS_AT_ONCE = 64
"""Rows of logits that a prompt's reading holds: 38 MB in fp32 over 150,000 tokens."""


class BatchedTarget(BatchedEngine):
    """`ports.TargetEngine` over any `StepModel`."""

    lost: ClassVar = TargetLost
    forgotten: ClassVar = SessionLost

    async def open(self, request: OpenSession) -> Opened:
        """Raises BadRequest for a session that this model can never serve, Overloaded when every slot is taken."""
        self._refuse(request)
        return await self._sessions.admit(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        return await self._loop.submit(request.session, self._verify(request))

    def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        return self._loop.stream(request.session, lambda emit: self._run(request, emit))

    async def read(self, request: ReadPrompt) -> PromptRead:
        """`ports.PromptReader`."""
        return await self._loop.submit(request.session, self._read(request))

    def _refuse(self, request: OpenSession) -> None:
        limit, vocab = self._capabilities.max_length, self._capabilities.vocab_size
        length = len(request.prompt)
        if length == 0:
            raise BadRequest("the prompt is empty; send at least one token", parameter="prompt")
        if length > limit:
            raise BadRequest(
                f"the prompt has {length} tokens; this model holds {limit} with the answer", parameter="prompt"
            )
        if length + request.max_tokens > limit:
            raise BadRequest(
                f"max_tokens is {request.max_tokens} and the prompt has {length} tokens; this model holds {limit} in "
                f"all: ask for {limit - length} at most",
                parameter="max_tokens",
            )
        refuse_foreign_ids((*request.prompt, *request.output), vocab_size=vocab, parameter="prompt")

    def _verify(self, request: VerifyRound) -> Work[Verdict]:
        session = self._sessions.find(request.session, request.incarnation)
        if session.last is not None and session.last[0].round == request.round:
            return _replayed(*session.last, request)
        vocab_size = self._capabilities.vocab_size
        refuse_bad_proposal(request.proposal, session.request.verification, vocab_size=vocab_size)
        _begin_at(session, request.offset)
        verdict = yield from self._round(session, request.round, request.proposal, request.survivals)
        session.last, session.floor = (request, verdict), len(session.output)
        self._loop.expect(request.session, session.request.priority)
        return verdict

    def _run(self, request: RunRounds, emit: Emit[Verdict]) -> Work[None]:
        session = self._sessions.find(request.session, request.incarnation)
        _begin_at(session, request.offset)
        session.last = None
        for step in range(request.max_tokens):
            verdict = yield from self._round(session, request.round + step, Proposal())
            emit(verdict)
            if verdict.token in self._end_tokens:
                return

    def _read(self, request: ReadPrompt) -> Work[PromptRead]:
        session = self._sessions.find(request.session, request.incarnation)
        prompt, end = session.request.prompt, request.base + request.count
        if not 1 <= request.base < end <= len(prompt):
            raise BadRequest(
                f"tokens {request.base} to {end - 1} are asked for, of a prompt whose last is {len(prompt) - 1}; name"
                " one at least, and not the first",
                parameter="read_prompt.base",
            )
        known: list[TokenLogprob] = []
        for start in range(request.base, end, ROWS_AT_ONCE):
            told = prompt[start : min(start + ROWS_AT_ONCE, end)]
            before = start + len(told) - 1
            seen = yield Want(session.line, [*prompt[:before]], first=start - 1, settled=before)
            for row in seen.logits:
                refuse_lawless(row.max())
            known += _reported(seen.logits, told, request.alternatives)
        return PromptRead(tuple(known))

    def _round(
        self, session: Session, number: int, proposed: Proposal, survivals: tuple[float, ...] = ()
    ) -> Work[Verdict]:
        """One round: forward, judge, commit. What the step left out of a proposal was never proposed to it."""
        prefix, offset = session.prefix, len(session.output)
        self._refuse_overflow(len(prefix), len(proposed.ids))
        tokens, last = [*prefix, *proposed.ids], len(prefix) - 1
        seen = yield Want(session.line, tokens, first=last, settled=len(prefix), survivals=survivals)
        proposal = proposed.first(len(seen.logits) - 1)
        verified = _judged(session, seen.logits, proposal)
        emitted = [*proposal.ids[: verified.accepted], verified.token]
        session.commit(offset, emitted)
        return Verdict(
            round=number,
            offset=offset,
            accepted=verified.accepted,
            token=verified.token,
            logprobs=_logprobs(seen.logits, emitted, session.request.logprobs),
            queue_seconds=seen.queue_seconds,
            forward_seconds=seen.forward_seconds,
            kv_used=seen.kv_used,
            credits=tuple(map(float, verified.credits)),
            rows=seen.rows,
            beside=seen.beside,
            unjudged=len(proposed.ids) - len(proposal.ids),
        )

    def _refuse_overflow(self, length: int, proposed: int) -> None:
        limit = self._capabilities.max_length
        if length + proposed > limit:
            raise BadRequest(f"{length} tokens and a proposal of {proposed} exceed this model's {limit}")


def _judged(session: Session, logits: Logits, proposal: Proposal) -> Verified:
    """The verdict over processed rows. Raises NothingAdmitted where the request's rules, not the model, leave no token
    to begin the round with; behind a token that stands, the next round finds that."""
    rows = session.processed(logits, proposal.ids)
    asked, offset = session.request.verification, len(session.output)
    try:
        return verify(rows, proposal, session.parameters, verification=asked, offset=offset)
    except NotANumber as error:
        raise session.cause_of(error, logits, rows) from error


def _replayed(first: VerifyRound, verdict: Verdict, again: VerifyRound) -> Verdict:
    """The stored verdict, if it is about what is asked."""
    if (first.offset, first.proposal.ids) != (again.offset, again.proposal.ids):
        raise StaleOffset(f"round {again.round} was about another proposal, at offset {first.offset}")
    return verdict


def _begin_at(session: Session, offset: int) -> None:
    """Take back what a run made beyond `offset`. Raises StaleOffset where nothing may be taken back or is missing."""
    committed = len(session.output)
    if not session.floor <= offset <= committed:
        raise StaleOffset(f"the round begins at offset {offset}; the session has committed {committed} tokens")
    session.commit(offset, ())
    session.floor = offset


def _logprobs(logits: Logits, emitted: Sequence[TokenId], alternatives: int | None) -> tuple[TokenLogprob, ...] | None:
    return None if alternatives is None else _reported(logits, emitted, alternatives)


def _reported(logits: Logits, tokens: Sequence[TokenId], alternatives: int) -> tuple[TokenLogprob, ...]:
    """Rows behind the last token's are left out."""
    return tuple(
        report_logprob(row, token, alternatives=alternatives) for row, token in zip(logits, tokens, strict=False)
    )
