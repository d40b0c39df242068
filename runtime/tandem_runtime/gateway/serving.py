"""Knows the life of one request: its revision, its seats side by side, its end.

Refuses to know HTTP and shapes of replies: it takes an `Ask` and yields what each choice emits.

    async with gateway.answer(ask, request_id=..., session_key=...) as reply:
        async for choice, item in reply.items(): ...      # Emit, Emit, ..., Finish, of all choices interleaved

Leaving the block, for whatever reason, ends all sessions and frees both engines. Readiness never depends on
speculation: a revision without a draft that answers is served at K = 0.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from tandem_runtime.domain.commands import Counts, Emit, Finish, Request
from tandem_runtime.domain.drafting import Beliefs, Looks
from tandem_runtime.domain.errors import Overloaded, TandemError, TargetLost
from tandem_runtime.domain.evidence import EvidenceDocument, Ledger
from tandem_runtime.domain.policy import PairRevision, RequestKind, SpeculationState, lookup_role
from tandem_runtime.domain.replay import BITWISE, Replay, Result, is_comparable, is_sampled
from tandem_runtime.domain.routing import choose_revision, pin_of, unit_of
from tandem_runtime.domain.segments import Segment, Segments, heat_of
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    OpenSession,
    Priority,
    PromptRead,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.gateway import naming
from tandem_runtime.gateway.accounts import Account, Assignment, closed_by_its_end, refusals_counted
from tandem_runtime.gateway.admission import Guest, House, Limits
from tandem_runtime.gateway.choices import Came, Choice, details_of, record_of
from tandem_runtime.gateway.failures import ModelNotServed, Unauthorized
from tandem_runtime.gateway.intake import Ask, check_fits
from tandem_runtime.gateway.keys import aside
from tandem_runtime.gateway.record_file import RecordFile
from tandem_runtime.gateway.replays import ReplayJob, Replays
from tandem_runtime.gateway.replies import CompletionDetails, SpeculationReport
from tandem_runtime.gateway.seats import Claim, Fleet, Foretold, Seat
from tandem_runtime.gateway.shadow import Shadow, ShadowJob
from tandem_runtime.gateway.target_line import TargetLine
from tandem_runtime.gateway.tracing import Heading, Tracing, traced
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.ports import Clock, Tokenizer
from tandem_runtime.telemetry import Metrics

Item: TypeAlias = Emit | Finish | PromptRead
"""What a choice tells: where that was asked for first how likely its prompt was, then its text, then its end."""

ITEMS_AHEAD = 64
"""How far the sessions of a request may run ahead of a slow reader, in emissions."""
HANG_UP_SECONDS = 5.0
"""A caller whose key was revoked and who reads nothing for so long would keep its place for as long as it likes."""


@dataclass(frozen=True, slots=True)
class Books:
    """Where requests are counted, and what is learnt of them."""

    ledger: Ledger
    metrics: Metrics
    segments: Segments = field(default_factory=Segments)


class Reply:
    """The running sessions of one request."""

    def __init__(self, ask: Ask, account: Account, *, clock: Clock, charge: Callable[[int], None]) -> None:
        """`charge` is told of tokens as they come."""
        self._ask = ask
        self._charge = charge
        self._account = account
        self._clock = clock
        self.came = Came(clock.wall(), clock.monotonic())
        self._items: asyncio.Queue[tuple[int, Item | Exception] | None] = asyncio.Queue(ITEMS_AHEAD)
        self._is_quiet = False
        """Since it was looked after last."""
        self._looking: asyncio.TimerHandle | None = None
        self.choices: list[Choice] = []
        self.seated_at: float | None = None
        """When all choices had their places, by the monotonic clock."""
        self._prompts_read = [asyncio.Event() for _ in ask.prompts]
        self._reader = asyncio.current_task()

    @property
    def tenant(self) -> str:
        return self._ask.tenant

    @property
    def verification(self) -> Verification:
        return self.choices[0].request.verification

    def report(self) -> SpeculationReport:
        """What speculation has done so far."""
        report = self._account.report(verification=self.verification, seed=self._ask.parameters.seed)
        if self._ask.details:
            report["details"] = details_of(self.choices)
        return report

    def details(self) -> CompletionDetails | None:
        """What usage tells beyond sums: of a prediction, where the request has one."""
        return None if self._ask.prediction is None else self._account.prediction_use()

    async def items(self, *, silence_seconds: float | None = None) -> AsyncGenerator[tuple[int, Item] | None, None]:
        """What the choices emit, each with its index, until all have finished; None where nothing came for
        `silence_seconds`, or for half of that. The first failure is raised."""
        silent = set(
            range(len(self.choices)) if self._ask.prompt_logprobs is None else ()
        )  # else it is late on purpose
        running = len(self.choices)
        with self._noticing(silence_seconds):
            while running:
                arrived = await self._items.get()
                self._is_quiet = False
                if arrived is None:
                    yield None
                    continue
                index, item = arrived
                if isinstance(item, Exception):
                    raise item
                if index in silent:
                    silent.discard(index)
                    elapsed = self._clock.monotonic() - self.came.monotonic
                    self._account.add_first_token(elapsed, warm=self.choices[index].seat.warm)
                running -= isinstance(item, Finish)
                yield index, item

    @contextmanager
    def _noticing(self, silence_seconds: float | None) -> Iterator[None]:
        """Have None among the items where they are silent: looked after now and then, since a time limit for each item
        costs a stream more than its text does."""
        if silence_seconds is not None:
            self._look(silence_seconds / 2)
        try:
            yield
        finally:
            if self._looking is not None:
                self._looking.cancel()

    def _look(self, every_seconds: float) -> None:
        if self._is_quiet and self._items.empty():
            self._items.put_nowait(None)
        self._is_quiet = True
        self._looking = asyncio.get_running_loop().call_later(every_seconds, self._look, every_seconds)

    def cut_off(self, error: TandemError) -> None:
        """End all choices where they stand, with `error` in place of what was not read yet."""
        while not self._items.empty():
            self._items.get_nowait()
        self._items.put_nowait((0, error))

    def hang_up(self) -> None:
        """End it whether or not its caller reads."""
        if self._reader is not None:
            self._reader.cancel()

    async def pump(self, index: int, beliefs: Beliefs) -> None:
        """Run one choice's session into the queue; a failure goes the same way, to whoever reads the items."""
        choice = self.choices[index]
        try:
            if self._ask.prompt_logprobs is not None:
                await self._read_prompt(index, alternatives=self._ask.prompt_logprobs)
            if self._ask.max_tokens == 0:
                await self._items.put((index, _nothing_said(choice.request)))
                return
            async with aclosing(choice.seat.run(choice.request, beliefs)) as items:
                async for item in items:
                    if isinstance(item, Emit):
                        if choice.spoke_at is None:
                            choice.spoke_at = self._clock.monotonic()
                        choice.output += item.tokens
                        self._charge(len(item.tokens))
                    else:
                        choice.finish, choice.ended_at = item, self._clock.monotonic()
                    await self._items.put((index, item))
        except Exception as error:
            await self._items.put((index, error))

    async def _read_prompt(self, index: int, *, alternatives: int) -> None:
        """The first choice of each prompt has it read, for all of them."""
        prompt, others = divmod(index, self._ask.choices)
        if others == 0:
            choice = self.choices[index]
            read = await choice.seat.read(choice.request, alternatives=alternatives)
            for each in range(index, index + self._ask.choices):
                await self._items.put((each, read))
            self._prompts_read[prompt].set()
        await self._prompts_read[prompt].wait()


