"""Measures what it brings that steps wait for sessions that are about to come back: `make bench NAME=gathering`.

Refuses to know drafts, HTTP and gRPC: step loop, sessions and the rule (`domain.gathering`) are the product's own, over
a scripted model, in virtual time (`simulator.stepped`): a busy machine gives the same figures.

A target's step takes 15 ms and .6 more for each guess of its longest proposal, of two here. Sessions ask for a round,
and for the next one when they have drafted it, which takes what a *drafting* below says; a session's times are the same
with the rule and without. The gain is rounds per second of all sessions with the rule over without:

    closed     1 to 64 sessions, each with one round behind the other
    open       sessions of 32 rounds that come by chance, so that about as many as the row says are at work;
               the gain is their mean seconds without the rule over with it
    beside     three such sessions beside one that decodes plainly, which is kept by nobody
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, ClassVar

from benchmarks.record import record
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.stepped import SteppedClock, SteppedLoop, SteppedTarget
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Priority,
    Proposal,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.pace import TABLES
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.step_loop import StepLoop

SEED, UNCOUNTED_SECONDS = 19, 1.0
MOST_TOKENS, GUESSES = 20_000, 2
SECONDS = {1: 4.0, 2: 20.0, 4: 10.0, 16: 4.0, 64: 6.0}
"""By the sessions of a closed loop."""
AT_WORK = (2, 6, 20)
OPEN_SESSIONS, OPEN_ROUNDS, ROUND_SECONDS = 80, 32, 0.03
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"))
GREEDY = SamplingParameters(seed=SEED, temperature=0.0)

Drafting = Callable[[random.Random, int], float]
"""(chance, number of the session) -> seconds from a verdict to the next round."""


def lookup(chance: random.Random, _: int) -> float:
    """Nothing but the way."""
    return chance.uniform(0.0003, 0.0013)


def ahead(chance: random.Random, _: int) -> float:
    """The draft works ahead: 85 % of its proposals are ready."""
    return chance.uniform(0.001, 0.002) if chance.random() < 0.85 else chance.uniform(0.008, 0.012)


def doubtful(chance: random.Random, _: int) -> float:
    """The same with 60 %."""
    return chance.uniform(0.001, 0.002) if chance.random() < 0.6 else chance.uniform(0.008, 0.014)


def two_tokens(chance: random.Random, _: int) -> float:
    """On demand, 4 ms a token."""
    return 0.009 + chance.gauss(0, 0.0004)


def a_step(chance: random.Random, _: int) -> float:
    """As long as the target's step."""
    return 0.0165 + chance.gauss(0, 0.0005)


def two_steps(chance: random.Random, _: int) -> float:
    return 0.033 + chance.gauss(0, 0.001)


def any_time(chance: random.Random, _: int) -> float:
    return chance.uniform(0.001, 0.021)


def by_chance(chance: random.Random, _: int) -> float:
    """Nothing tells when."""
    return chance.expovariate(50.0)


def held(chance: random.Random, _: int) -> float:
    """Every tenth time the reader holds the answer."""
    return chance.uniform(0.1, 0.3) if chance.random() < 0.1 else chance.uniform(0.002, 0.004)


def unlike(chance: random.Random, number: int) -> float:
    """Every second session looks up, the others draft on demand."""
    return lookup(chance, number) if number % 2 else 0.013 + chance.gauss(0, 0.0004)


DRAFTINGS: Mapping[str, Drafting] = {
    each.__name__: each
    for each in (lookup, ahead, doubtful, two_tokens, a_step, two_steps, any_time, by_chance, held, unlike)
}


class HastyLoop(SteppedLoop):
    """Steps as soon as anything is ready."""

    def expect(self, session: SessionId, priority: Priority) -> None:
        """Nobody is waited for."""


class HastyTarget(SteppedTarget):
    steps: ClassVar[type[StepLoop]] = HastyLoop


@dataclass(slots=True)
class Books:
    """Rounds that ended when they counted, by session, and the seconds of each session that ended."""

    rounds: dict[int, int] = field(default_factory=dict)
    sessions: list[float] = field(default_factory=list)


def always_two(_: object) -> list[float]:
    return [0.0, 0.0, 1.0, 0.0]


