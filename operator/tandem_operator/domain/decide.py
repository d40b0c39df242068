"""Knows the one order in which everything is decided: `decide(Observed) -> Decision`, pure and complete.

Refuses to know rules (`steering`, `breaker`), and what a decision costs in writes (`plan`).

ORDER is the order of rules. Commands, alerts and the breaker come first and nothing returns before them, so that an
abort, a rollback and a switch act whatever else is broken: a paused object, a canary that is never ready, gateways that
do not answer. Then deadlines, then gates, then analysis, then the next step.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from tandem_operator.domain import (
    breaker,
    gates,
    lineage,
    loading,
    lookups,
    policy,
    pressure,
    readiness,
    record,
    retired,
    rollout,
    room,
    situation,
    steering,
    undo,
    upgrade,
    window,
)
from tandem_operator.domain.decision import (
    Decision,
    Figures,
    GateResult,
    GateVerdict,
    JsonObject,
    PodsWanted,
    RevisionWanted,
    Share,
    Weight,
)
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.nested import number, text
from tandem_operator.domain.observed import Observed, StoredRevision
from tandem_operator.domain.progress import Progress, SpeculationState, Stage
from tandem_operator.domain.revision import FIRST_EDITION, NOTHING, Revision, Role
from tandem_operator.domain.situation import Course, Situation

STEADY_SECONDS = 10
"""How long nothing need be looked at: the breaker must act fast, and a look at steady traffic writes nothing."""
WAITING_SECONDS = 2
"""While pods or gateways are waited for: what gateways admit causes no watch event."""

BETWEEN_FIGURES = timedelta(seconds=60)
TWO_POINTS = 0.02
WOBBLE = 4
"""Live figures are put into status at this pace, and for this much in points and standard errors; finer data is in the
metrics. Two windows of equal traffic differ by 4 errors once in hundreds."""


def decide(seen: Observed) -> Decision:
    """What follows from one look; the same look gives the same decision, and no input raises."""
    try:
        at = situation.read(seen)
    except SpecError as refused:
        return _hold_everything(seen, str(refused))
    course = Course(progress=seen.progress)
    if _is_lost(at, course):
        return _keep_serving(at)
    for rule in ORDER:
        at = at.under(course.progress)
        course = rule(at, course)
    return _conclude(at.under(course.progress), course)


def mind_breaker(at: Situation, course: Course) -> Course:
    """Takes speculation away or brings it back; each turn is an event with its numbers."""
    judged = at.stable_name or course.progress.rollout.revision
    pair = at.pair(judged)
    if pair is None:
        return course
    before = course.progress.breaker
    after = breaker.turn(before, _facts(at, course, judged, pair))
    course = replace(course, progress=replace(course.progress, breaker=after))
    if (after.state, after.reason) == (before.state, before.reason) or not before.revision:
        return course
    weight = Weight.NORMAL if after.state in (SpeculationState.ACTIVE, SpeculationState.PROBING) else Weight.WARNING
    return course.say(f"Speculation{after.state}", f"{after.reason}: {after.note}", weight, cause=after.reason)


ORDER: tuple[Callable[[Situation, Course], Course], ...] = (
    retired.recall,
    steering.settle,
    undo.keep_policies,
    upgrade.keep,
    steering.obey,
    steering.heed_alerts,
    pressure.mind_pressure,
    mind_breaker,
    steering.follow_spec,
    steering.keep_stalled,
    steering.keep_deadlines,
    steering.mind_gates,
    lineage.warn_of_lessons,
    lookups.note_methods,
    loading.note_digests,
    lineage.note_tokenizers,
    lineage.warn_of_mixed_weights,
    room.mind_room,
    steering.analyse,
    steering.go_on,
)


def _facts(at: Situation, course: Course, name: str, pair: Revision) -> breaker.Facts:
    before, spec = course.progress.breaker, at.spec
    same = before.revision == name
    first = before.first_policy if same else at.next_policy
    slots = spec.speculation.control.slot_seconds
    lately = window.look(at.seen, name, pair, slot_seconds=slots, since_policy=first)
    # A probe speculates in one slot of five: one window may never hold enough requests, so all of the probe counts.
    probing = same and before.state is SpeculationState.PROBING
    found = window.look(at.seen, name, pair, slot_seconds=slots, since_policy=first, whole=True) if probing else lately
    fewest = spec.canary.analysis.min_slots
    # While a canary is silenced for want of memory, that is seen to: stable is not to be punished for it.
    memory = breaker.MemoryUse() if pressure.is_quiet(course.progress.rollout) else pressure.use_of(at, pair.target)
    return breaker.Facts(
        now=at.seen.now,
        marks=spec.auto_disable,
        revision=name,
        next_policy=at.next_policy,
        mode=spec.speculation.mode,
        compatible=gates.compatible(pair, at.seen.pods).verdict is not GateVerdict.CLOSED,
        draft_ready=_draft_ready(at, name, pair),
        draft_away=course.progress.rollout.gave_way is not None,
        acceptance=found.acceptance,
        requests=found.requests,
        served=0 if lately.sums is None else lately.sums.requests,
        shadow=found.shadow,
        speedup=found.speedup if found.speedup is not None and found.speedup.units >= fewest else None,
        rounds=lately.on_rounds,
        speculating=0 if lately.sums is None else lately.sums.speculating,
        memory_basis_points=memory.working_set_basis_points,
        kv_basis_points=memory.kv_basis_points,
        preempting=memory.preempting,
        switch=course.switch,
    )


def _draft_ready(at: Situation, name: str, pair: Revision) -> bool | None:
    """A lookup is ready wherever a gateway is."""
    if at.looks_up(name):
        return True
    return None if pair.draft is None else at.ready(Role.DRAFT, pair.draft) > 0


def _conclude(at: Situation, course: Course) -> Decision:
    pods = _pods(at, course)
    course = _with_retired(at, course, pods)
    told, weights = _told(at, course)
    document = _policy(at, course, told, weights)
    moved = course.progress.rollout
    figures = _figures(at, weights)
    shown = _moved_enough(at, figures)
    held = _while_hampered(at, _with_policy(course.progress, document), document)
    held = replace(held, figures_at=at.seen.now) if shown else held
    pair = at.pair(moved.revision or at.stable_name)
    used = _in_use(at, course, weights)
    wanted = [share.revision for share in weights if share.revision not in at.revisions]
    return Decision(
        spec=at.spec,
        refusal=at.refusal,
        current=at.current,
        stable=at.stable_name,
        previous="" if at.previous is None else at.previous.name,
        progress=held,
        hold=bool(wanted) and (at.refusal is not None or wanted[0] != at.current),
        shares=weights,
        pods=pods,
        new_revision=_new_revision(at, wanted[0]) if wanted else None,
        forgotten=_forgotten(at, course),
        policy=document,
        kept_policies=() if document is None else policy.keep(document, at.policies),
        evidence=record.dump(course.weighed) if course.save and course.weighed is not None else None,
        loads=loading.loads(at, used),
        adapters=loading.state(at, used),
        marks=course.marks,
        checks=course.checks,
        compatible=gates.mixed(at.seen.pods, at.tokenizers)
        or (_UNKNOWN if pair is None else gates.compatible(pair, at.seen.pods)),
        capacity=gates.capacity(pod for pod in at.seen.pods if not pod.leaving),
        stalled=course.stalled,
        figures=figures,
        show_figures=shown,
        events=course.events,
        decided_at=at.seen.now,
        look_again_in_seconds=_look_again(at, course, weights),
    )


def _in_use(at: Situation, course: Course, weights: tuple[Share, ...]) -> tuple[str, ...]:
    """The revisions whose adapters target pods hold: those that gateways are told of, or were told of last, and what a
    rollback returns to in time."""
    told = [*(share.revision for share in weights), *(text(share, "name") for share in at.shares_in_force)]
    kept = [] if at.previous is None or not _is_kept_warm(at, course) else [at.previous.name]
    return tuple(dict.fromkeys([*told, *kept]))


def _with_retired(at: Situation, course: Course, pods: tuple[PodsWanted, ...]) -> Course:
    names = retired.still(at, course, {str(wanted.role_hash) for wanted in pods})
    return replace(course, progress=replace(course.progress, retired=names))


def _with_policy(held: Progress, document: JsonObject | None) -> Progress:
    """A turn of the breaker that changed no policy is judged by the one that goes on."""
    turned = held.breaker
    if document is None or turned.first_policy <= number(document, "number"):
        return held
    return replace(held, breaker=replace(turned, first_policy=number(document, "number")))


def _while_hampered(at: Situation, held: Progress, document: JsonObject | None) -> Progress:
    """Until what had given way is back, a policy that changes for any reason says nothing of what stable can do."""
    if document is None or held.hampered is None or held.rollout.stage is not Stage.STABLE or at.is_whole:
        return held
    return replace(held, hampered=max(held.hampered, number(document, "number")))


_UNKNOWN = GateResult(GateVerdict.UNKNOWN, "NotYet", "nothing has been rolled out yet")


def _told(at: Situation, course: Course) -> tuple[SpeculationState, tuple[Share, ...]]:
    """What gateways are told of speculation, and the shares.

    Where it was the stable pair's own fault that speculation is off, a canary of another pair is still judged: then
    speculation is on, but for stable's requests. These have it too while it is tried again: in one slot of five nobody
    could judge the canary. A stable that gave way has nothing to try.
    """
    moved, held = course.progress.rollout, course.progress.breaker
    if not moved.revision and at.stable is None:
        return held.state, ()
    weights = rollout.shares(moved, at.stable_name, at.spec.canary, warm=readiness.is_warm(at, moved.revision))
    weights = (*weights, *retired.shares(course.progress.retired, weights))
    trial = rollout.on_trial(moved) and held.state is not SpeculationState.ACTIVE
    if not trial or held.reason in breaker.NOT_THE_PAIRS_FAULT:
        return held.state, weights
    tried = held.state is SpeculationState.PROBING
    heard = (
        replace(share, speculate=share.speculate and (tried or share.revision != at.stable_name)) for share in weights
    )
    return SpeculationState.ACTIVE, tuple(heard)


def _policy(
    at: Situation, course: Course, told: SpeculationState, weights: tuple[Share, ...]
) -> dict[str, object] | None:
    pairs = {share.revision: at.pair(share.revision) for share in weights}
    known = {name: pair for name, pair in pairs.items() if pair is not None}
    if not weights or len(known) < len(pairs):
        return None
    resource = at.seen.resource
    terms = policy.Terms(
        spec=at.spec,
        name=resource.name,
        salt=resource.uid,
        shares=weights,
        pairs=known,
        lookups={name: str(at.method(name)) for name in known if at.looks_up(name)},
        adapters={name: loading.told(at, name) for name, pair in known.items() if pair.adapters != NOTHING},
        retired=course.progress.retired,
        state=told,
        on_trial=_is_compared(at, course, weights),
    )
    return policy.build(terms, at.policies, number=at.next_policy)


def _is_compared(at: Situation, course: Course, weights: tuple[Share, ...]) -> bool:
    """Whether off slots are wanted as often as a canary needs them: for itself, or for what it will be held against."""
    moved = course.progress.rollout
    heard = any(share.revision != at.stable_name and (share.weight or share.shadow) for share in weights)
    return rollout.on_trial(moved) and (heard or moved.stage is Stage.GATHERING)


def _pods(at: Situation, course: Course) -> tuple[PodsWanted, ...]:
    """Stable's pods whole, the canary's as its step needs, the previous revision's while a rollback may want them."""
    moved, spec = course.progress.rollout, at.spec
    targets, drafts = spec.target.replicas, spec.draft_replicas
    idle = breaker.released(course.progress.breaker, spec.auto_disable, at.seen.now)
    needs, gone = [], room.gone(at, moved)
    if at.stable is not None:
        held = 0 if (Role.TARGET, at.stable.pair.target) in gone else targets
        used = 0 if idle or (Role.DRAFT, at.stable.pair.draft) in gone else drafts
        needs.append(rollout.Need(at.stable.name, at.stable.pair, held, used))
    pair = at.pair(moved.revision) if moved.revision else None
    if pair is not None and moved.stage in (Stage.INSTALLING, Stage.RETURNING):
        needs.append(rollout.Need(moved.revision, pair, targets, drafts))
    elif pair is not None:
        few = [rollout.canary_replicas(moved, spec.canary, full) for full in (targets, drafts)]
        if moved.stage in (Stage.GATHERING, Stage.CLEARING) and not _is_unused(at, moved.revision):
            few = [at.wanted(Role.TARGET, pair.target), at.wanted(Role.DRAFT, pair.draft)]
        needs.append(rollout.Need(moved.revision, pair, few[0], few[1]))
    if at.previous is not None and _is_kept_warm(at, course):
        needs += _warm(at, at.previous, gone)
    return rollout.pods(needs)


