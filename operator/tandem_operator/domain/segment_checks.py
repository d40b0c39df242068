"""Knows how a canary is judged in segments of the traffic, where one that is fine on the whole may be bad.

Refuses to know who belongs to a segment (gateways do) and when this is asked (`health`).

Every segment that the user names is held against stable's same segment, by the loss of conditional acceptance; the
worst of them is the result. Each is judged at alpha / m of m segments, so that all together are wrong about a sound
canary no more often than any other check. A segment with less than one in a hundred of stable's examined tokens is too
thin to wait for: it may fail a canary, and holds none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tandem_operator.domain.accepted import FEWEST_BUCKETS, Rows, by_policy, sums_of
from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import Evidence
from tandem_operator.domain.intervals import Estimate, combine, difference, half_width
from tandem_operator.domain.samples import Stratum
from tandem_operator.domain.spec import SegmentGate
from tandem_operator.domain.verdicts import SMALLEST_SCALE, judge_drop, stated

NAME = "segments"
THIN = 0.01
"""Of stable's examined tokens."""
MOST_NAMED = 200
"""Characters of the thin ones' names in a message."""


def judge(evidence: Evidence, gates: Sequence[SegmentGate], alpha: float, *, in_turn: bool) -> CheckResult:
    """The worst segment's result, which names it, with those that are too thin to count.

    Of `greedy` at -0.01 +- 0.02 and `hot` at -0.20 +- 0.05, both with a margin of 0.10, hot's Fail is told.
    `in_turn`: the canary took the place of stable's draft, and no stratum has both.
    """
    known = [_judge_one(evidence, gate, alpha / len(gates), in_turn=in_turn) for gate in gates]
    order = list(CheckVerdict)
    worst = min(known, key=lambda result: order.index(result.verdict))
    thin = ", ".join(str(each.segment) for each in known if each.verdict is CheckVerdict.NOT_COMPARED)
    if not thin or worst.verdict is CheckVerdict.NOT_COMPARED:
        return worst
    return replace(worst, message=f"{worst.message}; too thin to count: {thin[:MOST_NAMED]}")


def record_lacks(evidence: Evidence, gates: Sequence[SegmentGate]) -> str:
    """What is still to be known of stable's segments before a canary takes the place of its draft; empty where nothing
    is, or too thin for anybody to wait for."""
    stable = evidence.strata(evidence.stable)
    for gate in gates:
        read = partial(_rows, name=gate.name)
        if not _is_thin(stable, gate.name) and not by_policy(stable, read):
            return f"segment {gate.name} of revision {evidence.stable}: too few requests under any one policy"
    return ""


def _judge_one(evidence: Evidence, gate: SegmentGate, alpha: float, *, in_turn: bool) -> CheckResult:
    canary, stable = evidence.strata(evidence.canary), evidence.strata(evidence.stable)
    margin = gate.max_drop_basis_points / 10_000
    examined = [sums_of(strata.values(), partial(_rows, name=gate.name))[1] for strata in (canary, stable)]
    draft = CheckResult(
        name=NAME,
        verdict=CheckVerdict.NO_DATA,
        threshold=f"> {-margin:.3f}",
        samples=f"{examined[0]} examined tokens, stable {examined[1]}",
        segment=gate.name,
    )
    if not _are_counted(canary.values(), gate.name):
        return stated(
            draft, CheckVerdict.NO_DATA, f"the gateways have not counted segment {gate.name} of the canary yet"
        )
    estimate = _loss(canary, stable, gate.name, in_turn=in_turn)
    scale = max(margin, SMALLEST_SCALE)
    judged = None if estimate is None else judge_drop(draft, estimate, margin, half_width(estimate, scale, alpha))
    if judged is not None and judged.verdict is CheckVerdict.FAIL:
        return judged
    if _is_thin(stable, gate.name):
        words = f"segment {gate.name} has less than one in a hundred of stable's examined tokens"
        return stated(draft, CheckVerdict.NOT_COMPARED, words)
    few = f"segment {gate.name}: too few requests under any one policy, {FEWEST_BUCKETS} buckets must be filled"
    return judged or stated(draft, CheckVerdict.INCONCLUSIVE, few)


def _loss(canary: Mapping[int, Stratum], stable: Mapping[int, Stratum], name: str, *, in_turn: bool) -> Estimate | None:
    """The canary's acceptance in the segment less stable's, of strata with both; in turn, after stable's before it."""
    after, before = (by_policy(strata, partial(_rows, name=name)) for strata in (canary, stable))
    if in_turn:
        one, other = combine(after.values()), combine(before.values())
        return None if one is None or other is None else difference(one, other)
    return combine(difference(after[policy], before[policy]) for policy in sorted(after.keys() & before.keys()))


def _rows(stratum: Stratum, name: str) -> Rows:
    held = stratum.segments.get(name)
    return ((), ()) if held is None else held.rows


def _is_thin(stable: Mapping[int, Stratum], name: str) -> bool:
    """Of the strata that count it: before a policy named the segment, nothing of it is known."""
    counting = [held for held in stable.values() if name in held.segments]
    examined = sums_of(counting, partial(_rows, name=name))[1]
    return not examined or examined < THIN * sum(map(_whole, counting))


def _whole(stratum: Stratum) -> int:
    return 0 if stratum.acceptance is None else sum(stratum.acceptance.examined)


def _are_counted(strata: Iterable[Stratum], name: str) -> bool:
    """Whether gateways list the segment, if only with zeros: others are older than the operator."""
    return any(name in stratum.segments for stratum in strata)
