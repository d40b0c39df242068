"""Knows how a look becomes the question that the checks answer: which evidence of the canary, and against what.

Refuses to know the checks (`health`) and what follows from them (`steering`).

A loss against stable can be judged only while stable speculates too. It may not: the breaker took speculation from it,
or its runtime chose K = 0 by itself. Then what serves people is plain decoding, and the canary has to beat that: its
acceptance against the floor, its speed against the off slots. `_silence` says so in words, which the checks repeat.

A canary in the place of stable's pods is held against stable's record: what stable did, while it had them, from
the policy on that was in force before, of which gateways still list the slots of the last hour.
"""

from dataclasses import replace
from datetime import timedelta

from tandem_operator.domain import breaker, evidence, health, record, rollout
from tandem_operator.domain.nested import items, number, text
from tandem_operator.domain.observed import StoredRevision
from tandem_operator.domain.progress import Breaker, SpeculationReason, SpeculationState, Stage
from tandem_operator.domain.revision import Role
from tandem_operator.domain.situation import Course, Situation
from tandem_operator.domain.spec import SpeculationMode

SLOTS_LISTED = timedelta(hours=1)
"""So far back gateways list their closed slots."""
FLOOR_DECIDES_FROM_PERCENT = 50
"""Below this share the batch is mostly stable's, and so is its speed."""


def judge(at: Situation, course: Course) -> Course:
    """The checks on the evidence with what is new, which is looked at once per interval and saved when it moved."""
    if course.checks or (course.progress.rollout.stage is Stage.PREPARING and not course.progress.rollout.step):
        return course
    kept, weighed = _weigh(at, course)
    checks = health.assess(_question(at, course, weighed))
    save = weighed is not None and (kept is None or not evidence.same_sums(kept, weighed))
    return replace(course, checks=checks, weighed=weighed, save=save)


def _weigh(at: Situation, course: Course) -> tuple[evidence.Evidence | None, evidence.Evidence | None]:
    """The saved evidence of this canary, and the same with what the gateways say now; None before the first answer."""
    moved, interval = course.progress.rollout, at.spec.canary.analysis.interval_seconds
    kept = evidence.read(at.seen.config_text("evidence", "evidence.json"))
    if kept is not None and (kept.canary, kept.stable, kept.since) != (
        moved.revision,
        at.stable_name,
        moved.first_policy,
    ):
        kept = None
    scrape = at.seen.scrape
    if scrape is None or not scrape.documents or not evidence.is_due(kept, at.seen.now, interval_seconds=interval):
        return kept, kept
    started = moved.started_at or at.seen.now
    if moved.surge.in_turn:
        started -= SLOTS_LISTED
    start = kept or evidence.begin(moved.revision, at.stable_name, since=moved.first_policy, now=started)
    gateways = [pod.name for pod in at.seen.of_role(Role.GATEWAY)]
    slot_seconds = at.spec.speculation.control.slot_seconds
    more = at.spec.canary.analysis.inter_token_latency.max_p99_increase_basis_points
    return kept, evidence.add(
        start,
        scrape,
        gateways=gateways,
        slot_seconds=slot_seconds,
        readings=at.seen.readings,
        stretch_factor=None if more is None else 1 + more / 10_000,
    )


def _question(at: Situation, course: Course, weighed: evidence.Evidence | None) -> health.Question:
    moved, spec = course.progress.rollout, at.spec
    pair, step = at.pair(moved.revision), rollout.step_of(moved, spec.canary)
    shares_target = moved.surge.shares_target
    has_draft = at.proposes(moved.revision)
    may = spec.speculation.mode is not SpeculationMode.OFF
    last = rollout.is_last(moved, spec.canary)
    return health.Question(
        analysis=spec.canary.analysis,
        evidence=weighed,
        target="" if pair is None else pair.target,
        reachable=bool(at.seen.documents),
        speculates=has_draft and (may or _has_proposed(weighed, moved.revision)) and (shares_target or not step.shadow),
        shadow=step.shadow,
        silence=_silence(at, course, weighed),
        shares_target=shares_target,
        in_turn=moved.surge.in_turn,
        gave_way=moved.gave_way,
        floor_decides=last or not shares_target or step.percent >= FLOOR_DECIDES_FROM_PERCENT,
        deciding=_policies_at(at, moved.revision, min(step.percent, FLOOR_DECIDES_FROM_PERCENT)),
    )


