"""What the session's suites are played on: a target and a draft that are plain functions, and planned losses."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

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
from tandem_runtime.domain.errors import TargetLost
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    Incarnation,
    Opened,
    Proposal,
    Round,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.domain.verification import verify_coupled

Prefix: TypeAlias = tuple[TokenId, ...]
Next: TypeAlias = Callable[[Prefix], TokenId]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def chain(prefix: Prefix) -> TokenId:
    return (3 + sum((i % 5 + 1) * (token + 1) for i, token in enumerate(prefix))) % 7


def lame(prefix: Prefix) -> TokenId:
    return chain(prefix) if len(prefix) % 3 else (chain(prefix) + 1) % 7


def following(script: Sequence[TokenId], prompt_tokens: int = 1) -> Next:
    """A model that says the script, whatever came before."""
    return lambda prefix: script[(len(prefix) - prompt_tokens) % len(script)]


def request(prompt: Prefix = (1,), **changes: object) -> Request:
    plain = Request(
        session=SessionId("s"),
        prompt=prompt,
        parameters=SamplingParameters(seed=0),
        verification=Verification.COUPLED,
        endings=Endings(max_tokens=16),
        decode=lambda ids: "".join(chr(ord("a") + token) for token in ids),
        target_length=1000,
        draft_length=1000,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # a table row names real fields


@dataclass
class Played:
    """What a session said and did."""

    ids: list[TokenId] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    rounds: list[Round] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    @property
    def summary(self) -> tuple[tuple[TokenId, ...], str, FinishReason, int]:
        assert self.finish is not None
        return tuple(self.ids), self.text, self.finish.reason, self.finish.counts.completion_tokens


class Bench:
    """Plays a session: a target and a draft with memories of their own, as engines have them, and planned losses.

    `losses` names commands by type and occurrence: (Verify, 2) loses the engine at the third Verify. `ks` are the K of
    successive rounds, the last one for ever.
    """

    def __init__(
        self, target: Next, draft: Next, ks: Sequence[int], losses: Collection[tuple[type[Command], int]] = ()
    ) -> None:
        self.target, self.draft, self.ks, self.losses = target, draft, list(ks), losses
        self.end_tokens: frozenset[TokenId] = frozenset()
        self.target_holds: list[TokenId] = []
        self.draft_holds: list[TokenId] = []
        self.incarnations = 0
        self.target_losses_in_a_row = 0
        self.seen: Counter[type[Command]] = Counter()

    def play(self, session: Session) -> Played:
        played = Played()
        for command in commands(session):
            played.commands.append(command)
            match command:
                case Emit(tokens, text, _):
                    played.ids += tokens
                    played.text += text
                case Finish():
                    played.finish = command
                case OpenTarget() | Verify() | Run():
                    played.rounds += self.ask_target(session, command)
                case OpenDraft() | Propose():
                    self.ask_draft(session, command)
                case Choose(most):
                    session.chosen(min(most, self.ks[0] if len(self.ks) == 1 else self.ks.pop(0)))
        return played

    def ask_draft(self, session: Session, command: OpenDraft | Propose) -> None:
        prompt_tokens = len(session.request.prompt)
        if self.planned(command):
            session.draft_lost()
        elif isinstance(command, OpenDraft):
            self.draft_holds = [*command.request.prompt, *command.request.output]
            session.draft_opened(self.opened())
        else:
            ask = command.request
            assert ask.base <= len(self.draft_holds) - prompt_tokens
            self.draft_holds[prompt_tokens + ask.base :] = ask.committed
            proposed = len(self.draft_holds)
            while len(self.draft_holds) < proposed + ask.k:
                self.draft_holds.append(self.draft(tuple(self.draft_holds)))
            session.proposed(Proposal(tuple(self.draft_holds[proposed:])))

    def ask_target(self, session: Session, command: OpenTarget | Verify | Run) -> list[Round]:
        if self.planned(command) and self.target_losses_in_a_row < 3:
            self.target_losses_in_a_row += 1
            session.target_lost(TargetLost("planned"))
            return []
        match command:
            case OpenTarget(opening):
                self.target_holds = [*opening.prompt, *opening.output]
                session.opened(self.opened())
                return []
            case Verify(ask):
                return [self.verify(session, ask)]
            case Run(run):
                return self.go_on(session, run)

    def verify(self, session: Session, ask: VerifyRound) -> Round:
        assert len(self.target_holds) == len(session.request.prompt) + ask.offset
        holds, first = (*self.target_holds, *ask.proposal.ids), len(self.target_holds)
        choices = [self.target(holds[:end]) for end in range(first, len(holds) + 1)]
        verified = verify_coupled(ask.proposal.ids, choices)
        self.target_holds += [*ask.proposal.ids[: verified.accepted], verified.token]
        return self.tell(session, Verdict(ask.round, ask.offset, verified.accepted, verified.token))

    def go_on(self, session: Session, run: RunRounds) -> list[Round]:
        done = len(self.target_holds) - len(session.request.prompt) - run.offset
        if done == run.max_tokens or (done and self.target_holds[-1] in self.end_tokens):
            session.run_over()
            return []
        self.target_holds.append(self.target(tuple(self.target_holds)))
        return [self.tell(session, Verdict(run.round + done, run.offset + done, 0, self.target_holds[-1]))]

    def tell(self, session: Session, verdict: Verdict) -> Round:
        self.target_losses_in_a_row = 0
        return session.verified(verdict, Spent(1.0))

    def planned(self, command: Command) -> bool:
        self.seen[type(command)] += 1
        return (type(command), self.seen[type(command)] - 1) in self.losses

    def opened(self) -> Opened:
        self.incarnations += 1
        return Opened(Incarnation(f"life {self.incarnations}"))


def commands(session: Session) -> Iterator[Command]:
    for _ in range(10_000):
        command = session.next()
        yield command
        if isinstance(command, Finish):
            return
    raise AssertionError("the session does not end")


def play(target: Next, draft: Next, k: int, **changes: object) -> Played:
    wanted = request(**changes)  # type: ignore[arg-type]  # a table row names real fields
    return Bench(target, draft, [k]).play(Session(wanted))
