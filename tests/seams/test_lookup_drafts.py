"""The drafts without a model as a driver meets them: their port, one-hot proposals, tenants, and what they rule out."""

import asyncio
import time
from dataclasses import replace

import pytest

from tandem_runtime.domain.errors import DraftLost
from tandem_runtime.domain.suffix import EarlierOutputs, Owner
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    TokenId,
    Verification,
)
from tandem_runtime.domain.verification import refuse_bad_proposal
from tandem_runtime.drafters import LookupDraft

DRAFTERS = [Drafter.NGRAM, Drafter.SUFFIX]
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3)


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def draft_of(drafter: Drafter, *, end_tokens: frozenset[TokenId] = frozenset()) -> LookupDraft:
    target = Capabilities("model", "tokenizer", 100, 1000, "Bitwise")
    return LookupDraft(drafter, target, SystemClock(), end_tokens, EarlierOutputs(1_000_000))


def opening(
    name: str = "a",
    *,
    prompt: tuple[TokenId, ...] = PROMPT,
    output: tuple[TokenId, ...] = (),
    verification: Verification = Verification.COUPLED,
    tenant: str | None = None,
    **parameters: object,
) -> OpenSession:
    asked = SamplingParameters(seed=1, **parameters)  # type: ignore[arg-type]  # the test's own keywords
    return OpenSession(SessionId(name), prompt, output, asked, verification, 100, tenant=tenant)


async def proposed(
    draft: LookupDraft, base: int, committed: tuple[TokenId, ...], k: int, *, name: str = "a"
) -> tuple[TokenId, ...]:
    request = ProposeRound(SessionId(name), Incarnation(draft.drafter), base, committed, k)
    return (await draft.propose(request)).ids


@pytest.mark.parametrize("drafter", DRAFTERS)
async def test_what_followed_in_the_prompt_is_proposed(drafter: Drafter) -> None:
    draft = draft_of(drafter)
    await draft.open(opening())
    assert await proposed(draft, 0, (), 3) == (4, 5, 6)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("stood", [0, 1, 3])
async def test_a_round_begins_within_the_last_guess(drafter: Drafter, stood: int) -> None:
    draft, fresh = draft_of(drafter), draft_of(drafter)
    await draft.open(opening())
    await proposed(draft, 0, (), 3)
    output = (*(4, 5, 6)[:stood], 2, 3)
    await fresh.open(opening(output=output))
    assert await proposed(draft, stood, (2, 3), 2) == await proposed(fresh, len(output), (), 2) != ()


@pytest.mark.parametrize("drafter", DRAFTERS)
async def test_a_round_elsewhere_or_of_another_life_is_lost(drafter: Drafter) -> None:
    draft = draft_of(drafter)
    await draft.open(opening(output=(4, 5)))
    for base in (1, 3):
        with pytest.raises(DraftLost, match=f"offset {base}"):
            await proposed(draft, base, (), 2)
    with pytest.raises(DraftLost):
        await draft.propose(ProposeRound(SessionId("a"), Incarnation("other"), 2, (), 2))
    await draft.close(SessionId("a"))
    await draft.close(SessionId("a"))
    with pytest.raises(DraftLost):
        await proposed(draft, 2, (), 2)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
async def test_a_drawn_proposal_states_that_it_was_certain(drafter: Drafter, verification: Verification) -> None:
    draft = draft_of(drafter)
    await draft.open(opening(verification=verification))
    proposal = await draft.propose(ProposeRound(SessionId("a"), Incarnation(drafter), 0, (), 2))
    assert proposal.q == (SparseRow((4,), (1.0,)), SparseRow((5,), (1.0,)))
    refuse_bad_proposal(Proposal(proposal.ids, proposal.q), verification, vocab_size=100)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    ("parameters", "ids"),
    [
        ({}, (4, 5, 6, 7)),
        ({"allowed_tokens": (1, 2, 3, 4, 5)}, (4, 5)),
        ({"bad_words": ((5,), (4, 9))}, (4,)),
    ],
)
async def test_a_guess_ends_before_what_the_request_rules_out(
    drafter: Drafter, parameters: dict[str, object], ids: tuple[TokenId, ...]
) -> None:
    draft = draft_of(drafter)
    await draft.open(opening(**parameters))  # type: ignore[arg-type]  # rows of a table
    assert await proposed(draft, 0, (), 4) == ids


@pytest.mark.parametrize("drafter", DRAFTERS)
async def test_a_guess_ends_with_an_end_token(drafter: Drafter) -> None:
    draft = draft_of(drafter, end_tokens=frozenset({5}))
    await draft.open(opening())
    assert await proposed(draft, 0, (), 4) == (4, 5)


