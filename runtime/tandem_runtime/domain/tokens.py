"""Knows the values that a speculation round is made of: requests, proposals, verdicts, rounds.

Refuses to know tensors, protobuf, clocks and text.

Words (the same in code, wire, metrics and docs). A *proposal* is K token ids offered by a draft. A *verdict* says how
many of them the target *accepted* and gives the one token that follows: *recovered* after a rejection, *bonus* after a
full accept (before a place at which nothing may follow, it is the last of those that stand). K = 0 is ordinary
decoding: an empty proposal, whose verdict is one token. *Offset* counts the tokens committed by the session so far,
prompt excluded; position t of the output is the token at offset t.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from math import prod
from typing import NewType, TypeAlias

from tandem_runtime.domain.adapters import AdapterFacts
from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.values import value

TokenId: TypeAlias = int
SessionId = NewType("SessionId", str)
Incarnation = NewType("Incarnation", str)
"""One life of an engine's process: a restarted engine has another, so that stale sessions are told apart."""

SEEDS = 2**64
"""How many there are; a seed is one of 0 .. SEEDS - 1."""


class Verification(StrEnum):
    """How proposals are judged; see `domain.verification` for the laws, `domain.block` for the block. Best first."""

    COUPLED = "Coupled"
    BLOCK = "Block"
    REJECTION = "Rejection"


class Drafter(StrEnum):
    """What makes proposals: a model, or a lookup in the text so far or in what a request predicts, within the
    gateway."""

    MODEL = "Model"
    NGRAM = "NGram"
    SUFFIX = "Suffix"
    PREDICTION = "Prediction"


class Priority(IntEnum):
    """How urgent a session is; the least number goes first."""

    INTERACTIVE = 0
    """Somebody reads along."""
    BATCH = 1
    """Somebody waits, but not for every token."""
    BACKGROUND = 2
    """Nobody waits: answers made again to be compared, drafts that are tried out."""


class FinishReason(StrEnum):
    """Why the output ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "JsonSchema"
    REGEX = "Regex"
    CALLS = "Calls"
    """Begins where the model begins a call of a tool; `text` is JSON with the `format` in which it writes calls (see
    `domain.tool_calls`), and `call`, the JSON schema of one."""
    LARK = "Lark"
    """Rules in Lark, in the dialect of llguidance; `start` is the whole output."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What texts an output may become: all that `text`, a JSON schema, a regular expression or Lark, describes; or
    anything, but with calls that do."""

    kind: GrammarKind
    text: str

    @property
    def asked_by(self) -> str:
        """The field of a request that asks for such."""
        fields = {GrammarKind.CALLS: "tools", GrammarKind.LARK: "structured_outputs.grammar"}
        return fields.get(self.kind, "response_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a request means that leaves a field out: what its model's makers advise, or else the plain law."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """What shapes the target's law at every position, the same on both sides of the wire.

    `temperature` 0 is greedy with ties to the lowest id. `top_k` 0 and `top_p` 1 and `min_p` 0 are off. `logit_bias`
    holds (token, bias) pairs in token order. `seed` is below SEEDS; `choice` tells the n choices of one request apart.
    What the fields from `grammar` on do, and in which order, is told in `domain.processors`.
    """

    seed: int
    choice: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    grammar: Grammar | None = None
    allowed_tokens: tuple[TokenId, ...] = ()
    """Nothing else may be said; empty: all may."""
    bad_words: tuple[tuple[TokenId, ...], ...] = ()
    """Sequences that may not be said; one of a single id bans that token."""
    min_tokens: int = 0
    end_tokens: tuple[TokenId, ...] = ()
    """What `min_tokens` holds back."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether a row needs nothing but a bias before it becomes a law: no history, no mask."""
        return self == replace(self.after_processors(), logit_bias=self.logit_bias)

    def after_processors(self) -> "SamplingParameters":
        """What is left to do once `domain.processors` has been applied to a row: how it becomes a law, and chance."""
        return SamplingParameters(
            seed=self.seed,
            choice=self.choice,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )


