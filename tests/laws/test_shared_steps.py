"""Two sessions whose texts may end anywhere share full steps of the real target: their joint law is the target's.

The proposals that a draft can make are enumerated, for both at once. For each pair the real session, planning, memory
and books say how many guesses are judged, and in which step; with these counts the exact law of both texts is made.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest
from tests.domain.session_bench import request
from tests.laws.enumeration import Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import Rule, drafted, emitted, model, up_to_an_end
from tests.seams.stepped_targets import FACTS, LIFE, StillClock, known_costs

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.commands import OpenTarget, Verify
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.tokens import (
    Incarnation,
    Opened,
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
from tandem_runtime.domain.verification import verify_rejection
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget

RULES: dict[Verification, Rule] = {Verification.REJECTION: verify_rejection, Verification.BLOCK: verify_block}
TARGET, DRAFT = model((4, 1, 2), (1, 1, 3)), model((2, 0, 3), (4, 0, 1), (1, 2, 1))
ROW = SparseRow((0, 1, 2), (0.5, 0.25, 0.25))
END: TokenId = 0
STEPS = 4


@dataclass(frozen=True)
class Stage:
    """What the two sessions ask for, and what the target has for it. In the first step so many are beside them with a
    sure guess each, `before` so many read prompts, and end; `after` it so many come with a sure guess each. Where there
    are many sure ones, a step has nothing for doubtful guesses."""

    beliefs: tuple[tuple[float, ...], tuple[float, ...]]
    rows: int = 512
    blocks: int = 512
    fixed: float = 0.010
    prompt: int = 1
    beside: int = 0
    before: int = 0
    after: int = 0

    @property
    def k(self) -> int:
        return len(self.beliefs[0])

    @property
    def proposals(self) -> list[Prefix]:
        """All that a draft can draw which stops behind an end token."""
        ends = [(*ids, END) for size in range(self.k) for ids in product((1, 2), repeat=size)]
        return [*ends, *product((1, 2), repeat=self.k)]


DOUBTS = (0.5, 0.45)
STAGES = {
    "two rows are left of 32": Stage((DOUBTS, DOUBTS), rows=32, before=2, after=30),
    "one block is left": Stage((DOUBTS, DOUBTS), blocks=4, prompt=15, before=3, after=30),
    "more guesses would be more than 32 rows": Stage(((0.3, 0.2), (0.3, 0.2)), prompt=31, beside=30),
    "each one's last guess is dear beside the other's second": Stage(
        ((0.99, 0.95, 0.52), (0.99, 0.95, 0.51)), fixed=0.00486
    ),
}


class Judged(NamedTuple):
    """How many guesses of a proposal, in which step."""

    guesses: int
    step: int


Pair = tuple[Prefix, Prefix]


def everybody(name: str, length: int) -> OpenSession:
    session = Session(
        replace(request(), session=SessionId(name), prompt=(len(name) % 7, *(ord(name[-1]) % 7,) * (length - 1)))
    )
    return opening_of(session)


def opening_of(session: Session) -> OpenSession:
    asked = session.next()
    assert isinstance(asked, OpenTarget)
    return asked.request


async def stepped(target: BatchedTarget) -> None:
    """All that is asked by now, and a step, by a loop that has no thread and takes its turn here."""
    await asyncio.sleep(0)
    target.loop.turn()
    target.loop.send()
    for _ in range(5):
        await asyncio.sleep(0)


async def judged(stage: Stage, verification: Verification, pair: Pair) -> tuple[Judged, ...]:
    """Of each of the two proposals."""
    kv = ScriptedModel(chain_logits, max_length=64, max_sessions=64, kv_blocks=stage.blocks)
    size = StepSize(rows=stage.rows, costs=known_costs(stage.fixed, 0.001))
    target = BatchedTarget(kv, FACTS, clock=StillClock(), size=size)
    asked = replace(request(), verification=verification, parameters=SamplingParameters(seed=1))
    ours = [Session(replace(asked, session=SessionId(name), prompt=(3,) * stage.prompt)) for name in ("a", "b")]
    early = [everybody(f"early {at}", 15) for at in range(stage.before)]
    beside = [everybody(f"beside {at}", 1) for at in range(stage.beside)]
    late = [everybody(f"late {at}", 1) for at in range(stage.after)]
    opening = [asyncio.ensure_future(target.open(each)) for each in [*early, *beside, *map(opening_of, ours), *late]]
    await stepped(target)
    await asyncio.gather(*opening)
    rounds = [
        asyncio.ensure_future(target.verify(proposed(session, beliefs, ids)))
        for session, beliefs, ids in zip(ours, stage.beliefs, pair, strict=True)
    ]
    asked_beside = [*map(plain, early), *map(sure, beside)]
    crowd = [asyncio.ensure_future(target.verify(each)) for each in asked_beside]
    found: dict[int, Judged] = {}
    for step in range(1, STEPS):
        await stepped(target)
        for at, verdict in enumerate(rounds):
            if verdict.done() and at not in found:
                found[at] = Judged(len(pair[at]) - verdict.result().unjudged, step)
        if step == 1:
            closing = [asyncio.ensure_future(target.close(each.session)) for each in early]
            crowd += [asyncio.ensure_future(target.verify(sure(each))) for each in late]
        if len(found) == len(rounds):
            break
    await left(crowd)
    await left(closing)
    return found[0], found[1]


async def left(tasks: Sequence["asyncio.Future[Verdict] | asyncio.Future[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def plain(opening: OpenSession) -> VerifyRound:
    return VerifyRound(opening.session, LIFE, 0, 0, Proposal())


def sure(opening: OpenSession) -> VerifyRound:
    return VerifyRound(opening.session, LIFE, 0, 0, Proposal((1,)), (1.0,))


def proposed(session: Session, beliefs: tuple[float, ...], ids: Prefix) -> VerifyRound:
    """A session's first round, as its driver comes to it."""
    session.opened(Opened(LIFE))
    session.chosen(len(beliefs), beliefs)
    session.draft_opened(Opened(Incarnation("draft")))
    session.proposed(Proposal(ids, (ROW,) * len(ids)))
    asked = session.next()
    assert isinstance(asked, Verify)
    return asked.request


