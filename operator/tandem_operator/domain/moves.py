"""Knows the moves that several rules make: ending a canary, taking a revision back, moving the stable pointer.

Refuses to know when to make them. Each leaves its trace in progress, as an event with the numbers, and on the
revisions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tandem_operator.domain import policy, record, retired, rollout
from tandem_operator.domain.decision import CheckResult
from tandem_operator.domain.nested import text
from tandem_operator.domain.observed import (
    ANNOTATION_MADE_STABLE_BY,
    ANNOTATION_REASON,
    ANNOTATION_RECORD,
    ANNOTATION_STABLE_SINCE,
    ANNOTATION_VERDICT,
    GROUP,
    MadeStableBy,
    RevisionVerdict,
    StoredRevision,
)
from tandem_operator.domain.progress import RolledBack, Stage, Surge
from tandem_operator.domain.revision import Revision, Role
from tandem_operator.domain.rollout import Entry, Signal
from tandem_operator.domain.situation import Course, Situation

LONGEST_NOTE = 900
"""Of an event's note, which the API server cuts at 1,024 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a canary ends or a revision is taken back; `bad`: the revision itself is to blame."""

    reason: str
    note: str
    bad: bool = False


def entry(at: Situation, *, revision: str = "", reason: str = "") -> Entry:
    """What the rollout table needs for a transition at this moment."""
    pair = at.pair(revision)
    surge = Surge.SHARED_TARGET
    if at.stable is not None and pair is not None:
        surge = rollout.surge_of(at.stable.pair, pair, at.spec.canary.surge)
    return Entry(
        now=at.seen.now,
        spec=at.spec,
        revision=revision,
        surge=surge,
        # Stable's record, which a canary in place is held against, reaches back as far as the policy in force.
        first_policy=at.policy_in_force if surge.in_turn and _is_on_record(at) else at.next_policy,
        reason=reason,
    )


def _is_on_record(at: Situation) -> bool:
    """Whether stable did what it can, for those who will speculate with the canary, under the policy in force."""
    alike = bool(at.policies) and policy.same_requests_speculate(at.policies[0], at.spec.speculation)
    return alike and not at.is_just_back


def send(at: Situation, course: Course, signal: Signal, *, revision: str = "", reason: str = "") -> Course:
    """The course after a signal to the rollout. Where pods of stable gave way, its end begins their return."""
    before = course.progress
    moved = rollout.advance(before.rollout, signal, entry(at, revision=revision, reason=reason))
    returns = signal is Signal.ENDED and before.rollout.gave_way is not None
    hampered = at.next_policy if returns else before.hampered
    after = replace(before, rollout=moved, hampered=hampered)
    left = before.rollout.revision
    if before.rollout.stage is not Stage.INSTALLING and moved.revision != left and signal is not Signal.POINTER_MOVED:
        after = retired.retire(after, left) if left else after
    return replace(course, progress=after)


def end_canary(at: Situation, course: Course, ending: Ending) -> Course:
    """The canary ends and is refused; stable gets everything back in the same decision."""
    revision = course.progress.rollout.revision
    ended = send(at, course, Signal.ENDED)
    taken_back = _taken_back(at, revision, ending)
    ended = replace(ended, progress=replace(ended.progress, refused=revision, rolled_back=taken_back))
    ended = ended.warn(
        "CanaryAborted", _short(f"revision {revision}: {ending.reason}: {ending.note}"), cause=ending.reason
    )
    verdict = RevisionVerdict.BAD if ending.bad else RevisionVerdict.UNKNOWN
    return _record(at, ended, revision, verdict=verdict, ending=ending)


def take_back(at: Situation, course: Course, to: str, *, by: MadeStableBy, ending: Ending) -> Course:
    """The stable revision is refused and the way back to `to` begins; the pointer moves once `to` can serve."""
    gone = at.stable_name
    returning = _make_way(at, send(at, course, Signal.TAKEN_BACK, revision=to, reason=str(by)))
    taken_back = _taken_back(at, gone, ending)
    # A bad verdict refuses `gone` by itself, so that the spec's revision can stay refused.
    spared = ending.bad and course.progress.refused == at.current
    refused = course.progress.refused if spared else gone
    held = replace(returning.progress, refused=refused, rolled_back=taken_back)
    returning = replace(returning, progress=retired.retire(held, gone))
    returning = returning.warn(
        "RollingBack", _short(f"from {gone} to {to}: {ending.reason}: {ending.note}"), cause=ending.reason
    )
    verdict = RevisionVerdict.BAD if ending.bad else RevisionVerdict.GOOD
    return _record(at, returning, gone, verdict=verdict, ending=ending)


