"""Knows how to say whether this gateway speculates, for whom, and why not.

Refuses to decide it: `domain.policy.allowance` does, and is asked here in the same words.
"""

from typing import TypedDict

from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.policy import OwnWish, PairRevision, Policy, allowance
from tandem_runtime.gateway.accounts import arm_at
from tandem_runtime.gateway.serving import Gateway


class TargetStatus(TypedDict):
    """One target pod: which arm it is in now."""

    pod: str
    arm: str


class RevisionStatus(TypedDict):
    """`speculating` is what an ordinary request would get in an on slot; `why` is empty where it may speculate."""

    name: str
    weight: int
    shadow: bool
    speculating: bool
    why: str
    targets: list[TargetStatus]
    drafts: int
    drafter: str | None


class SpeculationStatus(TypedDict):
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
        "revisions": [_describe_revision(gateway, policy, revision) for revision in policy.revisions],
    }


def _describe_revision(gateway: Gateway, policy: Policy, revision: PairRevision) -> RevisionStatus:
    drafts = gateway.fleet.drafts.admitted().get(revision.draft or "", 0)
    allowed = allowance(policy, revision, OwnWish(), has_draft=drafts > 0, slot_on=True)
    wall = gateway.clock.wall()
    targets = [target for target in gateway.fleet.targets if target.open and target.role_hash == revision.target]
    return {
        "name": revision.name,
        "weight": revision.weight,
        "shadow": revision.shadow,
        "speculating": allowed.withheld is None,
        "why": "" if allowed.withheld is None else allowed.withheld.value,
        "targets": [{"pod": target.uid, "arm": _arm(policy, target.uid, wall)} for target in targets],
        "drafts": drafts,
        "drafter": None if revision.draft is None else revision.drafter.value,
    }


def _arm(policy: Policy, pod: str, wall: float) -> str:
    arm: Arm = arm_at(policy, pod, wall=wall)
    return arm.value
