"""Knows what memory pressure means for a canary that shares its target pods: it falls silent, and only then is ended.

Refuses to know what it means for stable (`breaker`).

Memory cannot be split by revision, so pressure is nobody's fault for certain. The canary's speculation goes first (K =
0 from the next round on), and the breaker is told nothing for as long. Below the low mark it comes back, and the second
time it is ended there instead, not Bad: pressure that twice went with its speculation is not stable's. So it is ended
if the target is not there after `QUIET`. Then stable's speculation is the breaker's matter as ever, and so is any
pressure while the canary has nobody to speculate for.
"""

from dataclasses import replace
from datetime import timedelta

from tandem_operator.domain import breaker, rollout
from tandem_operator.domain.breaker import MemoryUse
from tandem_operator.domain.moves import Ending, end_canary
from tandem_operator.domain.progress import Rollout, SpeculationState
from tandem_operator.domain.revision import Role, RoleHash
from tandem_operator.domain.situation import Course, Situation

QUIET = timedelta(seconds=45)
"""Gateways follow a policy within 2 s, answers give back what their proposals held within a round, a target says for
30 s after the last preemption that it preempts, and a steady object is looked at every 10 s."""


def mind_pressure(at: Situation, course: Course) -> Course:
    """Silences the canary, lets it speak again, or ends it."""
    moved, marks = course.progress.rollout, at.spec.auto_disable.memory
    if not rollout.on_trial(moved) or not moved.surge.shares_target or at.stable is None:
        return course
    use = use_of(at, at.stable.pair.target)
    note = breaker.pressure(marks, use)
    if moved.quiet_since is None:
        return course if note is None or not _speaks(at, course) else _silence(at, course, note)
    if use.working_set_basis_points is None and use.kv_basis_points is None:
        return course  # a target that is full may be too busy to say so, or gone: that is no low mark
    if not breaker.presses_on(marks, use):
        return _speak_again(course) if not moved.was_quiet else _end_relieved(at, course)
    if at.seen.now - moved.quiet_since < QUIET:
        return course
    words = (
        f"{note or 'memory is not below the low mark'}; {QUIET.seconds} s without the canary's speculation did not help"
    )
    return end_canary(at, course, Ending(reason="MemoryPressure", note=words))


def is_quiet(held: Rollout) -> bool:
    """Whether a canary's speculation is off so that memory may recover."""
    return held.quiet_since is not None


def use_of(at: Situation, target: RoleHash) -> MemoryUse:
    """Of the target's pods that are not leaving, the fullest of each kind."""
    pods = [pod for pod in at.seen.of_role(Role.TARGET) if pod.role_hash == target]
    return MemoryUse(
        working_set_basis_points=_most([pod.memory_basis_points for pod in pods]),
        kv_basis_points=_most([pod.kv_basis_points for pod in pods]),
        preempting=any(pod.preempting for pod in pods),
    )


def _most(values: list[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _speaks(at: Situation, course: Course) -> bool:
    """Whether anybody is served by the canary with its draft."""
    moved, held = course.progress.rollout, course.progress.breaker
    if held.state is not SpeculationState.ACTIVE and held.reason in breaker.NOT_THE_PAIRS_FAULT:
        return False
    return at.proposes(moved.revision) and rollout.canary_percent(moved, at.spec.canary) > 0


def _silence(at: Situation, course: Course, note: str) -> Course:
    moved = course.progress.rollout
    told = course.warn("CanaryQuiet", f"revision {moved.revision}: {note}; its speculation is off until that is over")
    return _with(told, replace(moved, quiet_since=at.seen.now))


def _speak_again(course: Course) -> Course:
    moved = course.progress.rollout
    told = course.say(
        "CanaryHeardAgain", f"revision {moved.revision}: memory is below the low mark, it speculates again"
    )
    return _with(told, replace(moved, quiet_since=None, was_quiet=True))


def _end_relieved(at: Situation, course: Course) -> Course:
    words = "memory fell below the low mark without the canary's speculation, for the second time in this canary"
    return end_canary(at, course, Ending(reason="MemoryPressure", note=words))


def _with(course: Course, moved: Rollout) -> Course:
    return replace(course, progress=replace(course.progress, rollout=moved))
