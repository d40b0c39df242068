"""Knows how a group of sequences is proven.

Refuses to know how cases are chosen, and how a request is answered.

The claim: in coupled mode the tokens, the text, the log-probabilities and the reason of an ending are those of plain
decoding, whatever the drafter proposes, however K goes, whatever is lost, asked twice or opened again, and whoever
shares the steps. Plain decoding is the same driver with no draft on an engine of its own; a share of its answers is
decoded once more by the reference in `domain.sampling` alone.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from tests.exactness.cases import Drafter, Group, Twin, bounds_over_time
from tests.exactness.drafters import GuessingDraft, anything, echo, knowing, one_token
from tests.exactness.faults import Trouble, TroubledDraft, TroubledTarget
from tests.exactness.loops import PATIENT, Answer, Question, Stage, answer_of, off, stage_of
from tests.exactness.texts import STRANGER, WORLDS, kin

from tandem_runtime.domain.commands import Counts
from tandem_runtime.domain.errors import NothingAdmitted
from tandem_runtime.domain.processors import History, processed
from tandem_runtime.domain.sampling import coupled_choice
from tandem_runtime.domain.tokens import FinishReason, Round, TokenId
from tandem_runtime.driver import Engines
from tandem_runtime.ports import DraftEngine, TargetEngine

KIN_ACCEPTANCE = 0.8
REFERENCE_TOKENS = 16
"""The reference makes a logarithm per token of the vocabulary in plain Python, so it goes no further."""


@dataclass(frozen=True)
class Mismatch:
    group: int
    question: Question
    twin: Twin
    plain: Answer
    found: Answer | str

    def __str__(self) -> str:
        """Sequences over the torch engine need the command's `--torch` beside."""
        return (
            f"sequence differs from plain decoding; reproduce with:  python -m tests.exactness --groups {self.group}\n"
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
    prepared: int = 0
    """Rounds whose proposal had been drafted ahead."""
    by_reference: int = 0
    cut_off: int = 0
    """Sequences that ended because the request's own rules left no token."""
    faults: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.prepared += other.prepared
        self.by_reference += other.by_reference
        self.cut_off += other.cut_off
        self.mismatches += other.mismatches
        self.count_faults(other.faults)

    def count_faults(self, faults: dict[str, int]) -> None:
        for name, times in faults.items():
            self.faults[name] = self.faults.get(name, 0) + times

    def round(self, round: Round) -> None:
        self.prepared += round.ahead is not None and round.ahead.hit

    def count_answer(self, counts: Counts | None) -> None:
        if counts is None:
            self.cut_off += 1
            return
        self.tokens += counts.completion_tokens
        self.rounds += counts.rounds
        self.proposed += counts.proposed
        self.accepted += counts.accepted


Staging = Callable[[Group, bool], AbstractAsyncContextManager[Stage]]
"""(group, speculating) -> its engines; drafts, kin and stranger, only where it speculates."""


def scripted(group: Group, speculating: bool) -> AbstractAsyncContextManager[Stage]:
    script = WORLDS[group.world]
    if not speculating:
        return stage_of(script)
    return stage_of(script, kin(script, acceptance=KIN_ACCEPTANCE), STRANGER, chunk_tokens=group.chunk_tokens)


async def prove(group: Group, *, staging: Staging = scripted, reference_every: int | None = 16) -> Tally:
    """Run a group; sequences that differ are in the tally, never raised. The reference knows the scripted world."""
    tally = Tally()
    async with staging(group, False) as stage:
        asked = enumerate(group.questions)
        plain = await asyncio.gather(*(_plain(question, f"plain {at}", stage) for at, question in asked))
    for at, (question, answer) in enumerate(zip(group.questions, plain, strict=True)):
        if reference_every is not None and (group.number + at) % reference_every == 0:
            _check_by_reference(group, question, answer)
            tally.by_reference += 1
    async with staging(group, True) as stage:
        runs = [
            _prove_twin(_Case(group.number, question, twin, answer), stage, tally)
            for question, twins, answer in zip(group.questions, group.twins, plain, strict=True)
            for twin in twins
        ]
        Random(group.number).shuffle(runs)
        await asyncio.gather(*runs)
    return tally


def _check_by_reference(group: Group, question: Question, answer: Answer) -> None:
    """Plain decoding by the specification, without engines."""
    output: list[TokenId] = []
    asked = question.parameters
    while len(output) < min(REFERENCE_TOKENS, len(answer.tokens)):
        row = WORLDS[group.world]((*question.prompt, *output)).tolist()
        row = processed(row, asked, History(question.prompt, output))
        output.append(coupled_choice(row, asked.after_processors(), len(output)))
    assert list(answer.tokens[: len(output)]) == output, f"plain decoding of group {group.number} is wrong: {question}"
    if not isinstance(answer.reason, FinishReason) and len(output) == len(answer.tokens):
        row = WORLDS[group.world]((*question.prompt, *output)).tolist()
        with pytest.raises(NothingAdmitted):
            processed(row, asked, History(question.prompt, output))


async def _plain(question: Question, name: str, stage: Stage) -> Answer:
    answer, _ = await answer_of(question, name, stage.engines, off(), refusal=stage.refusal)
    return answer


@dataclass(frozen=True)
class _Case:
    group: int
    question: Question
    twin: Twin
    plain: Answer


async def _prove_twin(case: _Case, stage: Stage, tally: Tally) -> None:
    twin = case.twin
    for _ in range(twin.late):
        await asyncio.sleep(0)
    trouble = Trouble(Random(twin.seed), twin.trouble)
    found: Answer | str
    try:
        engines, bounds = _engines(case, stage, trouble), bounds_over_time(twin)
        found, counts = await answer_of(
            case.question, f"{twin.seed}", engines, bounds, refusal=stage.refusal, observer=tally
        )
        tally.count_answer(counts)
    except Exception as error:  # a failed request differs like any other, with its reproduction
        found = f"{type(error).__name__}: {error}"
    if found != case.plain:
        tally.mismatches.append(Mismatch(case.group, case.question, twin, case.plain, found))
    tally.sequences += 1
    tally.count_faults(trouble.counts)


def _engines(case: _Case, stage: Stage, trouble: Trouble) -> Engines:
    """What the twin meets: a target that is lost and found, and its drafter, lost more rarely."""
    targets = [TroubledTarget(target, trouble) for target in stage.targets]
    turn = count(1)

    async def other() -> TargetEngine:
        return targets[next(turn) % 2]

    rarely = Trouble(Random(~case.twin.seed), case.twin.trouble / 4, trouble.counts)
    return Engines(targets[0], TroubledDraft(_drafter(case, stage), rarely), other, PATIENT)


def _drafter(case: _Case, stage: Stage) -> DraftEngine:
    chance = Random(case.twin.seed + 1)
    match case.twin.drafter:
        case Drafter.KIN:
            return stage.drafts[0]
        case Drafter.STRANGER:
            return stage.drafts[1]
        case Drafter.ANYTHING:
            return GuessingDraft(anything, chance)
        case Drafter.ECHO:
            return GuessingDraft(echo, chance)
        case Drafter.ONE_TOKEN:
            return GuessingDraft(one_token, chance)
        case Drafter.KNOWING:
            return GuessingDraft(knowing(case.plain.tokens, error=0), chance)
        case Drafter.NEARLY_KNOWING:
            return GuessingDraft(knowing(case.plain.tokens, error=0.15), chance)
