"""Knows the rules that move a rollout, each by itself: commands, alerts, edits, deadlines, gates, analysis, readiness.

Refuses to know their order (`decide`) and what the moves leave behind (`moves`).

A rule takes the situation and the course so far and returns the course; one that has nothing to say returns it as it
was. No rule ends a decision early, so that an abort acts whatever else is broken.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from tandem_operator.domain import alerts, commands, gates, health, loading, rollout, room, undo, upgrade
from tandem_operator.domain.commands import Command, CommandKind
from tandem_operator.domain.decision import CheckResult, CheckVerdict, GateResult, GateVerdict
from tandem_operator.domain.judgement import judge, record_lacks, too_large
from tandem_operator.domain.moves import (
    ANSWERS,
    Ending,
    arrive,
    brought_back,
    end_canary,
    give_up_rollback,
    point,
    send,
    take_back,
)
from tandem_operator.domain.observed import ANNOTATION_REASON, ANNOTATION_VERDICT, MadeStableBy, RevisionVerdict
from tandem_operator.domain.progress import (
    AlertAction,
    AnsweredAlert,
    Progress,
    Rollout,
    SpeculationReason,
    SpeculationState,
    Stage,
    Surge,
)
from tandem_operator.domain.readiness import installed, is_warm, pods_are_there
from tandem_operator.domain.revision import Role
from tandem_operator.domain.rollout import Signal
from tandem_operator.domain.situation import Course, Situation
from tandem_operator.domain.spec import CanaryStep, OnInconclusive, SurgeMode

# Where the last look left off


def settle(at: Situation, course: Course) -> Course:
    """A stage that waited for the pointer ends when the pointer is there, and marks that are still missing are made."""
    moved = course.progress.rollout
    arrived = moved.stage is Stage.INSTALLING or moved.revision == at.stable_name
    if at.stable is not None and arrived:
        course = arrive(at, course, at.stable)
    if moved.stage is Stage.COMPLETING and arrived:
        course = replace(course, progress=replace(course.progress, rolled_back=None))
    return _mark_again(at, course)


def _mark_again(at: Situation, course: Course) -> Course:
    """Progress is written before the marks that follow from it; a kill between the two must lose none."""
    kept = {
        revision: annotations
        for revision, annotations in course.progress.marks.items()
        if revision in at.revisions and not at.is_marked(revision, annotations)
    }
    course = replace(course, progress=replace(course.progress, marks=kept))
    for revision, annotations in kept.items():
        course = course.mark(revision, annotations, f"what was decided of revision {revision} is not on it yet")
    return course


# Commands and alerts


def obey(at: Situation, course: Course) -> Course:
    """Every command that is new acts once, on the revision it names, and is echoed whole."""
    for command in commands.unhandled(at.seen.resource.annotations, course.progress.handled):
        course = _OBEY[command.kind](at, course, command)
        handled = {**course.progress.handled, command.annotation: command.text}
        course = replace(course, progress=replace(course.progress, handled=handled))
    return course


def _ignore(course: Course, command: Command, why: str) -> Course:
    return course.warn("CommandIgnored", f"{command.annotation}: {command.text}: {why}")


def _obey_speculation(at: Situation, course: Course, command: Command) -> Course:
    if command.value not in ("on", "off") or command.revision not in (at.stable_name, at.current):
        return _ignore(course, command, f"wanted on@{at.stable_name}#NONCE or off@{at.stable_name}#NONCE")
    return replace(course, switch=command.value == "on")


def _obey_abort(at: Situation, course: Course, command: Command) -> Course:
    moved = course.progress.rollout
    if not rollout.on_trial(moved) or command.revision != moved.revision:
        return _ignore(course, command, "no canary of this revision is under way")
    return end_canary(at, course, Ending(reason="Aborted", note="by command"))


def _obey_rollback(at: Situation, course: Course, command: Command) -> Course:
    """One that is under way goes elsewhere, or is given up: what it waits for may never come."""
    moved = course.progress.rollout
    returning = moved.stage is Stage.RETURNING
    to = command.value or ("" if at.previous is None or returning else at.previous.name)
    if command.revision != at.stable_name:
        return _ignore(course, command, "this revision is not the active one")
    if returning and to == at.stable_name:
        return give_up_rollback(at, course, "by command")
    if to not in at.revisions or to in (at.stable_name, moved.revision if returning else ""):
        return _ignore(course, command, f"there is no stored revision {to!r} to return to")
    ending = Ending(reason="RolledBackByCommand", note=f"to revision {to}")
    return take_back(at, course, to, by=MadeStableBy.ROLLBACK, ending=ending)


def _obey_retry(at: Situation, course: Course, command: Command) -> Course:
    refused = course.progress.refused or (at.current if at.is_bad(at.current) else "")
    if not refused or command.revision != refused:
        return _ignore(course, command, "this revision is not refused")
    course = replace(course, progress=replace(course.progress, refused="", rolled_back=None))
    course = course.say("Retried", f"revision {refused} may be tried again")
    if refused not in at.revisions:
        return course
    annotations = {ANNOTATION_VERDICT: str(RevisionVerdict.UNKNOWN), ANNOTATION_REASON: "Retried"}
    return course.judge(refused, annotations, f"revision {refused} may be tried again, by command")


def _obey_promote(at: Situation, course: Course, command: Command) -> Course:
    moved = course.progress.rollout
    if moved.stage is not Stage.PAUSED or command.revision != moved.revision:
        return _ignore(course, command, "no canary of this revision waits at a pause")
    last = rollout.is_last(moved, at.spec.canary)
    course = send(at, course, Signal.PROMOTED_ALL if last else Signal.PROMOTED)
    return course.say("CanaryStep", f"revision {moved.revision} goes on by command")


def _obey_policy_undo(at: Situation, course: Course, command: Command) -> Course:
    if command.revision != at.stable_name or (command.value and not command.value.isdecimal()):
        return _ignore(course, command, f"wanted @{at.stable_name}#NONCE or NUMBER@{at.stable_name}#NONCE")
    if not command.value and undo.has_changed(at, course):
        # Does it mean the edit, or what the edit replaced? A wrong guess would bring back what is being mended.
        why = f"spec.speculation was edited at the same moment, and that counts; NUMBER@{at.stable_name}#NONCE is plain"
        return _ignore(course, command, why)
    to = int(command.value) if command.value else None
    undone = undo.undo(at, course, "by command", to=to)
    return undone or _ignore(course, command, "no such earlier settings of speculation are known")


def _obey_upgrade(at: Situation, course: Course, command: Command) -> Course:
    named = at.revisions.get(command.revision)
    meant = named is not None and at.is_of_spec(named) and named.name in (at.current, at.stable_name)
    if named is None or not meant or command.value:
        return _ignore(course, command, f"wanted @{at.current}#NONCE, the revision that the spec means")
    if at.refusal is not None:
        return _ignore(course, command, f"nothing can be made of this spec: {at.refusal}")
    if course.progress.rollout.stage is Stage.RETURNING:
        return _ignore(course, command, "a rollback is under way")
    return upgrade.upgrade(at, course, named)


_OBEY: Mapping[CommandKind, Callable[[Situation, Course, Command], Course]] = {
    CommandKind.SPECULATION: _obey_speculation,
    CommandKind.POLICY_UNDO: _obey_policy_undo,
    CommandKind.ABORT: _obey_abort,
    CommandKind.ROLLBACK_TO: _obey_rollback,
    CommandKind.RETRY: _obey_retry,
    CommandKind.PROMOTE: _obey_promote,
    CommandKind.UPGRADE: _obey_upgrade,
}


def heed_alerts(at: Situation, course: Course) -> Course:
    """Each intent is answered once, oldest first; an answered one only waits for its annotation to go."""
    known = {alert.key for alert in course.progress.alerts}
    for key, intent in alerts.intents(at.seen.resource.annotations).items():
        if key not in known:
            course = _heed_unreadable(at, course, key) if intent is None else _heed(at, course, key, intent)
    return course


def _heed(at: Situation, course: Course, key: str, intent: alerts.Intent) -> Course:
    standing = _standing(at, course.progress)
    action, why = alerts.judge(intent, standing)
    note = f"{intent.name}, started {intent.starts_at:%Y-%m-%d %H:%M:%S} UTC: {why}"
    revision = course.progress.rollout.revision if action is AlertAction.ABORTED_CANARY else at.stable_name
    bad = intent.revision == revision
    match action:
        case AlertAction.ROLLED_BACK if at.previous is not None:
            ending = Ending(reason="Alert", note=note, bad=True)
            course = take_back(at, course, at.previous.name, by=MadeStableBy.ALERT, ending=ending)
        case AlertAction.POLICY_UNDONE:
            course = undo.undo(at, course, note) or course
        case AlertAction.ABORTED_CANARY:
            course = end_canary(at, course, Ending(reason="Alert", note=note, bad=bad))
        case _:
            course = course.warn(f"Alert{action}", note)
    answered = AnsweredAlert(key=key, name=intent.name, revision=revision, action=action, at=at.seen.now, note=why)
    return _echo(course, replace(answered, since=alerts.begun(action, standing)))


def _heed_unreadable(at: Situation, course: Course, key: str) -> Course:
    """What is no intent is answered too, or its annotation would stay for ever."""
    ignored, why = AlertAction.IGNORED, "the annotation is no alert intent"
    return _echo(course, AnsweredAlert(key=key, name="", revision="", action=ignored, at=at.seen.now, note=why))


def _echo(course: Course, answered: AnsweredAlert) -> Course:
    return replace(course, progress=replace(course.progress, alerts=alerts.echoed(course.progress, answered)))


def _standing(at: Situation, progress: Progress) -> alerts.Standing:
    moved = progress.rollout
    trial = rollout.on_trial(moved)
    return alerts.Standing(
        now=at.seen.now,
        rules=at.spec.rollback,
        stable=at.stable,
        previous=at.previous,
        canary=progress.rollout.revision if trial else "",
        canary_since=progress.rollout.started_at if trial else None,
        policy_since=undo.undoable_since(progress),
        policies_over=undo.replaced(progress),
        returning=progress.rollout.stage is Stage.RETURNING,
        recreates=(moved.surge is Surge.RECREATE and moved.gave_way is not None) or _is_coming_back(at),
        answered=progress.alerts,
    )


def keep_stalled(at: Situation, course: Course) -> Course:
    """An alert that found no way back stays visible while the revision it spoke of serves."""
    stalled = [alert for alert in course.progress.alerts if alert.action is AlertAction.STALLED]
    if not stalled or stalled[-1].revision != at.stable_name:
        return course
    last = stalled[-1]
    gate = GateResult(GateVerdict.OPEN, "RollbackImpossible", f"alert {last.name}: {last.note}")
    return replace(course, stalled=gate)


# What the spec asks for


def follow_spec(at: Situation, course: Course) -> Course:
    """The revision that the spec means is set out for, unless it serves, is under way, is refused or may not move."""
    course = _forget_refusal(at, course)
    moved = course.progress.rollout
    if moved.stage is Stage.INSTALLING:
        return _install(at, course)
    if moved.stage is Stage.RETURNING or at.stable is None:
        return course
    if rollout.on_trial(moved) and moved.revision == at.current:
        return room.set_aside(at, course)
    if at.current == at.stable_name:
        return _back_to_stable(at, course) if rollout.on_trial(moved) else course
    return _try_new(at, course)


def _forget_refusal(at: Situation, course: Course) -> Course:
    """A refusal holds until a hashed field changes: until the spec means another revision than the refused one."""
    if course.progress.refused in ("", at.current) or course.progress.rollout.stage is Stage.RETURNING:
        return course
    if not at.seen.progress.refused:
        return course
    return replace(course, progress=replace(course.progress, refused=""))


def _install(at: Situation, course: Course) -> Course:
    """The first revision has no canary, and any edit replaces it."""
    if at.refusal is not None or at.spec.paused or course.progress.rollout.revision == at.current:
        return course
    return send(at, course, Signal.FIRST, revision=at.current)


def _back_to_stable(at: Situation, course: Course) -> Course:
    revision = course.progress.rollout.revision
    ended = send(at, course, Signal.ENDED)
    return ended.say("CanaryEnded", f"revision {revision}: the spec went back to stable's {at.stable_name}")


def _try_new(at: Situation, course: Course) -> Course:
    """A new canary, whose evidence starts with nothing; one that it supersedes did not fail and is not refused.

    What gave way to that one comes back first: of a stable that serves nobody there is nothing to be known.
    """
    moved = course.progress.rollout
    if at.refusal is not None or at.spec.paused:
        return course
    if room.is_set_aside(at):
        return room.set_aside(at, course)
    refused = at.current == course.progress.refused or at.is_bad(at.current)
    if rollout.on_trial(moved):
        course = course.say("CanaryEnded", f"revision {moved.revision}: superseded by {at.current}")
        if refused or moved.gave_way is not None:
            return send(at, course, Signal.ENDED)
    if refused or _is_coming_back(at):
        return course
    course = send(at, course, Signal.NEW, revision=at.current)
    surge = course.progress.rollout.surge
    return course.say("CanaryStarted", f"revision {at.current} against {at.stable_name}, {surge}")


def _is_coming_back(at: Situation) -> bool:
    """Whether stable's target was taken down for a canary and is not there again, where another would do the same."""
    if at.stable is None or at.spec.canary.surge is not SurgeMode.RECREATE or not at.is_just_back:
        return False
    return not at.ready(Role.TARGET, at.stable.pair.target)


