"""Knows what becomes of a canary whose pods find no node: who makes room for it, when, and when that is done.

Refuses to know what a canary is judged by. A lack of room is a condition, and never a failure of the revision.

After `spec.canary.capacityWaitSeconds` the previous revision's pods go, which only a rollback would want. Where that
does not help, or there are none, and nothing but the draft changes, `Auto` lets stable's draft give way too: target
pods serve on, so that nobody loses more than speed. Whoever asks for `InPlaceDraft` gets that without any wait, and
whoever asks for `Recreate` loses all that the change replaces before anything new comes, a target too. What is scaled
to zero meanwhile is set aside: nobody could judge it, and errors of that time are nobody's doing.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from tandem_operator.domain import gates, rollout
from tandem_operator.domain.moves import Ending, end_canary, send
from tandem_operator.domain.nested import text
from tandem_operator.domain.observed import Pod
from tandem_operator.domain.progress import Rollout, Stage, Surge
from tandem_operator.domain.revision import Role
from tandem_operator.domain.rollout import Signal
from tandem_operator.domain.situation import Course, Situation
from tandem_operator.domain.spec import SurgeMode

ROOM_SETTLES = timedelta(seconds=60)
"""So long the scheduler has to use the room that the previous revision's pods left."""


def mind_room(at: Situation, course: Course) -> Course:
    """What a canary's lack of room leads to: it is remembered, and others make room for it."""
    if not rollout.on_trial(course.progress.rollout):
        return course
    course = _make_room(at, _watch(at, course))
    moved = course.progress.rollout
    if moved.stage is Stage.GATHERING and at.spec.canary.surge not in _WISHES[moved.surge]:
        return _stay_beside(at, course)
    if moved.stage is not Stage.PREPARING:
        return course
    return _give_way(at, course) if moved.gave_way is None else _give_up(at, course)


_WISHES: Mapping[Surge, Collection[SurgeMode]] = {
    Surge.IN_PLACE_DRAFT: (SurgeMode.AUTO, SurgeMode.IN_PLACE_DRAFT, SurgeMode.RECREATE),
    Surge.RECREATE: (SurgeMode.RECREATE,),
}
"""What has to be asked for, up to the moment at which something goes."""


def _stay_beside(at: Situation, course: Course) -> Course:
    """Nothing has gone yet, and nobody asks for it any more: the canary comes up beside stable, from the beginning."""
    if at.spec.paused:
        return course
    revision = course.progress.rollout.revision
    course = send(at, course, Signal.NEW, revision=revision)
    words = f"{course.progress.rollout.surge}, since spec.canary.surge is {at.spec.canary.surge} now"
    return course.say("CanaryStarted", f"revision {revision} against {at.stable_name}, {words}")


def set_aside(at: Situation, course: Course) -> Course:
    """A recreated canary that is scaled to zero ends, and sets out again with pods. One that has passed completes."""
    moved = course.progress.rollout
    if moved.surge is not Surge.RECREATE or at.spec.target.replicas or moved.stage is Stage.COMPLETING:
        return course
    why = "spec.target.replicas is 0; it sets out again with pods"
    return send(at, course, Signal.ENDED).say("CanaryEnded", f"revision {moved.revision}: {why}")


def is_set_aside(at: Situation) -> bool:
    """Whether the revision that the spec means would be recreated without any pods."""
    if at.stable is None or at.spec.target.replicas:
        return False
    return rollout.surge_of(at.stable.pair, at.current_pair, at.spec.canary.surge) is Surge.RECREATE


def _watch(at: Situation, course: Course) -> Course:
    """Remembers since when the canary finds no room."""
    moved = course.progress.rollout
    unplaced = [pod for pod in canary_pods(at, moved.revision) if pod.unschedulable is not None]
    if bool(unplaced) == (moved.unschedulable_since is not None):
        return course
    since = at.seen.now if unplaced else None
    course = _with(course, replace(moved, unschedulable_since=since))
    if since is None:
        return course
    return course.warn("CanaryWaitsForRoom", f"revision {moved.revision}: {gates.capacity(unplaced).message}")


def _make_room(at: Situation, course: Course) -> Course:
    """The previous revision's pods go after the wait, and stay away as long as the canary runs."""
    moved = course.progress.rollout
    if moved.room_made_at is not None or not _has_waited(at, moved) or not _of_others(at, moved.revision):
        return course
    return _with(course, replace(moved, room_made_at=at.seen.now))