def _warm(at: Situation, previous: StoredRevision, gone: Collection[tuple[Role, str | None]]) -> Sequence[rollout.Need]:
    """What stays up of the previous revision; as much as there is, while somebody may still be sent to it.

    What gave way to stable's pods, or to a canary's, does not come back: there may be no room for both. So it is with
    pods that it shares with stable.
    """
    spec, pair = at.spec, previous.pair
    left, most = _is_left(at, previous.name), spec.rollback.keep_warm.replicas
    targets, drafts = at.wanted(Role.TARGET, pair.target), at.wanted(Role.DRAFT, pair.draft)
    if not targets or (Role.TARGET, pair.target) in gone:
        return ()
    kept = pair if drafts and (Role.DRAFT, pair.draft) not in gone else replace(pair, draft=None)
    if left:
        targets, drafts = min(most, targets, spec.target.replicas), min(most, drafts, spec.draft_replicas)
    return (rollout.Need(previous.name, kept, targets, drafts),)


def _is_kept_warm(at: Situation, course: Course) -> bool:
    """Whether a rollback to the previous revision is to be within seconds; who finds no room is worth more."""
    longest = min(at.spec.rollback.keep_warm.seconds, at.spec.canary.rollback_window_seconds)
    since = None if at.stable is None else at.stable.stable_since
    if since is None or at.seen.now - since >= timedelta(seconds=longest):
        return False
    return course.progress.rollout.room_made_at is None and not room.has_waited_for_a_node(at, at.stable_name)


