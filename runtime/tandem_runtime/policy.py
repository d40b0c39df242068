"""Knows which policy is in force on this gateway, and follows the ConfigMap that holds it.

Refuses to judge a policy: `domain.policy` reads it.

A document that cannot be followed leaves the last good one in force, and says so where /v1/speculation shows it: the
gateway goes on with what it knows, and the operator sees that its number was not taken up.
"""

import logging

from tandem_runtime.cluster import Following, Selection, Snapshot
from tandem_runtime.domain.errors import PolicyRefused
from tandem_runtime.domain.policy import PairRevision, Policy, RevisionName, parse_policy

POLICY_KEY = "policy.json"

log = logging.getLogger(__name__)


class PolicyInForce:
    """The current policy, absent until the first good one, and why a later one was refused."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._told: dict[RevisionName, PairRevision] = {}
        self.policy = policy
        self.refused: str | None = None

    @property
    def policy(self) -> Policy | None:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        self._policy = policy
        self._told |= {} if policy is None else {revision.name: revision for revision in policy.revisions}

    def revision(self, name: RevisionName) -> PairRevision | None:
        """A revision as the policy in force has it, or as the last one that had it: answers outlive their revision, and
        one that was told not to speculate does not begin again when it is no longer spoken of."""
        return self._told.get(name)

    def take(self, document: str) -> None:
        """Put a document in force, or keep the last good policy and remember why."""
        try:
            policy = parse_policy(document)
        except PolicyRefused as refusal:
            self.refused = str(refusal)
            log.error("policy refused, the last good one stays in force: %s", refusal)
            return
        if policy != self.policy:
            log.info("policy %d in force", policy.number)
        self.policy, self.refused = policy, None


def policy_selection(*, deployment: str, namespace: str) -> Selection:
    """The gateway's own ConfigMap by name: its rights cover that one object and no list of others."""
    return Selection("configmaps", namespace, field_selector=f"metadata.name={deployment}-policy")


async def follow_policy(in_force: PolicyInForce, following: Following, selection: Selection) -> None:
    """Keep `in_force` up to date, for ever. A deleted ConfigMap changes nothing: the operator makes it again."""
    async for snapshot in following(selection):
        document = _document(snapshot)
        if document is not None:
            in_force.take(document)


def _document(snapshot: Snapshot) -> str | None:
    documents = [item.get("data", {}).get(POLICY_KEY) for item in snapshot.values()]
    return next((document for document in documents if document is not None), None)
