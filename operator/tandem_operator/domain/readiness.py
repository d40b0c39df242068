"""Knows whether what a rollout waits for is there: pods, gateways that reach them, and adapters in both.

Refuses to know what follows from it (`steering`).
"""

from tandem_operator.domain import loading, rollout
from tandem_operator.domain.revision import Role
from tandem_operator.domain.situation import Course, Situation


def installed(at: Situation, revision: str) -> bool:
    """A target pod is ready and a gateway has got an answer through it; a dead draft does not stand in the way."""
    pair = at.pair(revision)
    if pair is None or revision not in at.revisions or not loading.is_done(at, revision):
        return False
    serving = any(document.serving for document in at.seen.documents.values())
    return serving and at.ready(Role.TARGET, pair.target) > 0


def pods_are_there(at: Situation, course: Course) -> bool:
    """The canary's own pods are ready, as many as its step needs, and every gateway reaches them.

    While the object is scaled to nothing a canary beside stable waits: nobody can be sent to it, and nothing seen.
    """
    moved = course.progress.rollout
    pair = at.pair(moved.revision)
    if pair is None or moved.revision not in at.revisions or not loading.is_done(at, moved.revision):
        return False
    targets = rollout.canary_replicas(moved, at.spec.canary, at.spec.target.replicas)
    drafts = rollout.canary_replicas(moved, at.spec.canary, at.spec.draft_replicas)
    needs = [(Role.TARGET, pair.target, 1 if moved.surge.shares_target else max(1, targets))]
    if pair.draft is not None:
        needs.append((Role.DRAFT, pair.draft, drafts))
    return all(at.ready(*need[:2]) >= need[2] and at.admitted(*need) for need in needs)


def is_warm(at: Situation, revision: str) -> bool:
    """Whether a rollback can move the weights now: every gateway reaches a ready target pod of the revision."""
    pair = at.pair(revision)
    if pair is None or not loading.is_done(at, revision):
        return False
    return at.ready(Role.TARGET, pair.target) > 0 and at.admitted(Role.TARGET, pair.target, 1)
