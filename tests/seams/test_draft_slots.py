"""A session of several drafters leaves no slot taken at a real draft engine, at whatever moment who reads it leaves."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seams.port_words import LIFE, SystemClock, facts

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.errors import DraftForgot
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits

SLOTS = 2
STEPS = 12
"""A call through the slow draft takes about so many turns of the loop."""

Result = TypeVar("Result")


@dataclass
class SlowDraft:
    """The engine at the end of a slow line, on which every other proposal gets lost with the session."""

    engine: BatchedDraft
    forgets: bool
    proposals: int = 0

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self._on_the_line(self.engine.open(request))

    async def propose(self, request: ProposeRound) -> Proposal:
        self.proposals += 1
        proposal = await self._on_the_line(self.engine.propose(request))
        if self.forgets and self.proposals % 2:
            raise DraftForgot("who?")
        return proposal

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self._on_the_line(self.engine.score(request))

    async def close(self, session: SessionId) -> None:
        await self._on_the_line(self.engine.close(session))

    async def _on_the_line(self, call: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.ensure_future(call)  # what is on the line arrives, though nobody waits for it any more
        await turns(3)
        result = await task
        await turns(3)
        return result


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def left_after(steps: int | None, work: Coroutine[Any, Any, object]) -> None:
    """The work, given up after so many turns of the loop; None: not given up."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    if steps is not None:
        await turns(steps)
        task.cancel()
    await asyncio.wait((task,))


def opening(name: str, output: tuple[TokenId, ...] = ()) -> OpenSession:
    return OpenSession(SessionId(name), (1, 2), output, SamplingParameters(1), Verification.COUPLED, 64)


async def play(leaves: list[int | None], close_steps: int | None, *, forgets: bool) -> None:
    with BatchedDraft(ScriptedModel(chain_logits, max_sessions=SLOTS), facts(), clock=SystemClock()) as engine:
        drafting = Drafting((Drafter.MODEL,), Beliefs(Segments(), Segment("pair"), Looks()))
        member = Member(Drafter.MODEL, SlowDraft(engine, forgets), Patience(), 4096)
        draft = CombinedDraft([member], drafting, SystemClock(), 7)
        for steps in leaves:
            drafting.choose(Bounds(2, 2, Mode.ALWAYS), 8, 0.0, warm=True)
            await draft.open(opening("s"))
            await left_after(steps, draft.propose(ProposeRound(SessionId("s"), Incarnation("combined"), 0, (), 2)))
        await left_after(close_steps, draft.close(SessionId("s")))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        for slot in range(SLOTS):
            await engine.open(opening(str(slot)))
            offered = await engine.propose(ProposeRound(SessionId(str(slot)), LIFE, 0, (), 2))
            assert len(offered.ids) == 2


moments = st.none() | st.integers(0, STEPS)


@settings(deadline=None, max_examples=80)
@given(st.lists(moments, min_size=1, max_size=3), moments, st.booleans())
def test_all_slots_are_free_whenever_the_reader_leaves(
    leaves: list[int | None], close_steps: int | None, forgets: bool
) -> None:
    asyncio.run(play(leaves, close_steps, forgets=forgets))
