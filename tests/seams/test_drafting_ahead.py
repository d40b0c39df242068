"""What is drafted ahead is what would have been proposed anyway, over every model that can stand behind a draft."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.seams.port_models import PAIRS, Pair
from tests.seams.test_engine_ports import LIFE, draft_of, opening, propose_of, target_of

from tandem_runtime.domain.tokens import (
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft

K = 3

PARAMETERS = {
    "sampled": SamplingParameters(seed=7),
    "greedy": SamplingParameters(seed=9, temperature=0.0),
    "biased": SamplingParameters(seed=10, temperature=0.7, logit_bias=((3, 2.5), (9, -100.0))),
    "punished": SamplingParameters(seed=11, repetition_penalty=1.4, presence_penalty=0.5),
    "filtered": SamplingParameters(seed=12, top_k=20, top_p=0.9),
}


@pytest.fixture(params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest) -> Pair:
    return PAIRS[request.param]


def ahead_of(
    base: int, committed: Sequence[TokenId], k: int, *, name: str = "a", enough: int | None = None
) -> ProposeRound:
    return replace(propose_of(base, committed, k, name=name), fan_out=(8,) * (k + 1), enough=enough)


async def settled(draft: BatchedDraft) -> None:
    """Returns once everything that was asked for by now is prepared."""
    await draft.close(SessionId("nobody"))  # the model's thread has begun to prepare when it comes to this
    while draft.drafting_ahead:
        await asyncio.sleep(0.001)


def said(proposal: Proposal) -> tuple[object, object]:
    return proposal.ids, proposal.q


async def hits_of(pair: Pair, request: OpenSession) -> int:
    """Rounds that were answered with what was prepared; each proposal is the one that a plain draft makes."""
    output: list[TokenId] = []
    base, hits = 0, 0
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft, draft_of(pair.draft()) as plain:
        for engine in (target, draft, plain):
            await engine.open(request)
        for number, k in enumerate((3, 3, 4, 2, 3, 1, 5, 3)):
            found = await draft.propose(ahead_of(base, output[base:], k))
            assert said(found) == said(await plain.propose(propose_of(base, output[base:], k)))
            hits += found.ahead is not None and found.ahead.hit
            verdict = await target.verify(VerifyRound(request.session, LIFE, number, len(output), found))
            base = len(output)
            output += [*found.ids[: verdict.accepted], verdict.token]
            await settled(draft)
    return hits


@pytest.mark.parametrize("mode", list(Verification))
async def test_a_prepared_proposal_is_the_one_that_would_have_been_made(pair: Pair, mode: Verification) -> None:
    hits = [
        await hits_of(pair, opening("a", parameters=parameters, verification=mode))
        for parameters in PARAMETERS.values()
    ]
    assert sum(hits) >= 5
