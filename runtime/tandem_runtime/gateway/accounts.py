"""Knows where everything about one request is counted: its own report, the evidence, the metrics.

Refuses to decide anything, and to see text.

An account outlives a change of policy and of target: a request keeps the stratum under which it began, and each round
counts in the slot of the pod that ran it, under the policy of its moment.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.errors import TandemError
from tandem_runtime.domain.evidence import STRETCH_TOKENS, Arm, Ledger, SlotKey, Stratum, StratumKey
from tandem_runtime.domain.policy import OwnWish, PairRevision, Policy, RequestKind, SpeculationState
from tandem_runtime.domain.replay import Replay, Result
from tandem_runtime.domain.routing import bucket_of
from tandem_runtime.domain.slots import counted_slot, is_off, slot_number
from tandem_runtime.domain.tokens import Drafter, Round, Verification
from tandem_runtime.domain.values import value
from tandem_runtime.gateway.failures import CLIENT_CLOSED, describe_failure
from tandem_runtime.gateway.replies import CompletionDetails, SpeculationReport
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.telemetry import Metrics, RoundSums

ANSWERED = (200, 499)
"""Statuses of requests that were served as well as their callers let them be."""


def arm_at(policy: Policy, pod: str, *, wall: float) -> Arm:
    """The arm of a target pod at `wall`, the same in every gateway."""
    if policy.speculation.state is SpeculationState.OFF:
        return Arm.OFF
    control = policy.control
    slot = slot_number(wall, control.slot_seconds)
    return Arm.OFF if is_off(pod, slot, policy.salt, control.off_percent) else Arm.ON


@dataclass(frozen=True, slots=True)
class Assignment:
    """What was chosen for a request when it began."""

    policy: Policy
    revision: PairRevision
    unit: str
    wish: OwnWish
    adapter: AdapterDigest | None = None
    kind: RequestKind = field(default_factory=RequestKind)


@dataclass(frozen=True, slots=True)
class Terms:
    """What one policy means for one request: worked out once, since each round asks several times. `plain`: it has the
    request decode plainly, for what it is; `is_ordinary` is the account's."""

    policy: Policy
    revision: PairRevision
    plain: bool
    is_ordinary: bool


@value(frozen=True, slots=True)
class RoundPlace:
    """Where a round ran: on which target pod, whether a draft was at hand, and whether both pods had warmed up."""

    pod: str
    has_draft: bool
    warm: bool


