"""Knows how the laws of sampled output are measured at T > 0: first token, and first two together, rule by rule.

Refuses to know when counts contradict a law (`statistics_of_counts`).

Every sample is one request with its own seed through the engines' own `guess` and `verify`: propose, judge, and go on
in further rounds until two tokens stand; or, for what only the loops can do wrong, through driver, session and step
loops. What the tokens should be is worked out by the reference in `domain.sampling`.
Negative controls draw the proposal from another law than the one that is sent, and must be found out.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tests.exactness.loops import Question, answer_of, exactly, stage_of
from tests.exactness.statistics_of_counts import Finding, judged
from tests.seams.stepped_targets import known_costs

from tandem_runtime.domain.sampling import distribution
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    Stop,
    TokenId,
    Verification,
)
from tandem_runtime.engines.rejection import verify
from tandem_runtime.engines.sampler import guess
from tandem_runtime.ports import DraftEngine

Prefix = tuple[TokenId, ...]
Model = Callable[[Prefix], list[float]]


def of_laws(*laws: Sequence[float]) -> Model:
    """Logits whose softmax after a prefix is the law numbered by the prefix."""
    return partial(_row_after, [[math.log(mass) if mass else -30.0 for mass in law] for law in laws])


def _row_after(rows: Sequence[list[float]], prefix: Prefix) -> list[float]:
    """Of the module, as a setup goes to other processes."""
    return rows[(len(prefix) + sum(prefix)) % len(rows)]


AT_ONCE = 60
"""Sessions that share the loops."""
PROMPT: Prefix = (0,)
TARGET = of_laws((0.40, 0.25, 0.20, 0.15), (0.15, 0.30, 0.15, 0.40), (0.22, 0.18, 0.45, 0.15))
DRAFT = of_laws((0.20, 0.20, 0.35, 0.25), (0.35, 0.20, 0.30, 0.15), (0.30, 0.40, 0.12, 0.18))


@dataclass(frozen=True)
class Setup:
    """A rule with processors. `undeclared`: the draft draws from this model and sends the law of `DRAFT`."""

    name: str
    verification: Verification
    parameters: SamplingParameters
    k: int = 2
    undeclared: Model | None = None

    def __str__(self) -> str:
        return f"{self.verification} {self.name}"


SHAPES = {
    "plain": SamplingParameters(seed=0),
    "warm": SamplingParameters(seed=0, temperature=1.6),
    "cold with bias": SamplingParameters(seed=0, temperature=0.7, logit_bias=((0, 0.5), (3, 0.4))),
    "top-k 3": SamplingParameters(seed=0, top_k=3),
    "top-p": SamplingParameters(seed=0, temperature=1.2, top_p=0.8),
    "min-p": SamplingParameters(seed=0, min_p=0.4),
}


def setups() -> list[Setup]:
    return [
        Setup(name, verification, parameters, k)
        for verification in Verification
        for k, (name, parameters) in zip((1, 2, 1, 4, 2, 3), SHAPES.items(), strict=True)
    ]


def controls() -> list[Setup]:
    """Every rule that is told q must come out wrong when it is told another q than the one that was used."""
    liar = of_laws((0.05, 0.05, 0.05, 0.85))
    told = [verification for verification in Verification if verification is not Verification.COUPLED]
    return [Setup("undeclared q", verification, SHAPES["plain"], undeclared=liar) for verification in told]


def findings(setup: Setup, *, samples: int) -> list[Finding]:
    """The law of the first token and the joint law of the first two."""
    return _both_laws(str(setup), Counter(two_tokens(setup, seed) for seed in range(samples)), setup.parameters)


async def looped_findings(verification: Verification, *, samples: int, stop: Stop | None = None) -> list[Finding]:
    """The same through driver, session and step loops: sessions of three tokens, so that K = 2 fits, many at a time.
    Steps are believed to cost so much that where some share one, second guesses are left out, and where many, all.
    `stop` is said with each proposal that is asked for."""
    shape = SHAPES["plain"]

    async def pair(seed: int) -> Prefix:
        question = Question(PROMPT, replace(shape, seed=seed), Endings(3), verification)
        answer, _ = await answer_of(question, f"{seed}", engines, exactly(2))
        return answer.tokens[:2]

    pairs: Counter[Prefix] = Counter()
    async with stage_of(TARGET, DRAFT, costs=known_costs(0.04, 0.001)) as stage:
        engines = replace(stage.engines, draft=Stopping(stage.drafts[0], stop))
        for first in range(0, samples, AT_ONCE):
            pairs.update(await asyncio.gather(*map(pair, range(first, min(samples, first + AT_ONCE)))))
    return _both_laws(f"{verification} through the loops", pairs, shape)


@dataclass(frozen=True)
class Stopping:
    """A draft that is told where to stop with each proposal."""

    draft: DraftEngine
    stop: Stop | None

    async def capabilities(self) -> Capabilities:
        return await self.draft.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self.draft.open(request)

    async def propose(self, request: ProposeRound) -> Proposal:
        return await self.draft.propose(replace(request, stop=self.stop))

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self.draft.score(request)

    async def close(self, session: SessionId) -> None:
        await self.draft.close(session)


def _both_laws(name: str, pairs: Counter[Prefix], parameters: SamplingParameters) -> list[Finding]:
    joint = joint_law(parameters)
    first: dict[TokenId, float] = {}
    for (token, _), mass in joint.items():
        first[token] = first.get(token, 0) + mass
    firsts: Counter[TokenId] = Counter()
    for (token, _), times in pairs.items():
        firsts[token] += times
    return [judged(f"{name}: first token", firsts, first), judged(f"{name}: two tokens", pairs, joint)]


def joint_law(parameters: SamplingParameters) -> dict[Prefix, float]:
    return {
        (first, second): float(mass) * float(then)
        for first, mass in distribution(TARGET(PROMPT), parameters).items()
        for second, then in distribution(TARGET((*PROMPT, first)), parameters).items()
    }


def two_tokens(setup: Setup, seed: int) -> Prefix:
    parameters = replace(setup.parameters, seed=seed)
    output: list[TokenId] = []
    while len(output) < 2:
        proposal = _proposal(setup, parameters, tuple(output))
        rows = np.array([TARGET((*PROMPT, *output, *proposal.ids[:count])) for count in range(setup.k + 1)])
        verified = verify(rows, proposal, parameters, verification=setup.verification, offset=len(output))
        output += [*proposal.ids[: verified.accepted], verified.token]
    return tuple(output[:2])


def _proposal(setup: Setup, parameters: SamplingParameters, output: Prefix) -> Proposal:
    ids: list[TokenId] = []
    rows: list[SparseRow] = []
    for step in range(setup.k):
        prefix, position = (*PROMPT, *output, *ids), len(output) + step
        told = np.array(DRAFT(prefix))
        token, row = guess(told, parameters, verification=setup.verification, position=position, ahead=step)
        if setup.undeclared is not None:
            used = np.array(setup.undeclared(prefix))
            token, _ = guess(used, parameters, verification=setup.verification, position=position, ahead=step)
        ids.append(token)
        rows += [row] if row is not None else []
    return Proposal(tuple(ids), tuple(rows) or None)
