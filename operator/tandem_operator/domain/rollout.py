"""Knows the stages of a rollout, what moves it between them, and what each stage wants: weights and pods.

Refuses to know why a signal was given (checks, deadlines, commands and alerts say so).

TRANSITIONS is the whole machine; the docs draw it from there. A canary walks through its steps by *Preparing* (pods for
the step come up, the weight is still that of the step before) and *Stepping* (the weight holds, evidence gathers). Only
*Completing* asks for full size, and only the moved pointer ends it: the stable revision is whatever the pointer names,
never what a stage says. A canary in place has one step of its own: stable's record is completed while stable still
speculates (*Gathering*), the pods that are to be replaced go (*Clearing*), and only then the canary's come up. Its end
brings stable's pods back, since those are what the stage *Stable* wants. A rollback is *Returning* until the pointer
has moved, whether the old target is warm (weights move at once) or cold (speculation goes, the old target comes up,
then weights move).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from tandem_operator.domain.decision import PodsWanted, Share
from tandem_operator.domain.progress import Rollout, Stage, Surge
from tandem_operator.domain.revision import Revision, Role, RoleHash
from tandem_operator.domain.spec import Canary, CanaryStep, Spec, SurgeMode


class Signal(StrEnum):
    """What moves a rollout."""

    FIRST = "first revision"
    NEW = "new revision"
    IN_PLACE = "in place"
    RECORDED = "record suffices"
    CLEARED = "old pods gone"
    READY = "pods ready"
    PASSED = "step passed"
    PASSED_AND_WAITS = "step passed, pause"
    PASSED_ALL = "last step passed"
    PROMOTED = "promote"
    PROMOTED_ALL = "promote after last step"
    ENDED = "failed, aborted, expired, superseded"
    TAKEN_BACK = "rollback"
    POINTER_MOVED = "pointer moved"


_TRIALS = (Stage.PREPARING, Stage.STEPPING, Stage.PAUSED, Stage.COMPLETING, Stage.GATHERING, Stage.CLEARING)

TRANSITIONS: Mapping[tuple[Stage, Signal], Stage] = {
    (Stage.INSTALLING, Signal.FIRST): Stage.INSTALLING,
    (Stage.INSTALLING, Signal.POINTER_MOVED): Stage.STABLE,
    (Stage.STABLE, Signal.NEW): Stage.PREPARING,
    (Stage.STABLE, Signal.TAKEN_BACK): Stage.RETURNING,
    (Stage.PREPARING, Signal.READY): Stage.STEPPING,
    (Stage.PREPARING, Signal.IN_PLACE): Stage.GATHERING,
    (Stage.GATHERING, Signal.RECORDED): Stage.CLEARING,
    (Stage.CLEARING, Signal.CLEARED): Stage.PREPARING,
    (Stage.STEPPING, Signal.PASSED): Stage.PREPARING,
    (Stage.STEPPING, Signal.PASSED_AND_WAITS): Stage.PAUSED,
    (Stage.STEPPING, Signal.PASSED_ALL): Stage.COMPLETING,
    (Stage.PAUSED, Signal.PROMOTED): Stage.PREPARING,
    (Stage.PAUSED, Signal.PROMOTED_ALL): Stage.COMPLETING,
    (Stage.COMPLETING, Signal.POINTER_MOVED): Stage.STABLE,
    (Stage.RETURNING, Signal.POINTER_MOVED): Stage.STABLE,
    (Stage.RETURNING, Signal.TAKEN_BACK): Stage.RETURNING,
    (Stage.RETURNING, Signal.ENDED): Stage.STABLE,
    **{(stage, Signal.NEW): Stage.PREPARING for stage in _TRIALS},
    **{(stage, Signal.ENDED): Stage.STABLE for stage in _TRIALS},
    **{(stage, Signal.TAKEN_BACK): Stage.RETURNING for stage in _TRIALS},
}
"""Whatever is not here changes nothing."""

IN_PLACE_PERCENT: Mapping[Surge, int] = {Surge.IN_PLACE_DRAFT: 90, Surge.RECREATE: 100}
"""A canary in place serves nearly alone, as it will; where stable still has its target, the others are decoded plainly,
and show what chance does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a transition needs: the moment, the rules, and for a new way its revision and first policy number."""

    now: datetime
    spec: Spec
    revision: str = ""
    surge: Surge = Surge.SHARED_TARGET
    first_policy: int = 0
    reason: str = ""


def advance(rollout: Rollout, signal: Signal, entry: Entry) -> Rollout:
    """The rollout after a signal; one that means nothing here changes nothing."""
    after = TRANSITIONS.get((rollout.stage, signal))
    if after is None:
        return rollout
    match after:
        case Stage.STABLE:
            return Rollout(stage=Stage.STABLE)
        case Stage.INSTALLING | Stage.RETURNING:
            return _set_out(after, entry, entry.spec.progress_deadline_seconds)
        case Stage.PREPARING if signal is Signal.NEW:
            return _set_out(after, entry, entry.spec.canary.progress_deadline_seconds)
        case Stage.GATHERING:
            return _take_place(rollout, entry.surge)
        case Stage.CLEARING:
            return replace(rollout, stage=after, gave_way=entry.first_policy)
        case _:
            return _go_on(rollout, signal, after, entry.now)


def _set_out(stage: Stage, entry: Entry, deadline_seconds: int) -> Rollout:
    return Rollout(
        stage=stage,
        revision=entry.revision,
        surge=entry.surge,
        started_at=entry.now,
        deadline_at=entry.now + timedelta(seconds=deadline_seconds),
        first_policy=entry.first_policy,
        returning_for=entry.reason,
    )


def _take_place(rollout: Rollout, asked: Surge) -> Rollout:
    """From the beginning, within the same deadline: what was seen of the canary beside stable still counts."""
    surge = asked if asked.in_turn else Surge.IN_PLACE_DRAFT
    return replace(rollout, stage=Stage.GATHERING, surge=surge, step=0, step_started_at=None, unschedulable_since=None)


def _go_on(rollout: Rollout, signal: Signal, after: Stage, now: datetime) -> Rollout:
    """Within one canary: the next step after a pass or a promote; waiting for a human does not use up the deadline."""
    onwards = signal in (Signal.PASSED, Signal.PROMOTED)
    deadline = rollout.deadline_at
    if rollout.stage is Stage.PAUSED and deadline is not None and rollout.step_started_at is not None:
        deadline += now - rollout.step_started_at
    return replace(
        rollout,
        stage=after,
        step=rollout.step + 1 if onwards else rollout.step,
        step_started_at=now if after in (Stage.STEPPING, Stage.PAUSED) else None,
        deadline_at=deadline,
        unschedulable_since=None,
    )


def on_trial(rollout: Rollout) -> bool:
    """Whether a canary is under way."""
    return rollout.stage in _TRIALS


def serves_nobody(rollout: Rollout) -> bool:
    """Whether what served went for this revision, which has no weight yet: nobody is served before it goes on."""
    comes = rollout.stage in (Stage.CLEARING, Stage.PREPARING)
    return comes and rollout.surge is Surge.RECREATE and rollout.gave_way is not None


def step_of(rollout: Rollout, canary: Canary) -> CanaryStep:
    """The step that a canary stands at; steps that were edited away leave the last one.

    A canary in place has one, with the last one's hold and pause.
    """
    if rollout.surge.in_turn:
        return replace(canary.steps[-1], percent=IN_PLACE_PERCENT[rollout.surge], shadow=False)
    return canary.steps[min(rollout.step, len(canary.steps) - 1)]


def is_last(rollout: Rollout, canary: Canary) -> bool:
    return rollout.surge.in_turn or rollout.step >= len(canary.steps) - 1


def surge_of(stable: Revision, canary: Revision, asked: SurgeMode) -> Surge:
    """Equal target hashes share the target's pods; anything else stands beside stable, unless in place is asked for."""
    if asked in (SurgeMode.IN_PLACE_DRAFT, SurgeMode.RECREATE) and can_swap_drafts(stable, canary):
        return Surge.IN_PLACE_DRAFT
    if asked is SurgeMode.RECREATE and stable.target != canary.target:
        return Surge.RECREATE
    return Surge.SHARED_TARGET if stable.target == canary.target else Surge.SIDE_BY_SIDE


