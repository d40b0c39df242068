"""Knows who is told that a draft was taught by another target than the one it proposes to, and that pods of one hash
hold different weights.

Refuses to know how that is found out (`gates`). Both are warnings and no refusals: no law of a text hangs on a draft,
and how much of what it proposes is accepted is measured; and which of two weights was meant, nobody here can tell.
"""

from dataclasses import replace

from tandem_operator.domain import gates
from tandem_operator.domain.moves import LONGEST_NOTE
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.situation import Course, Situation


def warn_of_lessons(at: Situation, course: Course) -> Course:
    """One event per revision, when it is on its way; and of one that served before anybody was told of any."""
    held = course.progress
    on_its_way = held.rollout.stage not in (Stage.STABLE, Stage.RETURNING)
    name = held.rollout.revision or at.stable_name
    pair = at.pair(name)
    words = None if pair is None else gates.taught_elsewhere(pair, at.seen.pods)
    if words is None or held.warned_of == name or (held.warned_of is not None and not on_its_way):
        return course
    told = course.warn("DraftOfAnotherTarget", f"revision {name}: {words}")
    return replace(told, progress=replace(told.progress, warned_of=name))


def warn_of_mixed_weights(at: Situation, course: Course) -> Course:
    """One event until all pods of each hash agree again."""
    found = gates.mixed(at.seen.pods)
    if (found is not None) is bool(course.progress.warned_of_digests):
        return course
    told = course if found is None else course.warn(found.reason, found.message[:LONGEST_NOTE])
    return replace(told, progress=replace(told.progress, warned_of_digests=None if found is None else True))
