"""Proposals that share a target's step: which of their tokens are judged, and what the verdict then says."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from tests.seams.stepped_targets import (
    FACTS,
    GUESSES,
    LIFE,
    Everybody,
    SteppedModel,
    StillClock,
    known_costs,
)
from tests.seams.wire_peers import connected, served

from tandem_runtime.domain.errors import StaleOffset
from tandem_runtime.domain.tokens import (
    OpenSession,
    Proposal,
    SamplingParameters,
    SessionId,
    SparseRow,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits, Row, TargetEngine
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.roles import TargetRole

Result = TypeVar("Result")
GOOD, BAD = (0.9, 0.8, 0.7, 0.6, 0.5), (0.3, 0.1, 0.03, 0.01, 0.001)


COLD = SamplingParameters(seed=1, temperature=0.0)


def sloped(fixed: float = 0.010) -> StepSize:
    """A step costs `fixed` and a millisecond per row, and the loop knows it."""
    return StepSize(costs=known_costs(fixed, 0.001))


@dataclass(frozen=True)
class Asked:
    """A session's first round."""

    first: TokenId
    proposal: Proposal
    survivals: tuple[float, ...]
    verification: Verification = Verification.COUPLED
    parameters: SamplingParameters = COLD
    logprobs: int | None = None


def opening(name: str, asked: Asked) -> OpenSession:
    return OpenSession(
        SessionId(name),
        (asked.first,),
        (),
        asked.parameters,
        asked.verification,
        max_tokens=200,
        logprobs=asked.logprobs,
        tenant="everybody",
    )


async def in_one_step(target: TargetEngine, model: SteppedModel, rounds: Sequence[Asked]) -> list[Verdict]:
    """The verdicts of rounds that were all there when a step was planned."""
    people = Everybody(target, model)
    await people.open("holding", 6)
    for at, asked in enumerate(rounds):
        await target.open(opening(f"{at}", asked))
    holding = people.round("holding", 0)
    await people.stand()
    verdicts = [
        people.ask(VerifyRound(SessionId(f"{at}"), LIFE, 0, 0, asked.proposal, asked.survivals))
        for at, asked in enumerate(rounds)
    ]
    await people.step()
    people.let_go()
    await holding
    return await asyncio.gather(*verdicts)


def answered(verdict: Verdict) -> tuple[int, TokenId, int]:
    return verdict.accepted, verdict.token, verdict.unjudged


async def test_the_guesses_that_are_worth_their_seconds_are_judged() -> None:
    """The chain says 5, 3, 1, 2, 3 after 1: of a good proposal all is judged, of a bad one nothing."""
    model = SteppedModel()
    asked = [Asked(1, Proposal((5, 3, 1, 2, 3)), GOOD), Asked(2, Proposal((6,) * 5), BAD), Asked(3, Proposal(), ())]
    with BatchedTarget(model, FACTS, clock=StillClock(), size=sloped()) as target:
        verdicts = await in_one_step(target, model, asked)
    assert model.steps == [[(6, 1)], [(1, 6), (2, 1), (3, 1)]]
    assert answered(verdicts[0]) == (5, 0, 0)
    assert [(verdict.accepted, verdict.unjudged) for verdict in verdicts[1:]] == [(0, 5), (0, 0)]


async def test_a_lone_proposal_is_judged_whole() -> None:
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=StillClock(), size=sloped()) as target:
        (verdict,) = await in_one_step(target, model, [Asked(1, Proposal(GUESSES), BAD)])
    assert (verdict.unjudged, model.steps[1]) == (0, [(1, 6)])


UNCUT = {
    "no belief": (sloped(), ()),
    "rows cost nothing": (StepSize(), BAD),
    "switched off": (StepSize(costs=None), BAD),
}


