"""Knows the seams of the runtime: what a driver may ask of engines, and an engine of a model.

Refuses to know who implements them: scripted or torch engines, in this process or behind gRPC.

Whoever waits for an engine keeps its deadline by cancelling the call. So every call ends when it is cancelled, though
what it waits for never comes, and none swallows that: nothing else could free its caller. (A task for each answer, left
behind where it does not end, could; it costs a processor some 30 to 40 microseconds for each token.)
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tandem_runtime.domain.adapters import AdapterDigest, AdapterFacts, AdapterSource
from tandem_runtime.domain.blocks import BlockId, Blocks, Copy
from tandem_runtime.domain.tokens import (
    Capabilities,
    Grammar,
    Opened,
    OpenSession,
    PromptRead,
    Proposal,
    ProposeRound,
    ReadPrompt,
    Round,
    RunRounds,
    SamplingDefaults,
    ScoreTokens,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.domain.tool_calls import ToolFormat

Logits = npt.NDArray[np.floating]


class TargetEngine(Protocol):
    """Holds sessions and judges proposals. Raises TargetLost, SessionLost, StaleOffset, Overloaded, BadRequest."""

    async def capabilities(self) -> Capabilities: ...

    async def open(self, request: OpenSession) -> Opened:
        """Take the session in; opening a known session again replaces it."""
        ...

    async def verify(self, request: VerifyRound) -> Verdict:
        """Idempotent per (session, incarnation, round): the same round again returns the stored verdict."""
        ...

    def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        """Equal to `max_tokens` empty verifies in a row; ends after an end token. Closing the iterator ends it."""
        ...

    async def close(self, session: SessionId) -> None:
        """Free what the session holds, at the next step at the latest. Idempotent; an unknown session is fine."""
        ...


@runtime_checkable
class PromptReader(Protocol):
    """A target that tells of prompts how likely it finds them; others have no such method."""

    async def read(self, request: ReadPrompt) -> PromptRead:
        """Of a session that is open. What is known of the prompt's beginning is computed anew for it where its logits
        are asked for, since memory holds none. Repeatable; the session's rounds go on as if it had not been asked."""
        ...


class DraftEngine(Protocol):
    """Guesses what the target would say. Raises DraftLost where it is of no use to anyone now, DraftForgot where this
    session has to be opened again, and BadRequest, Overloaded or NotANumber of this request. Text goes on whatever it
    raises, but whose trouble it is decides who goes on without it, see `domain.patience`."""

    async def capabilities(self) -> Capabilities: ...

    async def open(self, request: OpenSession) -> Opened: ...

    async def propose(self, request: ProposeRound) -> Proposal:
        """At most `k` tokens; fewer when the draft cannot go on (its context is full)."""
        ...

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        """One bit per id: would the coupled draft have proposed it there? In one chunked pass. None: it is not to be
        asked now, and has heard of none of them."""
        ...

    async def close(self, session: SessionId) -> None: ...


@runtime_checkable
class Remembering(Protocol):
    """An engine of either kind that keeps something of texts beyond their sessions; others have no such method."""

    async def forget(self, tenant: str) -> None:
        """Nothing that was kept of the tenant's texts is used again, nor what its open sessions would leave."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence in a step: tokens stand at `start`, `start + 1`, ...; the last `outputs` yield logits.

    Position p stands in block `blocks[p // block_tokens]` of the model's memory; a block that no other row of the step
    writes into."""

    blocks: tuple[BlockId, ...]
    start: int
    tokens: tuple[TokenId, ...]
    outputs: int
    adapter: AdapterDigest | None = None
    """One that the model has installed; None: the model alone."""


@dataclass(frozen=True, slots=True)
class Toll:
    """What a model's step costs at the least, see `engines.toll`: bytes of all weights and of one position's keys and
    values, weights of the layers and of the head, and products for each position that a token attends to."""

    weight_bytes: int = 0
    position_bytes: int = 0
    layer_weights: int = 0
    head_weights: int = 0
    position_products: int = 0


