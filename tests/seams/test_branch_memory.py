"""What is drafted ahead leaves no block behind, whatever happens in which order, and no wrong token."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.seams.port_models import VOCAB, hashed_logits
from tests.seams.port_words import LIFE, facts

from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.blocks import Table
from tandem_runtime.domain.errors import TandemError
from tandem_runtime.domain.tokens import (
    OpenSession,
    Outlook,
    Priority,
    Proposal,
    ProposeRound,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.lines import Line
from tandem_runtime.engines.sampler import coupled_choice
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.step_loop import StepLoop
from tandem_runtime.ports import Logits, Row

BLOCKS, LENGTH = 14, 96
NAMES = ("a", "b", "c")


@dataclass
class HandClock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class HandLoop(StepLoop):
    """Steps when it is told to, on the thread of who tells it, and never waits."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self._end()

    @property
    def is_at_rest(self) -> bool:
        return self._commands.empty() and not self._lanes

    def _awaited(self) -> list[object]:  # type: ignore[override]  # none
        return []


class HandDraft(BatchedDraft):
    steps = HandLoop


class FaultyModel(ScriptedModel):
    """`fails`: how many of the next rows raise."""

    fails = 0

    def _row(self, row: Row) -> Logits:
        if self.fails:
            self.fails -= 1
            raise ValueError("a fault of the model")
        return super()._row(row)


@dataclass
class Course:
    """One session as its gateway knows it."""

    request: OpenSession
    output: list[TokenId] = field(default_factory=list)
    base: int = 0
    asked: "asyncio.Task[Proposal] | None" = None

    def right(self, ids: Sequence[TokenId]) -> TokenId:
        """What the draft would guess behind these ids."""
        prefix = (*self.request.prompt, *self.output, *ids)
        return coupled_choice(hashed_logits(prefix), self.request.parameters, len(self.output) + len(ids))


class DraftingAhead(RuleBasedStateMachine):
    """A draft over little memory, whose sessions do as they like while it drafts ahead for them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = FaultyModel(hashed_logits, max_length=LENGTH, max_sessions=len(NAMES), kv_blocks=BLOCKS)
        self.clock = HandClock()
        self.draft = HandDraft(self.model, facts(), clock=self.clock)
        assert isinstance(self.draft.loop, HandLoop)
        self.loop = self.draft.loop
        self.draft.__enter__()
        self.courses: dict[str, Course] = {}

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.turn()
            self.loop.send()
            self.runner.run(asyncio.sleep(0))
            self.runner.run(asyncio.sleep(0))

    def asked(self, work: object) -> None:
        """Carry out what the draft answers between two steps."""

        async def carried() -> None:
            task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # a coroutine
            await asyncio.sleep(0)
            self.loop.turn()
            self.loop.send()
            await task

        self.runner.run(carried())

    @rule(name=st.sampled_from(NAMES), length=st.integers(1, 70), seed=st.integers(0, 3), tenant=st.booleans())
    def open(self, name: str, length: int, seed: int, tenant: bool) -> None:
        self.give_up(name)
        prompt = tuple((seed + at * at) % VOCAB for at in range(length))
        asks = OpenSession(
            SessionId(name),
            prompt,
            (),
            SamplingParameters(seed=seed),
            Verification.COUPLED,
            max_tokens=LENGTH,
            tenant="t" if tenant else None,
        )
        self.asked(self.draft.open(asks))
        self.courses[name] = Course(asks)

    @precondition(lambda self: self.courses)
    @rule(data=st.data(), k=st.integers(1, 5), branches=st.integers(0, 12), hit=st.booleans())
    def propose(self, data: st.DataObject, k: int, branches: int, hit: bool) -> None:
        """Tell what came of the round before, and ask for the next one."""
        course = self.courses[data.draw(st.sampled_from(sorted(self.courses)))]
        if course.asked is not None and not course.asked.done():
            return
        if course.asked is not None and not course.asked.cancelled() and course.asked.exception() is None:
            ids = course.asked.result().ids
            stand = data.draw(st.integers(0, len(ids)))
            y = course.right(ids[:stand]) if hit else data.draw(st.integers(0, VOCAB - 1))
            course.base = len(course.output)
            course.output += [*ids[:stand], y]
        survivals = tuple(0.8**at for at in range(1, k + 1))
        outlook = Outlook(survivals, branches, data.draw(st.none() | st.integers(1, 4)))
        news = tuple(course.output[course.base :])
        asks = ProposeRound(course.request.session, LIFE, course.base, news, k, outlook=outlook)

        async def begun() -> "asyncio.Task[Proposal]":
            task = asyncio.create_task(self.draft.propose(asks))
            await asyncio.sleep(0)
            return task

        course.asked = self.runner.run(begun())

    @rule(count=st.integers(1, 9))
    def step(self, count: int) -> None:
        self.turns(count)

    @precondition(lambda self: self.courses)
    @rule(name=st.sampled_from(NAMES))
    def give_up(self, name: str) -> None:
        """Its caller waits no longer."""
        course = self.courses.get(name)
        if course is not None and course.asked is not None and not course.asked.done():
            course.asked.cancel()
            self.turns(1)

    @precondition(lambda self: self.courses)
    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        self.asked(self.draft.close(SessionId(name)))
        course = self.courses.pop(name, None)
        self.turns(1)
        assert course is None or course.asked is None or course.asked.done()

    @rule()
    def wait(self) -> None:
        """Longer than a parked session keeps its memory."""
        self.clock.now += 2.0

    @rule(rows=st.integers(1, 3))
    def fail(self, rows: int) -> None:
        self.model.fails = rows

    @property
    def lines(self) -> list[Line]:
        return list(self.loop.lines._lines.values())

    @invariant()
    def each_block_is_held_as_often_as_counted(self) -> None:
        held = Counter(block for line in self.lines for block in line.table.blocks)
        assert self.model.blocks._references == held
        assert self.model.blocks.used + self.model.blocks.available == BLOCKS

    @invariant()
    def who_drafts_ahead_holds_no_more_than_its_own(self) -> None:
        for line in self.lines:
            if line.stem is not None and line.stem.stands:
                assert line.stem.blocks == tuple(line.stem.line.table.blocks[: len(line.stem.blocks)])
                assert len(line.table.blocks) <= 3

    @invariant()
    def what_is_proposed_is_what_the_draft_would_guess(self) -> None:
        for course in self.courses.values():
            if course.asked is None or not course.asked.done() or course.asked.cancelled():
                continue
            if course.asked.exception() is not None:
                assert isinstance(course.asked.exception(), TandemError)
                continue
            ids = course.asked.result().ids
            assert ids == tuple(course.right(ids[:at]) for at in range(len(ids)))

    def teardown(self) -> None:
        for name in NAMES:
            self.close(name)
        self.model.fails = 0
        self.turns(3)
        assert (self.loop.is_at_rest, self.draft.drafting_ahead, self.lines) == (True, 0, [])
        assert self.model.blocks.used == 0
        self.draft.__exit__()
        self.runner.close()


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_a_line_agrees_with_as_much_as_both_begin_with(held: list[TokenId], tokens: list[TokenId]) -> None:
    line = Line(1, Table(None), Claim(None, 1.0, Priority.INTERACTIVE), 0.0, held=held)
    assert line.agrees(tokens) == len([*takewhile(lambda both: both[0] == both[1], zip(held, tokens, strict=False))])


DraftingAhead.TestCase.settings = settings(deadline=None, stateful_step_count=40, max_examples=30)
test_drafting_ahead_in_little_memory = DraftingAhead.TestCase
