"""Knows the place of one choice: the pods that serve its session, and another target if one is lost.

Refuses to know the other choices of the request, and replies.

What a target does beneath a session is told to its record (`domain.patience`), which all sessions share: the first item
of a session that began there is an answer; it has failed when it was lost, gave no answer in time, or had no law for
the next token. So one that fails is left alone for a while, and tried by one session after that.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.commands import Emit, Finish, Request
from tandem_runtime.domain.drafting import Beliefs, Drafting
from tandem_runtime.domain.errors import NotANumber, Overloaded, TargetLost, WaitedInVain, origin
from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.lookahead import Bounds
from tandem_runtime.domain.policy import LOOKUPS, OwnWish, allowance, choose_verification, lookup_role
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.suffix import Prediction
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    OpenSession,
    PromptRead,
    Round,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.drafters import LookupDraft, draft_capabilities
from tandem_runtime.driver import Deadlines, Engines, generate
from tandem_runtime.gateway.accounts import Account, RoundPlace, Terms, arm_at
from tandem_runtime.gateway.target_line import TargetLine
from tandem_runtime.ports import DraftEngine, Remembering, TargetEngine
from tandem_runtime.reading import read_prompt
from tandem_runtime.replicas import Pool, Replica

log = logging.getLogger(__name__)

REOPEN_SECONDS = 5.0
"""How long a session whose target was lost waits for one of the same hash; discovery reconnects within about this."""
REOPEN_PAUSE_SECONDS = 0.05
FORGET_SECONDS = 60.0
"""A pod that does not answer for longer is most likely started anew, and has forgotten everything."""
FORGET_PAUSE_SECONDS = 0.5
MOST_REOPENINGS = 5
"""A session that loses target after target is not going to end well."""
DEADLINES = Deadlines()
KNOWN_SECONDS = DEADLINES.open_seconds + DEADLINES.verify_seconds
"""After so long it is known of any session whether its target lets it begin."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of both roles."""

    targets: Pool[TargetEngine]
    drafts: Pool[DraftEngine]

    async def forget(self, tenant: str) -> None:
        """Have every engine that is here now forget what it keeps of the tenant's texts. One that cannot be reached for
        a moment is waited for; what is not reached in time is told in the log."""
        replicas = [*self.targets, *self.drafts]
        await asyncio.gather(*(_forgotten(replica.uid, replica.engine, tenant) for replica in replicas))

    def draft_pods(self) -> dict[str, int]:
        """As `Pool.admitted`, without the lookups, which are in this process."""
        lookups = {lookup_role(drafter) for drafter in LOOKUPS}
        return {role: count for role, count in self.drafts.admitted().items() if role not in lookups}


async def _forgotten(uid: str, engine: object, tenant: str) -> None:
    if not isinstance(engine, Remembering):
        return
    failure: Exception = TimeoutError()
    with suppress(TimeoutError):
        async with asyncio.timeout(FORGET_SECONDS) as limit:
            while not limit.expired():
                try:
                    await engine.forget(tenant)
                except Exception as error:  # whatever gRPC says of a link that ends just now: the next may be up
                    failure = error
                else:
                    return
                await asyncio.sleep(FORGET_PAUSE_SECONDS)
    log.error("%s keeps what it computed for a tenant whose keys were revoked error=%s", uid, origin(failure))


