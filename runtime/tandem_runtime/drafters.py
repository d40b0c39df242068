"""Knows the drafts that need no model: they look up what followed in the text so far, within this process.

Refuses to know how a lookup is done (`domain.suffix`), and to offer a law: a guess is what it is, so in rejection and
block verification q is one-hot, and when to stop may depend on anything (`domain.verification`).

Only committed tokens are read. An output is kept for later sessions when its own is closed, where its tenant is known,
and serves no other tenant. Tokens stay in memory, within a budget, and appear nowhere else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tandem_runtime.domain.errors import DraftForgot
from tandem_runtime.domain.suffix import (
    EarlierOutputs,
    NGramText,
    Owner,
    PredictedText,
    Prediction,
    SuffixText,
    Text,
)
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
    SparseRow,
    TokenId,
    Verification,
)
from tandem_runtime.ports import Clock

PIECE_TOKENS = 256
"""The event loop turns after reading so many: some milliseconds."""
READ_TOKENS = 65_536
"""Of a longer prompt the end is read."""
EARLIER_BYTES = 64 * 2**20
"""For the earlier outputs of all tenants together, by default."""


@dataclass(slots=True)
class _Session:
    request: OpenSession
    text: Text
    output: list[TokenId]
    """What was committed, as far as we heard."""
    life: int
    """Which of its tenant's lives here it belongs to, see `LookupDraft.forget`."""
    guessed: tuple[TokenId, ...] = ()

    def commit(self, base: int, ids: Sequence[TokenId]) -> None:
        """The output is what it was, with our last guess behind it, up to `base`, then `ids`."""
        heard = len(self.output)
        if not heard <= base <= heard + len(self.guessed):
            raise DraftForgot(f"the round begins at offset {base}; this draft has heard of {heard} tokens")
        news = (*self.guessed[: base - heard], *ids)
        self.guessed = ()
        self.output += news
        self.text.hear(news)


@dataclass(slots=True)
class LookupDraft:
    """`ports.DraftEngine` over any `Text`. Belongs to one event loop, and takes microseconds per token on it."""

    drafter: Drafter
    target: Capabilities
    clock: Clock
    end_tokens: frozenset[TokenId] = frozenset()
    earlier: EarlierOutputs = field(default_factory=lambda: EarlierOutputs(EARLIER_BYTES))
    prediction: Prediction | None = None
    """What `Drafter.PREDICTION` looks in."""
    _sessions: dict[SessionId, _Session] = field(default_factory=dict, init=False)
    _lives: Counter[str | None] = field(default_factory=Counter, init=False)
    """How often each tenant was forgotten."""

    async def capabilities(self) -> Capabilities:
        return draft_capabilities(self.drafter, self.target)

    async def open(self, request: OpenSession) -> Opened:
        life = self._lives[request.tenant]
        text = _TEXTS[self.drafter](self, request)
        for piece in _pieces(request.prompt[-READ_TOKENS:]):
            text.read(piece)
            await asyncio.sleep(0)
        text.hear(request.output)
        self._sessions[request.session] = _Session(request, text, list(request.output), life)
        return Opened(self._incarnation)

    async def propose(self, request: ProposeRound) -> Proposal:
        session = self._find(request.session, request.incarnation)
        began = self.clock.monotonic()
        session.commit(request.base, request.committed)
        guess = session.text.guess(request.k)
        ids = session.guessed = tuple(self._sayable(session.request, guess.ids))
        one_hot = tuple(SparseRow((token,), (1.0,)) for token in ids)
        q = None if session.request.verification is Verification.COUPLED else one_hot
        seconds = self.clock.monotonic() - began
        return Proposal(ids, q, seconds, drafter=self.drafter, survivals=guess.survivals[: len(ids)])

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        """One bit per id; the ids then count as committed."""
        session = self._find(request.session, request.incarnation)
        session.commit(request.base, ())
        bits: list[bool] = []
        for piece in _pieces(request.ids):
            for token in piece:
                bits.append(session.text.guess(1).ids == (token,))
                session.commit(len(session.output), (token,))
            await asyncio.sleep(0)
        return tuple(bits)

    async def close(self, session: SessionId) -> None:
        gone = self._sessions.pop(session, None)
        owner = None if gone is None or self.drafter is not Drafter.SUFFIX else _owner(gone.request)
        if gone is None or owner is None:
            return
        for piece in _pieces(gone.output):
            if gone.life != self._lives[owner.tenant]:
                return
            self.earlier.add(owner, piece)
            await asyncio.sleep(0)

    async def forget(self, tenant: str) -> None:
        """Keep nothing of what the tenant was answered, nor of what its sessions that are open now will have been."""
        self._lives[tenant] += 1
        self.earlier.forget(tenant)

    @property
    def _incarnation(self) -> Incarnation:
        return Incarnation(self.drafter)

    def _find(self, session: SessionId, incarnation: Incarnation) -> _Session:
        if incarnation != self._incarnation or session not in self._sessions:
            raise DraftForgot("the session is not known here; open it again with the output so far")
        return self._sessions[session]

    def _sayable(self, request: OpenSession, ids: Sequence[TokenId]) -> Iterator[TokenId]:
        """The guess up to what this request rules out by itself, and to an end token."""
        allowed = request.parameters.allowed_tokens
        for token in ids:
            if (allowed and token not in allowed) or (token,) in request.parameters.bad_words:
                return
            yield token
            if token in self.end_tokens:
                return


def draft_capabilities(drafter: Drafter, target: Capabilities) -> Capabilities:
    """It can all that its target can, in the same ids."""
    return Capabilities(
        model_digest=f"drafter:{drafter}",
        tokenizer_digest=target.tokenizer_digest,
        vocab_size=target.vocab_size,
        max_length=target.max_length,
        determinism="Bitwise",
    )


def _pieces(ids: Sequence[TokenId]) -> Iterator[tuple[TokenId, ...]]:
    rest = iter(ids)
    while piece := tuple(islice(rest, PIECE_TOKENS)):
        yield piece


def _owner(request: OpenSession) -> Owner | None:
    """Whose outputs serve this session, and whom its own will serve: the tenant's with that adapter; None: nobody's."""
    return None if request.tenant is None else Owner(request.tenant, request.adapter)


def _suffix_text(draft: LookupDraft, request: OpenSession) -> SuffixText:
    owner = _owner(request)
    return SuffixText(() if owner is None else draft.earlier.of(owner))


def _predicted_text(draft: LookupDraft, _request: OpenSession) -> PredictedText:
    assert draft.prediction is not None, "a prediction is what this drafter is made of"
    return PredictedText(draft.prediction)


_TEXTS: Mapping[Drafter, Callable[[LookupDraft, OpenSession], Text]] = {
    Drafter.NGRAM: lambda _draft, _request: NGramText(),
    Drafter.SUFFIX: _suffix_text,
    Drafter.PREDICTION: _predicted_text,
}