class Gateway:
    """What all requests share."""

    def __init__(
        self, *, tokenizer: Tokenizer, in_force: PolicyInForce, fleet: Fleet, books: Books, clock: Clock, limits: Limits
    ) -> None:
        self.tokenizer = tokenizer
        self.in_force = in_force
        self.fleet = fleet
        self.books = books
        self.clock = clock
        self.limits = limits
        self.shadow = Shadow(fleet.drafts)
        self.replays = Replays(fleet.targets, clock=clock)
        self.draining = False
        self._house = House(limits, clock)
        self._line = TargetLine(clock)
        books.metrics.watch_targets(lambda: fleet.targets.resting(clock.monotonic()))
        self._replies: set[Reply] = set()
        self._revoked: frozenset[str] = frozenset()
        """Tenants that had a key and have none."""
        self._forgetting: set[asyncio.Task[None]] = set()
        self.segments = books.segments
        self.looks = Looks()
        self.records: RecordFile | None = None
        """Where what is kept of finished choices is written, if it is."""
        self.tracing: Tracing | None = None
        """Whom spans are told, if anybody."""
        books.metrics.watch_room(lambda: self.sessions, lambda: self.waiting)

    @property
    def sessions(self) -> int:
        """Choices in progress."""
        return self._house.sessions

    @property
    def waiting(self) -> int:
        """Requests that wait for room here, and choices that wait for room on a target."""
        return self._house.waiting + self._line.waiting

    @property
    def ready(self) -> bool:
        return self.trouble() is None

    def trouble(self) -> str | None:
        """Why a request would not be served; None where there are a policy and a target for some weight."""
        policy = self.in_force.policy
        if self.draining:
            return "draining"
        if policy is None:
            return self.in_force.refused or "there is no policy yet"
        admitted = self.fleet.targets.admitted()
        if not any(admitted.get(revision.target) for revision in policy.revisions if revision.weight):
            return "no target pod of a revision with a weight is ready"
        return None

    def evidence(self) -> EvidenceDocument:
        """The document of /internal/evidence, made at one moment."""
        policy = self.in_force.policy
        return self.books.ledger.document(
            wall=self.clock.wall(),
            policy=0 if policy is None else policy.number,
            admitted={"targets": self.fleet.targets.admitted(), "drafts": self.fleet.draft_pods()},
            adapters=self.fleet.targets.adapted(),
            serving=self.ready,
        )

    def models(self) -> tuple[str, ...]:
        """What a request may name."""
        policy = self.in_force.policy
        return () if policy is None else naming.models(policy, self.fleet.targets)

    def not_served(self, model: str) -> ModelNotServed:
        return naming.refusal(model, self.models())

    def _beliefs(self, revision: PairRevision, request: Request) -> Beliefs:
        return Beliefs(self.segments, _segment(revision, request), self.looks)

    @asynccontextmanager
    async def answer(
        self, ask: Ask, *, request_id: str, session_key: str | None, caller: Mapping[str, str] | None = None
    ) -> AsyncIterator[Reply]:
        """Serve `ask`; `caller` has its headers of trace context.

        Raises BadRequest, ModelNotServed, Overloaded, TargetLost, and what engines raise.
        """
        with refusals_counted(self.books.metrics):
            assignment = self._assignment(ask, request=request_id, session=session_key or ask.user)
        account = Account(assignment, self.in_force, ledger=self.books.ledger, metrics=self.books.metrics)
        guest = Guest(ask.tenant, ask.weight, ask.quota, ask.sessions, ask.prompt_tokens, ask.choices_field)
        until = self.clock.monotonic() + self.limits.wait_seconds
        reply = Reply(ask, account, clock=self.clock, charge=partial(self._house.charge, guest))
        heading = Heading(request_id, caller or {})
        with closed_by_its_end(account), traced(self.tracing, heading, reply, account, self.clock):
            async with self._house.admitted(guest):
                if ask.tenant in self._revoked:  # while it was read, or waited
                    raise _revoked()
                with _left(reply.choices), self._recorded(reply, assignment, request_id):
                    self._seat(reply, ask, account, until, request_id)
                    reply.seated_at = self.clock.monotonic()
                    async with self._running(reply, assignment):
                        yield reply
                    if ask.tenant not in self._revoked:  # while its last choice was let go
                        self._cast_shadow(reply, assignment, account)
                        self._offer_replays(reply, assignment, account)

    def cut_off(self) -> None:
        """End what is in progress with a failure that tells its callers to try again."""
        for reply in self._replies:
            reply.cut_off(Overloaded("this gateway is shutting down; send the request again"))

    def keys_changed(self, *, gone: frozenset[str], known: frozenset[str]) -> None:
        """What tenants `gone` have in progress ends, and what is kept of their texts here and by engines goes. A tenant
        that has another key goes on, whichever its requests came with."""
        self._revoked = (self._revoked | gone) - known
        for reply in self._replies:
            if reply.tenant in gone:
                reply.cut_off(_revoked())
                asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up, reply)
        self.replays.forget(gone)
        self.shadow.forget(gone)
        for name in (*gone, *filter(None, map(aside, gone))):
            forgetting = asyncio.create_task(self.fleet.forget(name))
            self._forgetting.add(forgetting)
            forgetting.add_done_callback(self._forgetting.discard)

    def _hang_up(self, reply: Reply) -> None:
        if reply in self._replies:
            reply.hang_up()

    def _assignment(self, ask: Ask, *, request: str, session: str | None) -> Assignment:
        policy = self.in_force.policy
        if policy is None:
            raise TargetLost("this gateway has no policy yet; try again")
        unit = unit_of(policy, request=request, session=session)
        revision = choose_revision(policy, unit)
        kind = RequestKind(ask.parameters.temperature, ask.tenant, naming.adapter_of(ask.model, policy))
        adapter = naming.content(ask.model, policy, revision, self.fleet.targets)
        return Assignment(policy, revision, unit, ask.wish, adapter, kind)

    def _seat(self, reply: Reply, ask: Ask, account: Account, until: float, request_id: str) -> None:
        """Place every choice, numbered prompt by prompt; nothing has reached an engine when this raises."""
        foretold = None if ask.prediction is None else Foretold(ask.prediction, self._end_tokens(ask))
        pins = [pin_of(ask.tenant, account.adapter, prompt) for prompt in ask.prompts]
        for index in range(ask.sessions):
            claim = Claim(ask.tenant, ask.weight, until, pins[index // ask.choices])
            seat = Seat(account, ask.wish, claim, fleet=self.fleet, line=self._line, foretold=foretold)
            request = self._request(ask, seat, index, session=SessionId(f"{request_id}-{index}"))
            reply.choices.append(Choice(request, seat, []))
            check_fits(ask, seat.target)

    def _request(self, ask: Ask, seat: Seat, index: int, *, session: SessionId) -> Request:
        prompt = ask.prompts[index // ask.choices]
        room = seat.target.max_length - len(prompt)
        return Request(
            session=session,
            prompt=prompt,
            parameters=replace(ask.parameters, choice=index),
            verification=seat.verification(),
            endings=Endings(
                room if ask.max_tokens is None else min(ask.max_tokens, room), self._end_tokens(ask), ask.stop
            ),
            decode=self.tokenizer.decode if ask.tool_use is None else self.tokenizer.decode_calls,
            target_length=seat.target.max_length,
            draft_length=seat.draft_length,
            logprobs=ask.logprobs,
            vocab_size=seat.target.vocab_size,
            tenant=ask.tenant,
            adapter=seat.adapter,
            weight=ask.weight,
            priority=ask.priority,
            draft_is_free=seat.draft_is_free,
        )

    def _end_tokens(self, ask: Ask) -> frozenset[TokenId]:
        return frozenset() if ask.ignore_eos else self.tokenizer.end_tokens

    @asynccontextmanager
    async def _running(self, reply: Reply, assignment: Assignment) -> AsyncIterator[None]:
        """Run all choices while the block lasts; none outlives it."""
        pumps = [
            asyncio.create_task(reply.pump(index, self._beliefs(assignment.revision, choice.request)))
            for index, choice in enumerate(reply.choices)
        ]
        self._replies.add(reply)
        try:
            yield
        finally:
            self._replies.discard(reply)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    @contextmanager
    def _recorded(self, reply: Reply, assignment: Assignment, request_id: str) -> Iterator[None]:
        """Whatever ends the request, a choice that had come to its end is kept."""
        try:
            yield
        finally:
            if self.records is not None:
                for choice in reply.choices:
                    record = record_of(choice, request=request_id, revision=assignment.revision.name, came=reply.came)
                    if record is not None:
                        self.records.add(record)

    def _cast_shadow(self, reply: Reply, assignment: Assignment, account: Account) -> None:
        """Offer a finished answer to the drafts that had no part in it: in shadow, or while speculation is off."""
        if not account.is_ordinary:
            return
        for revision in _shadowing(assignment):
            for choice in (choice for choice in reply.choices if choice.output):
                self.shadow.offer(self._shadow_job(revision, choice, account))

    def _shadow_job(self, revision: PairRevision, choice: Choice, account: Account) -> ShadowJob:
        """What the first drafter would have had accepted counts as evidence, and its K is chosen by it in time."""
        drafter = revision.drafters[0]
        name = SessionId(f"{choice.request.session}-shadow-{revision.name}")
        opening = replace(
            _opening_of(choice),
            session=name,
            tenant=aside(choice.request.tenant) if revision.draft else None,  # a lookup would keep the answer twice
            verification=Verification.COUPLED,
            priority=Priority.BACKGROUND,
            adapter=None,
        )

        def scored(matched: int, examined: int) -> None:
            account.add_shadow(revision, matched=matched, examined=examined)
            segment = replace(_segment(revision, choice.request), drafter=drafter)
            self.segments.cell(segment).hear(matched=matched, examined=examined)

        draft, output = revision.draft or lookup_role(drafter), tuple(choice.output)
        return ShadowJob(draft, opening, output, scored, choice.request.tenant)

    def _offer_replays(self, reply: Reply, assignment: Assignment, account: Account) -> None:
        """Offer the sampled answers of a finished request: those in which something was proposed, and where rounding
        may split a plain answer from its replay, the plain ones too."""
        for choice in reply.choices:
            if choice.finish is None or not is_sampled(choice.request.session, assignment.policy.exactness):
                continue
            opening, proposed = _opening_of(choice), bool(choice.finish.counts.proposed)
            if is_comparable(opening) and (proposed or choice.seat.target.determinism != BITWISE):
                replay = Replay(opening, tuple(choice.output))
                settled = partial(account.add_replay if proposed else account.add_plain_replay, replay=replay)
                self.replays.offer(ReplayJob(assignment.revision, replay, settled, assignment.adapter, reply.tenant))
            elif proposed:
                account.add_replay(Result.SKIPPED)


def _revoked() -> Unauthorized:
    return Unauthorized("this API key was revoked while the request was served")


def _nothing_said(request: Request) -> Finish:
    """The end of a choice of which nothing but its prompt was asked for."""
    counts = Counts(len(request.prompt), 0, rounds=0, speculating=0, proposed=0, accepted=0, k_by_round=())
    return Finish(FinishReason.LENGTH, counts)


def _segment(revision: PairRevision, request: Request) -> Segment:
    """Whose belief a request of that revision shares."""
    return Segment(revision.name, request.adapter, heat_of(request.parameters.temperature))


def _opening_of(choice: Choice) -> OpenSession:
    request = choice.request
    return OpenSession(
        session=request.session,
        prompt=request.prompt,
        output=(),
        parameters=request.parameters,
        verification=request.verification,
        max_tokens=len(choice.output),
        tenant=aside(request.tenant),
        adapter=request.adapter,
    )


def _shadowing(assignment: Assignment) -> list[PairRevision]:
    is_off = assignment.policy.speculation.state is SpeculationState.OFF
    return [
        revision
        for revision in assignment.policy.revisions
        if revision.drafters and (revision.shadow or (is_off and revision == assignment.revision))
    ]


@contextmanager
def _left(choices: list[Choice]) -> Iterator[None]:
    try:
        yield
    finally:
        for choice in choices:
            choice.seat.leave()
