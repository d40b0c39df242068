"""Knows how a request is answered by the real driver, session, step loops and sampler over models in plain Python.

Refuses to know what the answer should be.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count, repeat

from tandem_runtime.domain.budget import NOTHING_MEASURED, Measured
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Counts, Emit, Request
from tandem_runtime.domain.errors import BadRequest, NothingAdmitted
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    Incarnation,
    Round,
    SamplingParameters,
    SessionId,
    TokenId,
    TokenLogprob,
    Verification,
)
from tandem_runtime.driver import Deadlines, Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.planning import CHUNK_TOKENS, StepSize
from tandem_runtime.engines.scripted import Script, ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import DraftEngine, Observer, TargetEngine

LONGEST = 256
"""Prompt and answer of a session."""


PATIENT = Deadlines(open_seconds=3600, propose_seconds=3600, verify_seconds=3600, close_seconds=3600)
"""A machine that is busy with other things loses nothing: what is lost here is lost on purpose."""


class CountedClock:
    """Virtual time: a millisecond goes by with each look."""

    def __init__(self) -> None:
        self._ticks = count()

    def monotonic(self) -> float:
        return next(self._ticks) / 1000

    def wall(self) -> float:
        return 1_000_000 + next(self._ticks) / 1000


class NobodyWatches:
    def round(self, round: Round) -> None: ...


@dataclass(frozen=True)
class Question:
    """One request, as it is asked of plain decoding and of every speculating twin."""

    prompt: tuple[TokenId, ...]
    parameters: SamplingParameters
    endings: Endings
    verification: Verification = Verification.COUPLED
    logprobs: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a caller sees."""

    tokens: tuple[TokenId, ...]
    text: str
    reason: FinishReason | str
    """Why the answer ended; what the caller was told if the request's own rules left no token."""
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Stage:
    """Engines that requests share: a target, another one to go to when it is lost, and drafts. `refusal` is what tells
    that a request's rules left no token: a wire carries no finer kind than BadRequest."""

    targets: tuple[TargetEngine, TargetEngine]
    drafts: tuple[DraftEngine, ...]
    refusal: type[BadRequest] = NothingAdmitted

    @property
    def engines(self) -> Engines:
        """The first target and the first draft, if there is one."""
        return Engines(self.targets[0], self.drafts[0] if self.drafts else None, nobody, PATIENT)


async def nobody() -> TargetEngine:
    raise AssertionError("no target is lost here")


@asynccontextmanager
async def stage_of(
    target: Script, *drafts: Script, chunk_tokens: int = CHUNK_TOKENS, costs: Measured = NOTHING_MEASURED
) -> AsyncIterator[Stage]:
    """Real loops on threads of their own, over scripted models; targets believe at first that steps have `costs`."""

    def facts(name: str) -> EngineFacts:
        return EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation(name))

    def model(script: Script) -> ScriptedModel:
        return ScriptedModel(script, max_length=LONGEST)

    targets = [
        BatchedTarget(model(target), facts(name), clock=CountedClock(), size=StepSize(chunk_tokens, costs=costs))
        for name in ("first", "second")
    ]
    drafters = [
        BatchedDraft(model(draft), facts("draft"), clock=CountedClock(), size=StepSize(chunk_tokens))
        for draft in drafts
    ]
    started = [*targets, *drafters]
    for engine in started:
        engine.__enter__()
    try:
        yield Stage((targets[0], targets[1]), tuple(drafters))
    finally:
        for engine in started:
            engine.__exit__(None, None, None)


def off() -> Iterator[Bounds]:
    return repeat(OFF)


def exactly(k: int) -> Iterator[Bounds]:
    """K in every round."""
    return repeat(Bounds(k, k, Mode.ALWAYS) if k else OFF)


def spelled(ids: Sequence[TokenId]) -> str:
    return "".join(f"{token} " for token in ids)


async def answer_of(
    question: Question,
    name: str,
    engines: Engines,
    bounds: Iterator[Bounds],
    *,
    refusal: type[BadRequest] = NothingAdmitted,
    observer: Observer | None = None,
) -> tuple[Answer, Counts | None]:
    """Ask, with the bounds of K taken from `bounds` round by round. No counts come where the rules left no token, which
    is told by a `refusal`."""
    request = Request(
        session=SessionId(name),
        prompt=question.prompt,
        parameters=question.parameters,
        verification=question.verification,
        endings=question.endings,
        decode=spelled,
        target_length=LONGEST,
        draft_length=None if engines.draft is None else LONGEST,
        logprobs=question.logprobs,
        vocab_size=(await engines.target.capabilities()).vocab_size,
    )
    items = generate(
        Session(request),
        engines=engines,
        lookahead=Lookahead(),
        allowance=lambda: next(bounds),
        observer=observer or NobodyWatches(),
        clock=CountedClock(),
    )
    tokens: list[TokenId] = []
    logprobs: list[TokenLogprob] = []
    text = ""
    try:
        async with aclosing(items) as stream:
            async for item in stream:
                if isinstance(item, Emit):
                    tokens += item.tokens
                    logprobs += item.logprobs or ()
                    text += item.text
                else:
                    return Answer(tuple(tokens), text, item.reason, tuple(logprobs)), item.counts
    except refusal as refused:
        return Answer(tuple(tokens), text, f"{refused.parameter}: {refused}", tuple(logprobs)), None
    raise AssertionError("the stream ended without a finish")