def give_up_rollback(at: Situation, course: Course, why: str) -> Course:
    """The stable revision serves on; the one that did not come back is not returned to by itself."""
    revision, ending = course.progress.rollout.revision, Ending(reason="RollbackEnded", note=why)
    ended = send(at, course, Signal.ENDED)
    taken_back = _taken_back(at, revision, ending)
    ended = replace(ended, progress=replace(ended.progress, refused="", rolled_back=taken_back))
    return ended.warn(ending.reason, f"to revision {revision}: {ending.note}; {at.stable_name} serves on")


def _make_way(at: Situation, course: Course) -> Course:
    """Where pods are recreated, those of the revision that is taken back go for a target that is cold."""
    moved = course.progress.rollout
    pair = at.pair(moved.revision)
    if moved.surge is not Surge.RECREATE or pair is None or at.wanted(Role.TARGET, pair.target):
        return course
    return replace(course, progress=replace(course.progress, rollout=replace(moved, gave_way=at.next_policy)))


def point(at: Situation, course: Course, revision: str, *, by: MadeStableBy, note: str) -> Course:
    """Makes a revision the stable one: one write of annotations. The next look sees it, ends the stage and tells it.

    Nothing in progress remembers this move, so one that fails is made again; told here, it would be told again too.
    """
    annotations = {
        ANNOTATION_STABLE_SINCE: record.dump_moment(at.seen.now),
        ANNOTATION_MADE_STABLE_BY: str(by),
    }
    if not at.is_bad(revision):
        annotations |= {ANNOTATION_VERDICT: RevisionVerdict.GOOD, ANNOTATION_REASON: str(by)}
    if by is MadeStableBy.PROMOTION:
        annotations[ANNOTATION_RECORD] = _story(at, revision, course.checks, reason="Promoted", note=note)
    why = f"revision {revision} is now the stable one ({note})"
    return course.mark(revision, annotations, why)


def arrive(at: Situation, course: Course, stable: StoredRevision) -> Course:
    """The pointer is where the stage wanted it: the stage ends. A lost status has no stage that wanted anything."""
    moved = course.progress.rollout
    ended = send(at, course, Signal.POINTER_MOVED)
    if moved.revision != stable.name or moved.stage not in _ARRIVED or ended.progress.rollout == moved:
        return ended
    return ended.say(_ARRIVED[moved.stage], _short(f"revision {stable.name}: {_why_stable(course, stable)}"))


_ARRIVED: Mapping[Stage, str] = {
    Stage.INSTALLING: "Installed",
    Stage.COMPLETING: "Promoted",
    Stage.RETURNING: "RolledBack",
}


def _why_stable(course: Course, stable: StoredRevision) -> str:
    last = course.progress.rolled_back
    match course.progress.rollout.stage:
        case Stage.COMPLETING:
            return text(stable.record, "note")
        case Stage.RETURNING:
            return brought_back(last)
        case _:
            return ANSWERS


ANSWERS = "target and gateway answer"


def brought_back(last: RolledBack | None) -> str:
    """Why a revision serves again."""
    return "brought back" if last is None else f"brought back: {last.reason}: {last.note}"


def _taken_back(at: Situation, revision: str, ending: Ending) -> RolledBack:
    return RolledBack(revision=revision, reason=ending.reason, note=ending.note, at=at.seen.now, bad=ending.bad)


def _record(at: Situation, course: Course, revision: str, *, verdict: RevisionVerdict, ending: Ending) -> Course:
    """The decision record on the revision that was ended; one whose record is gone has nowhere to keep it."""
    if revision not in at.revisions:
        return course
    annotations = {
        ANNOTATION_VERDICT: str(verdict),
        ANNOTATION_REASON: ending.reason,
        ANNOTATION_RECORD: _story(at, revision, course.checks, reason=ending.reason, note=ending.note),
    }
    return course.judge(revision, annotations, f"revision {revision} ended: {ending.reason}")


def _story(at: Situation, revision: str, checks: Sequence[CheckResult], *, reason: str, note: str) -> str:
    """What changed, against what, on which evidence, and what would reverse it."""
    pair, stable = at.pair(revision), at.stable
    changed = [] if pair is None or stable is None else _changed(stable.pair, pair)
    story = {
        "at": record.dump_moment(at.seen.now),
        "changed": changed,
        "baseline": at.stable_name,
        "reason": reason,
        "note": note,
        "checks": [record.dump(check) for check in checks],
        "reversedBy": f"{GROUP}/rollback-to"
        if reason == "Promoted"
        else f"an edit of a hashed field, or {GROUP}/retry",
    }
    return json.dumps(story, sort_keys=True)


def _changed(before: Revision, after: Revision) -> list[str]:
    parts = (("target", before.target, after.target), ("draft", before.draft, after.draft))
    return [f"{name} {old} -> {new}" for name, old, new in parts if old != new]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_NOTE else f"{text[:LONGEST_NOTE]}…"
