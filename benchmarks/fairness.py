"""Measures how engines share their work between an honest tenant and a greedy one: `make bench NAME=fairness`.

Refuses to know HTTP and gRPC: step loops, shares, sessions and driver are the product's own, over scripted models, in
virtual time (`simulator.stepped`): a busy machine gives the same figures.

The greedy tenant has three times the sessions, guesses 8 tokens a round of which a tenth stands (alpha .1), where the
honest one guesses 4 of which 80 % stand. Steps hold 48 short rows and 64 prompt tokens, so that both always wait; a
target's takes 15 + .1 ms per row, a draft's .2 ms. Work is rows: prompt tokens, verify slots, draft steps. Counted
between the 30th step and the last, by tenant:

    verify      rounds against a target alone, equal weights; and with weights 3 to 1
    draft       guessing rounds against a draft alone
    prompts     sessions that are opened, read a prompt of 150 tokens and say one
    pair        the driver over target and draft

The error is the distance of the honest tenant's share of the rows from its share of the weights. Beside it stands its
share where both count as one tenant, which is first come, first served.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.record import record
from benchmarks.simulator.clock import VirtualClock, run_virtually
from benchmarks.simulator.stepped import RowCost, SteppedClock, SteppedDraft, SteppedTarget
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    ProposeRound,
    Round,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import Script, ScriptedModel, agreeing, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits, Row, TargetEngine

SEED, UNCOUNTED, STEPS, ANSWER, PROMPT = 7, 30, 200, 100, 150
SIZE = StepSize(chunk_tokens=64, rows=48)
TARGET, DRAFT = RowCost(15.0, 0.0, row=0.1), RowCost(0.2, 0.0)
GREEDY = SamplingParameters(seed=SEED, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Tenant:
    """`mark` is the first token of all its prompts, by which its rows are known."""

    name: str
    mark: TokenId
    sessions: int
    k: int
    alpha: float
    weight: float = 1.0


HONEST = Tenant("honest", 1, sessions=48, k=4, alpha=0.8)
TAKER = Tenant("greedy", 2, sessions=144, k=8, alpha=0.1)


@dataclass(slots=True)
class Work:
    """What was computed and said, by tenant."""

    rows: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    steps: int = 0

    def is_over(self) -> bool:
        """Whether the last step that counts was taken."""
        return self.steps >= UNCOUNTED + STEPS

    def share(self, name: str) -> float:
        return self.rows[name] / self.rows.total()


class CountedModel(ScriptedModel):
    """Counts the rows of each step by tenant."""

    def __init__(self, script: Script, work: Work, tenants: Sequence[Tenant]) -> None:
        super().__init__(script, max_length=512, max_sessions=256)
        self._work = work
        self._names = {tenant.mark: tenant.name for tenant in tenants}

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        outputs = super().forward(rows)
        work = self._work
        work.steps += 1
        if UNCOUNTED < work.steps <= UNCOUNTED + STEPS:
            for row in rows:
                work.rows[self._names[self._memory[row.blocks[0]][0]]] += len(row.tokens)
        return outputs


class Silent:
    def round(self, round: Round) -> None:
        """Nothing to tell."""


FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"))
NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Stage:
    """One setting: engines, who asks them, and whether they are told apart."""

    target: BatchedTarget
    draft: BatchedDraft
    work: Work
    apart: bool

    def opening(self, tenant: Tenant, length: int = 1) -> OpenSession:
        """A session with a prompt of its own."""
        number = next(NUMBERS)
        digits = tuple(number // 7**at % 7 for at in range(length - 1))
        return OpenSession(
            SessionId(f"{tenant.name}-{number}"),
            (tenant.mark, *digits),
            (),
            GREEDY,
            Verification.COUPLED,
            max_tokens=ANSWER,
            tenant=tenant.name if self.apart else "all",
            weight=tenant.weight,
        )


async def verify(stage: Stage, tenant: Tenant, chance: random.Random) -> None:
    """Sessions of 100 tokens, one after the other, each round with guesses of which `alpha` stand."""
    while not stage.work.is_over():
        opening = stage.opening(tenant, length=8)
        await stage.target.open(opening)
        output: list[TokenId] = []
        for number in itertools.count():
            if stage.work.is_over() or len(output) + tenant.k >= ANSWER:
                break
            ids = _guesses((*opening.prompt, *output), tenant, chance)
            asked = VerifyRound(opening.session, FACTS.incarnation, number, len(output), Proposal(ids))
            verdict = await stage.target.verify(asked)
            output += [*ids[: verdict.accepted], verdict.token]
            stage.work.tokens[tenant.name] += verdict.accepted + 1
        await stage.target.close(opening.session)


def _guesses(prefix: tuple[TokenId, ...], tenant: Tenant, chance: random.Random) -> tuple[TokenId, ...]:
    ids: tuple[TokenId, ...] = ()
    for _ in range(tenant.k):
        row = chain_logits((*prefix, *ids))
        ids += ((row.index(max(row)) + (chance.random() >= tenant.alpha)) % 7,)
    return ids


async def draft(stage: Stage, tenant: Tenant, _: random.Random) -> None:
    """Guessing without end: what was guessed counts as committed."""
    while not stage.work.is_over():
        opening = stage.opening(tenant, length=8)
        await stage.draft.open(opening)
        base, known = 0, tuple[TokenId, ...]()
        while not stage.work.is_over() and base + len(known) + tenant.k < ANSWER:
            asked = ProposeRound(opening.session, FACTS.incarnation, base, known, tenant.k)
            base, known = base + len(known), (await stage.draft.propose(asked)).ids
            stage.work.tokens[tenant.name] += len(known)
        await stage.draft.close(opening.session)


async def prompts(stage: Stage, tenant: Tenant, _: random.Random) -> None:
    """A prompt, a token, and the next prompt."""
    while not stage.work.is_over():
        opening = stage.opening(tenant, length=PROMPT)
        await stage.target.open(opening)
        await stage.target.verify(VerifyRound(opening.session, FACTS.incarnation, 0, 0, Proposal()))
        stage.work.tokens[tenant.name] += 1
        await stage.target.close(opening.session)


async def pair(stage: Stage, tenant: Tenant, _: random.Random) -> None:
    """Requests through the driver, K as the tenant wishes."""
    bounds, clock = Bounds(tenant.k, tenant.k, Mode.ALWAYS), VirtualClock()
    while not stage.work.is_over():
        items = generate(
            Session(_request(stage.opening(tenant, length=8))),
            engines=Engines(stage.target, stage.draft, _nobody),
            lookahead=Lookahead(),
            allowance=lambda: bounds,
            observer=Silent(),
            clock=clock,
        )
        async with aclosing(items) as stream:
            async for item in stream:
                if stage.work.is_over():
                    break
                stage.work.tokens[tenant.name] += len(item.tokens) if isinstance(item, Emit) else 0


def _request(opening: OpenSession) -> Request:
    return Request(
        session=opening.session,
        prompt=opening.prompt,
        parameters=opening.parameters,
        verification=opening.verification,
        endings=Endings(opening.max_tokens, frozenset(), ()),
        decode=lambda ids: "x" * len(ids),
        target_length=512,
        draft_length=512,
        tenant=opening.tenant,
        weight=opening.weight,
    )


async def _nobody() -> TargetEngine:
    raise AssertionError("no target is lost here")


def by_tenant(prefix: tuple[TokenId, ...]) -> Sequence[float] | Logits:
    """A draft that agrees with the target as often as each tenant's alpha says."""
    alpha = HONEST.alpha if prefix[0] == HONEST.mark else TAKER.alpha
    return agreeing(chain_logits, acceptance=alpha)(prefix)


