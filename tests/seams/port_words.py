"""What the suites for the engine ports are written in: engines over any model, a session, its rounds.

A suite calls `target_of` and `draft_of` by its own names for them, so that another may put them behind a socket.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.seams.port_models import PAIRS, Pair

from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    SessionId,
    SparseRow,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import StepModel

LIFE = Incarnation("life-1")
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@pytest.fixture(params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest) -> Pair:
    return PAIRS[request.param]


def facts(*, end_tokens: frozenset[TokenId] = frozenset()) -> EngineFacts:
    return EngineFacts(
        model_digest="sha256:model", tokenizer_digest="sha256:tokenizer", incarnation=LIFE, end_tokens=end_tokens
    )


def target_of(
    model: StepModel, *, end_tokens: frozenset[TokenId] = frozenset(), chunk: int = 256, pace: Pace | None = None
) -> BatchedTarget:
    return BatchedTarget(model, facts(end_tokens=end_tokens), clock=SystemClock(), size=StepSize(chunk), pace=pace)


def draft_of(model: StepModel) -> BatchedDraft:
    return BatchedDraft(model, facts(), clock=SystemClock())


def opening(name: str = "a", **changes: object) -> OpenSession:
    plain = OpenSession(
        session=SessionId(name),
        prompt=PROMPT,
        output=(),
        parameters=SamplingParameters(seed=7),
        verification=Verification.COUPLED,
        max_tokens=64,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # the test's own keywords


def round_of(
    number: int, offset: int, ids: Sequence[TokenId] = (), *, name: str = "a", q: tuple[SparseRow, ...] | None = None
) -> VerifyRound:
    return VerifyRound(SessionId(name), LIFE, number, offset, Proposal(tuple(ids), q))


def run_of(count: int, *, number: int = 0, offset: int = 0, name: str = "a") -> RunRounds:
    return RunRounds(SessionId(name), LIFE, number, offset, count)


def propose_of(base: int, committed: Sequence[TokenId], k: int, *, name: str = "a") -> ProposeRound:
    return ProposeRound(SessionId(name), LIFE, base, tuple(committed), k)


async def plain(target: BatchedTarget, request: OpenSession, count: int) -> list[TokenId]:
    """`count` tokens by empty verifies, one after the other."""
    await target.open(request)
    tokens: list[TokenId] = []
    for number in range(count):
        offset = len(request.output) + len(tokens)
        verdict = await target.verify(round_of(number, offset, name=request.session))
        tokens.append(verdict.token)
    return tokens


async def speculate(
    target: BatchedTarget, draft: BatchedDraft, request: OpenSession, *, count: int, k: int
) -> tuple[list[TokenId], int, int]:
    """The output by speculation, and how much was proposed and accepted."""
    await target.open(request)
    await draft.open(request)
    output: list[TokenId] = []
    base, number, proposed, accepted = 0, 0, 0, 0
    while len(output) < count:
        proposal = await draft.propose(propose_of(base, output[base:], k, name=request.session))
        base = len(output)
        verdict = await target.verify(
            VerifyRound(request.session, LIFE, number, len(output), proposal),
        )
        output += [*proposal.ids[: verdict.accepted], verdict.token]
        proposed, accepted, number = proposed + len(proposal.ids), accepted + verdict.accepted, number + 1
    return output[:count], proposed, accepted


def untimed(verdict: Verdict) -> Verdict:
    return replace(verdict, queue_seconds=0.0, forward_seconds=0.0, kv_used=0.0)