def _is_left(at: Situation, revision: str) -> bool:
    """Whether every gateway has heard that nobody is sent to a revision any more."""
    return at.is_heard and all(text(share, "name") != revision for share in at.shares_in_force)


def _is_unused(at: Situation, revision: str) -> bool:
    """Whether every gateway has heard that nobody is sent to a canary yet, or any more."""
    shares = (share for share in at.shares_in_force if text(share, "name") == revision)
    return at.is_heard and all(not share.get("weight") and not share.get("shadow") for share in shares)


def _new_revision(at: Situation, name: str) -> RevisionWanted:
    edition = at.current_pair.edition
    return RevisionWanted(name=name, number=at.next_number, edition=None if edition == FIRST_EDITION else edition)


def _forgotten(at: Situation, course: Course) -> tuple[str, ...]:
    """Revisions beyond the history limit, oldest first; none that is in use, could be returned to, or is refused."""
    used = {at.current, at.stable_name, course.progress.rollout.revision, course.progress.refused}
    used |= {"" if at.previous is None else at.previous.name, *course.progress.retired}
    old = [revision.name for revision in at.seen.revisions if revision.name not in used]
    return tuple(old[: max(0, len(old) - at.spec.revision_history_limit)])


def _figures(at: Situation, weights: tuple[Share, ...]) -> Mapping[str, Figures]:
    slots = at.spec.speculation.control.slot_seconds
    named = ((share.revision, at.pair(share.revision)) for share in weights)
    return {
        name: window.look(at.seen, name, pair, slot_seconds=slots).figures for name, pair in named if pair is not None
    }