@cache
def counts(stage: Stage, verification: Verification) -> Mapping[Pair, tuple[Judged, ...]]:
    """For every pair of proposals."""

    async def all_of_them() -> dict[Pair, tuple[Judged, ...]]:
        return {pair: await judged(stage, verification, pair) for pair in product(stage.proposals, stage.proposals)}

    return asyncio.run(all_of_them())


Kept = Callable[[Pair], tuple[int, ...]]
Joint = dict[tuple[Prefix, Prefix], Fraction]


def joint_law(rule: Rule, k: int, kept: Kept) -> Joint:
    """Of the first K + 1 tokens of both texts, which go on by plain decoding behind the round."""
    laws = [told(rule, k, count) for count in range(k + 1)]
    joint: Joint = defaultdict(Fraction)
    for pair in product(laws[0], laws[0]):
        first, second = (laws[count][ids] for ids, count in zip(pair, kept(pair), strict=True))
        for (one, mass), (other, share) in product(first.items(), second.items()):
            joint[one, other] += mass * share
    return {texts: mass for texts, mass in joint.items() if mass}


@cache
def told(rule: Rule, k: int, kept: int) -> Mapping[Prefix, Mapping[Prefix, Fraction]]:
    """The chance of each proposal together with each text, where so many guesses of it are judged."""

    def process(numbers: Numbers) -> Pair:
        ids = drafted(numbers, DRAFT, k=k, goes_on=up_to_an_end)
        text = emitted(numbers, rule, TARGET, DRAFT, k=k, goes_on=up_to_an_end, kept=lambda *_: kept)
        return ids, text

    laws: dict[Prefix, dict[Prefix, Fraction]] = defaultdict(dict)
    for (ids, text), mass in law_of_process(process).items():
        laws[ids][text] = mass
    return {ids: continued(law, TARGET, length=k + 1) for ids, law in laws.items()}


def law_of_two(k: int) -> Joint:
    """Of two texts that have nothing to do with each other."""
    plainly = plain_law(TARGET, length=k + 1)
    return {(one, other): plainly[one] * plainly[other] for one, other in product(plainly, repeat=2)}


@pytest.mark.parametrize("verification", RULES)
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_two_sessions_that_share_a_full_step_keep_their_law(stage: Stage, verification: Verification) -> None:
    found = counts(stage, verification)
    law = joint_law(RULES[verification], stage.k, lambda pair: tuple(each.guesses for each in found[pair]))
    assert law == law_of_two(stage.k)


@pytest.mark.parametrize("stage", [stage for stage in STAGES.values() if stage.before], ids=[*STAGES][:2])
@pytest.mark.parametrize("verification", RULES)
def test_it_would_not_hold_if_who_waits_were_cut_by_the_next_steps_prices(
    stage: Stage, verification: Verification
) -> None:
    """A proposal that waits is one that did not end soon."""
    found = counts(stage, verification)

    def cut_anew(pair: Pair) -> tuple[int, ...]:
        return tuple(each.guesses if each.step == 1 else 0 for each in found[pair])

    assert {each.step for pair in found.values() for each in pair} == {1, 2}
    assert joint_law(RULES[verification], stage.k, cut_anew) != law_of_two(stage.k)
