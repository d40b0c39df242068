"""A session under any order of events that a driver can meet, against the simplest reader of the same output.

The reference reads the target's tokens one at a time and looks for endings in the whole text after each. The machine
plays engines that lie about nothing but fail, repeat themselves, answer late and lose their memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem_runtime.domain.commands import (
    Choose,
    Command,
    Emit,
    Finish,
    OpenDraft,
    OpenTarget,
    Propose,
    Request,
    Run,
    Spent,
    Verify,
)
from tandem_runtime.domain.errors import DraftLost, OutOfOrder, StaleOffset, TargetLost
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.states import FINAL, TRANSITIONS, State
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    Incarnation,
    Opened,
    Proposal,
    SamplingParameters,
    SessionId,
    TokenId,
    TokenLogprob,
    Verdict,
    Verification,
)
from tandem_runtime.domain.verification import verify_coupled

TABLE = [b"x", b" y", b"EN", b"D", b"\xc3", b"\xa9", b""]
STOPS = ["END", "xx", "x y", "Dx y", "é", "DEN"]
PROMPT = (1, 2)
DRAFT_LENGTH = 20


def decode(ids: Sequence[TokenId]) -> str:
    return b"".join(TABLE[token] for token in ids).decode(errors="replace")


def likely(prefix: Sequence[TokenId], seed: int) -> TokenId:
    return (seed + sum((index % 5 + 1) * (token + 1) for index, token in enumerate(prefix))) % len(TABLE)


@dataclass(frozen=True)
class Read:
    ids: tuple[TokenId, ...]
    text: str
    reason: FinishReason


def read_whole(request: Request, seed: int) -> Read:
    """The whole output by the rules as one would say them to a person."""
    ids: list[TokenId] = []
    while len(ids) < min(request.endings.max_tokens, request.target_length - len(request.prompt)):
        token = likely((*request.prompt, *ids), seed)
        ids.append(token)
        if token in request.endings.end_tokens:
            return Read(tuple(ids), decode(ids[:-1]), FinishReason.STOP)
        text = decode(ids)
        ends = [(start + len(stop), start) for stop in request.endings.stop if (start := text.find(stop)) >= 0]
        if ends:
            return Read(tuple(ids), text[: min(ends)[1]], FinishReason.STOP)
    return Read(tuple(ids), decode(ids), FinishReason.LENGTH)


class SessionUnderEvents(RuleBasedStateMachine):
    session: Session
    command: Command | None = None

    @initialize(
        seed=st.integers(0, 6),
        stop=st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
        ends=st.sampled_from([frozenset[int](), frozenset({6}), frozenset({3, 6})]),
        max_tokens=st.sampled_from([30, 60, 12, 5, 1, 0]),
        target_length=st.sampled_from([100, 40, 20, 4, 2]),
        logprobs=st.sampled_from([None, 0]),
    )
    def begin(
        self,
        seed: int,
        stop: list[str],
        ends: frozenset[TokenId],
        max_tokens: int,
        target_length: int,
        logprobs: int | None,
    ) -> None:
        request = Request(
            session=SessionId("s"),
            prompt=PROMPT,
            parameters=SamplingParameters(seed=0),
            verification=Verification.COUPLED,
            endings=Endings(max_tokens, ends, tuple(stop)),
            decode=decode,
            target_length=target_length,
            draft_length=DRAFT_LENGTH,
            logprobs=logprobs,
        )
        self.seed, self.expected, self.session = seed, read_whole(request, seed), Session(request)
        self.ids: list[TokenId] = []
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.finish: Finish | None = None
        self.last: Verdict | None = None
        self.lives = self.losses = 0
        self.listen()

    def listen(self) -> None:
        """Take what is said, up to the next thing to do."""
        self.command = None
        while self.command is None and self.session.state not in FINAL:
            match self.session.next():
                case Emit(tokens, text, logprobs):
                    self.ids += tokens
                    self.logprobs += logprobs or ()
                    self.text += text
                case Finish() as finish:
                    self.finish = finish
                case command:
                    self.command = command

    def is_at(self, *kinds: type[Command]) -> bool:
        return isinstance(self.command, kinds)

    def seen(self, token: TokenId) -> TokenLogprob:
        """A logprob that tells its token and the token's place, so that a mix-up shows."""
        return TokenLogprob(-float(token + 1))

    def verdict(self, proposed: Sequence[TokenId], number: int, offset: int) -> Verdict:
        held = [*PROMPT, *self.session.output, *proposed]
        first = len(held) - len(proposed)
        choices = [likely(held[:end], self.seed) for end in range(first, len(held) + 1)]
        verified = verify_coupled(proposed, choices)
        emitted = [*proposed[: verified.accepted], verified.token]
        logprobs = None if self.session.request.logprobs is None else tuple(map(self.seen, emitted))
        return Verdict(number, offset, verified.accepted, verified.token, logprobs)

    def tell(self, verdict: Verdict) -> None:
        self.session.verified(verdict, Spent(1.0))
        self.last, self.losses = verdict, 0
        self.listen()

    @precondition(lambda self: self.is_at(OpenTarget))
    @rule()
    def the_target_opens(self) -> None:
        assert isinstance(self.command, OpenTarget)
        assert (self.command.request.prompt, self.command.request.output) == (PROMPT, tuple(self.ids))
        self.lives += 1
        self.session.opened(Opened(Incarnation(f"life {self.lives}")))
        self.listen()

    @precondition(lambda self: self.is_at(OpenTarget, Verify, Run))
    @rule(luck=st.integers(0, 3))
    def the_target_is_lost(self, luck: int) -> None:
        if luck:
            return
        if self.losses == 3:
            with pytest.raises(TargetLost, match="gone"):
                self.session.target_lost(TargetLost("gone"))
            return
        self.losses += 1
        self.session.target_lost(TargetLost("gone"))
        self.listen()
        assert self.is_at(OpenTarget)

    @precondition(lambda self: self.is_at(Choose))
    @rule(k=st.sampled_from([4, 8, 2, 1, 0]))
    def somebody_chooses(self, k: int) -> None:
        assert isinstance(self.command, Choose)
        self.session.chosen(min(k, self.command.most))
        self.listen()

    @precondition(lambda self: self.is_at(OpenDraft))
    @rule()
    def the_draft_opens(self) -> None:
        assert isinstance(self.command, OpenDraft)
        assert self.command.request.output == tuple(self.ids)
        self.session.draft_opened(Opened(Incarnation("draft")))
        self.listen()

    @precondition(lambda self: self.is_at(OpenDraft, Propose))
    @rule(luck=st.integers(0, 3))
    def the_draft_is_lost(self, luck: int) -> None:
        if luck:
            return
        self.session.draft_lost()
        self.listen()
        assert self.is_at(Run)

    @precondition(lambda self: self.is_at(Propose))
    @rule(right=st.sampled_from([8, 4, 2, 1, 0]), fewer=st.sampled_from([0, 0, 1, 8]))
    def the_draft_proposes(self, right: int, fewer: int) -> None:
        assert isinstance(self.command, Propose)
        held: list[TokenId] = [*PROMPT, *self.ids]
        for index in range(max(self.command.request.k - fewer, 0)):
            token = likely(held, self.seed)
            held.append(token if index < right else (token + 1) % len(TABLE))
        self.session.proposed(Proposal(tuple(held[len(PROMPT) + len(self.ids) :])))
        self.listen()

    @precondition(lambda self: self.is_at(Propose))
    @rule()
    def the_draft_offers_too_much(self) -> None:
        assert isinstance(self.command, Propose)
        with pytest.raises(DraftLost):
            self.session.proposed(Proposal((0,) * (self.command.request.k + 1)))
        assert self.session.next() == self.command

    @precondition(lambda self: self.is_at(Verify))
    @rule(times=st.integers(1, 2))
    def the_target_judges_perhaps_twice(self, times: int) -> None:
        """A retried round is answered with the stored verdict, whose second copy is refused."""
        assert isinstance(self.command, Verify)
        asked = self.command.request
        assert self.session.next() == self.command
        verdict = self.verdict(asked.proposal.ids, asked.round, asked.offset)
        self.tell(verdict)
        if times == 2:
            self.refused(verdict)

    @precondition(lambda self: self.is_at(Run))
    @rule(tokens=st.sampled_from([3, 16, 1]))
    def the_target_goes_on(self, tokens: int) -> None:
        """Some tokens of a run, or its end where it has said all."""
        assert isinstance(self.command, Run)
        before, run = self.command, self.command.request
        for _ in range(tokens):
            done = len(self.ids) - run.offset
            if done == run.max_tokens:
                self.session.run_over()
                self.listen()
                return
            self.tell(self.verdict((), run.round + done, len(self.ids)))
            if self.command is None:
                return
            assert self.command == before

    @precondition(lambda self: self.is_at(Run))
    @rule()
    def the_run_ends_early(self) -> None:
        assert isinstance(self.command, Run)
        if len(self.ids) == self.command.request.offset:
            with pytest.raises(TargetLost, match="without a token"):
                self.session.run_over()
            return
        self.session.run_over()
        self.listen()

    @precondition(lambda self: self.is_at(Verify, Run))
    @rule(rounds=st.integers(-1, 1), offset=st.integers(-1, 1), accepted=st.sampled_from([-1, 0, 9]))
    def a_verdict_answers_another_question(self, rounds: int, offset: int, accepted: int) -> None:
        number, position = len(self.session._ks), len(self.ids)
        if self.last is not None:
            self.refused(self.last)
        if (rounds, offset, accepted) != (0, 0, 0):
            self.refused(Verdict(number + rounds, position + offset, accepted, 0, (self.seen(0),)))
        elif self.session.request.logprobs is not None:
            for count in (0, 2):
                with pytest.raises(TargetLost, match=f"{count} logprobs for 1 tokens"):
                    self.session.verified(Verdict(number, position, 0, 0, (self.seen(0),) * count), Spent(1.0))

    @precondition(lambda self: self.command is not None)
    @rule(patience=st.integers(0, 40))
    def the_caller_leaves(self, patience: int) -> None:
        if patience:
            return
        self.session.cancelled()
        self.listen()
        with pytest.raises(OutOfOrder):
            self.session.next()

    @precondition(lambda self: self.session.state in FINAL)
    @rule()
    def a_session_that_is_over_stays_so(self) -> None:
        state = self.session.state
        self.session.cancelled()
        assert self.session.state is state
        self.refused(self.last or Verdict(0, 0, 0, 0))

    def teardown(self) -> None:
        """Whatever happened, the session comes to its right end when nothing more happens to it."""
        while self.command is not None:
            match self.command:
                case OpenTarget():
                    self.the_target_opens()
                case Choose():
                    self.somebody_chooses(4)
                case OpenDraft():
                    self.the_draft_opens()
                case Propose():
                    self.the_draft_proposes(right=len(self.ids) % 6, fewer=0)
                case Verify():
                    self.the_target_judges_perhaps_twice(1)
                case _:
                    self.the_target_goes_on(16)
        self.what_is_shown_is_the_beginning_of_what_plain_reading_shows()

    def refused(self, verdict: Verdict) -> None:
        with pytest.raises((StaleOffset, OutOfOrder)):
            self.session.verified(verdict, Spent(1.0))

    @invariant()
    def what_is_shown_is_the_beginning_of_what_plain_reading_shows(self) -> None:
        if not hasattr(self, "expected"):
            return
        assert tuple(self.ids) == self.expected.ids[: len(self.ids)] == self.session.output
        assert self.expected.text.startswith(self.text)
        asked = self.session.request.logprobs is not None
        assert self.logprobs == (list(map(self.seen, self.ids)) if asked else [])
        if self.finish is not None:
            counts = self.finish.counts
            assert Read(tuple(self.ids), self.text, self.finish.reason) == self.expected
            assert (counts.completion_tokens, counts.prompt_tokens) == (len(self.ids), len(PROMPT))
            assert 0 <= counts.accepted <= min(counts.proposed, len(self.ids))


