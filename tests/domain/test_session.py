"""One request as a machine, played against a target and a draft that are plain functions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.session_bench import LENGTH, STOP, Bench, Next, Prefix, chain, following, lame, play, request

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.commands import (
    Choose,
    Command,
    Counts,
    Emit,
    Finish,
    OpenDraft,
    OpenTarget,
    Propose,
    Run,
    Spent,
    Verify,
)
from tandem_runtime.domain.errors import DraftLost, OutOfOrder, StaleOffset, TargetLost
from tandem_runtime.domain.sampling import coupled_choice
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.states import TRANSITIONS, Signal, State
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    Incarnation,
    Opened,
    Proposal,
    SamplingParameters,
    TokenId,
    TokenLogprob,
    Verdict,
)

CHAINS = {
    (1,): "5 3 1 2 3 0 2 4 3 2 5 3 1 2 3 0",
    (1, 2, 3): "2 0 5 4 0 3 5 0 1 5 2 0 5 4 0 3",
    (2,) * 15: "5 4 0 3 5 0 1 5 2 0 5 4 0 3 5 0",
    (2,) * 16: "1 5 2 0 5 4 0 3 5 0 1 5 2 0 5 4",
    (2,) * 17: "0 3 5 0 1 5 2 0 5 4 0 3 5 0 1 5",
}


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("prompt", CHAINS)
def test_greedy_ids_are_the_same_for_every_k(prompt: Prefix, k: int) -> None:
    """Case C01 (transformers #30042)."""
    played = play(chain, lame, k, prompt=prompt)
    assert played.ids == [int(token) for token in CHAINS[prompt].split()]
    assert (k == 0) == all(round.proposed == 0 for round in played.rounds)


@pytest.mark.parametrize("ends", [frozenset({9}), frozenset({8, 9})], ids=["one end token", "two end tokens"])
@pytest.mark.parametrize("position", [1, 2, 3, 4, 5, 6])
def test_an_accepted_end_token_ends_the_output_at_any_position(position: int, ends: frozenset[TokenId]) -> None:
    """Case C06 (transformers #47912): at the sixth position it is the bonus token."""
    script = [0, 1, 2, 3, 4, 5]
    script[position - 1] = 9
    played = play(following(script), following(script), 5, endings=Endings(20, ends))
    text = "abcdef"[: position - 1]
    assert played.summary == (tuple(script[:position]), text, STOP, position)
    assert played.finish is not None
    accepted = min(position, 5)
    assert played.finish.counts == Counts(1, position, 1, 1, 5, accepted, (5,))
    assert played.rounds[0].examined == accepted
    assert played.rounds[0].cut == 5 - accepted


def test_an_ignored_end_token_is_a_token_like_others() -> None:
    script = [0, 1, 9, 2, 3, 4]
    played = play(following(script), following(script), 5, endings=Endings(12))
    assert played.summary == ((*script, *script), "abjcdeabjcde", LENGTH, 12)


def test_a_rejection_beyond_an_ending_is_not_examined() -> None:
    target, draft = following([0, 9, 2, 3]), following([0, 9, 2, 7])
    played = play(target, draft, 4, endings=Endings(20, frozenset({9})))
    assert [(round.accepted, round.cut, round.emitted, round.examined) for round in played.rounds] == [(2, 2, 2, 2)]


WORDS = ["x", " y", "END", " p", " q", " r"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 2, 3, 4, 5), ((0, 1, 2), "x y", STOP, 3)),
        ((0, 1, 3, 4, 5, 2), ((0, 1, 3, 4, 5), "x y p q r", LENGTH, 5)),
        ((0, 1, 3, 4, 2, 5), ((0, 1, 3, 4, 2), "x y p q", STOP, 5)),
    ],
)
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_the_earliest_ending_in_token_order_wins_for_every_k(
    order: Prefix, expected: tuple[Prefix, str, FinishReason, int], k: int
) -> None:
    """Case C07 (SGLang #31599)."""
    model = following(order)
    changes = {
        "endings": Endings(5, stop=("END",)),
        "decode": lambda ids: "".join(WORDS[i] for i in ids),
        "prompt": (0,),
    }
    assert play(model, model, k, **changes).summary == expected


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize(
    ("max_tokens", "target_length", "expected"),
    [(1, 99, 1), (2, 99, 2), (4, 99, 4), (5, 99, 5), (6, 99, 6), (99, 2, 1), (99, 4, 3), (99, 1, 0), (0, 99, 0)],
)
def test_a_round_never_outgrows_the_token_budget(k: int, max_tokens: int, target_length: int, expected: int) -> None:
    """Case C08 (lattice #242); the prompt holds one token."""
    played = play(chain, chain, k, endings=Endings(max_tokens), target_length=target_length)
    assert played.finish is not None
    assert (len(played.ids), played.finish.reason) == (expected, LENGTH)
    for command in played.commands:
        if isinstance(command, Verify):
            assert command.request.offset + len(command.request.proposal.ids) < expected