def _moved_enough(at: Situation, figures: Mapping[str, Figures]) -> bool:
    """Whether live figures are worth a write: one is new, or moved by two points and the last write is a minute old.

    A figure that wobbles within its own error has not moved: 0.70 +- 0.01 after 0.73 is the same figure.
    """
    status, last = at.seen.resource.status, at.seen.progress.figures_at
    known = figures.get(at.stable_name)
    if known is None:
        return False
    shown = {name: text(status, "speculation", name) for name in ("acceptance", "speedup")}
    if text(status, "stableRevision") != at.stable_name:
        shown = dict.fromkeys(shown, "")  # those are of another revision
    values = {"acceptance": known.acceptance, "speedup": known.speedup}
    if any(values[name] is not None and not shown[name] for name in shown):
        return True
    if last is not None and at.seen.now - last < BETWEEN_FIGURES:
        return False
    errors = {"acceptance": known.acceptance_error, "speedup": known.speedup_error}
    return any(_moved(shown[name], values[name], errors[name]) for name in shown)


def _moved(shown: str, value: float | None, error: float) -> bool:
    return value is not None and abs(value - float(shown)) >= max(TWO_POINTS, WOBBLE * error)


def _look_again(at: Situation, course: Course, shares: tuple[Share, ...]) -> int:
    """Seconds until something may have changed by itself."""
    moved, held = course.progress.rollout, course.progress.breaker
    if course.marks or moved.stage in _WAITING or loading.loads(at, _in_use(at, course, shares)):
        return WAITING_SECONDS
    ahead = (steering.hold_end(at, course), moved.deadline_at, held.next_try_at)
    waits = [_seconds(moment - at.seen.now) for moment in ahead if moment is not None and moment > at.seen.now]
    interval = at.spec.canary.analysis.interval_seconds if rollout.on_trial(moved) else STEADY_SECONDS
    return max(1, min([STEADY_SECONDS, interval, *waits]))


