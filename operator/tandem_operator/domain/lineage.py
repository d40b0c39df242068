"""Knows who is told that a draft was taught by another target than the one it proposes to.

Refuses to know how that is found out (`gates`). It is a warning and no refusal: no law of a text hangs on a
draft, and how much of what it proposes is accepted is measured.
"""

from dataclasses import replace

from tandem_operator.domain import gates
from tandem_operator.domain.situation import Course, Situation


def warn_of_lessons(at: Situation, course: Course) -> Course:
    """One event per revision, whether it is on its way or serves."""
    name = course.progress.rollout.revision or at.stable_name
    pair = at.pair(name)
    words = None if pair is None else gates.taught_elsewhere(pair, at.seen.pods)
    if words is None or course.progress.warned_of == name:
        return course
    told = course.warn("DraftOfAnotherTarget", f"revision {name}: {words}")
    return replace(told, progress=replace(told.progress, warned_of=name))
