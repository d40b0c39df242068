"""Knows one request from its opening to its ending: what must be asked of target and draft next, and what may be shown.

Refuses to do any of it: no await, clock, chance or engine. A driver asks `next()`, does what it says, and tells what
came of it. Only verified tokens are ever shown or counted, and plain decoding, a lost draft and a switched-off draft
are the same path with nothing proposed.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tandem_runtime.domain.stopping import Decode, Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    TokenLogprob,
    Verdict,
    Verification,
    VerifyRound,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants, in tokens. `target_length` and `draft_length` are what one session of each may hold, prompt
    included; `draft_length` None: there is no draft. A prompt must leave room for at least one token."""

    session: SessionId
    prompt: tuple[TokenId, ...]
    parameters: SamplingParameters
    verification: Verification
    endings: Endings
    decode: Decode
    target_length: int
    draft_length: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What the answer cost, for usage and for the `speculation` object of the reply."""

    prompt_tokens: int
    completion_tokens: int
    rounds: int
    speculating: int
    """Rounds with something proposed."""
    proposed: int
    accepted: int
    k_by_round: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenTarget:
    request: OpenSession


@dataclass(frozen=True, slots=True)
class OpenDraft:
    request: OpenSession


@dataclass(frozen=True, slots=True)
class Choose:
    """Say K for the next round, at most `most`."""

    most: int


@dataclass(frozen=True, slots=True)
class Propose:
    request: ProposeRound


@dataclass(frozen=True, slots=True)
class Verify:
    request: VerifyRound


@dataclass(frozen=True, slots=True)
class Run:
    """Take the next verdict of this run; the same command comes again until the run is over."""

    request: RunRounds


@dataclass(frozen=True, slots=True)
class Emit:
    """Verified tokens, in order, with the text that may be shown by now (it can be empty, and can lag behind)."""

    tokens: tuple[TokenId, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    counts: Counts


Command: TypeAlias = OpenTarget | OpenDraft | Choose | Propose | Verify | Run | Emit | Finish


class Session:
    """The machine. Heads only: bodies follow.

    events: opened(Opened), draft_opened(Opened), chosen(k), proposed(Proposal), verified(Verdict, spent) -> Round,
    run_over(), draft_lost(), target_lost(cause), cancelled()
    """

    def __init__(self, request: Request) -> None:
        self.request = request

    def next(self) -> Command:
        raise NotImplementedError

    def opened(self, opened: Opened) -> None: ...
    def draft_opened(self, opened: Opened) -> None: ...
    def chosen(self, k: int) -> None: ...
    def proposed(self, proposal: Proposal) -> None: ...
    def verified(self, verdict: Verdict) -> Round:
        raise NotImplementedError

    def run_over(self) -> None: ...
    def draft_lost(self) -> None: ...
    def target_lost(self, cause: Exception) -> None: ...
    def cancelled(self) -> None: ...
