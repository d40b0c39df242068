"""Knows the words between a session and its driver: the request, the commands, and what a round cost.

Refuses to know when each is said: that is the session's.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.stopping import Decode, Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    OpenSession,
    Priority,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    TokenLogprob,
    Verification,
    VerifyRound,
)
from tandem_runtime.domain.values import value


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants, in tokens. `target_length` and `draft_length` are what one session of each may hold, prompt
    included; `draft_length` None: there is no draft. A prompt must leave room for at least one token. `vocab_size` is
    the target's; None: proposals are sent on as they come."""

    session: SessionId
    prompt: tuple[TokenId, ...]
    parameters: SamplingParameters
    verification: Verification
    endings: Endings
    decode: Decode
    target_length: int
    draft_length: int | None = None
    logprobs: int | None = None
    vocab_size: int | None = None
    tenant: str | None = None
    adapter: AdapterDigest | None = None
    """What the target answers with: by content, so that a session that is opened again goes on with the same."""
    weight: float = 1.0
    priority: Priority = Priority.INTERACTIVE
    """These two and the tenant as in `OpenSession`."""
    draft_is_free: bool = False
    """Asking the draft costs next to nothing: one that had nothing to offer is asked again behind the next token."""


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
    rejected_at: tuple[int, ...] = ()
    """For each rejection the position in its proposal, from 0."""


@dataclass(frozen=True, slots=True)
class OpenTarget:
    request: OpenSession


@dataclass(frozen=True, slots=True)
class OpenDraft:
    request: OpenSession


@value(frozen=True, slots=True)
class Choose:
    """Say K for the next round, at most `most`."""

    most: int


@value(frozen=True, slots=True)
class Propose:
    request: ProposeRound


@value(frozen=True, slots=True)
class Verify:
    request: VerifyRound


@value(frozen=True, slots=True)
class Run:
    """Take the next verdict of this run; the same command comes again until the run is over."""

    request: RunRounds


@value(frozen=True, slots=True)
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


@value(frozen=True, slots=True)
class Spent:
    """How long the round took, as `Round` defines it."""

    verify_seconds: float
    draft_seconds: float = 0.0
    seconds: float = 0.0
    started: float = 0.0
