"""Knows the rules by which a canary is judged against its evidence, each with its numbers.

Refuses to know what follows from a verdict (`rollout`) and how evidence is gathered (`evidence`).

CHECKS is the list; each check is one function that gets the same `Question` and an alpha, its part of 1 - confidence:
all that are wanted and that chance can fail have equal parts but `nearTies`, so that together they are wrong about a
sound canary with probability 1 - confidence at most, however often they are looked at (`intervals`). That needs parts
which stay: what is wanted follows from the resource and not from what was seen. A bound is compared, never a point: a
floor passes when the whole interval lies above it and fails when it lies below; a drop fails when the interval lies
below zero and reaches the margin. Too little evidence is Inconclusive and says how much there is and how much is
needed; sums that are not there at all are NoData. Errors and replayed answers alone may fail before `minRequests`: an
e-value needs no minimum, and one difference is proof.

Over all checks the worst verdict counts: Fail > ProviderError > NoData > Inconclusive > Pass. Where stable does not
speculate, a drop against it is NotCompared, which neither holds a canary nor helps it: people are served by plain
decoding, and the floors compare with that.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tandem_operator.domain import own_metrics, replay_checks, segment_checks, slow_shares, stable_record
from tandem_operator.domain.accepted import Accepted
from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import Evidence, total_of
from tandem_operator.domain.intervals import (
    Estimate,
    PairSums,
    SlotSums,
    combine,
    difference,
    faster,
    faster_together,
    half_width,
    log_e_value,
)
from tandem_operator.domain.samples import Arm
from tandem_operator.domain.spec import Analysis, MetricCheck
from tandem_operator.domain.verdicts import SMALLEST_SCALE, decided, decided_ratio, grand, judge_drop, stated

SPEEDUP_SCALE = 0.2
"""tau of the speed-up's floor, in units of ln: most pairs lie within a fifth of their threshold."""
WHOLE = 10_000
"""A share of all, in basis points."""
LONGEST_REASON = 300
"""Of a check's message, which status cuts at 512."""
NEAR_TIES_PART = 0.25
"""Of another check's part of the confidence: it is spent wherever answers are replayed, and on most targets for
nothing, as none splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: the evidence of a canary, under which rules, and which comparisons make sense.

    `evidence` is None before the first answer of a gateway; `reachable` is False while gateways do not answer.
    `target` is the canary's target hash. `shadow`: nobody is served, so that only scored tokens speak. `silence` is why
    stable does not speculate, empty where it does; `shares_target`: both are on the same target pods; `in_turn`: the
    canary takes the place of stable's pods, and is held against what stable did before the policy `gave_way`, if they
    are gone. `floor_decides`: the canary's part of the batch is large enough for its speed-up to stand on its own;
    `deciding` are the policies under which it was, None for all.
    """

    analysis: Analysis
    evidence: Evidence | None
    target: str
    reachable: bool = True
    speculates: bool = True
    shadow: bool = False
    silence: str = ""
    shares_target: bool = True
    in_turn: bool = False
    gave_way: int | None = None
    floor_decides: bool = True
    deciding: frozenset[int] | None = None

    @property
    def alone(self) -> bool:
        """Whether nobody is served beside the canary."""
        return self.in_turn and not self.shares_target

    @property
    def alpha(self) -> float:
        """Of a check with a whole part. Those that nobody asked for take no certainty from the others."""
        parts = sum(check.part for check in CHECKS if check.is_wanted(self))
        return (1 - self.analysis.confidence_basis_points / 10_000) / parts


def _always(_: Question) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Check:
    """A rule: its name, when it applies, and how it judges.

    `part`: how much of the confidence it has, beside others with 1; 0 where it cannot be wrong by chance. `is_wanted`:
    whether the resource's rules ask for it at all.
    """

    name: str
    applies: Callable[[Question], bool]
    judge: Callable[[Question, Evidence], CheckResult]
    part: float = 1.0
    is_wanted: Callable[[Question], bool] = _always


