"""One suite for the engine ports, over every model that can stand behind them."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.seams.port_models import LENGTH, PAIRS, SLOTS, VOCAB, Pair

from tandem_runtime.domain.errors import (
    BadRequest,
    DraftLost,
    Overloaded,
    SessionLost,
    StaleOffset,
)
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    Stop,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
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


def target_of(model: StepModel, *, end_tokens: frozenset[TokenId] = frozenset(), chunk: int = 256) -> BatchedTarget:
    return BatchedTarget(model, facts(end_tokens=end_tokens), clock=SystemClock(), size=StepSize(chunk))


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


@pytest.mark.parametrize("verification", list(Verification))
async def test_a_draft_ends_its_proposal_where_its_confidences_say(pair: Pair, verification: Verification) -> None:
    with draft_of(pair.draft()) as draft:
        for name in ("whole", "cut", "at once"):
            await draft.open(opening(name, verification=verification))

        async def proposed(name: str, stop: Stop | None) -> Proposal:
            return await draft.propose(replace(propose_of(0, (), 6, name=name), stop=stop))

        whole = await proposed("whole", Stop(0.0, (1.0,) * 16))
        cut = await proposed("cut", Stop(0.5, (0.75,) * 16))
        at_once = await proposed("at once", Stop(1.0, (1.0,) * 16))
        after = (await draft.propose(propose_of(0, cut.ids[:1], 2, name="cut"))).ids
    assert len(whole.confidences) == len(whole.ids) == 6
    assert replace(cut, draft_seconds=0.0) == replace(whole.first(3), draft_seconds=0.0)
    assert replace(at_once, draft_seconds=0.0) == replace(whole.first(1), draft_seconds=0.0)
    assert len(after) == 2


async def test_a_draft_that_is_not_asked_tells_no_confidence(pair: Pair) -> None:
    with draft_of(pair.draft()) as draft:
        await draft.open(opening())
        assert (await draft.propose(propose_of(0, (), 3))).confidences == ()


async def test_a_draft_with_a_full_context_proposes_less(pair: Pair) -> None:
    prompt = tuple(i % VOCAB for i in range(LENGTH - 2))
    with draft_of(pair.draft()) as draft:
        await draft.open(opening("a", prompt=prompt))
        assert len((await draft.propose(propose_of(0, (), 8, name="a"))).ids) == 3
        assert (await draft.propose(propose_of(0, (1, 2, 3), 8, name="a"))).ids == ()
        assert await draft.score(ScoreTokens(SessionId("a"), LIFE, 3, (1, 2))) == (False, False)


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
    with target_of(pair.target()) as target:
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


async def test_there_is_no_room_beyond_the_last_slot_until_one_is_closed(pair: Pair) -> None:
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft:
        for engine in (target, draft):
            for number in range(SLOTS):
                await engine.open(opening(str(number)))
        with pytest.raises(Overloaded) as refusal:
            await target.open(opening("more"))
        with pytest.raises(DraftLost):
            await draft.open(opening("more"))
        await target.close(SessionId("0"))
        await target.open(opening("more"))
    assert refusal.value.retry_after_seconds >= 1


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1,) * (LENGTH + 1)}, "prompt"),
        ({"prompt": (1,) * LENGTH, "max_tokens": 1}, "max_tokens"),
        ({"prompt": (1, VOCAB)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"parameters": SamplingParameters(seed=1, logit_bias=((VOCAB, 1.0),))}, "logit_bias"),
    ],
)
async def test_a_session_that_can_never_be_served_names_its_field(
    pair: Pair, changes: dict[str, object], parameter: str
) -> None:
    with target_of(pair.target()) as target, pytest.raises(BadRequest) as refusal:
        await target.open(opening(**changes))  # type: ignore[arg-type]  # rows of a table
    assert refusal.value.parameter == parameter


async def test_an_answer_may_fill_the_context_to_the_last_token(pair: Pair) -> None:
    prompt = tuple(i % VOCAB for i in range(LENGTH - 4))
    with target_of(pair.target()) as target:
        request = opening("a", prompt=prompt, max_tokens=4)
        tokens = await plain(target, request, 4)
        await target.open(request)
        verdict = await target.verify(round_of(0, 0, tokens[:3]))
        assert (verdict.accepted, verdict.token) == (3, tokens[3])
        with pytest.raises(BadRequest, match=str(LENGTH)):
            await target.verify(round_of(1, 4, (1, 2)))


BAD_PROPOSALS = [
    pytest.param((VOCAB,), None, "proposal.ids[0]", id="an id beyond the vocabulary"),
    pytest.param((1, VOCAB + 9), None, "proposal.ids[1]", id="a second id beyond the vocabulary"),
    pytest.param((1,), (), "proposal.q", id="no row of q"),
    pytest.param((1,), (SparseRow((1,), (1.0,)),) * 2, "proposal.q", id="a row too many"),
    pytest.param((1,), (SparseRow((1, 2), (0.5, 0.25)),), "proposal.q[0]", id="q that adds up to less than one"),
    pytest.param((1,), (SparseRow((2,), (1.0,)),), "proposal.q[0]", id="q that excludes the id"),
    pytest.param((1,), (SparseRow((1,), (math.nan,)),), "proposal.q[0]", id="q that is no number"),
]


@pytest.mark.parametrize(
    ("verification", "ids", "q", "parameter"),
    [
        pytest.param(mode, *bad.values, id=f"{mode}, {bad.id}")
        for mode in Verification
        for bad in BAD_PROPOSALS
        if mode is not Verification.COUPLED or bad.values[1] is None  # a coupled proposal carries no q
    ],
)
async def test_a_bad_proposal_is_refused_and_the_session_goes_on(
    pair: Pair,
    verification: Verification,
    ids: tuple[TokenId, ...],
    q: tuple[SparseRow, ...] | None,
    parameter: str,
) -> None:
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a", verification=verification), 4)
        await target.open(opening("b", verification=verification))
        first = await target.verify(round_of(0, 0, (), name="b"))
        rows = tuple(SparseRow((token,), (1.0,)) for token in ids) if q is None else q
        with pytest.raises(BadRequest) as refusal:
            await target.verify(round_of(1, 1, ids, name="b", q=rows))
        assert refusal.value.parameter == parameter
        rest = [await target.verify(round_of(number, number, (), name="b")) for number in (1, 2, 3)]
    assert [verdict.token for verdict in (first, *rest)] == tokens


@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("place", [1, 2, 5])
async def test_where_the_rules_leave_no_token_a_round_ends_with_the_token_before(
    pair: Pair, mode: Verification, place: int
) -> None:
    """As plain decoding does: it says so many tokens, and fails at that place."""
    greedy = SamplingParameters(seed=5, temperature=0.0)
    with target_of(pair.target()) as target:
        tokens = await plain(target, opening("a", parameters=greedy), 8)
        banned = tuple((*tokens[:place], after) for after in range(VOCAB))
        request = opening("b", parameters=replace(greedy, bad_words=banned), verification=mode, logprobs=0)
        assert await plain(target, request, place) == tokens[:place]
        with pytest.raises(BadRequest, match="bad_words left no token"):
            await target.verify(round_of(place, place, name="b"))
        await target.open(request)
        certain = tuple(SparseRow((token,), (1.0,)) for token in tokens)
        verdict = await target.verify(round_of(0, 0, tokens, name="b", q=certain))
        with pytest.raises(BadRequest, match="bad_words left no token") as refusal:
            await target.verify(round_of(1, place, tokens[place:], name="b", q=certain[place:]))
    assert (verdict.accepted, verdict.token) == (place - 1, tokens[place - 1])
    assert len(verdict.logprobs or ()) == place
    assert refusal.value.parameter == "bad_words"


@pytest.mark.parametrize("mode", list(Verification))
async def test_a_draft_offers_what_it_guessed_before_its_rules_left_no_token(pair: Pair, mode: Verification) -> None:
    greedy = SamplingParameters(seed=5, temperature=0.0)
    with draft_of(pair.draft()) as draft:
        await draft.open(opening("a", parameters=greedy))
        ids = (await draft.propose(propose_of(0, (), 6))).ids
        banned = tuple((*ids[:4], after) for after in range(VOCAB))
        await draft.open(opening("b", parameters=replace(greedy, bad_words=banned), verification=mode))
        offered = await draft.propose(propose_of(0, (), 6, name="b"))
        nothing = await draft.propose(propose_of(0, ids[:4], 6, name="b"))
        bits = await draft.score(ScoreTokens(SessionId("b"), LIFE, 0, ids))
    assert (offered.ids, nothing.ids) == (ids[:4], ())
    assert bits[:5] == (True, True, True, True, False)


async def test_what_is_told_of_the_engine_is_what_it_was_given(pair: Pair) -> None:
    model = pair.target()
    with target_of(model) as target:
        told = await target.capabilities()
    assert (told.model_digest, told.tokenizer_digest) == ("sha256:model", "sha256:tokenizer")
    assert (told.vocab_size, told.max_length, told.determinism) == (VOCAB, LENGTH, model.determinism)