Asking = Callable[[Stage, Tenant, random.Random], Awaitable[None]]


async def measure(asking: Asking, honest: Tenant, *, apart: bool) -> Work:
    """One setting, from its start to its last step. Counted are the rows of the draft where only that is asked."""
    tenants, work, other = (honest, TAKER), Work(), Work()
    counted = {"target": other, "draft": work} if asking is draft else {"target": work, "draft": other}
    target_clock, draft_clock = SteppedClock(), SteppedClock()
    target = SteppedTarget(
        CountedModel(chain_logits, counted["target"], tenants),
        FACTS,
        clock=target_clock,
        size=SIZE,
        pace=target_clock.pace(TARGET),
    )
    drafter = SteppedDraft(
        CountedModel(by_tenant, counted["draft"], tenants),
        FACTS,
        clock=draft_clock,
        size=SIZE,
        pace=draft_clock.pace(DRAFT),
    )
    stage = Stage(target, drafter, work, apart)
    chance = random.Random(SEED)
    sessions = [tenant for tenant in tenants for _ in range(tenant.sessions)]
    with target, drafter:
        await asyncio.gather(*(asking(stage, tenant, random.Random(chance.random())) for tenant in sessions))
    return work


def main() -> None:
    thrice = replace(HONEST, weight=3.0)
    settings: dict[str, tuple[Asking, Tenant]] = {
        "verify": (verify, HONEST),
        "verify_3_to_1": (verify, thrice),
        "draft": (draft, HONEST),
        "prompts": (prompts, HONEST),
        "pair": (pair, HONEST),
    }
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, dict[str, int]]] = {}
    print("share of the rows: honest tenant   of the weights   first come, first served   tokens said")
    for name, (asking, honest) in settings.items():
        fair = run_virtually(partial(measure, asking, honest, apart=True))
        first = run_virtually(partial(measure, asking, honest, apart=False))
        due = honest.weight / (honest.weight + TAKER.weight)
        figures |= {
            f"{name}_share": fair.share("honest"),
            f"{name}_error": abs(fair.share("honest") - due),
            f"{name}_share_first_come": first.share("honest"),
        }
        samples[name] = {
            "rows": dict(fair.rows),
            "tokens": dict(fair.tokens),
            "rows_first_come": dict(first.rows),
            "tokens_first_come": dict(first.tokens),
        }
        shares = f"{fair.share('honest'):14.3f} {due:16.3f} {first.share('honest'):26.3f}"
        print(f"{name:14} {shares} {fair.tokens['honest']:9} to {fair.tokens['greedy']}")
    figures["max_share_error"] = max(value for name, value in figures.items() if name.endswith("_error"))
    print(f"largest error {figures['max_share_error']:.3f} (must be at most .05)")
    print(record("fairness", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