def assess(question: Question) -> tuple[CheckResult, ...]:
    """The results of all checks that apply, in the order of CHECKS, and of the user's own in theirs."""
    rules = tuple(check for check in CHECKS if check.is_wanted(question) and check.applies(question))
    return tuple(_answer(check, question) for check in (*rules, *_own(question)))


def _own(question: Question) -> tuple[Check, ...]:
    """The user's metrics as checks; nobody is served in a shadow step, so they would speak of stable alone."""
    metrics = () if question.shadow else question.analysis.metrics
    return tuple(
        Check(f"{own_metrics.PREFIX}{metric.name}", lambda _: True, partial(_own_metric, metric), part=0.0)
        for metric in metrics
    )


def _own_metric(metric: MetricCheck, question: Question, evidence: Evidence) -> CheckResult:
    served = total_of(evidence.strata(evidence.canary).values())
    requests, needed = 0 if served is None else served.requests, question.analysis.min_requests
    return own_metrics.judge(metric, evidence.readings, requests=requests, needed=needed)


def worst(results: Iterable[CheckResult]) -> CheckVerdict:
    """The verdict of all; without any check there is nothing against the canary."""
    order = list(CheckVerdict)
    return min((result.verdict for result in results), key=order.index, default=CheckVerdict.PASS)


def _answer(check: Check, question: Question) -> CheckResult:
    if question.evidence is None:
        return CheckResult(name=check.name, verdict=CheckVerdict.NO_DATA, message="no gateway has answered yet")
    result = check.judge(question, question.evidence)
    if result.verdict in (CheckVerdict.NO_DATA, CheckVerdict.INCONCLUSIVE):
        result = replace(result, message=f"{result.message}{question.evidence.gap}")
    if question.reachable or result.verdict in (CheckVerdict.FAIL, CheckVerdict.NOT_COMPARED):
        return result
    since = f"no gateway answers; the evidence is of {question.evidence.at:%H:%M:%S} UTC"
    return replace(result, verdict=CheckVerdict.PROVIDER_ERROR, message=since)


# Acceptance


def _acceptance_floor(question: Question, evidence: Evidence) -> CheckResult:
    """Conditional acceptance of the canary: 0.900 +- 0.021 with 1000 requests passes a floor of 0.8."""
    floor = question.analysis.acceptance.min_basis_points / 10_000
    known = _accepted(question, evidence)
    draft = CheckResult(
        name="acceptance", verdict=CheckVerdict.NO_DATA, threshold=f">= {floor:.3f}", samples=known.samples
    )
    estimate = combine(known.canary.values())
    if known.missing:
        return stated(draft, CheckVerdict.NO_DATA, known.missing)
    if known.short or estimate is None:
        return stated(draft, CheckVerdict.INCONCLUSIVE, known.short or known.unfilled, value=known.pooled)
    h = half_width(estimate, known.scale, question.alpha)
    if estimate.value + h < floor:
        return decided(draft, CheckVerdict.FAIL, estimate, h, "the whole interval lies below the floor")
    if estimate.value - h >= floor:
        return decided(draft, CheckVerdict.PASS, estimate, h, "the whole interval lies above the floor")
    return decided(
        draft, CheckVerdict.INCONCLUSIVE, estimate, h, "the interval contains the floor; more requests narrow it"
    )


def _acceptance_drop(question: Question, evidence: Evidence) -> CheckResult:
    """The canary's acceptance less stable's of the same strata; a drop beyond the margin fails."""
    if question.silence:
        return _not_compared("acceptanceDrop", question)
    margin = question.analysis.acceptance.max_drop_basis_points / 10_000
    known = _accepted(question, evidence)
    draft = CheckResult(
        name="acceptanceDrop", verdict=CheckVerdict.NO_DATA, threshold=f"> {-margin:.3f}", samples=known.both_samples
    )
    if known.missing or known.missing_stable:
        return stated(draft, CheckVerdict.NO_DATA, known.missing or known.missing_stable)
    estimate = known.loss_in_turn if question.in_turn else known.loss
    if known.short or known.short_stable or estimate is None:
        return stated(draft, CheckVerdict.INCONCLUSIVE, known.short or known.short_stable or known.unfilled)
    return judge_drop(draft, estimate, margin, half_width(estimate, known.scale, question.alpha))