# Deadlines, capacity, gates


def keep_deadlines(at: Situation, course: Course) -> Course:
    """Past its deadline a canary is aborted, not Bad; a first rollout has nothing to go back to and goes on trying."""
    moved = course.progress.rollout
    if moved.deadline_at is None or at.seen.now < moved.deadline_at or moved.stage is Stage.PAUSED:
        return course
    if moved.stage is Stage.INSTALLING:
        message = f"revision {moved.revision} is not ready after {at.spec.progress_deadline_seconds} s; still trying"
        return replace(course, stalled=GateResult(GateVerdict.OPEN, "ProgressDeadlineExceeded", message))
    if not rollout.on_trial(moved):
        return course
    late = _late(at, course)
    return end_canary(at, course, late)


def _late(at: Situation, course: Course) -> Ending:
    moved = course.progress.rollout
    within = f"within {at.spec.canary.progress_deadline_seconds} s"
    if moved.unschedulable_since is not None:
        words = gates.capacity(room.canary_pods(at, moved.revision)).message
        return Ending(reason="NoCapacity", note=f"no room {within}: {words}")
    if moved.stage is Stage.GATHERING:
        return _late_to_gather(at, course, within)
    if moved.stage is Stage.STEPPING:
        missing = [check for check in judge(at, course).checks if check.verdict not in _STANDS_IN_NO_WAY]
        words = "; ".join(f"{check.name}: {check.message}" for check in missing) or "the hold was not over"
        return Ending(reason="Inconclusive", note=f"not decided {within}: {words}")
    return Ending(reason="NotReadyInTime", note=f"{loading.lacking(at, moved.revision)} {within}")


