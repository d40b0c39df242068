"""One suite for the engine ports, over every model that can stand behind them: how rounds go."""

import asyncio
from dataclasses import replace

import pytest
from tests.seams import port_words
from tests.seams.port_models import SLOTS, VOCAB, Pair
from tests.seams.port_words import (
    LIFE,
    SystemClock,
    draft_of,
    opening,
    plain,
    propose_of,
    round_of,
    run_of,
    speculate,
    target_of,
    untimed,
)

from tandem_runtime.domain.errors import BadRequest, DraftLost, SessionLost, StaleOffset
from tandem_runtime.domain.tokens import (
    Incarnation,
    ReadPrompt,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    TokenId,
    TokenLogprob,
    Verdict,
    Verification,
)
from tandem_runtime.engines.pace import TABLES, Pace
from tandem_runtime.engines.target_loop import BatchedTarget

pair = port_words.pair


async def test_a_verify_of_k_tokens_equals_k_empty_verifies(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a"), 9)
        await target.open(opening("b", logprobs=2))
        verdict = await target.verify(round_of(0, 0, tokens[:8], name="b"))
    assert (verdict.accepted, verdict.token) == (8, tokens[8])
    assert verdict.logprobs is not None
    assert len(verdict.logprobs) == 9


async def test_a_run_equals_as_many_empty_verifies(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a"), 6)
        await target.open(opening("b"))
        verdicts = [untimed(verdict) async for verdict in target.run(run_of(6, number=3, name="b"))]
    assert verdicts == [Verdict(3 + i, i, 0, token) for i, token in enumerate(tokens)]


async def test_a_run_ends_after_an_end_token(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a"), 12)
    end = tokens[7]
    with target_of(pair.target(), end_tokens=frozenset({end})) as target:
        await target.open(opening("b"))
        emitted = [verdict.token async for verdict in target.run(run_of(12, name="b"))]
    assert emitted == tokens[: tokens.index(end) + 1]


async def test_the_same_round_again_returns_the_stored_verdict(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        await target.open(opening())
        first = await target.verify(round_of(0, 0, (1, 2, 3)))
        assert await target.verify(round_of(0, 0, (1, 2, 3))) == first
        following = await target.verify(round_of(1, first.accepted + 1))
    assert following.offset == first.accepted + 1


@pytest.mark.parametrize("offset", [0, 1, 3])
async def test_a_round_at_another_offset_is_stale(pair: Pair, offset: int) -> None:
    with target_of(pair.target()) as target:
        await plain(target, opening(), 2)
        with pytest.raises(StaleOffset, match=f"offset {offset}.*committed 2"):
            await target.verify(round_of(9, offset))


async def test_a_session_opened_again_with_its_output_goes_on_alike(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a"), 10)
        resumed = await plain(target, opening("b", output=tuple(tokens[:4])), 6)
        same_name = await plain(target, opening("a", output=tuple(tokens[:4])), 6)
    assert resumed == same_name == tokens[4:]


@pytest.mark.parametrize(
    ("name", "incarnation"), [("unknown", LIFE), ("a", Incarnation("life-0"))], ids=["session", "incarnation"]
)
async def test_an_unknown_session_or_incarnation_is_lost(pair: Pair, name: str, incarnation: Incarnation) -> None:
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft:
        await target.open(opening())
        await draft.open(opening())
        with pytest.raises(SessionLost):
            await target.verify(replace(round_of(0, 0, name=name), incarnation=incarnation))
        with pytest.raises(SessionLost):
            await anext(target.run(replace(run_of(4, name=name), incarnation=incarnation)))
        with pytest.raises(DraftLost):
            await draft.propose(replace(propose_of(0, (), 2, name=name), incarnation=incarnation))


async def test_a_draft_rolls_back_to_what_the_target_said(pair: Pair) -> None:
    said = (7, 11, 13)
    with draft_of(pair.draft()) as draft:
        await draft.open(opening("a"))
        await draft.propose(propose_of(0, (), 6, name="a"))
        after_rejection = await draft.propose(propose_of(0, said, 4, name="a"))
        await draft.open(opening("b", output=said))
        fresh = await draft.propose(propose_of(3, (), 4, name="b"))
    assert after_rejection.ids == fresh.ids


async def test_a_draft_goes_on_after_a_full_accept(pair: Pair) -> None:
    with draft_of(pair.draft()) as draft:
        await draft.open(opening("a"))
        first = (await draft.propose(propose_of(0, (), 3, name="a"))).ids
        second = (await draft.propose(propose_of(0, (*first, 5), 3, name="a"))).ids
        await draft.open(opening("b", output=(*first, 5)))
        fresh = (await draft.propose(propose_of(4, (), 3, name="b"))).ids
    assert second == fresh


async def test_a_draft_scores_what_it_would_have_proposed(pair: Pair) -> None:
    with draft_of(pair.draft()) as draft:
        await draft.open(opening("a"))
        ids = (await draft.propose(propose_of(0, (), 5, name="a"))).ids
        await draft.open(opening("b"))
        wrong = (ids[2] + 1) % VOCAB
        bits = await draft.score(ScoreTokens(SessionId("b"), LIFE, 0, (*ids[:2], wrong)))
        after = await draft.score(ScoreTokens(SessionId("b"), LIFE, 2, ids[2:]))
    assert bits == (True, True, False)
    assert after == (True, True, True)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 3, 8])
async def test_coupled_output_does_not_depend_on_speculation(pair: Pair, temperature: float, k: int) -> None:
    request = opening("a", parameters=SamplingParameters(seed=11, temperature=temperature))
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft:
        expected = await plain(target, request, 24)
        output, proposed, accepted = await speculate(target, draft, request, count=24, k=k)
    assert output == expected
    assert 0 < accepted <= proposed


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
async def test_coupled_output_does_not_depend_on_a_hostile_draft(pair: Pair, temperature: float) -> None:
    request = opening("a", parameters=SamplingParameters(seed=12, temperature=temperature))
    with target_of(pair.target()) as target:
        expected = await plain(target, request, 12)
        await target.open(request)
        output: list[TokenId] = []
        while len(output) < 12:
            wrong = [(token + 1) % VOCAB for token in expected[len(output) + 1 : len(output) + 4]]
            ids = [expected[len(output)], *wrong]
            verdict = await target.verify(round_of(len(output), len(output), ids))
            output += [*ids[: verdict.accepted], verdict.token]
    assert output[:12] == expected


DRAWN = [Verification.REJECTION, Verification.BLOCK]


@pytest.mark.parametrize("mode", DRAWN)
async def test_drawn_proposals_at_temperature_zero_are_greedy(pair: Pair, mode: Verification) -> None:
    greedy = SamplingParameters(seed=5, temperature=0.0)
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft:
        expected = await plain(target, opening("a", parameters=greedy), 16)
        request = opening("a", parameters=greedy, verification=mode)
        output, proposed, accepted = await speculate(target, draft, request, count=16, k=4)
    assert output == expected
    assert 0 < accepted <= proposed


@pytest.mark.parametrize("mode", DRAWN)
async def test_a_proposal_carries_the_law_that_each_token_was_drawn_from(pair: Pair, mode: Verification) -> None:
    request = opening("a", verification=mode)
    with draft_of(pair.draft()) as draft:
        await draft.open(request)
        proposal = await draft.propose(propose_of(0, (), 4))
    assert proposal.q is not None
    assert len(proposal.q) == len(proposal.ids) == 4
    for token, row in zip(proposal.ids, proposal.q, strict=True):
        assert token in row.ids
        assert len(row.ids) == 32
        assert sum(row.probabilities) == pytest.approx(1, abs=1e-6)


async def test_the_company_in_a_batch_changes_nothing(pair: Pair) -> None:
    requests = [
        opening(
            str(i),
            prompt=tuple((i + 3 * j) % VOCAB for j in range(1 + 17 * i)),
            parameters=SamplingParameters(seed=i, temperature=0.5 * i),
        )
        for i in range(SLOTS)
    ]
    with target_of(pair.target()) as target:
        alone = []
        for request in requests:
            alone.append(await plain(target, request, 10))
            await target.close(request.session)
    with target_of(pair.target(), chunk=7) as target:
        together = await asyncio.gather(*(plain(target, request, 10) for request in requests))
    assert together == alone


async def test_closing_an_abandoned_run_frees_its_slot(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        for number in range(3 * SLOTS):
            name = str(number)
            await target.open(opening(name))
            run = target.run(run_of(60, name=name))
            await anext(run)
            await run.aclose()  # type: ignore[attr-defined]  # every engine's run is an async generator
            await target.close(SessionId(name))
            await target.close(SessionId(name))


async def test_a_round_may_follow_an_abandoned_run_at_any_offset_it_reached(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a"), 12)
        await target.open(opening("b"))
        run = target.run(run_of(60, name="b"))
        seen = [(await anext(run)).token for _ in range(3)]
        await run.aclose()  # type: ignore[attr-defined]  # every engine's run is an async generator
        verdict = await target.verify(round_of(3, 3, tokens[3:7], name="b"))
        with pytest.raises(StaleOffset):
            await target.verify(round_of(4, 2, name="b"))
    assert seen == tokens[:3]
    assert (verdict.accepted, verdict.token) == (4, tokens[7])


async def test_a_later_round_ends_a_run(pair: Pair) -> None:
    slow = Pace(TABLES["h100-70b"], clock=SystemClock())  # however late this thread has its turn, the run goes on
    with target_of(pair.target(), pace=slow) as target:
        await target.open(opening())
        run = target.run(run_of(60))
        first = await anext(run)
        verdict = await target.verify(round_of(1, 1))
        rest = [verdict.token async for verdict in run]
    assert first.offset == 0
    assert verdict.offset == 1
    assert len(rest) < 59


async def test_a_cancelled_round_leaves_the_session_as_it_was(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        expected = await plain(target, opening("a"), 3)
        await target.open(opening("b"))
        asked = asyncio.create_task(target.verify(round_of(0, 0, expected[:2], name="b")))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        verdict = await target.verify(round_of(0, 0, expected[:2], name="b"))
    assert (verdict.accepted, verdict.token) == (2, expected[2])


async def test_a_round_with_another_proposal_is_not_the_same_round(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        await target.open(opening())
        await target.verify(round_of(0, 0, (1, 2)))
        with pytest.raises(StaleOffset, match="another proposal"):
            await target.verify(round_of(0, 0, (1, 3)))


LONG = tuple((7 * place * place + 3 * place) % VOCAB for place in range(90))


def reading(base: int, count: int, *, name: str = "a", alternatives: int = 2) -> ReadPrompt:
    return ReadPrompt(SessionId(name), LIFE, base, count, alternatives)


async def reported(target: BatchedTarget, prompt: tuple[TokenId, ...]) -> tuple[TokenLogprob, ...]:
    """Each token but the first as plain decoding tells of it: from a session that holds no more than what is before."""
    told = []
    for length in range(1, len(prompt)):
        await target.open(opening("plain", prompt=prompt[:length], logprobs=VOCAB, max_tokens=1))
        verdict = await target.verify(round_of(0, 0, name="plain"))
        assert verdict.logprobs is not None
        top = verdict.logprobs[0].top
        told.append(TokenLogprob(dict(top)[prompt[length]], top[:2]))
    await target.close(SessionId("plain"))
    return tuple(told)


def nearly(told: tuple[TokenLogprob, ...]) -> list[object]:
    return [
        (each.logprob, [token for token, _ in each.top], [logprob for _, logprob in each.top])
        for each in (
            TokenLogprob(round(one.logprob, 4), tuple((token, round(logprob, 4)) for token, logprob in one.top))
            for one in told
        )
    ]


@pytest.mark.parametrize("chunk", [7, 256])
async def test_a_prompt_is_read_as_plain_decoding_tells_of_its_tokens(pair: Pair, chunk: int) -> None:
    """In pieces of any size, in steps of any size, and whatever the target knows of it already."""
    with target_of(pair.target(), chunk=chunk) as target:
        expected = await reported(target, LONG)
        await target.open(opening("a", prompt=LONG, tenant="t", max_tokens=8))
        whole = await target.read(reading(1, len(LONG) - 1))
        await target.open(opening("b", prompt=LONG, tenant="t", max_tokens=8))
        await target.verify(round_of(0, 0, name="b"))
        known = await target.open(opening("c", prompt=LONG, tenant="t", max_tokens=8))
        pieces = [await target.read(reading(base, min(40, 90 - base), name="c")) for base in (81, 1, 41)]
        alone = await target.read(reading(50, 1, name="c", alternatives=0))
    assert known.cached_tokens > 0
    assert nearly(whole.logprobs) == nearly(expected)
    last, first, middle = (piece.logprobs for piece in pieces)
    assert nearly((*first, *middle, *last)) == nearly(expected)
    assert alone.logprobs == (TokenLogprob(whole.logprobs[49].logprob),)


async def test_what_is_asked_of_a_prompt_changes_nothing_of_its_answer(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        expected = await plain(target, opening("a", prompt=LONG, max_tokens=8), 6)
        await target.open(opening("b", prompt=LONG, max_tokens=8))
        tokens = []
        for number in range(6):
            read = await target.read(reading(1 + number, 30, name="b"))
            assert len(read.logprobs) == 30
            tokens.append((await target.verify(round_of(number, number, name="b"))).token)
    assert tokens == expected


async def test_a_prompt_that_is_told_of_is_no_guess_beside_others(pair: Pair) -> None:
    slow = Pace(TABLES["h100-70b"], clock=SystemClock())
    with target_of(pair.target(), chunk=7, pace=slow) as target:
        await target.open(opening("a", prompt=LONG, max_tokens=0))
        await target.open(opening("b", max_tokens=8))
        await target.verify(round_of(0, 0, name="b"))
        telling = asyncio.create_task(target.read(reading(1, len(LONG) - 1)))
        met = [await target.verify(round_of(number, number, name="b")) for number in range(1, 6)]
        await telling
    assert max(verdict.rows for verdict in met) == 2, "they shared a step"
    assert [verdict.beside for verdict in met] == [0] * 5


async def test_a_prompt_that_was_read_is_known_to_the_next_session(pair: Pair) -> None:
    with target_of(pair.target()) as target:
        first = await target.open(opening("a", prompt=LONG, tenant="t", max_tokens=0))
        await target.read(reading(1, len(LONG) - 1))
        await target.close(SessionId("a"))
        second = await target.open(opening("b", prompt=LONG, tenant="t", max_tokens=8))
        other = await target.open(opening("c", prompt=LONG, tenant="u", max_tokens=8))
    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert second.cached_tokens >= 64


@pytest.mark.parametrize(("base", "count"), [(0, 3), (1, 0), (1, 90), (90, 1), (4, 2**32 - 1)])
async def test_tokens_of_which_nothing_can_be_told_are_refused(pair: Pair, base: int, count: int) -> None:
    with target_of(pair.target()) as target:
        await target.open(opening("a", prompt=LONG, max_tokens=8))
        with pytest.raises(BadRequest, match="whose last is 89"):
            await target.read(reading(base, count))
        assert len((await target.read(reading(89, 1))).logprobs) == 1
        with pytest.raises(SessionLost):
            await target.read(reading(1, 1, name="unknown"))