def _accepted(question: Question, evidence: Evidence) -> Accepted:
    return Accepted(evidence, question.analysis, shadow=question.shadow)


# Speed-up


def _speedup_floor(question: Question, evidence: Evidence) -> CheckResult:
    """Time per token in off slots over that in on slots of the same target pods: 1.41 in [1.22, 1.63]."""
    floor = question.analysis.speedup.min_basis_points / 10_000
    on, off = evidence.arm(evidence.canary, Arm.ON), evidence.arm(question.target, Arm.OFF)
    draft = CheckResult(
        name="speedup", verdict=CheckVerdict.NO_DATA, threshold=f">= {floor:.3f}", samples=_slots(on, off, "on", "off")
    )
    estimate = faster(off, on)
    fewest = question.analysis.min_slots
    if not on and not off:
        return stated(draft, CheckVerdict.NO_DATA, "the gateways hold no closed slots of this canary yet")
    if estimate is None or min(_count(on), _count(off)) < fewest:
        return _too_few_slots(draft, estimate, f"needs {fewest} slots of each side within one policy")
    h = half_width(estimate, SPEEDUP_SCALE, question.alpha)
    if estimate.value + h < math.log(floor):
        return decided_ratio(draft, CheckVerdict.FAIL, estimate, h, "the whole interval lies below the floor")
    if estimate.value - h >= math.log(floor):
        return decided_ratio(draft, CheckVerdict.PASS, estimate, h, "the whole interval lies above the floor")
    return decided_ratio(
        draft, CheckVerdict.INCONCLUSIVE, estimate, h, "the interval contains the floor; wait for slots"
    )


def _speedup_drop(question: Question, evidence: Evidence) -> CheckResult:
    """Stable's time per token over the canary's, in on slots in which both decoded on the target pods they share."""
    if question.silence:
        return _slowdown(question, evidence)
    if question.in_turn:
        return _speed_in_turn(question, evidence)
    drop, margin = _speed_margin(question)
    slots = _spoken(evidence)
    count = sum(held.count for held in slots)
    draft = CheckResult(
        name="speedupDrop",
        verdict=CheckVerdict.NO_DATA,
        threshold=f"> {1 - drop:.3f} of stable",
        samples=f"{count} slots of both",
    )
    if not count:
        return stated(
            draft, CheckVerdict.NO_DATA, "the gateways hold no closed slots in which both revisions decoded yet"
        )
    estimate = faster_together(slots)
    if estimate is None or count < question.analysis.min_slots:
        return _too_few_slots(draft, estimate, f"needs {question.analysis.min_slots} slots in which both decoded")
    h = half_width(estimate, margin, question.alpha)
    result = judge_drop(draft, estimate, margin, h)
    return decided_ratio(draft, result.verdict, estimate, h, result.message)


def _speed_margin(question: Question) -> tuple[float, float]:
    """The drop that is allowed, as a share and as a logarithm."""
    drop = question.analysis.speedup.max_drop_basis_points / 10_000
    return drop, max(-math.log(1 - drop), SMALLEST_SCALE)