def _late_to_gather(at: Situation, course: Course, within: str) -> Ending:
    """Who did not ask for it came to this for want of room, and hears of that."""
    unknown = f"too little is known of stable to replace its pods {within}: {record_lacks(at, judge(at, course))}"
    if at.spec.canary.surge is SurgeMode.AUTO:
        return Ending(reason="NoCapacity", note=f"no room beside stable's draft, and {unknown}")
    return Ending(reason="Inconclusive", note=unknown)


_STANDS_IN_NO_WAY = (CheckVerdict.PASS, CheckVerdict.NOT_COMPARED)


def mind_gates(at: Situation, course: Course) -> Course:
    """A canary whose models fit neither each other nor the gateways, whose pods crash, or for which memory is short."""
    moved = course.progress.rollout
    pair, gone = at.pair(moved.revision), "its ControllerRevision is gone"
    if moved.stage is Stage.RETURNING and pair is None:
        return give_up_rollback(at, course, gone)
    if not rollout.on_trial(moved):
        return course
    if pair is None:
        return end_canary(at, course, Ending(reason="RevisionLost", note=gone))
    fit = gates.compatible(pair, at.seen.pods)
    if fit.verdict is GateVerdict.CLOSED:
        return end_canary(at, course, Ending(reason="ModelsIncompatible", note=fit.message, bad=True))
    strange = None if at.stable is None else gates.retokenized(at.stable.pair, pair, at.seen.pods, at.tokenizers)
    if strange is not None:
        return end_canary(at, course, Ending(reason="TokenizerChanged", note=strange))
    crashing = gates.crash_looping(room.canary_pods(at, moved.revision))
    if crashing is not None:
        note = f"pod {crashing.name} restarted {crashing.restarts} times"
        return end_canary(at, course, Ending(reason="CrashLooping", note=note, bad=True))
    breaker = course.progress.breaker
    if breaker.state is SpeculationState.DISABLED and breaker.reason is SpeculationReason.MEMORY_PRESSURE:
        return end_canary(at, course, Ending(reason="MemoryPressure", note=breaker.note))
    return course


