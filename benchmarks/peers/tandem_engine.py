"""Knows how the bundled engine decodes here: off, and with each way of drafting, by the product's own driver.

Refuses to know what is measured, HTTP and gRPC: peers are driven by their libraries, so this one is driven by
`generate` over `BatchedTarget`, with the session and the K rule in this process, as `serve` has them behind its HTTP.

Ways: `off`; `ngram` and `suffix` look up what followed in the text so far; `self-int8` and `self-int4` draft with a
copy of the model whose weights are rounded. The belief about K lives on from question to question, as in a gateway;
nothing else does, since no tenant is named.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers.lines import Setting, Stream, serve
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Round,
    SamplingParameters,
    SessionId,
    Verification,
)
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.driver import Deadlines, Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.model_folder import digests_of
from tandem_runtime.ports import DraftEngine, StepModel, TargetEngine
from tandem_runtime.tokenizer import FolderTokenizer

SEED = 7


class Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class Silent:
    def round(self, round: Round) -> None:
        """Nothing to tell."""


PATIENT = Deadlines(open_seconds=600, propose_seconds=600, verify_seconds=600)
"""A late answer is a slow one here, and not a lost engine."""
ON, LOOKING_UP = Bounds(1, 8), Bounds(1, 16)
"""As `serve` has them by default, with --draft and with --drafter."""


@dataclass(slots=True)
class Drafting:
    """One way: who drafts, whether that is free, within which bounds, and what was learnt of it."""

    draft: DraftEngine | None = None
    is_free: bool = False
    bounds: Bounds = OFF
    lookahead: Lookahead = field(default_factory=Lookahead)


@dataclass(frozen=True, slots=True)
class Target:
    """What a draft is made for. Engines that run end with `running`."""

    options: EngineOptions
    facts: EngineFacts
    capabilities: Capabilities
    running: ExitStack


def _looking_up(drafter: Drafter) -> Callable[[Target], Drafting]:
    return lambda target: Drafting(LookupDraft(drafter, target.capabilities, Clock()), is_free=True, bounds=LOOKING_UP)


def _copy(weights: str) -> Callable[[Target], Drafting]:
    def start(target: Target) -> Drafting:
        model = load_torch_model(replace(target.options, weights=weights))
        draft = target.running.enter_context(BatchedDraft(model, target.facts, clock=Clock()))
        return Drafting(draft, bounds=ON)

    return start


WAYS: dict[str, Callable[[Target], Drafting]] = {
    "off": lambda _target: Drafting(),
    "ngram": _looking_up(Drafter.NGRAM),
    "suffix": _looking_up(Drafter.SUFFIX),
    "self-int8": _copy("int8"),
    "self-int4": _copy("int4"),
}


class Tandem:
    """The engine over `model`, which was loaded as `options` say."""

    def __init__(self, model: StepModel, options: EngineOptions) -> None:
        folder = Path(options.model)
        digests = digests_of(folder)
        facts = EngineFacts(
            model_digest=digests.model, tokenizer_digest=digests.tokenizer, incarnation=Incarnation("bench")
        )
        self._running = ExitStack()
        self._engine = self._running.enter_context(BatchedTarget(model, facts, clock=Clock()))
        self._runner = self._running.enter_context(asyncio.Runner())
        self._tokenizer = FolderTokenizer(folder)
        self._target = Target(options, facts, facts.capabilities(model), self._running)
        self._drafting: dict[str, Drafting] = {}
        self._asked = 0
        self.about = f"determinism {model.determinism}"

    def end(self) -> None:
        self._running.close()

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]:
        if way not in self._drafting:
            self._drafting[way] = WAYS[way](self._target)
        return self._runner.run(self._together(prompts, tokens, self._drafting[way]))

    async def _together(self, prompts: list[list[int]], tokens: int, drafting: Drafting) -> list[Stream]:
        began = time.perf_counter()
        return await asyncio.gather(*(self._one(prompt, tokens, drafting, began) for prompt in prompts))

    async def _one(self, prompt: list[int], tokens: int, drafting: Drafting, began: float) -> Stream:
        stream = Stream()
        items = generate(
            Session(self._request(prompt, tokens, drafting)),
            engines=Engines(self._engine, drafting.draft, self._reopen, PATIENT),
            lookahead=drafting.lookahead,
            allowance=lambda: drafting.bounds,
            observer=Silent(),
            clock=Clock(),
        )
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Emit):
                    stream.emit(began, item.tokens)
        return stream

    def _request(self, prompt: list[int], tokens: int, drafting: Drafting) -> Request:
        self._asked += 1
        length = self._target.capabilities.max_length
        return Request(
            session=SessionId(f"bench-{self._asked}"),
            prompt=tuple(prompt),
            parameters=SamplingParameters(seed=SEED, temperature=0.0),
            verification=Verification.COUPLED,
            endings=Endings(max_tokens=tokens),
            decode=self._tokenizer.decode,
            target_length=length,
            draft_length=None if drafting.draft is None else length,
            draft_is_free=drafting.is_free,
        )

    async def _reopen(self) -> TargetEngine:
        return self._engine


def start(setting: Setting) -> Tandem:
    options = EngineOptions(
        model=setting.folder,
        device="cpu",
        dtype=setting.dtype,
        threads=setting.threads,
        max_sessions=setting.streams,
        max_length=setting.length,
    )
    return Tandem(load_torch_model(options), options)


if __name__ == "__main__":
    serve(start, packages=("tandem", "torch"))