def lookup_replica(lookup: LookupDraft) -> Replica[DraftEngine]:
    """A drafter without a model, as every revision that names it finds it among the drafts."""
    capabilities = draft_capabilities(lookup.drafter, lookup.target)
    return Replica(lookup.drafter.value, lookup_role(lookup.drafter), lookup, capabilities)


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a request predicts of its output, and what would end that."""

    prediction: Prediction
    end_tokens: frozenset[TokenId]


@dataclass(frozen=True, slots=True)
class Claim:
    """On whose account a choice asks for a place on a target, until when it waits for one, and what its pods are chosen
    by (`domain.routing.pin_of`)."""

    tenant: str
    weight: float
    until: float
    pin: str


class Seat:
    """One choice on one pair of pods, and in what it predicts. An Observer of its rounds."""

    def __init__(
        self,
        account: Account,
        wish: OwnWish,
        claim: Claim,
        *,
        fleet: Fleet,
        line: TargetLine,
        foretold: Foretold | None = None,
    ) -> None:
        self._account = account
        self._wish = wish
        self._fleet = fleet
        self._clock = clock = line.clock
        self._line = line
        wanted = account.revision.target, account.adapter
        self._ticket = line.ticket(wanted, tenant=claim.tenant, weight=claim.weight, until=claim.until)
        self._pin = claim.pin
        self._foretold = foretold
        self._lost: set[str] = set()
        self._reopened = 0
        self._allowed: tuple[Terms, bool, bool, Bounds] | None = None
        self._refused_numbers = False
        """Whether a target had no law for a token, and another was asked."""
        self._sit(self._borrow_target())
        self._drafts = self._borrow_drafts()
        wall = clock.wall()
        warm = [each.take_up(wall=wall) for each in self._drafts.values()]
        self._warm = self._target.take_up(wall=wall) and all(warm)

    @property
    def warm(self) -> bool:
        """Whether both pods had warmed up when the session began."""
        return self._warm

    @property
    def adapter(self) -> AdapterDigest | None:
        return self._account.adapter

    @property
    def target(self) -> Capabilities:
        return self._target.capabilities

    @property
    def pod(self) -> str:
        """Which target pod serves it now."""
        return self._target.uid

    @property
    def drafters(self) -> dict[Drafter, Capabilities]:
        """Who may propose."""
        return {drafter: each.capabilities for drafter, each in self._drafts.items()}

    @property
    def draft_length(self) -> int | None:
        """Prompt plus output tokens of which something can be proposed; None without a drafter."""
        return max((each.capabilities.max_length for each in self._drafts.values()), default=None)

    @property
    def draft_is_free(self) -> bool:
        """Whether some proposals come from this process, and take next to no time."""
        return any(drafter is not Drafter.MODEL for drafter in self._drafts)

    def verification(self) -> Verification:
        able = None
        if self._drafts:
            each = [replica.capabilities.verifications for replica in self._drafts.values()]
            able = tuple(mode for mode in each[0] if all(mode in modes for modes in each))
        return choose_verification(self._account.policy, self._wish, self.target.verifications, able)

    async def run(self, request: Request, beliefs: Beliefs) -> AsyncGenerator[Emit | Finish, None]:
        """The session's items to its end; closing the iterator frees both engines.

        A target that has no room, or has begun to drain before anyone told us, is passed over while nothing was said,
        and where all have none the session waits for its turn.
        """
        spoken = False
        await self._line.turn(self._ticket)
        try:
            while True:
                try:
                    async with aclosing(self._session(request, beliefs)) as items:
                        async for item in items:
                            spoken = True
                            if not self._proven:
                                self._prove()
                            yield item
                    return
                except Overloaded as full:
                    if spoken or isinstance(full, WaitedInVain):
                        raise
                    await self._find_room(full)
                except TargetLost:
                    self._blame("lost")
                    raise
        finally:
            self._line.left(self._ticket)

    async def read(self, request: Request, *, alternatives: int) -> PromptRead:
        """How likely the target finds the prompt, whole; of one that is lost another takes it over from the start."""
        await self._line.turn(self._ticket)
        while True:
            try:
                read = await read_prompt(self._target.engine, _reading(request), alternatives=alternatives)
            except TargetLost:
                await self._reopen()
            except WaitedInVain:
                raise
            except Overloaded as full:
                await self._find_room(full)
            except NotANumber:
                if self._elsewhere() is None:
                    raise
            else:
                self._prove()
                return read

    def _session(self, request: Request, beliefs: Beliefs) -> AsyncGenerator[Emit | Finish, None]:
        drafting = Drafting(tuple(self._drafts), beliefs)
        return generate(
            Session(request),
            engines=Engines(self._target.engine, self._combined(drafting), self._reopen, DEADLINES, self._elsewhere),
            lookahead=drafting,
            allowance=self._allowance,
            observer=self,
            clock=self._clock,
        )

    def _combined(self, drafting: Drafting) -> DraftEngine | None:
        members = [
            Member(drafter, each.engine, each.patience, each.capabilities.max_length)
            for drafter, each in self._drafts.items()
        ]
        return CombinedDraft(members, drafting, self._clock, self.target.vocab_size) if members else None

    def _sit(self, target: Replica[TargetEngine]) -> None:
        """The session begins there."""
        self._target, self._began = target, self._clock.monotonic()
        self._proven = self._blamed = False
        target.patience.begin(self._began, within_seconds=KNOWN_SECONDS)

    def _prove(self) -> None:
        self._proven = True
        self._target.patience.answered(self._clock.monotonic())
        self._line.served(self._ticket)

    def _blame(self, kind: str) -> None:
        """The target failed this session; that is told once."""
        if not self._blamed:
            self._blamed = True
            self._target.patience.failed(self._clock.monotonic(), asked_at=self._began)
            self._account.add_target_failure(kind)

    def _elsewhere(self) -> TargetEngine | None:
        """Another target for a token for which this one has no law, once: that may be its memory, or the request."""
        self._blame("not_a_number")
        if self._refused_numbers or not self._move_on():
            return None
        self._refused_numbers = True
        return self._target.engine

    def _stand_up(self) -> None:
        """The session goes on there no more; if nothing came of it, another may try the target."""
        self._target.patience.gave_up(self._clock.monotonic(), asked_at=self._began)

    def _move_on(self) -> bool:
        """Take another target of the same hash, one that this session has not met; False if there is none."""
        self._lost.add(self._target.uid)
        other = self._borrowed()
        if other is None:
            return False
        self._stand_up()
        self._fleet.targets.give_back(self._target, served=False)
        self._sit(other)
        return True

    async def _find_room(self, full: Overloaded) -> None:
        """Another target, or whichever has room when it is this session's turn. Raises `full` when that comes too
        late."""
        if self._move_on():
            return
        self._stand_up()
        await self._line.refused(self._ticket, full)
        self._lost.clear()
        left, other = self._target, self._borrow_target()
        self._fleet.targets.give_back(left, served=False)
        self._sit(other)

    def leave(self) -> None:
        """Give the pods back; once."""
        self._line.left(self._ticket)
        self._stand_up()
        self._fleet.targets.give_back(self._target)
        for drafter, replica in self._drafts.items():
            if drafter is not Drafter.PREDICTION:  # which is this seat's own
                self._fleet.drafts.give_back(replica)

    def round(self, round: Round) -> None:
        place = RoundPlace(pod=self._target.uid, has_draft=bool(self._drafts), warm=self._warm)
        self._account.add_round(round, place)

    def _allowance(self) -> Bounds:
        """Asked before each round; what it was the last time holds for the same terms, arm and drafts."""
        terms = self._account.terms
        slot_on = arm_at(terms.policy, self._target.uid, wall=self._clock.wall()) is Arm.ON
        has_draft = any(each.connected() for each in self._drafts.values())
        if self._allowed is None or self._allowed[:3] != (terms, slot_on, has_draft):
            allowed = allowance(
                terms.policy, terms.revision, self._wish, has_draft=has_draft, slot_on=slot_on, plain=terms.plain
            )
            self._allowed = terms, slot_on, has_draft, allowed.bounds
        return self._allowed[3]

    def _borrow_target(self) -> Replica[TargetEngine]:
        revision = self._account.revision
        replica = self._borrowed()
        if replica is None:
            raise TargetLost(f"no target pod of revision {revision.name} is ready; try again")
        return replica

    def _borrowed(self) -> Replica[TargetEngine] | None:
        role, now = self._account.revision.target, self._clock.monotonic()
        return self._fleet.targets.borrow(role, self._pin, now=now, barred=self._lost, adapter=self._account.adapter)

    def _borrow_drafts(self) -> dict[Drafter, Replica[DraftEngine]]:
        """The revision's drafters, and the request's; those that are not there cost speed only."""
        revision = self._account.revision
        if self._wish.off:
            return {}
        roles = {} if revision.draft is None else {Drafter.MODEL: revision.draft}
        roles |= {drafter: lookup_role(drafter) for drafter in revision.lookups}
        now = self._clock.monotonic()
        borrowed = {drafter: self._fleet.drafts.borrow(role, self._pin, now=now) for drafter, role in roles.items()}
        return {drafter: replica for drafter, replica in borrowed.items() if replica is not None} | self._own_draft()

    def _own_draft(self) -> dict[Drafter, Replica[DraftEngine]]:
        if self._foretold is None:
            return {}
        lookup = LookupDraft(
            Drafter.PREDICTION,
            self.target,
            self._clock,
            end_tokens=self._foretold.end_tokens,
            prediction=self._foretold.prediction,
        )
        return {Drafter.PREDICTION: lookup_replica(lookup)}

    async def _reopen(self) -> TargetEngine:
        """Another target of the same hash, or the same one once it is back. Raises TargetLost when none comes."""
        self._blame("lost")
        self._reopened += 1
        if self._reopened > MOST_REOPENINGS:
            raise TargetLost("this request lost target after target; try again")
        self._lost.clear()  # one that was lost before the last may be back
        deadline = self._clock.monotonic() + REOPEN_SECONDS
        while not self._move_on():
            await asyncio.sleep(REOPEN_PAUSE_SECONDS)
            if self._target.open:
                self._sit(self._target)
                break
            if self._clock.monotonic() > deadline:
                raise TargetLost("the target was lost and no other of its kind is ready; try again")
        return self._target.engine


def _reading(request: Request) -> OpenSession:
    """A session in which the prompt is read and nothing is said."""
    return OpenSession(
        session=SessionId(f"{request.session}-prompt"),
        prompt=request.prompt,
        output=(),
        parameters=SamplingParameters(seed=0),
        verification=Verification.COUPLED,
        max_tokens=0,
        tenant=request.tenant,
        adapter=request.adapter,
        weight=request.weight,
        priority=request.priority,
    )