# Analysis


def analyse(at: Situation, course: Course) -> Course:
    """Weighs the evidence; a failed check ends the canary, a passed step leads on."""
    moved = course.progress.rollout
    if not rollout.on_trial(moved):
        return course
    judged = judge(at, course)
    unsaved = too_large(judged)
    if unsaved is not None:
        return end_canary(at, replace(judged, save=False), Ending(reason="EvidenceTooLarge", note=unsaved))
    verdict = health.worst(judged.checks)
    if verdict is CheckVerdict.FAIL:
        return end_canary(at, judged, _failed(judged))
    if moved.stage is not Stage.STEPPING or at.spec.paused or not hold_is_over(at, course):
        return judged
    if moved.quiet_since is not None:  # what is silenced is not at its best, nor safe, and may be heard again
        return judged
    step = rollout.step_of(moved, at.spec.canary)
    if verdict is CheckVerdict.PASS:
        return _pass_step(at, judged, step)
    if at.spec.canary.analysis.on_inconclusive is OnInconclusive.ABORT:
        return end_canary(at, judged, Ending(reason="Inconclusive", note="onInconclusive is Abort"))
    return judged


def _failed(course: Course) -> Ending:
    failed = [check for check in course.checks if check.verdict is CheckVerdict.FAIL]
    rule = failed[0].name.partition(".")[0]
    return Ending(reason=f"{rule[0].upper()}{rule[1:]}Failed", note="; ".join(map(_numbers, failed)), bad=True)


