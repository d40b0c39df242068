"""The same for what the engine ports refuse, and where a context or the rules of a request end."""

import math
from dataclasses import replace

import pytest
from tests.seams import port_words
from tests.seams.port_models import LENGTH, SLOTS, VOCAB, Pair
from tests.seams.port_words import (
    LIFE,
    draft_of,
    opening,
    plain,
    propose_of,
    round_of,
    target_of,
)

from tandem_runtime.domain.errors import BadRequest, Overloaded
from tandem_runtime.domain.tokens import (
    Proposal,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    Stop,
    TokenId,
    Verification,
)

pair = port_words.pair


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


async def test_there_is_no_room_beyond_the_last_slot_until_one_is_closed(pair: Pair) -> None:
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft:
        for engine in (target, draft):
            for number in range(SLOTS):
                await engine.open(opening(str(number)))
        with pytest.raises(Overloaded):
            await draft.open(opening("more"))
        with pytest.raises(Overloaded) as refusal:
            await target.open(opening("more"))
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
        ({"parameters": SamplingParameters(seed=-1)}, "seed"),
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
