"""Knows which settings of speculation an object had, and how earlier ones come back without an edit of its spec.

Refuses to know who asks for it: a command or an alert (`steering`).

`spec.speculation` is policy: a change of it acts on running pods within seconds, and no canary looks at it first. So it
can be undone: the earlier settings lie over the spec's as an *overlay*, which the next change of `spec.speculation`
takes away, whatever it says. The spec itself is never written; it belongs to whoever applies it.
"""

from dataclasses import replace
from datetime import datetime

from tandem_operator.domain import nested
from tandem_operator.domain.progress import PolicyChange, PolicyUndo, Progress
from tandem_operator.domain.situation import Course, Situation

MOST_KEPT = 10


def keep_policies(at: Situation, course: Course) -> Course:
    """Remembers the spec's settings when they are new, which ends an overlay."""
    held, wanted = course.progress, at.given.speculation
    if held.policies and held.policies[0].settings == wanted:
        return course
    # What nobody remembered is in force already; what is new will be with the next policy.
    number = _newest(at) if at.policies and not held.policies else at.next_policy
    change = PolicyChange(number=number, at=at.seen.now, settings=wanted)
    kept = replace(held, policies=(change, *held.policies)[:MOST_KEPT], undone=None)
    course = replace(course, progress=kept)
    return course.say("PolicyChanged", "spec.speculation has other settings") if held.policies else course


def _newest(at: Situation) -> int:
    return nested.number(at.policies[0], "number")


def undo(at: Situation, course: Course, note: str, *, to: int | None = None) -> Course | None:
    """The course with the settings before those in force, or those that policy `to` had; None where none are known or
    they are in force.

    After policies 3, 7 and 12 changed the settings, `to` = 9 are those of 7, and without `to` it is 7, then 3. `to` =
    12 takes an overlay away.
    """
    held = course.progress
    in_force = 0 if held.undone is None else held.policies.index(held.undone.back_to)
    places = range(in_force + 1, len(held.policies)) if to is None else range(len(held.policies))
    found = next((place for place in places if to is None or held.policies[place].number <= to), in_force)
    if found == in_force:
        return None
    back_to = held.policies[found]
    undone = PolicyUndo(back_to=back_to, at=at.seen.now, note=note) if found else None
    course = replace(course, progress=replace(held, undone=undone))
    words = f"settings of speculation are those of policy {back_to.number} until spec.speculation changes: {note}"
    return course.warn("PolicyUndone", words)


def undoable_since(held: Progress) -> datetime | None:
    """When the settings in force came; None where they are the first known, or an overlay."""
    return held.policies[0].at if len(held.policies) > 1 and held.undone is None else None


def replaced(held: Progress) -> tuple[tuple[datetime, datetime], ...]:
    """From when to when each known change was in force that is so no more; the oldest known settings are no change."""
    began = [change.at for change in held.policies]
    ended = [None if held.undone is None else held.undone.at, *began]
    return tuple((since, until) for since, until in zip(began[:-1], ended, strict=False) if until is not None)


def has_changed(at: Situation, course: Course) -> bool:
    """Whether this very look found new settings in the spec."""
    before = at.seen.progress.policies
    return bool(before) and before != course.progress.policies
