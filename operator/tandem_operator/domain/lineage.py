"""Knows who is told that a draft was taught by another target than the one it proposes to, and that pods of one hash
hold different weights or tokenizers; and what is noted of the latter.

Refuses to know how that is found out (`gates`). Both are warnings and no refusals: no law of a text hangs on a draft,
and how much of what it proposes is accepted is measured; and which of two weights was meant, nobody here can tell.
"""

from dataclasses import replace

from tandem_operator.domain import gates
from tandem_operator.domain.moves import LONGEST_NOTE
from tandem_operator.domain.observed import ANNOTATION_TOKENIZER
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


def note_tokenizers(at: Situation, course: Course) -> Course:
    """What the first pod of a target hash reads text with is what the hash stands for. It stands on the records of the
    revisions in use, and passes from one to the next that shares the target, so that it outlives pods and records."""
    noted = at.tokenizers
    for name in sorted({at.stable_name, course.progress.rollout.revision} & at.revisions.keys()):
        stored = at.revisions[name]
        target = stored.pair.target
        found = noted.get(target) or gates.first_tokenizer(at.seen.pods, target)
        if stored.tokenizer is None and found is not None:
            why = f"revision {name} reads text with the tokenizer of its target's first pod"
            course = course.mark(name, {ANNOTATION_TOKENIZER: found}, why)
    return course


def warn_of_mixed_weights(at: Situation, course: Course) -> Course:
    """One event until all pods of each hash agree again."""
    found = gates.mixed(at.seen.pods, at.tokenizers)
    if (found is not None) is bool(course.progress.warned_of_digests):
        return course
    told = course if found is None else course.warn(found.reason, found.message[:LONGEST_NOTE])
    return replace(told, progress=replace(told.progress, warned_of_digests=None if found is None else True))
