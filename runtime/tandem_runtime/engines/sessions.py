"""Knows what an engine keeps of one session between rounds, and how to take sessions in and let them go.

Refuses to know how proposals are made or judged.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tandem_runtime.domain.errors import BadRequest, DraftLost, TandemError, TargetLost
from tandem_runtime.domain.tokens import (
    Capabilities,
    Incarnation,
    Opened,
    OpenSession,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.engines.step_loop import Line, StepLoop
from tandem_runtime.ports import StepModel

__all__ = ["EngineFacts", "Session", "Sessions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine is told about itself and its model when it starts."""

    model_digest: str
    tokenizer_digest: str
    incarnation: Incarnation
    end_tokens: frozenset[TokenId] = frozenset()

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
    last: tuple[VerifyRound, Verdict] | None = None
    """The last round asked for by `verify`, and its verdict: what a repeated request is answered with."""

    @property
    def prefix(self) -> list[TokenId]:
        """All ids so far, prompt and output, as a list of its own."""
        return [*self.request.prompt, *self.output]


class Sessions:
    """The sessions of one engine. Touched on the model's thread only, but for `admit` and `drop`, which go there.

    `forgotten` makes the error for a session that is not here: SessionLost of a target, DraftLost of a draft.
    """

    def __init__(
        self, model: StepModel, loop: StepLoop, *, incarnation: Incarnation, forgotten: Callable[[str], TandemError]
    ) -> None:
        self._model = model
        self._loop = loop
        self._incarnation = incarnation
        self._forgotten = forgotten
        self._known: dict[SessionId, Session] = {}

    async def admit(self, request: OpenSession) -> Opened:
        """Take a session in, in place of its namesake. Raises Overloaded when every slot is taken."""
        return await self._loop.call(lambda: self._admit(request))

    async def drop(self, session: SessionId) -> None:
        """Idempotent; an engine that was stopped holds nothing any more."""
        with suppress(TargetLost, DraftLost):
            await self._loop.call(lambda: self._drop(session))

    def find(self, session: SessionId, incarnation: Incarnation) -> Session:
        if incarnation != self._incarnation:
            raise self._forgotten(f"the session belongs to {incarnation}; this engine is {self._incarnation}")
        if session not in self._known:
            raise self._forgotten("the session is not known here; open it again with the output so far")
        return self._known[session]

    def _admit(self, request: OpenSession) -> Opened:
        namesake = self._known.get(request.session)
        self._loop.end_lane(request.session, self._forgotten("the session was opened again"))
        line = Line(self._model.allocate()) if namesake is None else namesake.line
        opened = Session(request, line, list(request.output), floor=len(request.output))
        self._known[request.session] = opened
        return Opened(self._incarnation, cached_tokens=line.keep(opened.prefix))

    def _drop(self, session: SessionId) -> None:
        self._loop.end_lane(session, self._forgotten("the session was closed"))
        gone = self._known.pop(session, None)
        if gone is not None:
            self._model.release(gone.line.slot)


def refuse_foreign_ids(ids: Sequence[TokenId], *, vocab_size: int, parameter: str) -> None:
    """Raises BadRequest when an id lies outside the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise BadRequest(
                f"{parameter} holds token id {token}; this model knows 0 to {vocab_size - 1}", parameter=parameter
            )
