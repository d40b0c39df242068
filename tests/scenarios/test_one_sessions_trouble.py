"""One session whose trouble with the draft among fifteen others without: real driver, engines, patience and turns."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.scenarios.answering import FACTS, PATIENT, Kept, SystemClock, request_of

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.errors import Overloaded
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.patience import LONG_READ_TOKENS, Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Grammar,
    GrammarKind,
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
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import DraftEngine, Matcher, TargetEngine

PEOPLE = 15
HOSTILE = "hostile"
BAD = 6
"""A prompt that begins with it is the hostile session's."""
GREEDY = SamplingParameters(seed=1, temperature=0.0)
ANY = Grammar(GrammarKind.REGEX, ".*")
WAIT_SECONDS = 1.0
"""Of a draft here: hiccups of a busy machine are shorter."""


class Admitting:
    """A grammar of everything, and its matcher."""

    def compile(self, grammar: Grammar) -> Matcher:
        return self

    def admitted(self) -> npt.NDArray[np.bool_]:
        return np.ones(7, np.bool_)

    def advance(self, token: TokenId) -> None:
        return None

    def roll_back(self, count: int) -> None:
        return None


class Endless(Admitting):
    """A grammar that takes the draft until `done` to compile."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def compile(self, grammar: Grammar) -> Matcher:
        assert self.done.wait(60)
        return self


@dataclass
class Grudging:
    """A draft that never comes to the end of a long prompt, or has no room for the hostile session."""

    engine: DraftEngine
    room: bool
    long: set[SessionId] = field(default_factory=set)

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        if len(request.prompt) > LONG_READ_TOKENS:
            self.long.add(request.session)
        if request.session == HOSTILE and not self.room:
            raise Overloaded("all sessions of this engine are taken; try again later")
        return await self.engine.open(request)

    async def propose(self, request: ProposeRound) -> Proposal:
        if request.session in self.long:
            await asyncio.Event().wait()
        return await self.engine.propose(request)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self.engine.score(request)

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)


def no_numbers_for_the_hostile(prefix: tuple[TokenId, ...]) -> list[float]:
    return [float("nan")] * 7 if prefix[0] == BAD else list(chain_logits(prefix))


@dataclass(frozen=True)
class Trouble:
    """What the hostile session asks for, and what the draft makes of it."""

    prompt: tuple[TokenId, ...] = (BAD,)
    grammar: Grammar | None = None
    draft_script: Script = chain_logits
    draft_grammars: Callable[[], Admitting] | None = None
    room: bool = True


TROUBLES = {
    "none": Trouble(),
    "a grammar that the draft cannot follow": Trouble(grammar=ANY),
    "a grammar that the draft compiles for ever": Trouble(grammar=ANY, draft_grammars=Endless),
    "a prompt that the draft reads for ever": Trouble(prompt=(BAD,) * 2000),
    "no number for it": Trouble(draft_script=no_numbers_for_the_hostile),
    "no slot for it": Trouble(room=False),
}


@dataclass
class World:
    """All that the sessions share."""

    target: TargetEngine
    draft: DraftEngine
    patience: Patience = field(default_factory=Patience)
    beliefs: Beliefs = field(default_factory=lambda: Beliefs(Segments(), Segment("pair"), Looks()))

    async def answer(self, request: Request) -> tuple[list[TokenId], tuple[int, ...]]:
        """What is said, and the K of each round."""
        clock, kept = SystemClock(), Kept()
        drafting = Drafting((Drafter.MODEL,), self.beliefs)
        draft = CombinedDraft([Member(Drafter.MODEL, self.draft, self.patience, 4096)], drafting, clock, 7)
        tokens: list[TokenId] = []
        items = generate(
            Session(request),
            engines=Engines(self.target, draft, self._nobody, PATIENT),
            lookahead=drafting,
            allowance=lambda: Bounds(4, 4, Mode.ALWAYS),
            observer=kept,
            clock=clock,
        )
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Emit):
                    tokens += item.tokens
        return tokens, tuple(round.proposed for round in kept.rounds)

    async def _nobody(self) -> TargetEngine:
        raise AssertionError("no target is lost here")


@contextmanager
def world_of(trouble: Trouble) -> Iterator[World]:
    grammars = None if trouble.draft_grammars is None else trouble.draft_grammars()
    model, clock = ScriptedModel(trouble.draft_script), SystemClock()
    with (
        BatchedTarget(ScriptedModel(chain_logits), replace(FACTS, grammars=Admitting()), clock=clock) as target,
        BatchedDraft(model, replace(FACTS, grammars=grammars), clock=clock) as draft,
    ):
        try:
            yield World(target, Grudging(draft, trouble.room))
        finally:
            if isinstance(grammars, Endless):
                grammars.done.set()


def request_named(name: str, prompt: tuple[TokenId, ...], grammar: Grammar | None = None) -> Request:
    request = request_of(prompt, Verification.COUPLED, replace(GREEDY, grammar=grammar), max_tokens=24)
    return replace(request, session=SessionId(name))


def plain(prompt: tuple[TokenId, ...]) -> list[TokenId]:
    said: list[TokenId] = []
    for _ in range(24):
        said.append(TokenId(int(np.argmax(chain_logits((*prompt, *said))))))
    return said


@pytest.mark.parametrize("name", TROUBLES)
async def test_one_sessions_trouble_stops_nobody_else_from_speculating(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("SHORTEST_WAIT_SECONDS", "LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(f"tandem_runtime.domain.patience.{bound}", WAIT_SECONDS)
    trouble = TROUBLES[name]
    people = [request_named(str(number), (1 + number % 5, number % 3)) for number in range(PEOPLE)]
    with world_of(trouble) as world:
        asked = [asyncio.create_task(world.answer(request)) for request in people]
        hostile = asyncio.create_task(world.answer(request_named(HOSTILE, trouble.prompt, trouble.grammar)))
        answers = await asyncio.gather(*asked)
        said, ks = await hostile
    assert [tokens for tokens, _ in answers] == [plain(request.prompt) for request in people]
    assert said == plain(trouble.prompt)
    assert all(all(k > 0 for k in of_one[:-1]) for _, of_one in answers)
    assert (sum(ks) > 0) == (name == "none")
    assert world.patience.record.failures == 0
