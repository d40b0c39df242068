"""Knows what an engine keeps of one session between rounds, and how to take sessions in and let them go.

Refuses to know how proposals are made or judged.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.blocks import Key, root_key
from tandem_runtime.domain.errors import BadRequest, DraftLost, NotANumber, NotLoaded, TandemError, TargetLost
from tandem_runtime.domain.processors import refuse_unfit
from tandem_runtime.domain.tokens import (
    Capabilities,
    Grammar,
    Incarnation,
    Opened,
    OpenSession,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.lines import Line
from tandem_runtime.engines.processors import Processors
from tandem_runtime.engines.step_loop import StepLoop
from tandem_runtime.ports import Grammars, Logits, Matcher, StepModel

if TYPE_CHECKING:
    from tandem_runtime.engines.ahead import Preparation

__all__ = ["EngineFacts", "Session", "Sessions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine is told about itself and its model when it starts."""

    model_digest: str
    tokenizer_digest: str
    incarnation: Incarnation
    end_tokens: frozenset[TokenId] = frozenset()
    grammars: Grammars | None = None
    """None: this model has no tokenizer, so no grammar can be followed."""
    adapters: Adapters | None = None
    """None: this model takes none."""

    def capabilities(self, model: StepModel) -> Capabilities:
        return Capabilities(
            model_digest=self.model_digest,
            tokenizer_digest=self.tokenizer_digest,
            vocab_size=model.vocab_size,
            max_length=model.max_length,
            determinism=model.determinism,
        )


@dataclass(slots=True)
class Session:
    """`output` holds the committed ids. A run's ids are committed too, but from `floor` on they may be taken back."""

    request: OpenSession
    line: Line
    output: list[TokenId]
    floor: int
    processors: Processors | None = None
    """None: the request's law depends on a row's logits alone, and the sampler needs nothing but its parameters."""
    last: tuple[VerifyRound, Verdict] | None = None
    """The last round asked for by `verify`, and its verdict: what a repeated request is answered with."""

    ahead: "Preparation | None" = None
    """What goes on for it while nothing is asked of it."""

    @property
    def prefix(self) -> list[TokenId]:
        """All ids so far, prompt and output, as a list of its own."""
        return [*self.request.prompt, *self.output]

    @property
    def parameters(self) -> SamplingParameters:
        """What is left to do to processed rows."""
        asked = self.request.parameters
        return asked if self.processors is None else asked.after_processors()

    def commit(self, at: int, ids: Sequence[TokenId]) -> None:
        """The output is what it was up to the offset `at`, then `ids`."""
        self.output[at:] = ids
        if self.processors is not None:
            self.processors.commit(at, ids)

    @contextmanager
    def supposing(self, at: int, ids: Sequence[TokenId]) -> Iterator[None]:
        """Within, the output is what it was up to the offset `at`, then `ids`."""
        said = self.output[at:]
        self.commit(at, ids)
        try:
            yield
        finally:
            self.commit(at, said)

    def let_go(self) -> None:
        """Nothing goes on for it any more."""
        if self.ahead is not None:
            self.ahead.drop()
            self.ahead = None

    def processed(self, logits: Logits, proposed: Sequence[TokenId]) -> Logits:
        """`logits` [n, vocab] after the output and each prefix of `proposed`, after the request's processors."""
        return logits if self.processors is None else self.processors.rows(logits, proposed)

    def leaves_nothing(self, row: Logits) -> bool:
        """Whether the request's rules forbid every token of a processed row [vocab]."""
        return self.processors is not None and bool(row.max() == -np.inf)

    def cause_of(self, error: NotANumber, logits: Logits, processed: Logits) -> TandemError:
        """Whose fault a row without a law is: the model's, or the rules' of this request."""
        return error if self.processors is None else self.processors.cause_of(error, logits, processed)