@dataclass(frozen=True, slots=True)
class Stage:
    target: SteppedTarget
    drafting: Drafting
    books: Books

    async def speculate(self, number: int, rounds: int) -> None:
        """One session, from its opening to its end."""
        loop, chance = asyncio.get_running_loop(), random.Random(f"{SEED}:{number}")
        began, asked = loop.time(), self._opening(number)
        await self.target.open(asked)
        offset, guesses = 0, Proposal((TokenId(3),) * GUESSES)
        for at in range(rounds):
            await asyncio.sleep(max(self.drafting(chance, number), 0.0002))
            round = VerifyRound(asked.session, FACTS.incarnation, at, offset, guesses)
            offset += (await self.target.verify(round)).accepted + 1
            self._note(number)
        await self.target.close(asked.session)
        self.books.sessions.append(loop.time() - began)

    async def decode(self, number: int) -> None:
        """One that says token by token."""
        asked = self._opening(number)
        await self.target.open(asked)
        run = self.target.run(RunRounds(asked.session, FACTS.incarnation, 0, 0, MOST_TOKENS - 1))
        async with aclosing(run) as verdicts:  # type: ignore[type-var] # a run of a bundled engine is a generator
            async for _ in verdicts:
                self._note(number)

    def _opening(self, number: int) -> OpenSession:
        name = SessionId(f"{number}")
        return OpenSession(name, (1,), (), GREEDY, Verification.COUPLED, max_tokens=MOST_TOKENS)

    def _note(self, number: int) -> None:
        if asyncio.get_running_loop().time() >= UNCOUNTED_SECONDS:
            self.books.rounds[number] = self.books.rounds.get(number, 0) + 1


def _target(kind: type[SteppedTarget]) -> SteppedTarget:
    clock = SteppedClock()
    model = ScriptedModel(always_two, max_length=MOST_TOKENS + 1, max_sessions=256)
    return kind(model, FACTS, clock=clock, pace=clock.pace(TABLES["h100-70b"]))


async def closed(kind: type[SteppedTarget], drafting: Drafting, sessions: int, plain: int = 0) -> Books:
    """The first `plain` of them decode plainly."""
    with _target(kind) as target:
        stage = Stage(target, drafting, Books())
        asking = [asyncio.create_task(stage.decode(at)) for at in range(plain)]
        asking += [asyncio.create_task(stage.speculate(at, MOST_TOKENS)) for at in range(plain, sessions)]
        await asyncio.sleep(SECONDS[sessions])
        for task in asking:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return stage.books


async def opened(kind: type[SteppedTarget], drafting: Drafting, at_work: int) -> Books:
    chance = random.Random(f"{SEED}:arrivals")
    asked: list[asyncio.Task[None]] = []
    with _target(kind) as target:
        stage = Stage(target, drafting, Books())
        for number in range(OPEN_SESSIONS):
            await asyncio.sleep(chance.expovariate(at_work / (OPEN_ROUNDS * ROUND_SECONDS)))
            asked.append(asyncio.create_task(stage.speculate(number, OPEN_ROUNDS)))
        await asyncio.gather(*asked)
    return stage.books


def both(asking: Callable[[type[SteppedTarget]], Coroutine[Any, Any, Books]]) -> tuple[Books, Books]:
    """With the rule, and without."""
    gathered, hasty = (run_virtually(partial(asking, kind)) for kind in (SteppedTarget, HastyTarget))
    return gathered, hasty


def gain(gathered: Books, hasty: Books, numbers: slice = slice(None)) -> float:
    """In rounds of the sessions `numbers`."""

    def total(books: Books) -> int:
        return sum(count for _, count in sorted(books.rounds.items())[numbers])

    return total(gathered) / total(hasty)


def main() -> None:
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, float]] = {}
    print(f"{'gain':11}" + "".join(f" {sessions:7}" for sessions in SECONDS) + "   sessions, closed loop")
    for name, drafting in DRAFTINGS.items():
        for sessions in SECONDS:
            gathered, hasty = both(partial(closed, drafting=drafting, sessions=sessions))
            key = f"closed_{name}_{sessions}"
            figures[key] = round(gain(gathered, hasty), 4)
            samples[key] = {"with": sum(gathered.rounds.values()), "without": sum(hasty.rounds.values())}
        print(
            f"{name:11}" + "".join(f" {figures[f'closed_{name}_{sessions}']:7.3f}" for sessions in SECONDS), flush=True
        )
    for drafting, at_work in itertools.product((ahead, by_chance), AT_WORK):
        gathered, hasty = both(partial(opened, drafting=drafting, at_work=at_work))
        key = f"open_{drafting.__name__}_{at_work}"
        samples[key] = {"with": fmean(gathered.sessions), "without": fmean(hasty.sessions)}
        figures[key] = round(samples[key]["without"] / samples[key]["with"], 4)
        print(f"{key:24} {figures[key]:.3f}", flush=True)
    gathered, hasty = both(partial(closed, drafting=ahead, sessions=4, plain=1))
    figures["beside_plain"] = round(gain(gathered, hasty, slice(1)), 4)
    figures["beside_others"] = round(gain(gathered, hasty, slice(1, None)), 4)
    figures["worst_gain"] = min(figures.values())
    print(f"beside a plain one: it {figures['beside_plain']:.3f}, the others {figures['beside_others']:.3f}")
    print(f"worst {figures['worst_gain']:.3f} (must be .995)")
    print(record("gathering", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
