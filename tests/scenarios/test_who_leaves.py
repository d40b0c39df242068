"""Who leaves between any two calls of a round leaves nothing behind, over a driver and real engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest
from tests.seams.gateway_peers import ShiftedClock, local

from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Request
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import TargetEngine


class Leaves:
    """Cancels who asks, at one moment: before or after the n-th call of that kind."""

    def __init__(self, kind: str, number: int, moment: str) -> None:
        self._left = number
        self._kind, self._moment = kind, moment
        self.came = False

    async def at(self, kind: str, moment: str) -> None:
        if (kind, moment) != (self._kind, self._moment):
            return
        self._left -= 1
        if self._left < 0 and not self.came:
            self.came = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)


@dataclass
class Watched:
    """Either engine, with somebody who may leave around each of its calls."""

    engine: Any
    leaves: Leaves

    async def capabilities(self) -> Capabilities:
        told: Capabilities = await self.engine.capabilities()
        return told

    async def open(self, request: OpenSession) -> Opened:
        return await self._asked("open", request)  # type: ignore[no-any-return]

    async def verify(self, request: VerifyRound) -> Verdict:
        return await self._asked("verify", request)  # type: ignore[no-any-return]

    async def propose(self, request: ProposeRound) -> Proposal:
        return await self._asked("propose", request)  # type: ignore[no-any-return]

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self._asked("score", request)  # type: ignore[no-any-return]

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        async for verdict in self.engine.run(request):
            await self.leaves.at("run", "after")
            yield verdict

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)

    async def _asked(self, kind: str, request: object) -> Any:
        await self.leaves.at(kind, "before")
        answer = await getattr(self.engine, kind)(request)
        await self.leaves.at(kind, "after")
        return answer


class Nobody:
    def round(self, round: Round) -> None:
        pass


MOMENTS = [
    (kind, number, moment)
    for kind in ("open", "propose", "verify")
    for number in (0, 1, 2)
    for moment in ("before", "after")
]


@pytest.mark.parametrize(("kind", "number", "moment"), [each for each in MOMENTS if each[:2] != ("open", 2)])
async def test_who_leaves_between_any_two_calls_leaves_both_engines_free(kind: str, number: int, moment: str) -> None:
    """With one place each: the next session finds it free, and says what it says alone."""
    models = [ScriptedModel(script, max_sessions=1) for script in (chain_logits, lame_chain_logits)]
    facts = local(chain_logits, "x").facts
    clock = ShiftedClock()
    with BatchedTarget(models[0], facts, clock=clock) as target, BatchedDraft(models[1], facts, clock=clock) as draft:

        async def nobody() -> TargetEngine:
            raise AssertionError("no target is lost here")

        async def say(name: str, leaves: Leaves) -> tuple[TokenId, ...]:
            request = Request(
                session=SessionId(name),
                prompt=(1,),
                parameters=SamplingParameters(seed=1, temperature=0),
                verification=Verification.COUPLED,
                endings=Endings(20),
                decode=lambda ids: "".join(map(str, ids)),
                target_length=100,
                draft_length=100,
            )
            session = Session(request)
            items = generate(
                session,
                engines=Engines(Watched(target, leaves), Watched(draft, leaves), nobody),
                lookahead=Lookahead(),
                allowance=lambda: Bounds(3, 3, Mode.ALWAYS),
                observer=Nobody(),
                clock=clock,
            )
            async with aclosing(items) as told:
                async for _ in told:
                    pass
            return session.output

        never = Leaves("never", 0, "before")
        expected = await say("first", never)
        leaves = Leaves(kind, number, moment)
        leaving = asyncio.create_task(say("leaving", leaves))
        await asyncio.wait((leaving,))
        assert leaves.came
        assert leaving.cancelled()
        assert [model.blocks.used for model in models] == [0, 0]
        assert await say("last", never) == expected