def can_swap_drafts(stable: Revision, canary: Revision) -> bool:
    """Whether nothing but the draft's pods differs, so that one can take the other's place."""
    drafts = (stable.draft, canary.draft)
    return stable.target == canary.target and None not in drafts and stable.draft != canary.draft


def canary_percent(rollout: Rollout, canary: Canary) -> int:
    """The share of the canary now: while the pods of a step come up, that of the step before."""
    match rollout.stage:
        case Stage.PREPARING:
            return canary.steps[min(rollout.step, len(canary.steps)) - 1].percent if rollout.step else 0
        case Stage.STEPPING | Stage.PAUSED | Stage.COMPLETING:
            return step_of(rollout, canary).percent
        case _:
            return 0


def shares(rollout: Rollout, stable: str, canary: Canary, *, warm: bool) -> tuple[Share, ...]:
    """Who gets how much; `warm`: the revision that a rollback returns to can serve already.

    A canary at 10 % gives (stable 90, canary 10). A canary that is still preparing is listed with 0, so that gateways
    connect to its pods before anybody depends on them. Once stable has given way, it decodes plainly,
    or not at all.
    """
    match rollout.stage:
        case Stage.INSTALLING:
            return (Share(revision=rollout.revision, weight=100),)
        case Stage.STABLE:
            return (Share(revision=stable, weight=100),)
        case Stage.RETURNING:
            gone, back = Share(revision=stable, weight=0, speculate=False), Share(revision=rollout.revision, weight=100)
            waiting = (replace(gone, weight=100), replace(back, weight=0))
            return (gone, back) if warm else waiting
        case _:
            percent = canary_percent(rollout, canary)
            shadow = rollout.stage is Stage.STEPPING and step_of(rollout, canary).shadow
            return (
                Share(revision=stable, weight=100 - percent, speculate=rollout.gave_way is None),
                Share(revision=rollout.revision, weight=percent, shadow=shadow, speculate=rollout.quiet_since is None),
            )