@dataclass(frozen=True, slots=True)
class SparseRow:
    """q at one position as it was really sampled: `ids[i]` had probability `probabilities[i]`, every other id none.

    Probabilities are float32 values summing to 1 within rounding; a one-hot drafter sends one id with probability 1.
    """

    ids: tuple[TokenId, ...]
    probabilities: tuple[float, ...]


@value(frozen=True, slots=True)
class Proposal:
    """K guesses and, in rejection and block mode, the K distributions they were drawn from (absent in coupled mode)."""

    ids: tuple[TokenId, ...] = ()
    q: tuple[SparseRow, ...] | None = None
    draft_seconds: float = 0.0
    rows: int = 1
    """How many sessions shared the draft's steps, this one included: the mean over its steps, rounded."""
    drafter: Drafter = Drafter.MODEL
    """Who made it."""
    survivals: tuple[float, ...] = ()
    """By position, the believed chance that it and all before it stand, where who made the guess has a belief of this
    very guess. In rejection and block mode made of committed text and q alone, never of what was drawn."""
    prefill: bool = False
    """The drafter read the session's whole text for it."""
    confidences: tuple[int, ...] = ()
    """How sure the draft was of each guess, see `Stop`; empty where it was not asked."""
    ahead: "Ahead | None" = None
    """What came of drafting ahead for this proposal; None: nothing was."""

    def of(self, drafter: Drafter, survivals: tuple[float, ...], *, prefill: bool) -> "Proposal":
        """The same, with what the asker knows of it."""
        return Proposal(
            self.ids,
            self.q,
            self.draft_seconds,
            self.rows,
            drafter,
            survivals,
            prefill,
            self.confidences,
            self.ahead,
        )

    def first(self, k: int) -> "Proposal":
        """Its first `k` guesses."""
        q = None if self.q is None else self.q[:k]
        return replace(self, ids=self.ids[:k], q=q, survivals=self.survivals[:k], confidences=self.confidences[:k])


NOTHING = Proposal()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's raw log-probability of an emitted token, and of the likeliest ones in `top`, likeliest first."""

    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()


@value(frozen=True, slots=True)
class Verdict:
    """What the target says of one proposal: `accepted` of its ids stand, then `token` follows.

    `logprobs` has accepted + 1 entries when the session asked for them. Seconds are the target's own.

    `credits` holds one estimate of acceptance, 0 to 1, for each examined position: min(1, p/q) in rejection mode, p(x)
    for a certain guess. Empty where the target tells none, as in coupled mode: there it is the match bit, which
    `accepted` says already.
    """

    round: int
    offset: int
    accepted: int
    token: TokenId
    logprobs: tuple[TokenLogprob, ...] | None = None
    queue_seconds: float = 0.0
    forward_seconds: float = 0.0
    kv_used: float = 0.0
    """Share of the engine's KV memory in use, 0 to 1."""
    credits: tuple[float, ...] = ()
    rows: int = 1
    """How many sessions shared the step that judged, this one included."""
    unjudged: int = 0
    """How many proposed tokens, the last ones, were left out: the step had better use for their slots. The verdict is
    that on the proposal without them."""
    beside: int = 0
    """How many guesses of other sessions the step judged: they made it longer."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Begin or resume a session: `output` holds the tokens committed before (empty at first), apart from the prompt.

    `max_tokens` bounds the whole output, what `output` holds included.
    """

    session: SessionId
    prompt: tuple[TokenId, ...]
    output: tuple[TokenId, ...]
    parameters: SamplingParameters
    verification: Verification
    max_tokens: int
    logprobs: int | None = None
    """How many alternatives to report per token; None: report nothing."""
    tenant: str | None = None
    """With whose sessions an engine may share what it has computed; None: with none, everything is computed anew.
    Also on whose account it is computed, see `domain.batching`."""
    adapter: str | None = None
    """What the model answers with, by its name or its digest; None: the model alone. A draft model knows
    none and drafts by itself; earlier outputs are looked in by it."""
    weight: float = 1.0
    """The tenant's among others; above 0."""
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine holds the session. Prefill happens with the first round."""

    incarnation: Incarnation
    cached_tokens: int = 0


@value(frozen=True, slots=True)
class VerifyRound:
    """Judge `proposal`, which continues the output at `offset`. The same round again returns the stored verdict.

    `survivals[i]` is the asker's belief that tokens 1 to i + 1 of the proposal all stand, as it was before anything of
    the round was drawn: by it a target leaves out slots that its step has better use for (see `domain.budget`), so a
    look at the drawn tokens here would break the law. They fall. One per token that was asked for, so they may be more
    than the tokens: a draft that drew an end token stops there. Or none: all of it is judged."""

    session: SessionId
    incarnation: Incarnation
    round: int
    offset: int
    proposal: Proposal
    survivals: tuple[float, ...] = ()


@value(frozen=True, slots=True)
class RunRounds:
    """Go on alone from `offset` for up to `max_tokens` empty rounds, numbered from `round`, or to an end token."""

    session: SessionId
    incarnation: Incarnation
    round: int
    offset: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """Say how likely `count` tokens of the prompt were from its token `base` on, each behind all before it, and which
    `alternatives` were likeliest there. The first token, 0, has none before it, so `base` is above that."""

    session: SessionId
    incarnation: Incarnation
    base: int
    count: int
    alternatives: int


@dataclass(frozen=True, slots=True)
class PromptRead:
    """The target's raw log-probabilities of tokens of a prompt, one after the other."""

    logprobs: tuple[TokenLogprob, ...]


