"""Knows one request from its opening to its ending: what must be asked of target and draft next, and what may be shown.

Refuses to do any of it: no await, clock, chance or engine. A driver asks `next()`, does what it says, and tells what
came of it. Only verified tokens are ever shown or counted, and plain decoding, a lost draft and a switched-off draft
are the same path with nothing proposed. Which event leads where is the table of `states`.

    opening -> choosing -> proposing -> verifying -> choosing -> ...      K tokens proposed in each round
                       `-> running --------------> choosing               the target goes on alone for some tokens
                              ... -> ending -> finished

Losses. The draft is lost: the session runs without it and tries again some tokens later, a few times. The target is
lost or denies the session: the proposal is dropped and a target is opened with the committed tokens, so nothing that
was shown changes.
"""

from collections import deque
from dataclasses import replace
from typing import TypeAlias, assert_never

from tandem_runtime.domain.commands import (
    Choose,
    Command,
    Counts,
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
from tandem_runtime.domain.errors import BadRequest, DraftLost, OutOfOrder, StaleOffset, TandemError, TargetLost
from tandem_runtime.domain.states import FINAL, TRANSITIONS, Signal, State
from tandem_runtime.domain.stopping import Reader
from tandem_runtime.domain.tokens import (
    NOTHING,
    Drafter,
    FinishReason,
    Incarnation,
    Opened,
    OpenSession,
    Outlook,
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    ScoreTokens,
    Stop,
    TokenId,
    TokenLogprob,
    Verdict,
    VerifyRound,
)
from tandem_runtime.domain.verification import admissible, refuse_bad_proposal

RUN_TOKENS = 16
"""A run is this long at most, so that a new slot or policy takes effect soon: at 15 ms a token it ends within the
uncounted first 15 % of a slot of 2 s."""
SILENCES_ALIKE = 4
"""A draft that costs nothing to ask is asked behind each token, until it had nothing to offer so often in a row; then,
and each time after so many more, half as often: each time costs a round's overhead, if no step."""
SCORED_TOKENS = 64
"""So many a draft that reads along may have missed and scores all the same."""
DRAFT_RETRY_TOKENS = 64
"""How long to go on without a lost draft; doubled with each loss."""
DRAFT_LOSSES = 4
"""After so many the draft is not tried again."""
TARGET_LOSSES = 3
"""So many losses in a row, without a token between, fail the request."""

Overheard: TypeAlias = OpenSession | ProposeRound | ScoreTokens
"""What is asked of a draft beside a run."""


class Session:
    """The machine. Ask `next`, do it, tell the outcome by the method of its name; ask again.

    An event that is refused, because it is out of order or does not fit what was asked, changes nothing.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        budget = min(request.endings.max_tokens, request.target_length - len(request.prompt))
        self._budget = max(budget, 0)
        self._draft_room = (request.draft_length or 0) - len(request.prompt)
        """Tokens of output that a draft can hold."""
        self._reach = min(self._budget - 1, self._draft_room)
        """Offset up to which something can be proposed: a round adds one token more than stand in its proposal."""
        self._reader = Reader(replace(request.endings, max_tokens=self._budget), request.decode, request.prompt)
        self._state = State.OPENING
        self._output: list[TokenId] = []
        self._emits: deque[Emit] = deque()
        self._reason = FinishReason.LENGTH
        self._target = _Link()
        self._draft = _Link()
        self._draft_base = 0
        self._draft_resumes_at: int | None = 0
        self._proposal = NOTHING
        self._k = 0
        self._stop: Stop | None = None
        self._survivals: tuple[float, ...] = ()
        self._outlook: Outlook | None = None
        self._silences = 0
        """How often in a row the draft had nothing to offer."""
        self._run = RunRounds(request.session, Incarnation(""), 0, 0, 0)
        self._ks: list[int] = []
        self._proposed_tokens = 0
        self._accepted_tokens = 0
        self._rejected_at: list[int] = []
        if self._budget == 0:
            self._state = State.ENDING

    @property
    def state(self) -> State:
        return self._state

    @property
    def output(self) -> tuple[TokenId, ...]:
        """The tokens committed so far."""
        return tuple(self._output)

    @property
    def room(self) -> int:
        """Tokens that fit in a proposal now; 0 too where the draft is lost for a while."""
        return self._most()

    @property
    def draft_follows(self) -> bool:
        """Whether the draft has read the prompt, and all of the answer but what it reads in one step with the rest."""
        behind = len(self._output) - self._draft_base
        return bool(self._draft.incarnation) and not self._draft.fresh and behind <= RUN_TOKENS

    def next(self) -> Command:
        """What to do now. Asking twice without an event between gives the same command, but for Emit and Finish."""
        if self._emits:
            return self._emits.popleft()
        if self._state is State.CHOOSING and self._most() == 0:
            self._will_run()
        return self._command()

    def _command(self) -> Command:
        match self._state:
            case State.OPENING:
                return OpenTarget(self._open(self._budget))
            case State.CHOOSING:
                return Choose(self._most())
            case State.OPENING_DRAFT:
                return OpenDraft(self._open(min(self._budget, self._draft_room)))
            case State.PROPOSING:
                return Propose(self._propose_round())
            case State.VERIFYING:
                return Verify(self._verify_round())
            case State.RUNNING:
                return Run(self._run)
            case State.ENDING:
                self._move(Signal.TOLD)
                return Finish(self._reason, self._counts())
            case State.FINISHED | State.CANCELLED:
                raise OutOfOrder(f"the session is {self._state}; nothing is to be done")
        assert_never(self._state)

    def opened(self, opened: Opened) -> None:
        """The target holds the session."""
        self._move(Signal.OPENED)
        self._target.opened(opened)

    def chosen(
        self,
        k: int,
        survivals: tuple[float, ...] = (),
        *,
        plain_tokens: int | None = None,
        stop: Stop | None = None,
        outlook: Outlook | None = None,
    ) -> None:
        """K for the next round, at most what Choose said, and `survivals` as in `VerifyRound`, K of them or, where the
        target is to leave nothing out, none; where K is 0, after how many tokens to ask again at the latest."""
        self._demand(Signal.WILL_RUN)
        if not 0 <= k <= self._most():
            raise OutOfOrder(f"K = {k} was chosen where at most {self._most()} tokens fit")
        self._k, self._survivals, self._stop, self._outlook = k, survivals, stop, outlook
        if k == 0:
            self._will_run(most=plain_tokens or RUN_TOKENS)
        else:
            self._move(Signal.WILL_PROPOSE if self._draft.incarnation else Signal.WILL_OPEN_DRAFT)

    def draft_opened(self, opened: Opened) -> None:
        """The draft holds the session as far as it is committed."""
        self._move(Signal.DRAFT_OPENED)
        self._draft.opened(opened)
        self._draft_base = len(self._output)

    def proposed(self, proposal: Proposal) -> None:
        """What the draft offers, as far as the target can know it. Raises DraftLost if it is more than was asked for,
        or nothing that can have been drawn."""
        self._demand(Signal.PROPOSED)
        if len(proposal.ids) > self._k:
            raise DraftLost(f"the draft offered {len(proposal.ids)} tokens where {self._k} were asked for")
        if len(proposal.confidences) not in (0, len(proposal.ids)):
            raise DraftLost(f"the draft told {len(proposal.confidences)} confidences of {len(proposal.ids)} tokens")
        proposal = self._admitted(proposal)
        self._draft_base = len(self._output)
        if not proposal.ids:
            self._will_run(Signal.NOTHING_PROPOSED)
            return
        self._move(Signal.PROPOSED)
        self._proposal = proposal
        self._silences = 0

    def verified(self, verdict: Verdict, spent: Spent) -> Round:
        """What the target says of the proposal, or the next token of a run. Raises StaleOffset if it answers another
        question, as a reply that comes twice does, and TargetLost if it lacks logprobs that were asked for."""
        self._demand(Signal.VERIFIED)
        self._check(verdict)
        ids = (*self._proposal.ids[: verdict.accepted], verdict.token)
        tokens, ended = self._commit(ids, verdict.logprobs)
        round = self._count(verdict, spent, emitted=len(tokens))
        self._draft_base += min(verdict.accepted, len(tokens)) if self._proposal.ids else 0
        self._proposal = NOTHING
        self._target.losses = 0
        self._move(Signal.VERIFIED if ended is None else Signal.ENDED)
        return round

    def run_over(self) -> None:
        """The run ended. Raises TargetLost if it brought nothing."""
        self._demand(Signal.RUN_OVER)
        if len(self._output) == self._run.offset:
            raise TargetLost("the target ended a run without a token")
        self._move(Signal.RUN_OVER)

    def draft_lost(self) -> None:
        """The draft cannot be reached or forgot the session: go on without it, for a while."""
        self._will_run(Signal.DRAFT_LOST)
        self._forsake_draft()

    def _forsake_draft(self) -> None:
        self._draft.lost()
        tokens = DRAFT_RETRY_TOKENS << (self._draft.losses - 1)
        self._draft_resumes_at = len(self._output) + tokens if self._draft.losses < DRAFT_LOSSES else None

    def target_lost(self, cause: TandemError) -> None:
        """The target is gone or does not know the session as we do: open again. Raises `cause` if that has failed
        several times without a token between."""
        self._demand(Signal.TARGET_LOST)
        if self._target.losses == TARGET_LOSSES:
            raise cause
        self._move(Signal.TARGET_LOST)
        self._target.lost()
        self._proposal = NOTHING

    def overhear(self, least: int) -> Overheard | None:
        """What may be asked of the draft beside a run, so that it follows what the target says alone: to hold the
        session, or to score `least` tokens or more. None: nothing now. One that was left alone for long reads what it
        missed by a guess that nobody takes: to score all of it is more work."""
        if self._state is not State.RUNNING or self._most() == 0:
            return None
        if not self._draft.incarnation:
            return self._open(min(self._budget, self._draft_room))
        base, behind = self._draft_base, len(self._output) - self._draft_base
        if behind < least:
            return None
        news = tuple(self._output[base:])
        if behind > SCORED_TOKENS:
            return ProposeRound(self.request.session, self._draft.incarnation, base, news, k=1)
        return ScoreTokens(self.request.session, self._draft.incarnation, base, news)

    def overheard(self, asked: Overheard, opened: Opened | None = None) -> None:
        """The draft did what `overhear` asked; `opened` is its answer to an opening."""
        match asked:
            case OpenSession():
                if opened is not None:
                    self._draft.opened(opened)
                    self._draft_base = len(asked.output)
            case ProposeRound():
                self._draft_base = asked.base + len(asked.committed)
                self._draft.take_fresh()
            case ScoreTokens():
                self._draft_base = asked.base + len(asked.ids)
                self._draft.take_fresh()

    def not_overheard(self) -> None:
        """The draft was lost while it should have followed; the run goes on, and it is not asked for a while."""
        self._forsake_draft()

    def cancelled(self) -> None:
        """The caller went away. A session that is over stays so."""
        if self._state not in FINAL:
            self._state = State.CANCELLED
            self._emits.clear()

    def _demand(self, signal: Signal) -> State:
        """Where it leads from here."""
        state = TRANSITIONS.get((self._state, signal))
        if state is None:
            raise OutOfOrder(f"the session is {self._state} and was told: {signal}")
        return state

    def _move(self, signal: Signal) -> None:
        self._state = self._demand(signal)

    def _will_run(self, signal: Signal = Signal.WILL_RUN, *, most: int = RUN_TOKENS) -> None:
        self._move(signal)
        offset = len(self._output)
        if signal is Signal.NOTHING_PROPOSED and self.request.draft_is_free:
            most = min(1 << self._silences // SILENCES_ALIKE, RUN_TOKENS)
            self._silences += 1
        tokens = min(most, RUN_TOKENS, self._budget - offset)
        self._run = RunRounds(self.request.session, self._target.incarnation, len(self._ks), offset, tokens)

    def _most(self) -> int:
        """Tokens that fit in a proposal."""
        if self._draft_resumes_at is None or len(self._output) < self._draft_resumes_at:
            return 0
        return max(self._reach - len(self._output), 0)

    def _open(self, max_tokens: int) -> OpenSession:
        request = self.request
        return OpenSession(
            session=request.session,
            prompt=request.prompt,
            output=self.output,
            parameters=request.parameters,
            verification=request.verification,
            max_tokens=max_tokens,
            logprobs=request.logprobs,
            tenant=request.tenant,
            adapter=request.adapter,
            weight=request.weight,
            priority=request.priority,
        )

    def _admitted(self, proposal: Proposal) -> Proposal:
        """As much of it as the target can know. Raises DraftLost where nobody can have drawn it."""
        vocab_size = self.request.vocab_size
        if vocab_size is None:
            return proposal
        try:
            known = admissible(proposal, vocab_size=vocab_size)
            refuse_bad_proposal(known, self.request.verification, vocab_size=vocab_size)
        except BadRequest as bad:
            raise DraftLost(f"the draft's proposal is none: {bad}") from bad
        return known

    def _propose_round(self) -> ProposeRound:
        committed = tuple(self._output[self._draft_base :])
        return ProposeRound(
            session=self.request.session,
            incarnation=self._draft.incarnation,
            base=self._draft_base,
            committed=committed,
            k=self._k,
            stop=self._stop,
            outlook=self._outlook,
        )

    def _verify_round(self) -> VerifyRound:
        return VerifyRound(
            self.request.session,
            self._target.incarnation,
            len(self._ks),
            len(self._output),
            self._proposal,
            self._beliefs(),
        )

    def _beliefs(self) -> tuple[float, ...]:
        """Of every token that was asked for, also of those that drafting never came to: how many it came to was drawn.
        Nobody's, where nothing may be left out."""
        return (self._proposal.survivals or self._survivals) if self._survivals else ()

    def _check(self, verdict: Verdict) -> None:
        asked, told = (len(self._ks), len(self._output)), (verdict.round, verdict.offset)
        if asked != told:
            raise StaleOffset(f"the target answered round and offset {told} where {asked} was asked")
        judged = len(self._proposal.ids) - verdict.unjudged
        if not 0 <= verdict.accepted <= judged <= len(self._proposal.ids):
            raise StaleOffset(
                f"the target accepted {verdict.accepted} of {judged} judged tokens; "
                f"{len(self._proposal.ids)} were proposed"
            )
        if self.request.logprobs is not None and len(verdict.logprobs or ()) != verdict.accepted + 1:
            raise TargetLost(
                f"the target reported {len(verdict.logprobs or ())} logprobs for {verdict.accepted + 1} tokens"
            )
        examined = min(verdict.accepted + 1, judged)
        if len(verdict.credits) not in (0, examined):
            raise TargetLost(f"the target credited {len(verdict.credits)} positions where it examined {examined}")

    def _commit(
        self, ids: tuple[TokenId, ...], logprobs: tuple[TokenLogprob, ...] | None
    ) -> tuple[tuple[TokenId, ...], FinishReason | None]:
        """Read tokens up to an ending; what lies beyond it never was."""
        text = ""
        ended = None
        count = 0
        while ended is None and count < len(ids):
            reading = self._reader.read(ids[count])
            text, ended, count = text + reading.text, reading.ended, count + 1
        self._output.extend(ids[:count])
        self._emits.append(Emit(ids[:count], text, None if logprobs is None else logprobs[:count]))
        self._reason = ended or self._reason
        return ids[:count], ended

    def _count(self, verdict: Verdict, spent: Spent, *, emitted: int) -> Round:
        proposed = len(self._proposal.ids)
        accepted = min(verdict.accepted, emitted)
        beyond = emitted <= verdict.accepted
        self._ks.append(proposed)
        self._proposed_tokens += proposed
        self._accepted_tokens += accepted
        prefill = self._target.take_fresh()
        if proposed:
            prefill = self._draft.take_fresh() or self._proposal.prefill or prefill
        round = Round(
            proposed=proposed,
            accepted=accepted,
            emitted=emitted,
            draft_seconds=spent.draft_seconds,
            verify_seconds=spent.verify_seconds,
            forward_seconds=verdict.forward_seconds,
            queue_seconds=verdict.queue_seconds,
            drafting_seconds=self._proposal.draft_seconds,
            cut=proposed - verdict.unjudged - accepted if beyond else 0,
            seconds=spent.seconds,
            started=spent.started,
            prefill=prefill,
            rows=verdict.rows,
            draft_rows=self._proposal.rows,
            ahead=self._proposal.ahead,
            prepares=proposed > 0 and self._outlook is not None and self._proposal.drafter is Drafter.MODEL,
            drafter=self._proposal.drafter,
            unjudged=verdict.unjudged,
            beside=verdict.beside,
        )
        if round.examined > accepted:
            self._rejected_at.append(accepted)
        if not (verdict.credits or self._proposal.confidences):
            return round
        return replace(
            round,
            credits=verdict.credits[: round.examined],
            confidences=self._proposal.confidences[: round.examined],
        )

    def _counts(self) -> Counts:
        return Counts(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=len(self._output),
            rounds=len(self._ks),
            speculating=sum(1 for k in self._ks if k),
            proposed=self._proposed_tokens,
            accepted=self._accepted_tokens,
            k_by_round=tuple(self._ks),
            rejected_at=tuple(self._rejected_at),
        )


class _Link:
    """What a session knows of one engine: its incarnation while open, whether the prompt is unread, losses."""

    def __init__(self) -> None:
        self.incarnation = Incarnation("")
        self.losses = 0
        self.fresh = False

    def opened(self, opened: Opened) -> None:
        self.incarnation = opened.incarnation
        self.fresh = True

    def lost(self) -> None:
        self.incarnation = Incarnation("")
        self.losses += 1

    def take_fresh(self) -> bool:
        """Whether this is the first round since the opening."""
        fresh, self.fresh = self.fresh, False
        return fresh