def _give_way(at: Situation, course: Course) -> Course:
    """Stable's pods are to give way: by wish, or its draft's after the wait, for want of anything else."""
    moved, asked = course.progress.rollout, at.spec.canary.surge
    pair = at.pair(moved.revision)
    if at.spec.paused or at.stable is None or pair is None:
        return course
    if rollout.surge_of(at.stable.pair, pair, asked).in_turn:
        return send(at, course, Signal.IN_PLACE, revision=moved.revision)
    swaps = asked is SurgeMode.AUTO and rollout.can_swap_drafts(at.stable.pair, pair)
    if not swaps or not _is_in_vain(at, moved):
        return course
    waited = f"no room for its draft beside stable's within {at.spec.canary.capacity_wait_seconds} s"
    course = course.warn("CanaryInPlace", f"revision {moved.revision}: {waited}; stable's draft gives way to it")
    return send(at, course, Signal.IN_PLACE)


def _give_up(at: Situation, course: Course) -> Course:
    """A canary that finds no room even in the place of what went: stable gets its own back."""
    moved = course.progress.rollout
    if not _is_in_vain(at, moved):
        return course
    words = gates.capacity(canary_pods(at, moved.revision)).message
    return end_canary(at, course, Ending(reason="NoCapacity", note=f"no room, though stable's pods gave way: {words}"))


def _is_in_vain(at: Situation, moved: Rollout) -> bool:
    """Whether the canary has waited long enough, also for the room that others left."""
    if not _has_waited(at, moved) or _of_others(at, moved.revision):
        return False
    return moved.room_made_at is None or at.seen.now - moved.room_made_at >= ROOM_SETTLES


def _has_waited(at: Situation, moved: Rollout) -> bool:
    since, wait = moved.unschedulable_since, timedelta(seconds=at.spec.canary.capacity_wait_seconds)
    return since is not None and at.seen.now - since >= wait


def _with(course: Course, moved: Rollout) -> Course:
    return replace(course, progress=replace(course.progress, rollout=moved))


# Whose pods


def canary_pods(at: Situation, revision: str) -> tuple[Pod, ...]:
    """The pods that only this revision needs."""
    wanted = _hashes(at, revision) - _hashes(at, at.stable_name)
    return tuple(pod for pod in at.seen.pods if (pod.role, pod.role_hash) in wanted and not pod.leaving)


def has_waited_for_a_node(at: Situation, revision: str) -> bool:
    """Whether a pod that a revision needs has found no node for as long as a canary's would wait."""
    needed, wait = _hashes(at, revision), timedelta(seconds=at.spec.canary.capacity_wait_seconds)
    since = [pod.unschedulable_since for pod in at.seen.pods if (pod.role, pod.role_hash) in needed]
    return any(moment is not None and at.seen.now - moment >= wait for moment in since)


def _of_others(at: Situation, revision: str) -> bool:
    """Whether pods are there that neither stable nor this revision needs, be they on their way out."""
    ours = _hashes(at, revision) | _hashes(at, at.stable_name)
    return any((pod.role, pod.role_hash) not in ours for pod in at.seen.pods if pod.role is not Role.GATEWAY)


def gone(at: Situation, moved: Rollout) -> Collection[tuple[Role, str | None]]:
    """What of stable has given way: it goes once every gateway has heard that nobody speculates with it, for good."""
    if moved.gave_way is None:
        return ()
    going = moved.stage in (Stage.CLEARING, Stage.RETURNING)
    heard = not going or (at.is_heard and _is_told_off(at))
    return [part for part in _giving_way(at, moved.revision) if heard or not at.wanted(*part)]


def _is_told_off(at: Situation) -> bool:
    told = {text(share, "name"): share.get("speculate") for share in at.shares_in_force}
    return told.get(at.stable_name) is False


def _giving_way(at: Situation, revision: str) -> set[tuple[Role, str | None]]:
    """What only stable needs of the two."""
    return _hashes(at, at.stable_name) - _hashes(at, revision)


def is_cleared(at: Situation, revision: str) -> bool:
    """Whether nothing is left of what gives way, not even a pod that is on its way out and holds its device.

    One that was evicted or refused by its node holds none, and nobody takes it away.
    """
    going = _giving_way(at, revision)
    wanted = any(seen.wanted for seen in at.seen.workloads if (seen.role, seen.role_hash) in going)
    left = (pod for pod in at.seen.pods if pod.phase not in _ENDED)
    return not wanted and not any((pod.role, pod.role_hash) in going for pod in left)


_ENDED = ("Failed", "Succeeded")


def _hashes(at: Situation, revision: str) -> set[tuple[Role, str | None]]:
    pair = at.pair(revision)
    return set() if pair is None else {(Role.TARGET, pair.target), (Role.DRAFT, pair.draft)}