@pytest.mark.parametrize("drafter", DRAFTERS)
async def test_a_score_says_what_would_have_been_proposed(drafter: Drafter) -> None:
    draft = draft_of(drafter)
    await draft.open(opening())
    bits = await draft.score(ScoreTokens(SessionId("a"), Incarnation(drafter), 0, (4, 5, 50, 51, 52)))
    assert bits == (True, True, False, False, False)
    assert await proposed(draft, 5, (2, 3), 2) == (4, 5)


async def test_an_earlier_output_serves_its_own_tenant_only() -> None:
    draft = draft_of(Drafter.SUFFIX)
    await draft.open(opening(tenant="mine", prompt=(1,)))
    await proposed(draft, 0, tuple(range(20, 40)), 2)
    await draft.close(SessionId("a"))
    found = []
    for tenant in ("mine", "other", None):
        await draft.open(opening(tenant=tenant, prompt=(60, 22, 23, 24)))
        found.append(await proposed(draft, 0, (), 2))
    assert found == [(25, 26), (), ()]


async def test_an_earlier_output_serves_sessions_of_its_own_adapter_only() -> None:
    draft = draft_of(Drafter.SUFFIX)
    await draft.open(replace(opening(tenant="mine", prompt=(1,)), adapter="sha256:legal"))
    await proposed(draft, 0, tuple(range(20, 40)), 2)
    await draft.close(SessionId("a"))
    found = []
    for adapter in ("sha256:legal", "sha256:other", None):
        await draft.open(replace(opening(tenant="mine", prompt=(60, 22, 23, 24)), adapter=adapter))
        found.append(await proposed(draft, 0, (), 2))
    assert found == [(25, 26), (), ()]


async def test_a_lookup_says_what_it_believes_of_its_guess() -> None:
    for drafter in DRAFTERS:
        draft = draft_of(drafter)
        await draft.open(opening())
        proposal = await draft.propose(ProposeRound(SessionId("a"), Incarnation(drafter), 0, (), 3))
        assert proposal.drafter is drafter
        assert len(proposal.survivals) == 3
        assert 1 > proposal.survivals[0] > proposal.survivals[1] > proposal.survivals[2] > 0


async def test_what_was_proposed_and_not_committed_is_not_kept() -> None:
    draft = draft_of(Drafter.SUFFIX)
    await draft.open(opening(tenant="mine"))
    assert await proposed(draft, 0, (), 4) == (4, 5, 6, 7)
    await proposed(draft, 1, (50,), 4)
    await draft.close(SessionId("a"))
    await draft.open(opening("b", tenant="mine", prompt=(60, 4)))
    assert await proposed(draft, 0, (), 1, name="b") == (50,)


async def test_an_output_of_no_known_tenant_is_not_kept() -> None:
    draft = draft_of(Drafter.SUFFIX)
    await draft.open(opening(output=tuple(range(20, 40))))
    await draft.close(SessionId("a"))
    assert draft.earlier.size_bytes == 0


async def test_a_tenant_that_is_forgotten_leaves_nothing_not_even_from_sessions_that_are_open() -> None:
    draft = draft_of(Drafter.SUFFIX)
    for name, tenant in (("done", "mine"), ("open", "mine"), ("others", "other")):
        await draft.open(opening(name, tenant=tenant, prompt=(1,)))
        await proposed(draft, 0, tuple(range(20, 40)), 2, name=name)
    await draft.close(SessionId("done"))
    await draft.forget("mine")
    await draft.close(SessionId("open"))
    await draft.close(SessionId("others"))
    assert draft.earlier.of(Owner("mine")) == ()
    assert len(draft.earlier.of(Owner("other"))) == 1


async def test_a_tenant_that_comes_back_is_remembered_from_then_on() -> None:
    draft = draft_of(Drafter.SUFFIX)
    await draft.forget("mine")
    await draft.open(opening(tenant="mine", prompt=(1,)))
    await proposed(draft, 0, tuple(range(20, 40)), 2)
    await draft.close(SessionId("a"))
    assert len(draft.earlier.of(Owner("mine"))) == 1


async def test_what_is_being_kept_while_its_tenant_is_forgotten_is_not_kept() -> None:
    """A long output is kept piece by piece, and other work has its turn between them."""
    draft = draft_of(Drafter.SUFFIX)
    await draft.open(opening(tenant="mine", prompt=(1,)))
    await proposed(draft, 0, tuple(range(20, 40)) * 100, 2)
    closing = asyncio.create_task(draft.close(SessionId("a")))
    while not draft.earlier.size_bytes:
        await asyncio.sleep(0)
    await draft.forget("mine")
    await closing
    assert draft.earlier.size_bytes == 0