CONFIDENCE_KINDS = 16


def kind_of(confidence: int) -> int:
    """Confidences of 0 to 255 that are alike."""
    return confidence // CONFIDENCE_KINDS


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a draft ends its proposal early: behind the guess at which the chance that all of them stand is `least` or
    less, with `acceptance[kind]` that of one guess by the kind of its confidence. See `domain.calibration`."""

    least: float
    acceptance: tuple[float, ...]

    def ends(self, confidences: Iterable[int]) -> bool:
        """Whether a proposal whose guesses have these confidences is complete."""
        return prod(self.acceptance[kind_of(each)] for each in confidences) <= self.least


@value(frozen=True, slots=True)
class Outlook:
    """That a draft is to prepare its next answer while this one is verified; see `domain.ahead`."""

    survivals: tuple[float, ...]
    """The believed chance that the first 1, 2, ... k tokens of this round all stand."""
    branches: int
    """How many verdicts to prepare for."""
    enough: int | None = None
    """So many tokens are to be offered at once rather than k later: what was prepared beyond costs no time. None: k."""

    def first(self, k: int) -> "Outlook":
        """The same for a round of the first k tokens."""
        return self if k >= len(self.survivals) else replace(self, survivals=self.survivals[:k])


@value(frozen=True, slots=True)
class ProposeRound:
    """Offer `k` tokens after the output so far. `committed` holds the tokens committed since `base` (an offset)."""

    session: SessionId
    incarnation: Incarnation
    base: int
    committed: tuple[TokenId, ...]
    k: int
    stop: Stop | None = None
    """Offer fewer by this, and tell confidences. A draft that has none ignores it."""
    outlook: Outlook | None = None
    """Go on once this is answered. A draft that cannot draft ahead ignores it."""


@value(frozen=True, slots=True)
class ScoreTokens:
    """For each of `ids`, emitted by the target from `base` on: would this draft have proposed it? (coupled match)"""

    session: SessionId
    incarnation: Incarnation
    base: int
    ids: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, told at connection. All but `adapters` stays as long as the engine does."""

    model_digest: str
    tokenizer_digest: str
    vocab_size: int
    max_length: int
    """Prompt plus output tokens that one session may hold."""
    determinism: str
    """`Bitwise` or `NearTie`."""
    verifications: tuple[Verification, ...] = tuple(Verification)
    adapters: tuple[AdapterFacts, ...] = ()