def record_lacks(at: Situation, course: Course) -> str:
    """What stable's record lacks before a canary may take its place; empty where it suffices."""
    lacks = health.record_lacks(_question(at, course, course.weighed))
    return lacks if not lacks or course.weighed is None else f"{lacks}{course.weighed.gap}"


def too_large(course: Course) -> str | None:
    """That what is known of the canary cannot be saved, in words: no write of the resource would get past it."""
    held = record.size(course.weighed) if course.save else 0
    if held <= evidence.MOST_BYTES:
        return None
    return (
        f"{held} bytes, where {evidence.MOST_BYTES} can be saved; name fewer segments, or have fewer gateways or steps"
    )


def _has_proposed(weighed: evidence.Evidence | None, revision: str) -> bool:
    """Whether there is something to judge of a revision, though the mode has become Off meanwhile."""
    return weighed is not None and any(held.speculating for held in weighed.strata(revision).values())


def _policies_at(at: Situation, revision: str, percent: int) -> frozenset[int]:
    """The kept policies under which a revision has this share of the traffic or more."""
    return frozenset(
        number(policy, "number")
        for policy in at.policies
        for share in items(policy, "revisions")
        if text(share, "name") == revision and number(share, "weight") >= percent
    )


def _silence(at: Situation, course: Course, weighed: evidence.Evidence | None) -> str:
    """Why stable does not speculate beside the canary; empty where it does, or where that is not known yet.

    Empty, too, where nobody may, and while a draft that was lost may just be starting again: what was gathered before
    is compared then.
    """
    held = course.progress.breaker
    if at.stable is None or not at.proposes(at.stable_name):
        return "it has no draft"
    if held.state in (SpeculationState.ACTIVE, SpeculationState.PROBING):
        until = course.progress.rollout.gave_way
        return _gave_up(at, at.stable, weighed, policies=(held.first_policy, until))
    if held.reason in breaker.NOT_THE_PAIRS_FAULT or _may_pass(at, held):
        return ""
    return f"{held.reason}: {held.note}"


def _may_pass(at: Situation, held: Breaker) -> bool:
    """Whether stable's draft was lost so lately that its pods may just be starting again; that says nothing of a pair.

    Every other cause rests on evidence, and lasts for the cool-down.
    """
    window = timedelta(seconds=at.spec.auto_disable.window_seconds)
    lost = held.reason is SpeculationReason.DRAFT_UNAVAILABLE
    return lost and held.since is not None and at.seen.now - held.since < window


def _gave_up(
    at: Situation, stable: StoredRevision, weighed: evidence.Evidence | None, *, policies: tuple[int, int | None]
) -> str:
    """Stable's runtime at K = 0 in thin traffic: a window of the breaker may never hold enough to see it.

    Of the breaker's present state only, and before stable gave way: while it was off, stable had nothing to choose.
    """
    if weighed is None:
        return ""
    since, until = policies
    of_stable = weighed.strata(stable.name).items()
    strata = {policy: held for policy, held in of_stable if since <= policy and (until is None or policy < until)}
    if sum(held.requests for held in strata.values()) < at.spec.canary.analysis.min_requests:
        return ""
    rounds = sum(int(held.rounds * weighed.on_share(stable.pair.target, policy)) for policy, held in strata.items())
    share = breaker.gave_up(sum(held.speculating for held in strata.values()), rounds)
    return "" if share is None else f"nothing was proposed in {share}"