def canary_replicas(rollout: Rollout, canary: Canary, full: int) -> int:
    """Pods of an unshared role of the canary: ceil(full x percent), one at least, all of them before 100 %.

    4 pods at 25 % are 1; at 30 % they are 2. In place they are all or, before stable has given way, none.
    """
    if rollout.stage in (Stage.GATHERING, Stage.CLEARING):
        return 0
    if rollout.stage is Stage.COMPLETING or rollout.surge.in_turn:
        return full
    return min(full, max(1, math.ceil(full * step_of(rollout, canary).percent / 100)))


@dataclass(frozen=True, slots=True)
class Need:
    """A revision that needs pods, and how many of each role."""

    revision: str
    pair: Revision
    targets: int
    drafts: int


def pods(needs: Iterable[Need]) -> tuple[PodsWanted, ...]:
    """Pods per role hash: the most that any revision asks for, from the template of the first that asks.

    Two revisions that share a target share its pods, since one gateway sends both through them.
    """
    wanted: dict[tuple[Role, RoleHash], PodsWanted] = {}
    for need in needs:
        for role, role_hash, replicas in _roles(need):
            held = wanted.get((role, role_hash))
            if held is None:
                wanted[(role, role_hash)] = PodsWanted(
                    role=role, role_hash=role_hash, replicas=replicas, revision=need.revision
                )
            elif replicas > held.replicas:
                wanted[(role, role_hash)] = replace(held, replicas=replicas)
    return tuple(wanted.values())


def _roles(need: Need) -> Sequence[tuple[Role, RoleHash, int]]:
    target = (Role.TARGET, need.pair.target, need.targets)
    return (target,) if need.pair.draft is None else (target, (Role.DRAFT, need.pair.draft, need.drafts))