def _speed_in_turn(question: Question, evidence: Evidence) -> CheckResult:
    """How many times faster than plain decoding the canary is, over what stable was in its record.

    1.35 after 1.50 is .90 of stable. Each is held against off slots of its own time, so that load cancels.
    """
    drop, margin = _speed_margin(question)
    on, off = evidence.arm(evidence.canary, Arm.ON), evidence.arm(question.target, Arm.OFF)
    recorded = stable_record.slots(evidence, question.target)
    draft = CheckResult(
        name="speedupDrop",
        verdict=CheckVerdict.NO_DATA,
        threshold=f"> {1 - drop:.3f} of stable",
        samples=f"{_slots(on, _of(off, on), 'on', 'off')}, stable {_slots(*recorded, 'on', 'off')}",
    )
    after, before = faster(off, on), faster(*reversed(recorded))
    fewest = question.analysis.min_slots
    if after is None or before is None or min(_count(on), _count(_of(off, on)), *map(_count, recorded)) < fewest:
        return _too_few_slots(draft, None, f"needs {fewest} slots of each side, of the canary and of stable before it")
    estimate = difference(after, before)
    h = half_width(estimate, margin, question.alpha)
    result = judge_drop(draft, estimate, margin, h)
    return decided_ratio(draft, result.verdict, estimate, h, result.message)


def _of(sums: Mapping[int, SlotSums], others: Mapping[int, SlotSums]) -> Mapping[int, SlotSums]:
    """Those of the strata that the others have too."""
    return {policy: sums[policy] for policy in sums.keys() & others.keys()}


def _slowdown(question: Question, evidence: Evidence) -> CheckResult:
    """Time per token of everybody on the shared target pods, in off slots over that in on slots.

    A silent stable decodes plainly, and its rows wait for the canary's. With half of the traffic, 2 tokens for 2.5
    times the work of a plain row read 2 / 1.75 = 1.14 for the canary alone, and 1.5 / 1.75 = .86 for all: at full
    share it would be .8. Both kinds of drop fail on one side of a symmetric interval, so together they keep to alpha.
    """
    if not question.floor_decides:
        return _not_compared("speedupDrop", question)
    drop, margin = _speed_margin(question)
    on, off = _all_decoding(question, evidence)
    draft = CheckResult(
        name="speedupDrop",
        verdict=CheckVerdict.NO_DATA,
        threshold=f"> {1 - drop:.3f} of plain decoding",
        samples=_slots(on, off, "on", "off"),
    )
    estimate, fewest = faster(off, on), question.analysis.min_slots
    if estimate is None or min(_count(on), _count(off)) < fewest:
        return _too_few_slots(draft, estimate, f"needs {fewest} slots of each side of all decoding on the target pods")
    h = half_width(estimate, margin, question.alpha)
    result = judge_drop(draft, estimate, margin, h)
    words = f"stable decodes plainly ({question.silence[:LONGEST_REASON]}); all decoding on the target pods"
    return decided_ratio(draft, result.verdict, estimate, h, f"{words}: {result.message}")


def _all_decoding(question: Question, evidence: Evidence) -> tuple[Mapping[int, SlotSums], Mapping[int, SlotSums]]:
    """Everybody's on slots, and the off slots, of the strata that tell what the canary does to plain rows.

    Its part was large enough, and stable was silent or served nobody. Where a silent stable served, its rows must be
    there: gateways that do not list them would make out that the canary's are all.
    """
    served, everybody = evidence.arm(evidence.canary, Arm.ON), evidence.arm(question.target, Arm.BESIDE)
    alone = served.keys() - evidence.strata(evidence.stable).keys()
    beside = {policy for policy in served.keys() & everybody.keys() if everybody[policy].x > served[policy].x}
    telling = alone | (beside & stable_record.silent_policies(evidence))
    telling &= everybody.keys() if question.deciding is None else everybody.keys() & question.deciding
    off = evidence.arm(question.target, Arm.OFF)
    return {policy: everybody[policy] for policy in telling}, {policy: off[policy] for policy in off.keys() & telling}


def _spoken(evidence: Evidence) -> list[PairSums]:
    """The slots of strata in which stable spoke too: plain rows that wait for a canary's rows make it look fast."""
    silent = stable_record.silent_policies(evidence)
    return [held.sums for held in evidence.together if held.policy not in silent]