class Sessions:
    """The sessions of one engine. Touched on the model's thread only, but for `admit` and `drop`, which go there.

    `forgotten` makes the error for a session that is not here: SessionLost of a target, DraftForgot of a draft.
    """

    def __init__(
        self, model: StepModel, loop: StepLoop, facts: EngineFacts, *, forgotten: Callable[[str], TandemError]
    ) -> None:
        self._model = model
        self._loop = loop
        self._incarnation = facts.incarnation
        self._grammars = facts.grammars
        self._adapters = facts.adapters
        self._forgotten = forgotten
        self._known: dict[SessionId, Session] = {}
        self._roots: dict[str, set[Key]] = {}
        """Under which keys each tenant's prefixes are known: one for each adapter."""

    async def admit(self, request: OpenSession) -> Opened:
        """Take a session in, in place of its namesake. Raises Overloaded when every slot is taken, and BadRequest for
        parameters that this model cannot follow."""
        refuse_unfit(request.parameters, vocab_size=self._model.vocab_size)
        processors = None if request.parameters.is_plain else await asyncio.to_thread(self._processors, request)
        return await self._loop.call(lambda: self._admit(request, processors))

    async def drop(self, session: SessionId) -> None:
        """Idempotent; an engine that was stopped holds nothing any more."""
        with suppress(TargetLost, DraftLost):
            await self._loop.call(lambda: self._drop(session))

    async def forget(self, tenant: str) -> None:
        """No session finds a prefix of the tenant's any more. Idempotent, and as `drop` where there is nothing."""
        with suppress(TargetLost, DraftLost):
            await self._loop.call(lambda: self._forget(tenant))

    def find(self, session: SessionId, incarnation: Incarnation) -> Session:
        if incarnation != self._incarnation:
            raise self._forgotten(f"the session belongs to {incarnation}; this engine is {self._incarnation}")
        if session not in self._known:
            raise self._forgotten("the session is not known here; open it again with the output so far")
        return self._known[session]

    def _processors(self, request: OpenSession) -> Processors:
        """On a thread of its own: a grammar may take long to compile, and neither loop may wait for it."""
        asked = request.parameters
        matcher = None if asked.grammar is None else self._matcher(asked.grammar)
        processors = Processors(asked, request.prompt, vocab_size=self._model.vocab_size, matcher=matcher)
        processors.commit(0, request.output)
        return processors

    def _matcher(self, grammar: Grammar) -> Matcher:
        if self._grammars is None:
            raise BadRequest(
                f"{grammar.asked_by} asks for a grammar; this model has no tokenizer to follow one with",
                parameter=grammar.asked_by,
            )
        return self._grammars.compile(grammar)

    def _admit(self, request: OpenSession, processors: Processors | None) -> Opened:
        namesake = self._known.get(request.session)
        adapter = self._adapter_of(request, namesake)
        if namesake is not None:
            namesake.let_go()
        self._loop.end_lane(request.session, self._forgotten("the session was opened again"))
        line = self._line_for(request, namesake, adapter)
        opened = Session(request, line, list(request.output), floor=len(request.output), processors=processors)
        self._known[request.session] = opened
        return Opened(self._incarnation, cached_tokens=self._loop.lines.recall(line, opened.prefix))

    def _adapter_of(self, request: OpenSession, namesake: Session | None) -> AdapterDigest | None:
        """A session that is opened again may keep its own, though that be leaving. Raises NotLoaded."""
        if request.adapter is None:
            return None
        if namesake is not None and (request.tenant, request.adapter) == (
            namesake.request.tenant,
            namesake.line.adapter,
        ):
            return namesake.line.adapter
        if self._adapters is None:
            raise NotLoaded(f"adapter {request.adapter!r} is not loaded; this engine takes none", parameter="model")
        return self._adapters.find(request.adapter)

    def _line_for(self, request: OpenSession, namesake: Session | None, adapter: AdapterDigest | None) -> Line:
        """The namesake's, unless what it holds is of another tenant or adapter. Raises Overloaded when every session is
        taken."""
        claim = Claim(request.tenant, request.weight, request.priority)
        if namesake is not None:
            if namesake.request.tenant == request.tenant and namesake.line.adapter == adapter:
                namesake.line.claim = claim
                return namesake.line
            self._drop(request.session)
        return self._loop.lines.open(self._root_of(request.tenant, adapter), claim, adapter=adapter)

    def _root_of(self, tenant: str | None, adapter: AdapterDigest | None) -> Key | None:
        if tenant is None:
            return None
        root = root_key(tenant=tenant, adapter=adapter)
        self._roots.setdefault(tenant, set()).add(root)
        return root

    def _forget(self, tenant: str) -> None:
        for root in self._roots.pop(tenant, ()):
            self._loop.lines.forget_of(root)

    def _drop(self, session: SessionId) -> None:
        self._loop.end_lane(session, self._forgotten("the session was closed"))
        gone = self._known.pop(session, None)
        if gone is not None:
            gone.let_go()
            self._loop.lines.close(gone.line)
            if self._adapters is not None and gone.line.adapter is not None:
                self._adapters.sweep(self._loop.lines.adapters)