def test_past_the_drafts_shorter_context_a_session_goes_on_at_k_zero() -> None:
    played = play(chain, chain, 4, draft_length=8, endings=Endings(40))
    assert played.ids == play(chain, chain, 0, endings=Endings(40)).ids
    assert [round.proposed for round in played.rounds][:3] == [4, 2, 0]
    assert [command.request.max_tokens for command in played.commands if isinstance(command, OpenDraft)] == [7]


def test_a_session_without_a_draft_asks_for_no_k_and_runs_in_chunks() -> None:
    played = play(chain, chain, 4, draft_length=None, endings=Endings(70))
    assert not any(isinstance(command, Choose) for command in played.commands)
    runs = {(run.request.offset, run.request.max_tokens) for run in played.commands if isinstance(run, Run)}
    assert runs == {(0, 16), (16, 16), (32, 16), (48, 16), (64, 6)}


def test_a_lost_draft_continues_with_k_zero_and_is_tried_again_later_a_few_times() -> None:
    bench = Bench(chain, chain, [4], [(OpenDraft, n) for n in range(9)])
    played = bench.play(Session(request(endings=Endings(600))))
    assert played.ids == play(chain, chain, 0, endings=Endings(600)).ids
    offsets = [len(command.request.output) for command in played.commands if isinstance(command, OpenDraft)]
    assert offsets == [0, 64, 192, 448]


def test_a_recovered_draft_is_opened_with_all_that_is_committed() -> None:
    bench = Bench(chain, chain, [4], [(Propose, 0)])
    played = bench.play(Session(request(endings=Endings(80))))
    assert played.ids == play(chain, chain, 0, endings=Endings(80)).ids
    assert [len(c.request.output) for c in played.commands if isinstance(c, OpenDraft)] == [0, 64]
    assert any(round.accepted for round in played.rounds)


def test_a_draft_is_told_no_token_that_it_holds_already() -> None:
    played = play(chain, lame, 4, endings=Endings(12))
    asked = [command.request for command in played.commands if isinstance(command, Propose)]
    assert [(ask.base, ask.committed, ask.k) for ask in asked] == [
        (0, (), 4),
        (2, (1,), 4),
        (5, (0,), 4),
        (8, (3,), 2),
    ]


def test_a_draft_that_offers_more_than_was_asked_for_is_lost() -> None:
    session = Session(request())
    session.opened(Opened(Incarnation("t")))
    session.chosen(2)
    session.draft_opened(Opened(Incarnation("d")))
    with pytest.raises(DraftLost, match="3 tokens where 2"):
        session.proposed(Proposal((1, 2, 3)))
    session.draft_lost()
    assert session.state is State.RUNNING


def test_a_lost_target_is_opened_again_from_the_committed_tokens() -> None:
    bench = Bench(chain, lame, [3], [(Verify, 2)])
    played = bench.play(Session(request()))
    openings = [command.request.output for command in played.commands if isinstance(command, OpenTarget)]
    assert played.ids == [int(token) for token in CHAINS[1,].split()]
    assert openings == [(), (5, 3, 1, 2, 3, 0)]


def test_target_and_draft_are_opened_with_the_requests_adapter_each_time() -> None:
    adapter = AdapterDigest("sha256:a")
    played = Bench(chain, lame, [3], [(Verify, 1)]).play(Session(request(adapter=adapter)))
    openings = [command for command in played.commands if isinstance(command, OpenTarget | OpenDraft)]
    asked = [(type(opening), opening.request.adapter) for opening in openings]
    assert asked.count((OpenTarget, adapter)) == 2
    assert set(asked) == {(OpenTarget, adapter), (OpenDraft, adapter)}


def test_a_target_that_is_lost_again_and_again_fails_the_request() -> None:
    session = Session(request())
    cause = TargetLost("gone")
    for _ in range(3):
        session.target_lost(cause)
    with pytest.raises(TargetLost) as raised:
        session.target_lost(cause)
    assert raised.value is cause


def test_the_first_round_after_an_opening_is_a_prefill() -> None:
    bench = Bench(chain, chain, [2], [(Verify, 2)])
    played = bench.play(Session(request()))
    assert [round.prefill for round in played.rounds] == [True, False, True, False, False, False]


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(1, 0, 0, 5),
        Verdict(0, 1, 0, 5),
        Verdict(0, 0, 3, 5),
        Verdict(0, 0, -1, 5),
        Verdict(0, 0, 2, 5, unjudged=1),
        Verdict(0, 0, 0, 5, unjudged=3),
        Verdict(0, 0, 0, 5, unjudged=-1),
    ],
)
def test_an_answer_to_another_question_commits_nothing(verdict: Verdict) -> None:
    session = Session(request())
    session.opened(Opened(Incarnation("t")))
    session.chosen(2)
    session.draft_opened(Opened(Incarnation("d")))
    session.proposed(Proposal((1, 2)))
    with pytest.raises(StaleOffset):
        session.verified(verdict, Spent(1.0))
    assert (session.output, session.state) == ((), State.VERIFYING)


