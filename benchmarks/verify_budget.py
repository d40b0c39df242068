"""Measures what a target's budget brings: `make bench NAME=verify_budget`.

Refuses to know HTTP and gRPC: step loop, budget, shares and sessions are the product's own, over a scripted model, in
virtual time (`simulator.stepped`): a busy machine gives the same figures.

So many sessions as a row says ask for rounds of 6 guesses, one behind the other, with 20 to 60 ms between verdict and
next round, as a draft takes them. Of a session's guesses alpha stand, .9, .7, .5 or .3 by its number and wherever they
stand in its text, and it believes so (survivals alpha, alpha^2, ...). A step takes 15 ms and more for each row. Goodput
is tokens per second of all sessions from the 50th step on, with the budget and without it; K is left alone, so that the
budget is all that differs. `sole` is what the best single K for all sessions would bring without a budget.

    boasting    two tenants of 16 sessions each, alpha .8; one of them claims that all of its 8 guesses stand, though a
                tenth does. Tokens per second of the other one, with the budget and without
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import mul

from benchmarks.record import record
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.stepped import RowCost, SteppedClock, SteppedTarget
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget

SEED, UNCOUNTED, STEPS = 7, 50, 150
MOST_TOKENS = 8000
FEW_ROUNDS = 1200
K, ALPHAS, APART_SECONDS = 6, (0.9, 0.7, 0.5, 0.3), 0.040
SESSIONS = (4, 16, 32, 64)
ROW_MILLISECONDS = (0.2, 0.6)
GREEDY = SamplingParameters(seed=SEED, temperature=0.0)
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"))


@dataclass(frozen=True, slots=True)
class Asker:
    """A session: how many of its guesses stand, how many it believes to, and how many there are."""

    tenant: str
    alpha: float
    believed: float
    k: int = K


@dataclass(slots=True)
class Books:
    """What was said and left out, by tenant, between the first and the last moment that count."""

    tokens: Counter[str]
    proposed: int = 0
    unjudged: int = 0
    seconds: float = 0.0

    def per_second(self, tenant: str | None = None) -> float:
        tokens = self.tokens.total() if tenant is None else self.tokens[tenant]
        return tokens / self.seconds


def always_two(prefix: Sequence[TokenId]) -> list[float]:
    """After anything comes token 2."""
    return [0.0, 0.0, 1.0, 0.0]


async def measure(askers: Sequence[Asker], *, row_milliseconds: float, budget: bool) -> Books:
    """One setting, from its start to its last step."""
    clock = SteppedClock()
    pace = clock.pace(RowCost(15.0, 0.0, row=row_milliseconds))
    size = StepSize() if budget else StepSize(costs=None)
    model = ScriptedModel(always_two, max_length=MOST_TOKENS + 1, max_sessions=2 * len(askers))
    books, began = Books(Counter()), 0.0
    chance = random.Random(SEED)
    with SteppedTarget(model, FACTS, clock=clock, size=size, pace=pace) as target:
        asking = [
            asyncio.create_task(_ask(target, f"{at}", asker, random.Random(chance.random()), books, pace))
            for at, asker in enumerate(askers)
        ]
        while pace.steps < UNCOUNTED + max(STEPS, FEW_ROUNDS // len(askers)):
            await asyncio.sleep(0.001)
            began = began if pace.steps >= UNCOUNTED and began else asyncio.get_running_loop().time()
        books.seconds = asyncio.get_running_loop().time() - began
        for task in asking:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return books


async def _ask(target: BatchedTarget, name: str, asker: Asker, chance: random.Random, books: Books, pace: Pace) -> None:
    opening = OpenSession(
        SessionId(name), (1,), (), GREEDY, Verification.COUPLED, max_tokens=MOST_TOKENS, tenant=asker.tenant
    )
    survivals = tuple(accumulate([asker.believed] * asker.k, mul))
    await target.open(opening)
    stands = [chance.random() < asker.alpha for _ in range(MOST_TOKENS)]
    offset = 0
    await asyncio.sleep(chance.random() * APART_SECONDS)
    for number in itertools.count():
        ids = tuple(2 if right else 3 for right in stands[offset : offset + asker.k])
        verdict = await target.verify(
            VerifyRound(opening.session, FACTS.incarnation, number, offset, Proposal(ids), survivals)
        )
        offset += verdict.accepted + 1
        if pace.steps >= UNCOUNTED:
            _note(books, asker, verdict)
        await asyncio.sleep(chance.uniform(0.5, 1.5) * APART_SECONDS)


def _note(books: Books, asker: Asker, verdict: Verdict) -> None:
    books.tokens[asker.tenant] += verdict.accepted + 1
    books.proposed += asker.k
    books.unjudged += verdict.unjudged


def mixed(sessions: int, k: int = K) -> list[Asker]:
    return [Asker("all", alpha, alpha, k) for alpha in itertools.islice(itertools.cycle(ALPHAS), sessions)]


def goodput(askers: Sequence[Asker], row_milliseconds: float, *, budget: bool) -> Books:
    return run_virtually(partial(measure, askers, row_milliseconds=row_milliseconds, budget=budget))


def main() -> None:
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, float]] = {}
    print("ms per row  sessions   tokens/s with budget   without   gain   left out   sole K")
    for row, sessions in itertools.product(ROW_MILLISECONDS, SESSIONS):
        on, off = (goodput(mixed(sessions), row, budget=budget) for budget in (True, False))
        sole = max((goodput(mixed(sessions, k), row, budget=False).per_second(), k) for k in (0, 1, 2, 4))
        name = f"row_{row}_sessions_{sessions}"
        left_out = on.unjudged / on.proposed
        figures[f"{name}_gain"] = on.per_second() / off.per_second()
        samples[name] = {"on": on.per_second(), "off": off.per_second(), "left_out": left_out, "sole": sole[0]}
        print(
            f"{row:10} {sessions:9} {on.per_second():22.0f} {off.per_second():9.0f} {figures[f'{name}_gain']:6.3f}"
            f" {left_out:10.3f} {sole[0]:8.0f} (K = {sole[1]})",
            flush=True,
        )
    askers = [Asker("honest", 0.8, 0.8, 4)] * 16 + [Asker("boaster", 0.1, 1.0, 8)] * 16
    on, off = (goodput(askers, ROW_MILLISECONDS[-1], budget=budget) for budget in (True, False))
    samples["boasting"] = {"on": on.per_second("honest"), "off": off.per_second("honest")}
    figures["boasting_gain"] = on.per_second("honest") / off.per_second("honest")
    beside = samples["boasting"]
    print(f"beside a boaster {beside['on']:.0f} tokens/s with the budget, {beside['off']:.0f} without")
    figures["worst_gain"] = min(value for name, value in figures.items() if name.endswith("_gain"))
    print(record("verify_budget", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