_WAITING = (Stage.INSTALLING, Stage.CLEARING, Stage.PREPARING, Stage.COMPLETING, Stage.RETURNING)


def _seconds(span: timedelta) -> int:
    return -int(-span.total_seconds() // 1)


# Nothing can be decided


def _is_lost(at: Situation, course: Course) -> bool:
    """Something was serving, but the record of which revision it was is gone."""
    return at.stable is None and course.progress.rollout.stage is not Stage.INSTALLING


def _keep_serving(at: Situation) -> Decision:
    stalled = GateResult(
        GateVerdict.OPEN,
        "RevisionLost",
        "the ControllerRevision that served is gone; pods and policy are left as they are; restore it from a backup, "
        "or delete this object and create it anew",
    )
    held = _hold_everything(at.seen, None)
    return replace(held, spec=at.spec, refusal=at.refusal, current=at.current, stalled=stalled)


def _hold_everything(seen: Observed, refusal: str | None) -> Decision:
    """What serves goes on serving as it is."""
    return Decision(
        spec=None,
        refusal=refusal,
        current="",
        stable=text(seen.resource.status, "stableRevision"),
        previous="",
        progress=seen.progress,
        hold=True,
        compatible=_UNKNOWN,
        capacity=gates.capacity(pod for pod in seen.pods if not pod.leaving),
        decided_at=seen.now,
        look_again_in_seconds=STEADY_SECONDS,
    )