def _numbers(check: CheckResult) -> str:
    interval = f" in [{check.low}, {check.high}]" if check.low or check.high else ""
    return f"{check.title} {check.value}{interval}, wanted {check.threshold}, {check.samples}"


def _passed(course: Course) -> str:
    """The checks with their values; what was not compared is named, so that nobody takes it for passed."""
    open_ones = (CheckVerdict.NOT_COMPARED,)
    told = [(check.name, str(check.verdict) if check.verdict in open_ones else check.value) for check in course.checks]
    return ", ".join(f"{name} {words}" for name, words in told if words) or "no numbers yet"


def hold_end(at: Situation, course: Course) -> datetime | None:
    """When the hold of the present step is over; None outside a step."""
    moved = course.progress.rollout
    if moved.stage is not Stage.STEPPING or moved.step_started_at is None:
        return None
    return moved.step_started_at + timedelta(seconds=rollout.step_of(moved, at.spec.canary).hold_seconds)


def hold_is_over(at: Situation, course: Course) -> bool:
    end = hold_end(at, course)
    return end is not None and at.seen.now >= end


def _pass_step(at: Situation, course: Course, step: CanaryStep) -> Course:
    moved = course.progress.rollout
    course = course.say("CanaryStep", f"revision {moved.revision} passed {step.percent} %: {_passed(course)}")
    if step.pause:
        return send(at, course, Signal.PASSED_AND_WAITS)
    last = rollout.is_last(moved, at.spec.canary)
    return send(at, course, Signal.PASSED_ALL if last else Signal.PASSED)


# Readiness


def go_on(at: Situation, course: Course) -> Course:
    """What was waited for is there: a step begins, a revision becomes stable."""
    moved = course.progress.rollout
    match moved.stage:
        case Stage.INSTALLING if installed(at, moved.revision):
            return point(at, course, moved.revision, by=MadeStableBy.FIRST_ROLLOUT, note=ANSWERS)
        case Stage.GATHERING if not at.spec.paused and not record_lacks(at, course):
            return send(at, course, Signal.RECORDED)
        case Stage.CLEARING if _may_go_on(at, moved) and room.is_cleared(at, moved.revision):
            return send(at, course, Signal.CLEARED)
        case Stage.PREPARING if _may_go_on(at, moved) and pods_are_there(at, course):
            return send(at, course, Signal.READY)
        case Stage.COMPLETING if not at.spec.paused and moved.quiet_since is None and pods_are_there(at, course):
            return point(at, course, moved.revision, by=MadeStableBy.PROMOTION, note=_passed(course))
        case Stage.RETURNING if is_warm(at, moved.revision):
            note = brought_back(course.progress.rolled_back)
            return point(at, course, moved.revision, by=MadeStableBy(moved.returning_for), note=note)
        case _:
            return course


def _may_go_on(at: Situation, moved: Rollout) -> bool:
    """`paused` holds everything but the way to a pair that serves, where there is none: that one is then not judged."""
    return not at.spec.paused or rollout.serves_nobody(moved)