def _count(strata: Mapping[int, SlotSums]) -> int:
    return sum(sums.count for sums in strata.values())


def _slots(left: Mapping[int, SlotSums], right: Mapping[int, SlotSums], one: str, other: str) -> str:
    return f"{_count(left)} {one} + {_count(right)} {other} slots"


def _too_few_slots(draft: CheckResult, estimate: Estimate | None, needs: str) -> CheckResult:
    value = "" if estimate is None else f"{math.exp(estimate.value):.3f}"
    return stated(draft, CheckVerdict.INCONCLUSIVE, f"{needs}, and has {draft.samples}", value=value)


# Errors


def _errors(question: Question, evidence: Evidence) -> CheckResult:
    """Errors of the canary against stable's in the same spans; E is the e-value, 1/alpha a rejection."""
    allowed = question.analysis.errors.max_increase_basis_points / 10_000
    canary = total_of(evidence.strata(evidence.canary).values())
    stable = (
        stable_record.served(evidence, until=question.gave_way)
        if question.alone
        else total_of(evidence.strata(evidence.stable).values())
    )
    draft = CheckResult(name="errors", verdict=CheckVerdict.NO_DATA, threshold=f"<= {allowed:.4f} more than stable")
    if canary is None or stable is None or not canary.requests or not stable.requests:
        return stated(draft, CheckVerdict.NO_DATA, "no requests of both revisions within one policy yet")
    more = canary.errors / canary.requests - stable.errors / stable.requests
    e_value = log_e_value(stable_record.error_ratios(canary, stable) if question.alone else evidence.errors)
    samples = f"{canary.errors}/{canary.requests} against {stable.errors}/{stable.requests} requests"
    shown = replace(draft, value=f"{more:.4f}", samples=samples)
    needed = question.analysis.min_requests
    if more > allowed and e_value >= math.log(1 / question.alpha):
        return stated(shown, CheckVerdict.FAIL, f"more errors than chance allows: E = {grand(e_value)}")
    if min(canary.requests, stable.requests) < needed:
        return stated(shown, CheckVerdict.INCONCLUSIVE, f"{samples}; each needs {needed} requests")
    if more > allowed:
        return stated(
            shown, CheckVerdict.INCONCLUSIVE, f"more than allowed, but chance may do it: E = {grand(e_value)}"
        )
    return stated(shown, CheckVerdict.PASS, f"within what is allowed: E = {grand(e_value)}")


# Waiting


def _first_token(question: Question, evidence: Evidence) -> CheckResult:
    if question.alone:
        words = "nobody is served beside the canary, and waiting times of another hour say little"
        return CheckResult(name="timeToFirstToken", verdict=CheckVerdict.NOT_COMPARED, message=words)
    return slow_shares.first_tokens(evidence, question.analysis, question.alpha)


def _are_timed(question: Question) -> bool:
    """Whether gateways say how long first tokens take, and the share of slow ones may not rise without bound."""
    evidence, gate = question.evidence, question.analysis.time_to_first_token
    if evidence is None or gate.max_slow_share_increase_basis_points >= WHOLE:
        return False
    return slow_shares.are_timed(evidence.strata(evidence.canary))


def _inter_token(question: Question, evidence: Evidence) -> CheckResult:
    """Of a stable that decodes plainly every stretch takes as long, and no pair's slowest beat that."""
    if question.silence:
        return _not_compared("interTokenLatency", question)
    if question.in_turn:
        words = "stable does not speculate beside a canary in its place, and stretches of another hour say little"
        return CheckResult(name="interTokenLatency", verdict=CheckVerdict.NOT_COMPARED, message=words)
    return slow_shares.stretches(evidence, question.analysis, question.alpha)


def _bounds_stretches(question: Question) -> bool:
    return question.analysis.inter_token_latency.max_p99_increase_basis_points is not None


# Segments