class StepModel(Protocol):
    """A model as its step loop sees it: KV memory in blocks, and one forward pass over many rows. Not thread-safe."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def max_sessions(self) -> int: ...

    @property
    def determinism(self) -> str: ...

    @property
    def blocks(self) -> Blocks:
        """The books over its memory, which its step loop keeps. They hold one session of `max_length` at least."""
        ...

    @property
    def block_bytes(self) -> int:
        """Memory that one block takes."""
        ...

    @property
    def toll(self) -> Toll: ...

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        """For each row [outputs, vocab] logits. What its blocks held from `start` on is overwritten, so that starting
        earlier is the roll-back; below `start` they hold what earlier rows wrote. The same rows again give the same.
        Raises Overloaded where memory does not suffice for this step."""
        ...

    def copy(self, copies: Sequence[Copy]) -> None:
        """Carry these out, in order."""
        ...


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter in memory. After `install`, called on the model's thread, rows may name its digest."""

    digest: AdapterDigest
    rank: int
    bytes: int
    install: Callable[[], None]


class AdaptableModel(Protocol):
    """A model that takes adapters in and lets them go while it serves."""

    def read_adapter(self, folder: Path) -> ReadAdapter:
        """Blocks while files are read, on any thread. Raises ModelRefused naming file and field or tensor."""
        ...

    def drop_adapter(self, digest: AdapterDigest) -> None:
        """On the model's thread; no row names it any more."""
        ...


class AdapterDesk(Protocol):
    """Where adapters of a running engine are loaded and unloaded."""

    @property
    def loaded(self) -> tuple[AdapterFacts, ...]: ...

    async def load(self, name: str, source: AdapterSource) -> AdapterFacts:
        """Lead `name` to what lies there, for sessions that open from now on.

        Raises BadRequest for a name or a place that is not allowed, ModelRefused for what lies there, Overloaded."""
        ...

    async def unload(self, name: str) -> None:
        """Sessions that have it go on to their ends; none begins. Raises NotLoaded."""
        ...


class Matcher(Protocol):
    """Follows one output through a grammar."""

    def admitted(self) -> npt.NDArray[np.bool_]:
        """[vocab]: what may follow what was said so far. All false behind a token that the grammar did not admit.

        Raises BadRequest where the grammar cannot be followed further; whether it does depends on what was said and
        was not taken back, on nothing else."""
        ...

    def advance(self, token: TokenId) -> None: ...

    def roll_back(self, count: int) -> None:
        """Take back the last `count` tokens."""
        ...


class Grammars(Protocol):
    """Compiles grammars over one vocabulary."""

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the start of an output. May take long, and may be called on any thread. Raises BadRequest."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def end_tokens(self) -> frozenset[TokenId]: ...

    @property
    def defaults(self) -> SamplingDefaults: ...

    def encode(self, text: str) -> tuple[TokenId, ...]: ...

    def spellings(self, text: str) -> tuple[tuple[TokenId, ...], ...]:
        """The ways in which `text` may stand within another: as it is, and behind a space. No special tokens."""
        ...

    def continuation(self, text: str) -> tuple[TokenId, ...]:
        """`text` as it stands behind another: as it is, and no special tokens."""
        ...

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls of tools; None: its template takes no tools, or it writes them in no known way."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[TokenId, ...]:
        """Through the model's chat template, ready for the assistant's turn. Raises BadRequest if there is none."""
        ...

    def decode(self, ids: Sequence[TokenId]) -> str:
        """Bytes of all ids joined; an incomplete code point at the end shows as U+FFFD."""
        ...

    def decode_calls(self, ids: Sequence[TokenId]) -> str:
        """Likewise, and what opens calls of tools is text, also where it is a special token."""
        ...


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970: what slot numbers are made of, so that every gateway agrees."""
        ...


class Observer(Protocol):
    """Told what happened, after the fact; must not block or raise."""

    def round(self, round: Round) -> None: ...