@value(frozen=True, slots=True)
class Ahead:
    """What came of a proposal that was drafted while the one before it was verified."""

    hit: bool
    """Whether it continued what the target said, so that nothing had to be drafted in its place."""
    wasted: int
    """Tokens that were drafted for outcomes that did not happen."""


@value(frozen=True, slots=True)
class Round:
    """One propose-verify exchange as controller, metrics and evidence read it: the one definition for all three.

    A token that the target makes alone is a round with nothing proposed. `accepted` counts proposed tokens that are in
    the answer; `cut` counts proposed tokens beyond an ending, which are neither accepted nor rejected, as are
    those that were not judged.
    """

    proposed: int
    accepted: int
    emitted: int
    """Tokens that this round added to the answer: accepted + 1, less what lies beyond an ending."""
    draft_seconds: float
    """As the gateway sees it: network and the draft's own work."""
    verify_seconds: float
    """As the gateway sees it: queue, network and forward."""
    forward_seconds: float = 0.0
    """The target's own share of `verify_seconds`."""
    drafting_seconds: float = 0.0
    """The draft's own share of `draft_seconds`."""
    cut: int = 0
    seconds: float = 0.0
    """The whole round: from the moment the one before it ended (or this one could begin) to the verdict, less the time
    for which the reader of the answer kept the driver waiting. The sum over rounds is the session's decode time."""
    started: float = 0.0
    """Wall time, seconds since 1970."""
    prefill: bool = False
    """The target or the draft read the prompt in this round; decode costs and switchback slots leave it out."""
    credits: tuple[float, ...] = ()
    """One estimate of acceptance, 0 to 1, for each examined position, where the target told them; see `Verdict`."""
    confidences: tuple[int, ...] = ()
    """The draft's confidence in each examined position, where it was asked for them."""
    rows: int = 1
    """How many sessions shared the target's step: the batch that its cost depends on."""
    draft_rows: int = 1
    """How many sessions shared the draft's steps."""
    ahead: Ahead | None = None
    """None: nothing was drafted ahead for this round."""
    drafter: Drafter = Drafter.MODEL
    """Who made the proposal, where there was one."""
    unjudged: int = 0
    """Proposed tokens that the target left out for want of room: neither accepted nor rejected."""
    beside: int = 0
    """Guesses of other sessions that the target judged in the same step."""
    prepares: bool = False
    """The draft was asked to draft ahead while this round was verified."""
    queue_seconds: float = 0.0
    """For how long the target had other steps to take first: a part of `verify_seconds`."""

    @property
    def evidence(self) -> tuple[float, ...]:
        """For each examined position how far it speaks for acceptance: the target's credit, or the bare outcome."""
        return self.credits or (1.0,) * self.accepted + (0.0,) * (self.examined - self.accepted)

    @property
    def examined(self) -> int:
        """What conditional acceptance divides by: accepted + 1 if the answer holds a recovered token, else accepted."""
        return self.accepted + (1 if self.accepted + self.cut < self.judged else 0)

    @property
    def judged(self) -> int:
        """Proposed tokens that the target computed: what its seconds were spent on."""
        return self.proposed - self.unjudged

    @property
    def ended(self) -> float:
        """Wall time, seconds since 1970."""
        return self.started + self.seconds


def refuse_foreign_ids(ids: Iterable[TokenId], *, vocab_size: int, parameter: str) -> None:
    """Raises BadRequest when an id lies outside the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise BadRequest(
                f"{parameter} holds token id {token}; this model knows 0 to {vocab_size - 1}", parameter=parameter
            )


def refuse_bad_seed(seed: int) -> None:
    """Raises BadRequest for a number that is no seed: -1, say, and 2^64."""
    if not 0 <= seed < SEEDS:
        raise BadRequest(f"seed is {seed}; give a whole number from 0 to {SEEDS - 1}", parameter="seed")