@pytest.mark.parametrize(("size", "survivals"), UNCUT.values(), ids=UNCUT)
async def test_without_beliefs_or_costs_all_is_judged(size: StepSize, survivals: tuple[float, ...]) -> None:
    model = SteppedModel()
    asked = [Asked(first, Proposal(GUESSES), survivals) for first in (1, 2)]
    with BatchedTarget(model, FACTS, clock=StillClock(), size=size) as target:
        verdicts = await in_one_step(target, model, asked)
    assert [verdict.unjudged for verdict in verdicts] == [0, 0]


LAW = SparseRow((0, 1, 2, 3, 4, 5, 6), (0.25, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125))


def drawn(ids: tuple[TokenId, ...], verification: Verification) -> Proposal:
    return Proposal(ids, None if verification is Verification.COUPLED else (LAW,) * len(ids))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("verification", Verification)
async def test_a_cut_proposal_is_judged_as_a_shorter_one(verification: Verification, seed: int) -> None:
    warm = SamplingParameters(seed=seed, temperature=2.0)
    ids: tuple[TokenId, ...] = (5, 3, 1, 2, 3)
    middling = (0.95, 0.8, 0.3, 0.1, 0.01)
    cut = Asked(1, drawn(ids, verification), middling, verification, warm, logprobs=2)
    shorter = replace(cut, proposal=drawn(ids[:2], verification), survivals=(1.0, 1.0))
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=StillClock(), size=sloped()) as target:
        long, short = await in_one_step(target, model, [cut, shorter])
    assert long.unjudged == 3
    assert replace(long, unjudged=0, queue_seconds=0, forward_seconds=0) == replace(
        short, queue_seconds=0, forward_seconds=0
    )


DRAWS: list[tuple[TokenId, ...]] = [(5, 3, 1), (5, 3, 6), (5, 6, 6), (0, 0, 0), (6, 5, 4), (3, 3, 3)]
"""From what the chain says itself to what it never would; token 0 is what q thinks likeliest."""


@pytest.mark.parametrize("verification", Verification)
async def test_what_is_left_out_is_the_same_whatever_was_drawn(verification: Verification) -> None:
    beliefs = [(0.9, 0.5, 0.2), (0.6, 0.4, 0.39), (0.3, 0.2, 0.1)]
    cuts = set()
    for ids in DRAWS:
        model = SteppedModel()
        asked = [Asked(1, drawn(ids, verification), believed, verification) for believed in beliefs]
        with BatchedTarget(model, FACTS, clock=StillClock(), size=sloped()) as target:
            verdicts = await in_one_step(target, model, asked)
        cuts.add(tuple(verdict.unjudged for verdict in verdicts))
    assert cuts == {(1, 0, 3)}


async def test_a_round_that_is_asked_again_is_cut_as_it_was() -> None:
    """Though it is alone by then, and would be judged whole."""
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=StillClock(), size=sloped()) as target:
        asked = [Asked(1, Proposal((5, 6, 6)), (0.9, 0.1, 0.1)), Asked(2, Proposal((6,) * 5), BAD)]
        first, _ = await in_one_step(target, model, asked)
        again = await target.verify(VerifyRound(SessionId("0"), LIFE, 0, 0, Proposal((5, 6, 6)), (0.9, 0.1, 0.1)))
        believed_anew = await target.verify(VerifyRound(SessionId("0"), LIFE, 0, 0, Proposal((5, 6, 6)), ()))
        with pytest.raises(StaleOffset, match="another proposal"):
            await target.verify(VerifyRound(SessionId("0"), LIFE, 0, 0, Proposal((5,)), (0.9,)))
        then = await target.verify(VerifyRound(SessionId("0"), LIFE, 1, 2, Proposal((1, 2))))
    assert answered(first) == (1, 3, 2)
    assert (again, believed_anew) == (first, first)
    assert answered(then) == (2, 3, 0)


