"""The codec is total: every domain value comes back whole, and bytes without sense are a BadRequest, nothing else."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.adapters import AdapterDigest, AdapterFacts
from tandem_runtime.domain.ahead import MORE_TOKENS
from tandem_runtime.domain.errors import (
    BadRequest,
    Cancelled,
    DraftForgot,
    DraftLate,
    DraftLost,
    ModelRefused,
    NotANumber,
    NotLoaded,
    NotSupported,
    Overloaded,
    SessionLost,
    StaleOffset,
    TandemError,
    TargetLost,
)
from tandem_runtime.domain.tokens import (
    Ahead,
    Capabilities,
    Grammar,
    GrammarKind,
    Incarnation,
    Opened,
    OpenSession,
    Outlook,
    Priority,
    PromptRead,
    Proposal,
    ProposeRound,
    ReadPrompt,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    SparseRow,
    Stop,
    TokenLogprob,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.wire import codec, pod_calls
from tandem_runtime.wire import verify_pb2 as pb
from tandem_runtime.wire.codec import Cancel, Close, Ended, ReplyBody, RequestBody, Scored

SESSION, BOUND = SessionId("s"), Incarnation("bound")

counts = st.integers(0, 2**32 - 1)
floats = st.floats(allow_nan=False)
singles = st.floats(allow_nan=False, width=32)
ids = st.lists(counts, max_size=12).map(tuple)
incarnations = st.sampled_from([BOUND, Incarnation("another")])
micro = counts.map(lambda n: n / 1_000_000)
sharers = st.integers(1, 2**32 - 1)
share = st.integers(0, 10_000).map(lambda n: n / 10_000)


@st.composite
def propose_rounds(draw: st.DrawFn) -> ProposeRound:
    k = draw(counts)
    survivals = st.lists(share, max_size=min(k + MORE_TOKENS, 9)).map(tuple)
    outlooks = st.builds(Outlook, survivals, counts, st.none() | sharers)
    told = draw(st.none() | stops), draw(st.none() | outlooks)
    return ProposeRound(SESSION, draw(incarnations), draw(counts), draw(ids), k, *told)


texts = st.text(st.characters(codec="utf-8"), max_size=20)

parameters = st.builds(
    SamplingParameters,
    seed=st.integers(0, 2**64 - 1),
    choice=counts,
    temperature=floats,
    top_k=counts,
    top_p=floats,
    min_p=floats,
    logit_bias=st.lists(st.tuples(counts, floats), max_size=4).map(tuple),
    grammar=st.none() | st.builds(Grammar, kind=st.sampled_from(GrammarKind), text=texts),
    allowed_tokens=ids,
    bad_words=st.lists(ids, max_size=3).map(tuple),
    min_tokens=counts,
    end_tokens=ids,
    repetition_penalty=floats.filter(bool),
    frequency_penalty=floats,
    presence_penalty=floats,
)


@st.composite
def rows(draw: st.DrawFn) -> SparseRow:
    """A law over a few tokens, as float32 holds it."""
    ids = draw(st.lists(counts, min_size=1, max_size=5, unique=True))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(ids), max_size=len(ids)))
    shares = [weight / sum(weights) for weight in weights]
    return SparseRow(tuple(ids), struct.unpack(f"{len(ids)}f", struct.pack(f"{len(ids)}f", *shares)))


@st.composite
def proposals(draw: st.DrawFn, *, seconds: bool = True) -> Proposal:
    proposed = draw(ids)
    q = draw(st.none() | st.lists(rows(), min_size=len(proposed), max_size=len(proposed)).map(tuple))
    proposal = Proposal(ids=proposed, q=q or None)
    if not seconds:
        return proposal
    ahead = draw(st.none() | st.builds(Ahead, st.booleans(), counts))
    told = st.just(b"") | st.binary(min_size=len(proposed), max_size=len(proposed))
    return replace(
        proposal, draft_seconds=draw(micro), rows=draw(sharers), confidences=draw(told.map(tuple)), ahead=ahead
    )


chances = st.integers(0, 255).map(lambda each: each / 255)
stops = st.builds(Stop, share, st.lists(chances, min_size=16, max_size=16).map(tuple))


@st.composite
def verify_rounds(draw: st.DrawFn) -> VerifyRound:
    proposal = draw(proposals(seconds=False))
    survivals = st.lists(st.integers(0, 255), min_size=len(proposal.ids), max_size=len(proposal.ids) + 3)
    believed = tuple(byte / 255 for byte in draw(st.just([]) | survivals))
    return VerifyRound(SESSION, draw(incarnations), draw(counts), draw(counts), proposal, believed)


requests: st.SearchStrategy[RequestBody] = st.one_of(
    st.builds(
        OpenSession,
        session=st.just(SESSION),
        prompt=ids,
        output=ids,
        parameters=parameters,
        verification=st.sampled_from(Verification),
        max_tokens=counts,
        logprobs=st.none() | counts,
        tenant=st.none() | st.text(max_size=5),
        adapter=st.none() | st.text(max_size=5),
        weight=st.floats(1e-9, 1e9),
        priority=st.sampled_from(Priority),
    ),
    verify_rounds(),
    st.builds(RunRounds, st.just(SESSION), incarnations, counts, counts, counts),
    propose_rounds(),
    st.builds(ScoreTokens, st.just(SESSION), incarnations, counts, ids),
    st.builds(ReadPrompt, st.just(SESSION), incarnations, counts, counts, counts),
    st.just(Cancel()),
    st.just(Close()),
)
logprobs = st.builds(TokenLogprob, singles, st.lists(st.tuples(counts, singles), max_size=3).map(tuple))
replies: st.SearchStrategy[ReplyBody] = st.one_of(
    st.builds(Opened, st.builds(Incarnation, texts), counts),
    st.builds(
        Verdict,
        round=counts,
        offset=counts,
        accepted=counts,
        token=counts,
        logprobs=st.none() | st.lists(logprobs, min_size=1, max_size=3).map(tuple),
        queue_seconds=micro,
        forward_seconds=micro,
        kv_used=share,
        credits=st.lists(share, max_size=3).map(tuple),
        rows=sharers,
        unjudged=counts,
    ),
    st.just(Ended()),
    proposals(),
    st.builds(Scored, st.lists(st.booleans()).map(tuple)),
    st.builds(PromptRead, st.lists(logprobs, max_size=3).map(tuple)),
)


@given(requests, st.integers(1, 2**64 - 1), counts)
def test_a_request_comes_back_whole(body: RequestBody, call: int, session: int) -> None:
    frame = codec.request_frame(body, call=call, session=session, bound=BOUND)
    (request,) = codec.read_requests(frame)
    assert (request.call, request.session) == (call, session)
    assert request.body(session=SESSION, bound=BOUND) == body


@given(replies, st.integers(0, 2**64 - 1))
def test_a_reply_comes_back_whole(body: ReplyBody, call: int) -> None:
    (reply,) = codec.read_replies(codec.reply_frame(body, call=call))
    assert (reply.call, reply.body()) == (call, body)


@given(st.lists(st.tuples(requests, st.integers(1, 1000))))
def test_frames_joined_are_the_frame_of_all_their_messages(sent: list[tuple[RequestBody, int]]) -> None:
    frames = [codec.request_frame(body, call=call, session=1, bound=BOUND) for body, call in sent]
    received = codec.read_requests(b"".join(frames))
    assert [(each.body(session=SESSION, bound=BOUND), each.call) for each in received] == sent


ERRORS = [
    (BadRequest("out of range", parameter="logit_bias"), BadRequest),
    (BadRequest("no field"), BadRequest),
    (Overloaded("full", retry_after_seconds=9), Overloaded),
    (SessionLost("gone"), SessionLost),
    (StaleOffset("3 is not 5"), StaleOffset),
    (NotANumber("NaN"), NotANumber),
    (Cancelled("left"), Cancelled),
    (TargetLost("broken"), TargetLost),
    (DraftForgot("forgot"), SessionLost),
    (DraftLost("broken"), TargetLost),
    (DraftLate("no answer"), TargetLost),
    (ModelRefused("no such file"), BadRequest),
    (NotLoaded("no such adapter", parameter="model"), NotLoaded),
    (NotSupported("no such means", parameter="response_format"), NotSupported),
]


@pytest.mark.parametrize(("error", "arrives_as"), ERRORS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_an_error_arrives_as_its_branch_of_the_tree(error: TandemError, arrives_as: type[TandemError]) -> None:
    (reply,) = codec.read_replies(codec.reply_frame(error, call=1))
    arrived = reply.body()
    assert (type(arrived), str(arrived)) == (arrives_as, str(error))
    if type(error) is arrives_as:
        assert vars(arrived) == vars(error)


adapters = st.builds(AdapterFacts, texts, st.builds(AdapterDigest, texts), counts, st.integers(0, 2**64 - 1))


@given(
    st.builds(
        Capabilities,
        texts,
        texts,
        counts,
        counts,
        st.sampled_from(["Bitwise", "NearTie"]),
        adapters=st.lists(adapters, max_size=3).map(tuple),
    )
)
def test_capabilities_come_back_whole(value: Capabilities) -> None:
    assert pod_calls.read_capabilities(pod_calls.capabilities_bytes(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_bad_request(junk: bytes) -> None:
    try:
        for request in codec.read_requests(junk):
            request.body(session=SESSION, bound=BOUND)
        for reply in codec.read_replies(junk):
            reply.body()
        pod_calls.read_capabilities(junk)
    except BadRequest:
        pass


def opening(**changes: object) -> pb.Request:
    fields = {"parameters": pb.SamplingParameters(seed=1), "verification": pb.VERIFICATION_COUPLED, **changes}
    return pb.Request(call=1, session=1, open=pb.Open(**fields))  # type: ignore[arg-type]


def with_q(*, ids: list[int], probabilities: list[float]) -> pb.Request:
    return pb.Request(verify=pb.Verify(ids=[1], q=[pb.SparseRow(ids=ids, probabilities=probabilities)]))


SENSELESS = [
    (opening(verification=0), "open.verification"),
    (opening(verification=99), "open.verification"),
    (opening(parameters=None), "open.parameters"),
    (opening(priority=99), "open.priority"),
    (opening(weight=-1.0), "open.weight"),
    (opening(weight=float("inf")), "open.weight"),
    (opening(weight=float("nan")), "open.weight"),
    (opening(parameters=pb.SamplingParameters(bias_ids=[1])), "open.parameters.bias_values"),
    (pb.Request(call=1, session=1), "kind"),
    (pb.Request(verify=pb.Verify(ids=[1, 2], q=[pb.SparseRow()])), "proposal.q"),
    (with_q(ids=[1, 2], probabilities=[1.0]), "proposal.q[0]"),
    (with_q(ids=[1, 2], probabilities=[0.5, 0.25]), "proposal.q[0]"),
    (with_q(ids=[1, 2], probabilities=[1.0, 0.5]), "proposal.q[0]"),
    (with_q(ids=[1, 2], probabilities=[1.5, -0.5]), "proposal.q[0]"),
    (with_q(ids=[1, 2], probabilities=[float("nan"), 1.0]), "proposal.q[0]"),
    (with_q(ids=[1, 1], probabilities=[0.5, 0.5]), "proposal.q[0]"),
    (with_q(ids=[], probabilities=[]), "proposal.q[0]"),
    (pb.Request(propose=pb.Propose(stop=pb.Stop(acceptance=b"123"))), "propose.stop.acceptance"),
    (
        pb.Request(propose=pb.Propose(k=1, outlook=pb.Outlook(survivals_basis_points=[9000] * 4))),
        "propose.outlook.survivals_basis_points",
    ),
]


@pytest.mark.parametrize(("message", "parameter"), SENSELESS)
def test_a_request_without_sense_is_a_bad_request_naming_the_field(message: pb.Request, parameter: str) -> None:
    with pytest.raises(BadRequest) as caught:
        codec.decode_request(message, session=SESSION, incarnation=BOUND)
    assert caught.value.parameter == parameter


def test_a_draft_that_sends_no_law_is_told_apart_from_one_that_does() -> None:
    sent = pb.Proposal(ids=[1], q=[pb.SparseRow(ids=[1, 2], probabilities=[0.5, 0.25])])
    with pytest.raises(BadRequest, match=r"adds up to 0\.75") as caught:
        codec.decode_reply(pb.Reply(call=1, proposal=sent))
    assert caught.value.parameter == "proposal.q[0]"


def test_a_credit_that_is_no_chance_is_a_bad_request_naming_the_position() -> None:
    with pytest.raises(BadRequest, match="a chance has 10000 at most") as caught:
        codec.decode_reply(pb.Reply(call=1, verdict=pb.Verdict(credits_basis_points=[5000, 10001])))
    assert caught.value.parameter == "verdict.credits_basis_points[1]"


def test_a_credit_takes_two_bytes_at_most() -> None:
    def size(credits: tuple[float, ...]) -> int:
        return len(codec.reply_frame(Verdict(round=1, offset=1, accepted=4, token=1, credits=credits), call=1))

    tag_and_length = 2
    assert size((1.0,) * 5) - size(()) <= 5 * 2 + tag_and_length


def test_confidences_are_one_per_guess_or_none() -> None:
    sent = pb.Proposal(ids=[1, 2], confidences=b"1")
    with pytest.raises(BadRequest, match="1 bytes for 2 ids") as caught:
        codec.decode_reply(pb.Reply(call=1, proposal=sent))
    assert caught.value.parameter == "proposal.confidences"


def test_a_belief_travels_in_255ths() -> None:
    sent = VerifyRound(SESSION, BOUND, 0, 0, Proposal((1, 2, 3)), (0.9, 0.9**2, 0.001))
    (request,) = codec.read_requests(codec.request_frame(sent, call=1, session=1, bound=BOUND))
    assert request.body(session=SESSION, bound=BOUND) == replace(sent, survivals=(230 / 255, 207 / 255, 0.0))


@pytest.mark.parametrize("survival", [-0.1, 1.1, float("nan")])
def test_a_belief_that_is_no_chance_is_never_sent(survival: float) -> None:
    with pytest.raises(BadRequest, match="cannot carry"):
        codec.request_frame(VerifyRound(SESSION, BOUND, 0, 0, Proposal((1,)), (survival,)), call=1, session=1)


@pytest.mark.parametrize("beliefs", [1, 65])
def test_beliefs_about_fewer_tokens_or_more_than_anybody_asks_for_are_a_bad_request(beliefs: int) -> None:
    message = pb.Request(call=1, session=1, verify=pb.Verify(ids=[1, 2], survivals=b"\xff" * beliefs))
    with pytest.raises(BadRequest, match=f"{beliefs} bytes for 2 proposed ids; .* 64 at most") as caught:
        codec.decode_request(message, session=SESSION, incarnation=BOUND)
    assert caught.value.parameter == "survivals"


@pytest.mark.parametrize("kind", [0, 99])
def test_a_failure_of_unknown_kind_is_a_bad_request(kind: int) -> None:
    with pytest.raises(BadRequest, match=f"failure.kind: {kind}"):
        codec.decode_reply(pb.Reply(call=1, failure=pb.Failure(kind=kind)))  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"determinism": 0}, {"determinism": 77}, {"determinism": 1, "verifications": [0]}])
def test_capabilities_of_unknown_kind_are_a_bad_request(fields: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        pod_calls.read_capabilities(pb.DescribeReply(**fields).SerializeToString())  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_no_uint32_holds_is_a_bad_request(token: int) -> None:
    with pytest.raises(BadRequest, match="cannot carry"):
        codec.request_frame(ScoreTokens(SESSION, BOUND, 0, (token,)), call=1, session=1)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_is_no_64_bits_is_refused_by_name_and_value(seed: int) -> None:
    with pytest.raises(BadRequest, match=f"seed is {seed}; give a whole number from 0 to") as refusal:
        codec.request_frame(_opening(SamplingParameters(seed=seed)), call=1, session=1)
    assert refusal.value.parameter == "seed"


def test_an_error_that_quotes_half_a_surrogate_pair_still_arrives() -> None:
    (reply,) = codec.read_replies(codec.reply_frame(StaleOffset("bad \ud800"), call=1))
    assert str(reply.body()) == "bad ?"


def test_a_clock_that_stepped_back_saturates_instead_of_failing_the_round() -> None:
    (reply,) = codec.read_replies(codec.reply_frame(Proposal(ids=(1,), draft_seconds=-3.0), call=1))
    assert reply.body() == Proposal(ids=(1,), draft_seconds=0.0)


def test_a_coupled_round_at_five_guesses_takes_at_most_128_bytes_each_way() -> None:
    guesses = Proposal(ids=(151_935,) * 5)
    frame = codec.request_frame(
        VerifyRound(SESSION, BOUND, 100_000, 130_000, guesses, (0.5,) * 5), call=2**32, session=50_000, bound=BOUND
    )
    verdict = Verdict(
        round=100_000,
        offset=130_000,
        accepted=5,
        token=151_935,
        queue_seconds=2.5,
        forward_seconds=2.5,
        kv_used=0.99,
        rows=300,
        unjudged=5,
    )
    sizes = len(frame), len(codec.reply_frame(verdict, call=2**32))
    assert max(sizes) <= 128


def test_a_rejection_round_with_32_entries_of_q_takes_at_most_256_bytes_a_guess() -> None:
    row = SparseRow(tuple(range(151_000, 151_032)), (struct.unpack("f", struct.pack("f", 1 / 32))[0],) * 32)
    frame = codec.request_frame(
        VerifyRound(SESSION, BOUND, 10, 10, Proposal(ids=(151_000,) * 5, q=(row,) * 5)), call=9, session=9, bound=BOUND
    )
    assert len(frame) <= 5 * 256


def test_processors_that_a_request_does_not_use_cost_no_bytes() -> None:
    """Seed and two factors of one: 9 bytes each, with what frames them."""
    plain = codec.request_frame(_opening(SamplingParameters(seed=1)), call=1, session=1)
    biased = codec.request_frame(_opening(SamplingParameters(seed=1, presence_penalty=0.5)), call=1, session=1)
    assert len(pb.Requests.FromString(plain).requests[0].open.parameters.SerializeToString()) == 27
    assert len(biased) - len(plain) == 10


def _opening(asked: SamplingParameters) -> OpenSession:
    return OpenSession(SESSION, (1,), (), asked, Verification.COUPLED, 5)


def test_a_grammar_of_an_unknown_kind_is_refused_by_its_path() -> None:
    message = pb.Request(
        open=pb.Open(
            parameters=pb.SamplingParameters(grammar=pb.Grammar(text="a")), verification=pb.VERIFICATION_COUPLED
        )
    )
    with pytest.raises(BadRequest, match="not a grammar that this release knows") as caught:
        codec.decode_request(message, session=SESSION, incarnation=BOUND)
    assert caught.value.parameter == "open.parameters.grammar.kind"
