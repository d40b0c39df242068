"""Knows which revisions were ended while answers of theirs may still be open, and that these propose no more.

Refuses to know why they ended (`moves`), and how long a pod may take to go.

An answer outlives the share of the traffic under which it began. A canary that failed, was silenced for want of memory
or was aborted, and a revision that was taken back, stay in the policy with weight 0 and without speculation: until
every gateway has heard that, and for as long as pods are there that are theirs alone. One that a promotion replaced is
not among them: its draft was good, and goes with its pods.

Progress remembers them, and a status may be lost. The policy in force then still lists who got somebody when it was
written: whoever of these is not stable was a canary, or is ended already, or was replaced by a promotion which that
policy came before.

A gateway goes by what it was told last. So where many end in a short time, the oldest of which it heard need not be
told of any more, and a policy stays short.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from tandem_operator.domain.decision import JsonObject, Share
from tandem_operator.domain.nested import text
from tandem_operator.domain.observed import MadeStableBy, Pod
from tandem_operator.domain.progress import Progress, Stage
from tandem_operator.domain.situation import Course, Situation

MOST: Final = 8
"""Told of at a time, but for those that not every gateway has heard of yet."""


def retire(held: Progress, revision: str) -> Progress:
    """The progress with a revision whose answers propose no more; the latest is the last."""
    return replace(held, retired=(*(name for name in held.retired if name != revision), revision))


def recall(at: Situation, course: Course) -> Course:
    """After a status was lost: those of the policy in force. A canary that is set out for again is none of them."""
    held = course.progress
    if at.stable is None or held != Progress():
        return course
    listed = [text(share, "name") for share in at.shares_in_force if not _is_replaced(at, share)]
    names = tuple(name for name in listed if name in at.revisions and name != at.stable_name)
    return replace(course, progress=replace(held, retired=names))


def _is_replaced(at: Situation, share: JsonObject) -> bool:
    """Whether the policy has it as the stable one that a promotion has replaced since."""
    stable, since = at.stable, at.seen.policy_since
    if stable is None or stable.stable_since is None or stable.made_stable_by is not MadeStableBy.PROMOTION:
        return False
    told = since is not None and since < stable.stable_since
    return told and share.get("speculate") is not False


def still(at: Situation, course: Course, wanted: Collection[str]) -> tuple[str, ...]:
    """Those that are not over yet; `wanted` are the role hashes whose pods somebody needs."""
    names = [name for name in course.progress.retired if _is_still(at, course, name, wanted)]
    heard = [name for name in names if _is_heard(at, name)]
    spared = heard[: max(0, len(names) - MOST)]
    return tuple(name for name in names if name not in spared)


def shares(names: Collection[str], given: tuple[Share, ...]) -> tuple[Share, ...]:
    """What they get beside those that have something already."""
    known = {share.revision for share in given}
    return tuple(Share(revision=name, weight=0, speculate=False) for name in names if name not in known)


def _is_still(at: Situation, course: Course, name: str, wanted: Collection[str]) -> bool:
    moved = course.progress.rollout
    if name not in at.revisions or name == moved.revision:
        return False
    if name == at.stable_name:
        return moved.stage is Stage.RETURNING
    return not _is_heard(at, name) or _has_pods(at, name, wanted)


def _is_heard(at: Situation, name: str) -> bool:
    told = (share for share in at.shares_in_force if text(share, "name") == name)
    return at.is_heard and all(share.get("speculate") is False for share in told)


def _has_pods(at: Situation, name: str, wanted: Collection[str]) -> bool:
    pair = at.revisions[name].pair
    own = {pair.target, pair.draft} - {None, *wanted}
    return any(pod.role_hash in own and _is_there(at, pod) for pod in at.seen.pods)


def _is_there(at: Situation, pod: Pod) -> bool:
    """A pod of a node that was lost is listed for ever: after its grace nothing answers in it."""
    return pod.gone_by is None or at.seen.now < pod.gone_by