class Heard(BatchedTarget):
    """Says when a round has come to the loop."""

    rounds: asyncio.Semaphore

    async def verify(self, request: VerifyRound) -> Verdict:
        verdict = asyncio.ensure_future(super().verify(request))
        await asyncio.sleep(0)
        self.rounds.release()
        return await verdict


async def test_beliefs_and_cuts_travel_over_the_wire() -> None:
    model = SteppedModel()
    with Heard(model, FACTS, clock=StillClock(), size=sloped()) as target:
        target.rounds = asyncio.Semaphore(0)
        async with served(TargetRole(target)) as server, connected(RemoteTarget, server.port) as remote:
            people = Everybody(remote, model)
            for name, first in (("holding", 6), ("a", 1), ("b", 2)):
                await people.open(name, first)
            holding = people.round("holding", 0)
            await people.stand()
            asked = [("a", Proposal((5, 3, 1)), (0.9, 0.8, 0.1)), ("b", Proposal(GUESSES), BAD)]
            rounds = [
                people.ask(VerifyRound(SessionId(name), LIFE, 0, 0, proposal, survivals))
                for name, proposal, survivals in asked
            ]
            for _ in range(3):
                await target.rounds.acquire()
            people.let_go()
            await holding
            verdicts = await asyncio.gather(*rounds)
    assert answered(verdicts[0]) == (2, 1, 1)
    assert verdicts[1].unjudged == 4


async def test_a_prompt_that_rides_along_is_no_guess() -> None:
    """Two prompts of 20 tokens with five guesses each: beside so many rows, two guesses are still worth theirs."""
    model = SteppedModel()
    with BatchedTarget(model, FACTS, clock=StillClock(), size=sloped()) as target:
        people = Everybody(target, model)
        for name, first in (("h", 6), ("a", 1), ("b", 2)):
            await people.open(name, first, length=1 if name == "h" else 20)
        holding = people.round("h", 0)
        await people.stand()
        bad = [people.ask(VerifyRound(SessionId(name), LIFE, 0, 0, Proposal(GUESSES), BAD)) for name in "ab"]
        await people.step()
        people.let_go()
        await asyncio.gather(holding, *bad)
    assert model.steps[1] == [(1, 22), (2, 22)]


class Ticking:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class RowByRow(ScriptedModel):
    """A step takes as long as its rows."""

    def __init__(self, clock: Ticking) -> None:
        super().__init__(chain_logits, max_length=512, max_sessions=8)
        self._clock = clock

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self._clock.now += 0.01 * sum(len(row.tokens) for row in rows)
        return super().forward(rows)


async def in_one_turn(target: BatchedTarget, asked: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All that is asked at once, by a loop that has no thread and takes its turns here."""
    tasks = [asyncio.create_task(each) for each in asked]
    await asyncio.sleep(0)
    target.loop.turn()
    target.loop.send()
    return await asyncio.gather(*tasks)


async def test_steps_teach_what_rows_cost() -> None:
    """Where a step is nothing but its rows, a guess is worth less than the plain token of a row, and goes."""
    clock = Ticking()
    target = BatchedTarget(RowByRow(clock), FACTS, clock=clock)
    await in_one_turn(target, [target.open(opening(name, Asked(at, Proposal(), ()))) for at, name in enumerate("ab")])
    offsets = {"a": 0, "b": 0}
    unjudged = []
    for number in range(30):
        ids = GUESSES[: 1 + number % 5]
        asked = [
            VerifyRound(SessionId(name), LIFE, number, offset, Proposal(ids), (0.5,) * len(ids))
            for name, offset in offsets.items()
        ]
        verdicts = await in_one_turn(target, [target.verify(each) for each in asked])
        offsets = {name: verdict.offset + verdict.accepted + 1 for name, verdict in zip("ab", verdicts, strict=True)}
        unjudged.append(min(verdict.unjudged for verdict in verdicts) == len(ids))
    assert unjudged[:8] == [False] * 8, "costs are not believed before"
    assert unjudged[20:] == [True] * 10