def _segments(question: Question, evidence: Evidence) -> CheckResult:
    if question.silence:
        return _not_compared(segment_checks.NAME, question)
    unit = segment_checks.REQUEST if question.shares_target or question.in_turn else segment_checks.SESSION
    return segment_checks.judge(evidence, question.analysis, question.alpha, unit=unit, in_turn=question.in_turn)


def _names_segments(question: Question) -> bool:
    return bool(question.analysis.segments)


# Replayed answers


def _exactness(_: Question, evidence: Evidence) -> CheckResult:
    return replay_checks.differences(evidence)


def _near_ties(question: Question, evidence: Evidence) -> CheckResult:
    alpha = NEAR_TIES_PART * question.alpha
    return replay_checks.near_ties(evidence, alpha, shares_target=question.shares_target)


def _are_replayed(question: Question) -> bool:
    """Whether any answers are. That a target splits some is learnt from them, and too late to spend a part on it."""
    return question.analysis.exactness.sample_basis_points > 0


# Stable's record


def record_lacks(question: Question) -> str:
    """What is still to be known of stable before a canary may take its place; empty where nothing is.

    Afterwards it can be learnt no more. Of a stable that does not speculate nothing has to be.
    """
    evidence = question.evidence
    if evidence is None:
        return "no gateway has answered yet"
    stable, needed = stable_record.served(evidence, until=question.gave_way), question.analysis.min_requests
    if question.alone and (stable is None or stable.requests < needed):
        return f"revision {evidence.stable} has not had the {needed} requests that its errors are to be known from"
    if not question.speculates or question.silence:
        return ""
    known, (on, off) = _accepted(question, evidence), stable_record.slots(evidence, question.target)
    if known.missing_stable or known.short_stable or not known.stable:
        return known.missing_stable or known.short_stable or known.unfilled
    fewest = question.analysis.min_slots
    slots = min(_count(on), _count(off))
    if question.shares_target and (slots < fewest or faster(off, on) is None):
        return f"revision {evidence.stable} has {_slots(on, off, 'on', 'off')}, and needs {fewest} of each side"
    return segment_checks.record_lacks(evidence, question.analysis)


# Nothing to compare with


def _not_compared(name: str, question: Question) -> CheckResult:
    words = f"stable does not speculate ({question.silence[:LONGEST_REASON]}), so there is nothing to lose against it"
    decides = "its acceptance floor decides" if question.shadow else "the floors and plain decoding in off slots decide"
    return CheckResult(name=name, verdict=CheckVerdict.NOT_COMPARED, message=f"{words}; {decides}")


CHECKS: tuple[Check, ...] = (
    Check("acceptance", lambda asked: asked.speculates, _acceptance_floor),
    Check("acceptanceDrop", lambda asked: asked.speculates, _acceptance_drop),
    Check("speedup", lambda asked: asked.speculates and asked.floor_decides and not asked.shadow, _speedup_floor),
    Check(
        "speedupDrop",
        lambda asked: asked.speculates and asked.shares_target and not asked.shadow,
        _speedup_drop,
    ),
    Check("errors", lambda asked: not asked.shadow, _errors),
    Check("timeToFirstToken", lambda asked: not asked.shadow and _are_timed(asked), _first_token),
    Check(
        "interTokenLatency",
        lambda asked: asked.speculates and not asked.shadow,
        _inter_token,
        is_wanted=_bounds_stretches,
    ),
    Check("segments", lambda asked: asked.speculates and not asked.shadow, _segments, is_wanted=_names_segments),
    Check("exactness", lambda asked: replay_checks.replayed(asked.evidence) is not None, _exactness, part=0.0),
    Check(
        "nearTies",
        lambda asked: not asked.shadow and replay_checks.splits(asked.evidence),
        _near_ties,
        part=NEAR_TIES_PART,
        is_wanted=_are_replayed,
    ),
)
"""Every rule; the parts of those that are wanted share what may go wrong."""
