"""Knows how to have requests answered by the real driver over batched engines and scripted models, all at once.

Refuses to know what is right.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.lookahead import Bounds
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import Incarnation, Round, SamplingParameters, SessionId, TokenId, Verification
from tandem_runtime.driver import Deadlines, Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import Script, ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import TargetEngine

FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"))
SESSIONS = 64
PATIENT = Deadlines(60.0, 60.0, 60.0, 60.0)
"""Nothing is lost here because a machine is slow: a draft that was lost would propose nothing."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass
class Kept:
    rounds: list[Round] = field(default_factory=list)

    def round(self, round: Round) -> None:
        self.rounds.append(round)


def together(ids: Sequence[TokenId]) -> str:
    return "".join(map(str, ids))


def request_of(
    prompt: tuple[TokenId, ...], verification: Verification, parameters: SamplingParameters, *, max_tokens: int = 16
) -> Request:
    return Request(
        session=SessionId(f"{len(prompt)}-{parameters.seed}"),
        prompt=prompt,
        parameters=parameters,
        verification=verification,
        endings=Endings(max_tokens),
        decode=together,
        target_length=4096,
        draft_length=4096,
    )


async def answers(
    requests: Sequence[Request], *, target: Script, draft: Script, bounds: Bounds
) -> tuple[list[str], list[Round]]:
    """The text of all requests, one digit a token, served as many at a time as fit, and the rounds that it took."""
    observer = Kept()
    target_model = ScriptedModel(target, max_sessions=SESSIONS)
    draft_model = ScriptedModel(draft, max_sessions=SESSIONS)
    with (
        BatchedTarget(target_model, FACTS, clock=SystemClock()) as verifier,
        BatchedDraft(draft_model, FACTS, clock=SystemClock()) as drafter,
    ):

        async def nobody() -> TargetEngine:
            raise AssertionError("no target is lost here")

        room = asyncio.Semaphore(SESSIONS)

        async def answer(request: Request) -> str:
            async with room:
                return await said(request)

        async def said(request: Request) -> str:
            items = generate(
                Session(request),
                engines=Engines(verifier, drafter, nobody, PATIENT),
                lookahead=Lookahead(),
                allowance=lambda: bounds,
                observer=observer,
                clock=SystemClock(),
            )
            async with aclosing(items) as stream:
                return "".join([item.text async for item in stream if isinstance(item, Emit)])

        texts = list(await asyncio.gather(*map(answer, requests)))
    assert (target_model.blocks.used, draft_model.blocks.used) == (0, 0)
    return texts, observer.rounds