class Account:
    """The counters of one request over all its choices."""

    def __init__(self, assignment: Assignment, in_force: PolicyInForce, *, ledger: Ledger, metrics: Metrics) -> None:
        self._assignment = assignment
        self._in_force = in_force
        self._metrics = metrics
        self._ledger = ledger
        self._stratum: Stratum = ledger.stratum(StratumKey(assignment.policy.number, assignment.revision.name))
        self._stratum.know(segment.name for segment in assignment.policy.segments)
        self._segments = assignment.policy.segments_of(assignment.kind)
        self._bucket = bucket_of(assignment.unit)
        self._stretch_tokens, self._stretch_seconds = 0, 0.0
        self._terms = self._terms_of(assignment.policy)
        self._speculated = False
        self._arm = Arm.OFF
        self._rounds = self._proposed = self._accepted = self._rejections = 0
        self._predicted_accepted = self._predicted_rejected = 0
        self.sums: RoundSums | None = None
        """Of all rounds, where somebody wants them."""

    @property
    def terms(self) -> Terms:
        """What the policy in force means for this request."""
        policy = self._in_force.policy
        if policy is not self._terms.policy and policy is not None:
            self._terms = self._terms_of(policy)
        return self._terms

    def _terms_of(self, policy: Policy) -> Terms:
        began, plain = self._assignment.revision, policy.is_plain(self._assignment.kind)
        is_ordinary = not self._assignment.wish.steers and not plain
        return Terms(policy, self._in_force.revision(began.name) or began, plain, is_ordinary)

    @property
    def policy(self) -> Policy:
        """The policy in force now."""
        return self.terms.policy

    @property
    def revision(self) -> PairRevision:
        """The request's revision as the policy in force has it; a retired one stays as it was told last."""
        return self.terms.revision

    @property
    def adapter(self) -> AdapterDigest | None:
        return self._assignment.adapter

    @property
    def is_ordinary(self) -> bool:
        """Whether it says anything about the deployment, beyond that it was served."""
        return self.terms.is_ordinary

    def add_target_failure(self, kind: str) -> None:
        """A target gave out beneath one of its choices, whether or not another took over."""
        self._metrics.add_target_failure(kind, revision=self.revision.name)

    def add_round(self, round: Round, place: RoundPlace) -> None:
        self._rounds += 1
        self._proposed += round.proposed
        self._accepted += round.accepted
        self._rejections += round.examined - round.accepted
        if round.drafter is Drafter.PREDICTION:
            self._predicted_accepted += round.accepted
            self._predicted_rejected += round.proposed - round.unjudged - round.cut - round.accepted
        if self.sums is not None:
            self.sums.add(round)
        terms = self.terms
        self._arm = arm_at(terms.policy, place.pod, wall=round.started)
        self._metrics.add_round(round, revision=terms.revision.name, arm=self._arm)
        if place.warm and terms.is_ordinary:
            self._add_to_stratum(round)
            self._add_to_stretch(round, place, terms.revision)
            self._add_to_slot(round, place, terms.policy, terms.revision)

    def _add_to_stretch(self, round: Round, place: RoundPlace, revision: PairRevision) -> None:
        """On slots alone: plain decoding would be the slowest of a pair that pays, and hide how slow that gets."""
        if round.prefill:
            return
        if self._slot_arm(place, revision) is not Arm.ON:
            self._stretch_tokens, self._stretch_seconds = 0, 0.0
            return
        self._stretch_tokens += round.emitted
        self._stretch_seconds += round.seconds
        if self._stretch_tokens >= STRETCH_TOKENS:
            self._stratum.add_stretch(self._stretch_seconds, tokens=self._stretch_tokens, bucket=self._bucket)
            self._stretch_tokens, self._stretch_seconds = 0, 0.0

    def _add_to_stratum(self, round: Round) -> None:
        self._stratum.add(round, bucket=self._bucket, segments=self._segments)
        if round.proposed and not self._speculated:
            self._speculated = True
            self._stratum.bucket_requests[self._bucket] += 1

    def _add_to_slot(self, round: Round, place: RoundPlace, policy: Policy, revision: PairRevision) -> None:
        slot_seconds = policy.control.slot_seconds
        slot = counted_slot(round.started, round.ended, slot_seconds)
        if slot is None or round.prefill:
            return
        arm = self._slot_arm(place, revision)
        key = SlotKey(place.pod, revision.target, slot, arm, policy.number, revision.name)
        ends_at = float((slot + 1) * slot_seconds)
        self._ledger.add_decode(key, ends_at=ends_at, tokens=round.emitted, seconds=round.seconds)

    def _slot_arm(self, place: RoundPlace, revision: PairRevision) -> Arm:
        """A session that may not speculate in an on slot waits for the others' rows: it is of neither arm."""
        may_speculate = place.has_draft and revision.speculate
        return self._arm if may_speculate or self._arm is Arm.OFF else Arm.BESIDE

    def add_first_token(self, seconds: float, *, warm: bool) -> None:
        self._metrics.add_first_token(seconds, revision=self.revision.name, arm=self._arm)
        if warm and self.is_ordinary:
            self._stratum.add_first_token(seconds, bucket=self._bucket)

    def prediction_use(self) -> CompletionDetails:
        """Of what was proposed from the request's own prediction: what is in the answer, and what the target judged and
        is not. Tokens beyond an ending are neither."""
        return {
            "accepted_prediction_tokens": self._predicted_accepted,
            "rejected_prediction_tokens": self._predicted_rejected,
        }

    def add_shadow(self, revision: PairRevision, *, matched: int, examined: int) -> None:
        """What `revision`'s draft would have proposed of this request's tokens."""
        stratum = self._ledger.stratum(StratumKey(self._assignment.policy.number, revision.name))
        stratum.shadow_matched[self._bucket] += matched
        stratum.shadow_examined[self._bucket] += examined

    def add_replay(self, result: Result, replay: Replay | None = None) -> None:
        """What a replay of one of this request's answers showed; None where it was not begun."""
        self._stratum.exactness.add(result, 0 if replay is None else replay.compared)
        self._metrics.add_replay(result, revision=self._assignment.revision.name)

    def add_plain_replay(self, result: Result, replay: Replay) -> None:
        """Likewise of an answer in which nothing was proposed, on a target whose rounding may split it."""
        self._stratum.exactness.add_plain(result, replay.compared)

    def end(self, status: int, *, is_ours: bool = False) -> None:
        """The request's end, by HTTP status. What the caller got wrong was never a request of the revision."""
        self._metrics.add_request(status, revision=self.revision.name, arm=self._arm)
        if is_ours or status in ANSWERED:
            self._stratum.requests += 1
            self._stratum.errors += is_ours

    def report(self, *, verification: Verification, seed: int) -> SpeculationReport:
        """What the reply says; `arm` is that of the last round."""
        report: SpeculationReport = {
            "revision": self.revision.name,
            "arm": "on" if self._arm is Arm.ON else "off",
            "verification": verification.value,
            "seed": seed,
            "rounds": self._rounds,
            "proposed": self._proposed,
            "accepted": self._accepted,
            "rejections": self._rejections,
        }
        if self.adapter is not None:
            report["adapter"] = self.adapter
        return report


@contextmanager
def refusals_counted(metrics: Metrics) -> Iterator[None]:
    """Count a request that is refused before any revision was chosen."""
    try:
        yield
    except TandemError as error:
        metrics.add_request(describe_failure(error).status)
        raise


@contextmanager
def closed_by_its_end(account: Account) -> Iterator[None]:
    """Write the request's status into its account, whichever way it ends."""
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        account.end(CLIENT_CLOSED)
        raise
    except Exception as error:
        failure = describe_failure(error)
        account.end(failure.status, is_ours=failure.is_ours)
        raise
    account.end(200)
