"""Knows how to say whether this gateway speculates, for whom, why not, and why with which K.

Refuses to decide it: `domain.policy.allowance` does, and is asked here in the same words.
"""

from typing import TypedDict

from tandem_runtime.domain.costs import Model
from tandem_runtime.domain.drafting import bounds_of
from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.lookahead import Choice
from tandem_runtime.domain.policy import OwnWish, PairRevision, Policy, allowance
from tandem_runtime.domain.segments import Segment
from tandem_runtime.gateway.accounts import arm_at
from tandem_runtime.gateway.serving import Gateway
from tandem_runtime.ports import TargetEngine
from tandem_runtime.replicas import Replica

SEGMENTS_SHOWN = 16
"""Of a revision, the most lately asked for."""


class TargetStatus(TypedDict):
    """One target pod: which arm it is in now, whether it is left alone for its failures, and how many are held against
    it."""

    pod: str
    arm: str
    resting: bool
    failures: int


class CostStatus(TypedDict):
    """In milliseconds; `plainToken` None: none was seen. A share `aheadHits` of the rounds finds `aheadTokens` guesses
    drafted ahead."""

    round: float
    draftToken: float
    verifyToken: float
    plainToken: float | None
    aheadHits: float
    aheadTokens: float


class SegmentStatus(TypedDict):
    """What is believed of one segment, and the K that follows for a session that begins in it: `rule` decided, by
    `speedUps[i]`, what i + 1 tokens a round would bring. `costs` None: none is known, and no speed-up either."""

    adapter: str | None
    heat: str
    drafter: str
    k: int
    rule: str
    survivals: list[float]
    speedUps: list[float]
    costs: CostStatus | None


class RevisionStatus(TypedDict):
    """`speculating` is what an ordinary request would get in an on slot; `why` is empty where it may speculate."""

    name: str
    weight: int
    shadow: bool
    speculating: bool
    why: str
    targets: list[TargetStatus]
    drafts: int
    drafters: list[str]
    segments: list[SegmentStatus]


class SpeculationStatus(TypedDict):
    """`sums` is how the K rule comes by its sums: in C, or why in Python."""

    policy: int
    refused: str | None
    state: str
    mode: str
    verification: str
    minDraftTokens: int
    maxDraftTokens: int
    overlap: str
    offPercent: int
    slotSeconds: int
    sessions: int
    sums: str
    revisions: list[RevisionStatus]


def describe_speculation(gateway: Gateway) -> SpeculationStatus | dict[str, str | None]:
    """The document of /v1/speculation; without a policy only the reason why there is none."""
    policy, refused = gateway.in_force.policy, gateway.in_force.refused
    if policy is None:
        return {"state": "NoPolicy", "refused": refused}
    speculation, control = policy.speculation, policy.control
    return {
        "policy": policy.number,
        "refused": refused,
        "state": speculation.state.value,
        "mode": speculation.mode.value,
        "verification": speculation.verification.value,
        "minDraftTokens": speculation.min_draft_tokens,
        "maxDraftTokens": speculation.max_draft_tokens,
        "overlap": speculation.overlap.value,
        "offPercent": control.off_percent,
        "slotSeconds": control.slot_seconds,
        "sessions": gateway.sessions,
        "sums": gateway.segments.beginning.about,
        "revisions": [_describe_revision(gateway, policy, revision) for revision in policy.revisions],
    }


def _describe_revision(gateway: Gateway, policy: Policy, revision: PairRevision) -> RevisionStatus:
    drafts = gateway.fleet.drafts.admitted().get(revision.draft or "", 0)
    has_draft = drafts > 0 or bool(revision.lookups)
    allowed = allowance(policy, revision, OwnWish(), has_draft=has_draft, slot_on=True)
    wall, now = gateway.clock.wall(), gateway.clock.monotonic()
    targets = [target for target in gateway.fleet.targets if target.open and target.role_hash == revision.target]
    return {
        "name": revision.name,
        "weight": revision.weight,
        "shadow": revision.shadow,
        "speculating": allowed.withheld is None,
        "why": "" if allowed.withheld is None else allowed.withheld.value,
        "targets": [_describe_target(policy, target, wall, now) for target in targets],
        "drafts": drafts,
        "drafters": [drafter.value for drafter in revision.drafters],
        "segments": [
            _describe_segment(segment, cell.foretold(bounds_of(segment.drafter, allowed.bounds), now))
            for segment, cell in gateway.segments.of(revision.name)[:SEGMENTS_SHOWN]
        ],
    }


def _describe_target(policy: Policy, target: Replica[TargetEngine], wall: float, now: float) -> TargetStatus:
    patience = target.patience
    return {
        "pod": target.uid,
        "arm": _arm(policy, target.uid, wall),
        "resting": patience.rests(now),
        "failures": patience.record.failures,
    }


def _describe_segment(segment: Segment, choice: Choice) -> SegmentStatus:
    return {
        "adapter": segment.adapter,
        "heat": segment.heat.value,
        "drafter": segment.drafter.value,
        "k": choice.k,
        "rule": choice.why.rule.value,
        "survivals": [round(chance, 4) for chance in choice.why.survivals],
        "speedUps": [round(each.speed_up, 4) for each in choice.why.predictions],
        "costs": None if choice.why.costs is None else _describe_costs(choice.why.costs),
    }


def _describe_costs(costs: Model) -> CostStatus:
    def milliseconds(seconds: float) -> float:
        return round(1000 * seconds, 3)

    return {
        "round": milliseconds(costs.fixed),
        "draftToken": milliseconds(costs.draft_token),
        "verifyToken": milliseconds(costs.verify_token),
        "plainToken": None if costs.plain_token is None else milliseconds(costs.plain_token),
        "aheadHits": round(costs.head_start.hits, 4),
        "aheadTokens": round(costs.head_start.tokens, 2),
    }


def _arm(policy: Policy, pod: str, wall: float) -> str:
    arm: Arm = arm_at(policy, pod, wall=wall)
    return arm.value