SessionUnderEvents.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=60)
TestSessionUnderEvents = SessionUnderEvents.TestCase

EVENTS = {
    "opened": lambda session: session.opened(Opened(Incarnation("t"))),
    "chosen": lambda session: session.chosen(2),
    "draft opened": lambda session: session.draft_opened(Opened(Incarnation("d"))),
    "proposed": lambda session: session.proposed(Proposal((3,))),
    "verified": lambda session: session.verified(Verdict(0, 0, 0, 3), Spent(1.0)),
    "run over": lambda session: session.run_over(),
    "draft lost": lambda session: session.draft_lost(),
    "target lost": lambda session: session.target_lost(TargetLost("gone")),
}
TAKEN = {
    State.OPENING: {"opened", "target lost"},
    State.CHOOSING: {"chosen"},
    State.OPENING_DRAFT: {"draft opened", "draft lost"},
    State.PROPOSING: {"proposed", "draft lost"},
    State.VERIFYING: {"verified", "target lost"},
    State.RUNNING: {"verified", "run over", "target lost"},
    State.ENDING: set[str](),
    State.FINISHED: set[str](),
    State.CANCELLED: set[str](),
}
"""What each state hears, written a second time: the table says it by signals."""


def session_in(state: State) -> Session:
    """A fresh session led there by its own events."""
    max_tokens = 0 if state in (State.ENDING, State.FINISHED) else 16
    session = Session(
        Request(
            SessionId("s"),
            PROMPT,
            SamplingParameters(0),
            Verification.COUPLED,
            Endings(max_tokens),
            decode,
            target_length=100,
            draft_length=DRAFT_LENGTH,
        )
    )
    match state:
        case State.FINISHED:
            session.next()
        case State.CANCELLED:
            session.cancelled()
        case State.OPENING | State.ENDING:
            pass
        case _:
            session.opened(Opened(Incarnation("t")))
            if state is not State.CHOOSING:
                session.chosen(0 if state is State.RUNNING else 2)
            if state in (State.PROPOSING, State.VERIFYING):
                session.draft_opened(Opened(Incarnation("d")))
            if state is State.VERIFYING:
                session.proposed(Proposal((3, 3)))
    assert session.state is state
    return session


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", State)
def test_each_state_takes_its_own_events_and_refuses_all_others_unharmed(state: State, event: str) -> None:
    session = session_in(state)
    before = replaced_memory(session)
    if event in TAKEN[state] and (state, event) != (State.RUNNING, "run over"):
        EVENTS[event](session)
        assert session.state in {end for (start, _), end in TRANSITIONS.items() if start is state}
        return
    with pytest.raises(TargetLost if (state, event) == (State.RUNNING, "run over") else OutOfOrder):
        EVENTS[event](session)
    assert replaced_memory(session) == before


def replaced_memory(session: Session) -> dict[str, object]:
    """All that a session remembers, as values."""
    held = {**vars(session), "request": replace(session.request)}
    return {name: vars(value) if name in ("_target", "_draft") else value for name, value in held.items()} | {
        "_output": session.output,
        "_emits": list(session._emits),
        "_ks": list(session._ks),
        "_target": dict(vars(session._target)),
        "_draft": dict(vars(session._draft)),
        "_reader": session._reader._tokens,
    }