def test_a_run_that_brings_nothing_is_a_lost_target() -> None:
    session = Session(request())
    session.opened(Opened(Incarnation("t")))
    session.chosen(0)
    with pytest.raises(TargetLost, match="without a token"):
        session.run_over()


def test_a_run_may_end_early_at_an_end_token_that_the_request_ignores() -> None:
    bench = Bench(following([0, 9, 1]), chain, [0])
    bench.end_tokens = frozenset({9})
    played = bench.play(Session(request(endings=Endings(9), prompt=(0,))))
    assert played.ids == [0, 9, 1] * 3


def test_logprobs_travel_with_their_tokens_and_not_beyond_an_ending() -> None:
    session = Session(request(endings=Endings(16, frozenset({9})), logprobs=0))
    session.opened(Opened(Incarnation("t")))
    session.chosen(3)
    session.draft_opened(Opened(Incarnation("d")))
    session.proposed(Proposal((4, 9, 4)))
    entries = tuple(TokenLogprob(-float(i)) for i in range(4))
    session.verified(Verdict(0, 0, 3, 5, logprobs=entries), Spent(1.0))
    assert session.next() == Emit((4, 9), "e", entries[:2])


@pytest.mark.parametrize("state", [state for state in State if state not in (State.FINISHED, State.CANCELLED)])
def test_a_session_can_be_cancelled_wherever_it_stands(state: State) -> None:
    session = Session(request())
    session._state = state
    session.cancelled()
    assert session.state is State.CANCELLED
    with pytest.raises(OutOfOrder):
        session.next()


def test_a_finished_session_stays_finished_when_it_is_cancelled_too_late() -> None:
    session = Session(request(endings=Endings(0)))
    assert isinstance(session.next(), Finish)
    session.cancelled()
    assert session.state is State.FINISHED


def test_an_event_out_of_order_is_named() -> None:
    with pytest.raises(OutOfOrder, match="opening and was told: draft lost"):
        Session(request()).draft_lost()


@pytest.mark.parametrize("k", [-1, 16])
def test_a_k_that_does_not_fit_is_out_of_order(k: int) -> None:
    session = Session(request())
    session.opened(Opened(Incarnation("t")))
    with pytest.raises(OutOfOrder, match="at most 15"):
        session.chosen(k)


def test_every_state_is_reached_and_left_by_the_table() -> None:
    starts, ends = {start for start, _ in TRANSITIONS}, set(TRANSITIONS.values())
    assert starts | {State.FINISHED, State.CANCELLED} == set(State)
    assert ends | {State.OPENING, State.CANCELLED} == set(State)
    assert {signal for _, signal in TRANSITIONS} == set(Signal)


def flat_target(parameters: SamplingParameters) -> Next:
    """Logits that hang on the whole prefix, near enough to flat that the noise decides."""

    def choose(prefix: Prefix) -> TokenId:
        return coupled_choice([((chain(prefix) + 2 * x) % 7) / 4 for x in range(7)], parameters, len(prefix) - 1)

    return choose


losses = st.sets(st.tuples(st.sampled_from([OpenTarget, OpenDraft, Propose, Verify, Run]), st.integers(0, 12)))


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.5]),
    ks=st.lists(st.integers(0, 8), min_size=1, max_size=20),
    lost=losses,
    lossy=st.integers(1, 7),
)
def test_in_coupled_mode_the_text_depends_on_no_draft_k_or_loss(
    seed: int, temperature: float, ks: list[int], lost: set[tuple[type[Command], int]], lossy: int
) -> None:
    """Cases C01 and C10 in the domain: any K by round, any lossy draft, lost drafts and lost targets."""
    target = flat_target(SamplingParameters(seed, temperature=temperature))

    def draft(prefix: Prefix) -> TokenId:
        return target(prefix) if sum(prefix) % lossy else (target(prefix) + 1) % 7

    endings = Endings(90, frozenset({6}) if seed % 2 else frozenset(), ("aba",))
    plain = play(target, draft, 0, endings=endings)
    assert Bench(target, draft, ks, lost).play(Session(request(endings=endings))).summary == plain.summary


def test_another_seed_gives_another_answer() -> None:
    """Case C10 (vLLM #6038, #13196)."""
    answers = set()
    for seed in range(42, 53):
        target = flat_target(SamplingParameters(seed, temperature=2.0))
        answers.add(tuple(play(target, target, 4, endings=Endings(32)).ids))
    assert len(answers) >= 10
