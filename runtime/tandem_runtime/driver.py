"""Knows the pipeline: open, choose K, propose, verify, emit, finish, with deadlines; always releases both engines.

Refuses to know HTTP, gRPC, tensors and settings, and to decide anything: the session does.

    async with aclosing(generate(session, engines=engines, ...)) as items:
        async for item in items: ...            # Emit, Emit, ..., Finish
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from tandem_runtime.asking import in_time
from tandem_runtime.domain.commands import Choose, Emit, Finish, OpenDraft, OpenTarget, Propose, Run, Spent, Verify
from tandem_runtime.domain.drafting import Pricing
from tandem_runtime.domain.errors import (
    DraftLost,
    NotANumber,
    SessionLost,
    StaleOffset,
    TandemError,
    TargetLate,
    TargetLost,
    WaitedInVain,
    origin,
)
from tandem_runtime.domain.lookahead import Bounds
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.states import State
from tandem_runtime.domain.tokens import OpenSession, Priority, ProposeRound, RunRounds, Verdict
from tandem_runtime.limits import within
from tandem_runtime.listening import Listener
from tandem_runtime.ports import Clock, DraftEngine, Observer, TargetEngine

_T = TypeVar("_T")

RETRY_PATIENT_SECONDS = 60
"""Who found no room in ten minutes will not find it in the next second."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest wait, in seconds, for each kind of answer. A verify may hold the prefill of a long prompt.

    `patient_verify_seconds`: of a session that nobody reads along with. Its prompt is read in the room that what is
    more urgent leaves, so a target that is well may take long; where there is no room at all it says so by itself.
    """

    open_seconds: float = 10.0
    propose_seconds: float = 5.0
    verify_seconds: float = 60.0
    patient_verify_seconds: float = 600.0
    close_seconds: float = 2.0

    def verify_of(self, priority: Priority) -> float:
        return self.verify_seconds if priority is Priority.INTERACTIVE else self.patient_verify_seconds


@dataclass(slots=True)
class Engines:
    """Who serves this session. `reopen` gives another target of the same target hash, or raises TargetLost; `elsewhere`
    gives one for a token for which this one has no law, or None where the request fails."""

    target: TargetEngine
    draft: DraftEngine | None
    reopen: Callable[[], Awaitable[TargetEngine]]
    deadlines: Deadlines = field(default_factory=Deadlines)
    elsewhere: Callable[[], TargetEngine | None] = lambda: None


async def generate(
    session: Session,
    *,
    engines: Engines,
    lookahead: Pricing,
    allowance: Callable[[], Bounds],
    observer: Observer,
    clock: Clock,
) -> AsyncGenerator[Emit | Finish, None]:
    """Run the session to its end. `allowance` is asked before every choice of K (an off slot, a switched-off policy).

    Raises what the target refuses (BadRequest, Overloaded, NotANumber), and TargetLost where nobody takes over.
    """
    executor = _Executor(session, engines, lookahead, observer, clock)
    try:
        while True:
            match session.next():
                case Emit() as emit:
                    left = clock.monotonic()
                    yield emit
                    executor.waited(clock.monotonic() - left)
                case Finish() as finish:
                    yield finish
                    return
                case Choose(most):
                    await executor.choose(allowance(), most)
                case command:
                    await executor.carry_out(command)
    except (asyncio.CancelledError, GeneratorExit):
        session.cancelled()
        raise
    finally:
        await _to_the_end(executor.release())


async def _to_the_end(release: Coroutine[Any, Any, None]) -> None:
    """A reader that has its last item often cancels us while we release; a session left behind would hold its slot for
    ever. So a cancellation waits until the release is done, which has deadlines of its own."""
    releasing, cancelled = asyncio.create_task(release), False
    while not releasing.done():
        try:
            await asyncio.shield(releasing)
        except asyncio.CancelledError:
            cancelled = True
    releasing.result()
    if cancelled:
        raise asyncio.CancelledError


class _Executor:
    """Carries out a session's commands and tells it what came of them; measures rounds; remembers what to release."""

    def __init__(
        self, session: Session, engines: Engines, lookahead: Pricing, observer: Observer, clock: Clock
    ) -> None:
        self._session = session
        self._engines = engines
        self._lookahead = lookahead
        self._observer = observer
        self._clock = clock
        self._targets: list[TargetEngine] = []
        self._drafts: list[DraftEngine] = []
        self._run: tuple[RunRounds, AsyncIterator[Verdict]] | None = None
        self._verify_seconds = engines.deadlines.verify_of(session.request.priority)
        self._round_began = clock.monotonic()
        self._draft_seconds = 0.0
        limits = engines.deadlines
        self._listener = Listener(
            session, lookahead, score_seconds=limits.propose_seconds, open_seconds=limits.open_seconds
        )
        self._speculated = session.request.draft_is_free
        """Whether the draft took part in the session's last round, or what it reads is free."""
        self._warm = self._speculated
        """Whether it had read what was emitted when K was chosen."""

    async def choose(self, bounds: Bounds, most: int) -> None:
        """Choose K for the next round; a draft that is still listening is heard out before it is asked to propose."""
        self._warm = self._speculated or self._session.draft_follows
        choice = self._lookahead.choose(bounds, most, self._clock.monotonic(), warm=self._warm)
        if choice.k:
            await self._listener.settle()
        k = min(choice.k, self._session.room)
        self._session.chosen(
            k,
            () if bounds.is_one_k else choice.survivals[:k],
            plain_tokens=choice.plain_tokens,
            stop=choice.stop,
            outlook=None if choice.outlook is None else choice.outlook.first(k),
        )

    async def carry_out(self, command: OpenTarget | OpenDraft | Propose | Verify | Run) -> None:
        match command:
            case OpenDraft() | Propose():
                await self._ask_draft(command)
            case OpenTarget() | Verify() | Run():
                await self._ask_target(command)
            case _:
                assert_never(command)

    async def _ask_draft(self, command: OpenDraft | Propose) -> None:
        """Whatever goes wrong with a draft, text goes on without it."""
        try:
            match command:
                case OpenDraft(request):
                    await self._open_draft(request)
                case Propose(request):
                    await self._propose(request)
                case _:
                    assert_never(command)
        except TandemError:
            self._session.draft_lost()

    async def _ask_target(self, command: OpenTarget | Verify | Run) -> None:
        try:
            await self._decode(command)
        except (TargetLost, StaleOffset) as lost:
            await self._end_run()
            if not isinstance(command, OpenTarget):
                refuse_to_begin_again(lost, self._session.request.priority)
            self._session.target_lost(lost)
            if not isinstance(lost, SessionLost | StaleOffset):
                self._engines.target = await self._engines.reopen()
        except NotANumber as lawless:
            other = self._engines.elsewhere()
            if other is None:
                raise
            await self._end_run()
            self._session.target_lost(lawless)
            self._engines.target = other

    def waited(self, seconds: float) -> None:
        """What the reader of the answer takes is no part of the round."""
        self._round_began += seconds

    async def release(self) -> None:
        """Free the session everywhere, whatever state it is in; an engine that is gone has freed it already."""
        await self._listener.stop()
        await self._end_run()
        engines: list[TargetEngine | DraftEngine] = [*self._targets, *self._drafts]
        await asyncio.gather(*(self._close(engine) for engine in engines))

    async def _open_draft(self, request: OpenSession) -> None:
        draft = self._drafter()
        self._drafts = [draft]
        self._session.draft_opened(await in_time(self._engines.deadlines.open_seconds, draft.open(request)))

    async def _propose(self, request: ProposeRound) -> None:
        began = self._clock.monotonic()
        proposal = await in_time(self._engines.deadlines.propose_seconds, self._drafter().propose(request))
        self._draft_seconds = self._clock.monotonic() - began
        self._session.proposed(proposal)
        if not proposal.ids:
            self._lookahead.unanswered()

    async def _decode(self, command: OpenTarget | Verify | Run) -> None:
        limits = self._engines.deadlines
        match command:
            case OpenTarget(request):
                self._targets = _with(self._targets, self._engines.target)
                self._session.opened(await _target(limits.open_seconds, self._engines.target.open(request)))
            case Verify(request):
                began = self._clock.monotonic()
                verdict = await _target(self._verify_seconds, self._engines.target.verify(request))
                self._verified(verdict, began, draft_seconds=self._draft_seconds)
            case Run(request):
                await self._go_on(request)
            case _:
                assert_never(command)

    async def _go_on(self, request: RunRounds) -> None:
        """One more verdict of the run."""
        if self._run is None or self._run[0] != request:
            await self._end_run()
            self._run = request, self._engines.target.run(request)
        began = self._clock.monotonic()
        try:
            verdict = await _target(self._verify_seconds, anext(self._run[1]))
        except StopAsyncIteration:
            self._run = None
            self._session.run_over()
        else:
            self._verified(verdict, began, draft_seconds=0.0)
            await self._listen()

    async def _listen(self) -> None:
        """Let the draft follow what the target says alone; end the run if proposals pay by what is heard."""
        draft = self._engines.draft
        if self._listener.look(draft) and draft is not None:
            self._drafts = [draft]
        if self._lookahead.wakes(self._clock.monotonic()) and self._has_room():
            await self._end_run()
            self._session.run_over()

    def _has_room(self) -> bool:
        return self._session.state is State.RUNNING and self._session.room > 0

    def _verified(self, verdict: Verdict, began: float, *, draft_seconds: float) -> None:
        """Tell the verdict, and what the round cost: at least what the target says, as a verdict of a run may have
        waited here while the reader was slow."""
        now = self._clock.monotonic()
        told_seconds = verdict.queue_seconds + verdict.forward_seconds
        seconds = max(now - self._round_began, told_seconds)
        spent = Spent(
            verify_seconds=max(now - began, told_seconds),
            draft_seconds=draft_seconds,
            seconds=seconds,
            started=self._clock.wall() - seconds,
        )
        round = self._session.verified(verdict, spent)
        self._round_began = now
        self._lookahead.learn(round, now, warm=self._warm)
        self._speculated = round.proposed > 0 or self._session.request.draft_is_free
        self._observer.round(round)

    def _drafter(self) -> DraftEngine:
        if self._engines.draft is None:
            raise DraftLost("this session has no draft")
        return self._engines.draft

    async def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None and isinstance(run[1], AsyncGenerator):
            await self._let_go(run[1].aclose())

    async def _close(self, engine: TargetEngine | DraftEngine) -> None:
        await self._let_go(engine.close(self._session.request.session))

    async def _let_go(self, letting: Awaitable[None]) -> None:
        """Whatever comes of that, what was said stands. An engine that is gone has let go already."""
        try:
            with within(self._engines.deadlines.close_seconds):
                await letting
        except (TandemError, TimeoutError):
            return
        except Exception as fault:
            log.error("an engine failed to let a session go: %s", origin(fault))


def refuse_to_begin_again(lost: TandemError, priority: Priority) -> None:
    """Raises WaitedInVain for who was to be patient, and was."""
    if isinstance(lost, TargetLate) and priority is not Priority.INTERACTIVE:
        raise WaitedInVain(
            f"{lost}, beside requests that are more urgent; try again when there are fewer",
            retry_after_seconds=RETRY_PATIENT_SECONDS,
        ) from lost


async def _target(limit_seconds: float, answer: Awaitable[_T]) -> _T:
    """The target's answer in time, or TargetLate."""
    try:
        with within(limit_seconds):
            return await answer
    except TimeoutError as late:
        raise TargetLate(f"the target gave no answer in {limit_seconds} s") from late


def _with(targets: list[TargetEngine], target: TargetEngine) -> list[TargetEngine]:
    return targets if any(known is target for known in targets) else [*targets, target]
