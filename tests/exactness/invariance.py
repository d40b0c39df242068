"""Knows how a group of sequences is proven: real driver, sessions, step loops and sampler over models in plain Python.

Refuses to know how cases are chosen.

The claim: in coupled mode the tokens, the text and the reason of an ending are those of plain decoding, whatever the
drafter proposes, however K goes, whatever is lost, asked twice or opened again, and whoever shares the steps. Plain
decoding is the same driver with no draft on an engine of its own; a share of its answers is decoded once more by the
reference in `domain.sampling` alone.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tandem_runtime.domain.commands import Counts, Emit, Request
from tandem_runtime.domain.lookahead import OFF, Bounds, Lookahead
from tandem_runtime.domain.sampling import coupled_choice
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.tokens import FinishReason, Incarnation, Round, SessionId, TokenId, Verification
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import DraftEngine, TargetEngine
from tests.exactness.cases import ANSWER_TOKENS, Drafter, Group, Question, Twin, bounds_over_time
from tests.exactness.drafters import GuessingDraft, anything, echo, knowing, one_token
from tests.exactness.faults import Trouble, TroubledDraft, TroubledTarget
from tests.exactness.texts import STRANGER, WORLDS, Script, kin

LONGEST = 256
KIN_ACCEPTANCE = 0.8
REFERENCE_TOKENS = 16
"""The reference makes a logarithm per token of the vocabulary in plain Python, so it goes no further."""


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
class Answer:
    """What a caller sees."""

    tokens: tuple[TokenId, ...]
    text: str
    reason: FinishReason


@dataclass(frozen=True)
class Mismatch:
    group: int
    question: Question
    twin: Twin
    plain: Answer
    found: Answer | str

    def __str__(self) -> str:
        return (
            f"sequence differs from plain decoding; reproduce with:  python -m tests.exactness --group {self.group}\n"
            f"  {self.question}\n  {self.twin}\n  plain {self.plain}\n  found {self.found}"
        )


@dataclass
class Tally:
    """What a run of the proof was made of."""

    sequences: int = 0
    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    by_reference: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.by_reference += other.by_reference
        self.mismatches += other.mismatches
        for name, times in other.faults.items():
            self.faults[name] = self.faults.get(name, 0) + times


@dataclass(frozen=True)
class Stage:
    """The engines that a group shares."""

    targets: tuple[TargetEngine, TargetEngine]
    kin: DraftEngine
    stranger: DraftEngine


@asynccontextmanager
async def stage_of(group: Group) -> AsyncIterator[Stage]:
    script = WORLDS[group.world]

    def facts(name: str) -> EngineFacts:
        return EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation(name))

    def target(name: str) -> BatchedTarget:
        model = ScriptedModel(script, max_length=LONGEST)
        return BatchedTarget(model, facts(name), clock=CountedClock(), chunk_tokens=group.chunk_tokens)

    def draft(guesses: Script, name: str) -> BatchedDraft:
        model = ScriptedModel(guesses, max_length=LONGEST)
        return BatchedDraft(model, facts(name), clock=CountedClock(), chunk_tokens=group.chunk_tokens)

    with (
        target("first") as first,
        target("second") as second,
        draft(kin(script, acceptance=KIN_ACCEPTANCE), "kin") as relative,
        draft(STRANGER, "stranger") as stranger,
    ):
        yield Stage((first, second), relative, stranger)


def spelled(ids: Sequence[TokenId]) -> str:
    return "".join(f"{token} " for token in ids)


async def prove(group: Group, *, reference_every: int = 16) -> Tally:
    """Run a group; mismatches are in the tally, never raised."""
    tally = Tally()
    async with stage_of(group) as stage:
        plain = await asyncio.gather(*(plain_answer(question, stage) for question in group.questions))
    for at, (question, answer) in enumerate(zip(group.questions, plain, strict=True)):
        if (group.number + at) % reference_every == 0:
            reference = reference_tokens(question, group.world, min(REFERENCE_TOKENS, len(answer.tokens)))
            assert answer.tokens[: len(reference)] == reference, f"plain decoding of group {group.number} is wrong"
            tally.by_reference += 1
    async with stage_of(group) as stage:
        runs = [
            _prove_twin(group, question, twin, answer, stage, tally)
            for question, twins, answer in zip(group.questions, group.twins, plain, strict=True)
            for twin in twins
        ]
        Random(group.number).shuffle(runs)
        await asyncio.gather(*runs)
    return tally


def reference_tokens(question: Question, world: int, tokens: int) -> tuple[TokenId, ...]:
    """Plain decoding by the specification, without engines."""
    output: list[TokenId] = []
    while len(output) < tokens:
        row = WORLDS[world]((*question.prompt, *output)).tolist()
        output.append(coupled_choice(row, question.parameters, len(output)))
    return tuple(output)


async def plain_answer(question: Question, stage: Stage) -> Answer:
    engines = Engines(stage.targets[0], None, _nobody)
    answer, _ = await _answer(question, f"plain {id(question)}", engines, iter(lambda: OFF, None))
    return answer


async def _nobody() -> TargetEngine:
    raise AssertionError("nothing is lost in plain decoding")


async def _prove_twin(
    group: Group, question: Question, twin: Twin, plain: Answer, stage: Stage, tally: Tally
) -> None:
    for _ in range(twin.late):
        await asyncio.sleep(0)
    trouble = Trouble(Random(twin.seed), twin.trouble)
    targets = [TroubledTarget(target, trouble) for target in stage.targets]
    turn = count(1)

    async def other() -> TargetEngine:
        return targets[next(turn) % 2]

    draft = TroubledDraft(_drafter(twin, plain, stage), Trouble(Random(~twin.seed), twin.trouble / 4, trouble.counts))
    engines = Engines(targets[0], draft, other)
    found: Answer | str
    try:
        found, counts = await _answer(question, f"{twin.seed}", engines, bounds_over_time(twin))
    except Exception as error:  # a failed request is a mismatch like any other, with its reproduction
        found, counts = f"{type(error).__name__}: {error}", None
    if found != plain:
        tally.mismatches.append(Mismatch(group.number, question, twin, plain, found))
    _count(tally, counts, trouble)


def _count(tally: Tally, counts: Counts | None, trouble: Trouble) -> None:
    tally.sequences += 1
    if counts is not None:
        tally.tokens += counts.completion_tokens
        tally.rounds += counts.rounds
        tally.proposed += counts.proposed
        tally.accepted += counts.accepted
    for name, times in trouble.counts.items():
        tally.faults[name] = tally.faults.get(name, 0) + times


def _drafter(twin: Twin, plain: Answer, stage: Stage) -> DraftEngine:
    chance = Random(twin.seed + 1)
    match twin.drafter:
        case Drafter.KIN:
            return stage.kin
        case Drafter.STRANGER:
            return stage.stranger
        case Drafter.ANYTHING:
            return GuessingDraft(anything, chance)
        case Drafter.ECHO:
            return GuessingDraft(echo, chance)
        case Drafter.ONE_TOKEN:
            return GuessingDraft(one_token, chance)
        case Drafter.KNOWING:
            return GuessingDraft(knowing(plain.tokens, error=0), chance)
        case Drafter.NEARLY_KNOWING:
            return GuessingDraft(knowing(plain.tokens, error=0.15), chance)


async def _answer(
    question: Question, name: str, engines: Engines, bounds: Iterator[Bounds]
) -> tuple[Answer, Counts]:
    request = Request(
        session=SessionId(name),
        prompt=question.prompt,
        parameters=question.parameters,
        verification=Verification.COUPLED,
        endings=question.endings,
        decode=spelled,
        target_length=LONGEST,
        draft_length=None if engines.draft is None else LONGEST - ANSWER_TOKENS,
    )
    items = generate(
        Session(request),
        engines=engines,
        lookahead=Lookahead(),
        allowance=lambda: next(bounds),
        observer=NobodyWatches(),
        clock=CountedClock(),
    )
    tokens: list[TokenId] = []
    text = ""
    async with aclosing(items) as stream:
        async for item in stream:
            if isinstance(item, Emit):
                tokens += item.tokens
                text += item.text
            else:
                return Answer(tuple(tokens), text, item.reason), item.counts
    raise AssertionError("the stream ended without a finish")


