"""Knows how a canary is judged in segments of the traffic, where one that is fine on the whole may be bad.

Refuses to know who belongs to a segment (gateways do) and when this is asked (`health`).

Every segment that the user names is held against stable's same segment, by the loss of conditional acceptance; the
worst of them is the result. Each is judged at alpha / m of m segments, so that all together are wrong about a sound
canary no more often than any other check. A segment with less than one in a hundred of stable's examined tokens is too
thin to wait for: it may fail a canary, and holds none. That is known once enough requests were counted with it; one
that was not counted yet, since a policy names it only now, is waited for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from tandem_operator.domain.accepted import FEWEST_BUCKETS, Rows, by_policy, requests_of, sums_of
from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import Evidence
from tandem_operator.domain.intervals import Estimate, combine, difference, half_width
from tandem_operator.domain.samples import Stratum
from tandem_operator.domain.spec import Analysis, SegmentGate
from tandem_operator.domain.verdicts import SMALLEST_SCALE, judge_drop, stated

NAME = "segments"
THIN = 0.01
"""Of stable's examined tokens."""
MOST_NAMED = 200
"""Characters of the thin ones' names in a message."""
REQUEST, SESSION = "request", "session"
"""What is assigned to a revision as one, and so falls into one bucket."""


def judge(evidence: Evidence, analysis: Analysis, alpha: float, *, unit: str, in_turn: bool) -> CheckResult:
    """The worst segment's result, which names it, with those that are too thin to count.

    Of `greedy` at -0.01 +- 0.02 and `hot` at -0.20 +- 0.05, both with a margin of 0.10, hot's Fail is told.
    `in_turn`: the canary took the place of stable's draft, and no stratum has both.
    """
    gates, canary, stable = analysis.segments, evidence.strata(evidence.canary), evidence.strata(evidence.stable)
    asked = _Asked(canary, stable, analysis.min_requests, unit, in_turn)
    known = [_judge_one(asked, gate, alpha / len(gates)) for gate in gates]
    order = list(CheckVerdict)
    worst = min(known, key=lambda result: order.index(result.verdict))
    thin = ", ".join(str(each.segment) for each in known if each.verdict is CheckVerdict.NOT_COMPARED)
    if not thin or worst.verdict is CheckVerdict.NOT_COMPARED:
        return worst
    return replace(worst, message=f"{worst.message}; too thin to count: {thin[:MOST_NAMED]}")


def record_lacks(evidence: Evidence, analysis: Analysis) -> str:
    """What is still to be known of stable's segments before a canary takes the place of its draft; empty where nothing
    is, or too thin for anybody to wait for."""
    stable, needed = evidence.strata(evidence.stable), analysis.min_requests
    for gate in analysis.segments:
        counted = requests_of(_counting(stable, gate.name))
        if by_policy(stable, partial(_rows, name=gate.name)) or _is_thin(stable, gate.name, needed):
            continue
        of_whom = f"segment {gate.name} of revision {evidence.stable}"
        if counted < needed:
            return f"{of_whom} was looked for in {counted} of the {needed} requests that tell how thin it is"
        return f"{of_whom}: {_too_few(_most_filled(stable, gate.name), REQUEST)}"
    return ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What every segment is judged by; `needed` are the requests that tell how thin one is."""

    canary: Mapping[int, Stratum]
    stable: Mapping[int, Stratum]
    needed: int
    unit: str
    in_turn: bool

    def loss(self, name: str) -> Estimate | None:
        """The canary's acceptance in the segment less stable's, of strata with both; in turn, after stable's before
        it."""
        read = partial(_rows, name=name)
        after, before = by_policy(self.canary, read), by_policy(self.stable, read)
        if self.in_turn:
            one, other = combine(after.values()), combine(before.values())
            return None if one is None or other is None else difference(one, other)
        return combine(difference(after[policy], before[policy]) for policy in sorted(after.keys() & before.keys()))

    def uncounted(self, name: str) -> str:
        """Of whom gateways have not counted it; empty where of both."""
        if not _counting(self.canary, name):
            return f"the gateways have not counted segment {name} of the canary yet"
        if _counting(self.stable, name):
            return ""
        late = "; it gave way before, so leave the segment out of canary.analysis.segments" if self.in_turn else ""
        return f"the gateways have not counted segment {name} of stable yet{late}"


def _judge_one(asked: _Asked, gate: SegmentGate, alpha: float) -> CheckResult:
    canary, stable = asked.canary, asked.stable
    margin = gate.max_drop_basis_points / 10_000
    examined = [sums_of(strata.values(), partial(_rows, name=gate.name))[1] for strata in (canary, stable)]
    draft = CheckResult(
        name=NAME,
        verdict=CheckVerdict.NO_DATA,
        threshold=f"> {-margin:.3f}",
        samples=f"{examined[0]} examined tokens, stable {examined[1]}",
        segment=gate.name,
    )
    if uncounted := asked.uncounted(gate.name):
        return stated(draft, CheckVerdict.NO_DATA, uncounted)
    estimate, scale = asked.loss(gate.name), max(margin, SMALLEST_SCALE)
    judged = None if estimate is None else judge_drop(draft, estimate, margin, half_width(estimate, scale, alpha))
    if judged is not None and judged.verdict is CheckVerdict.FAIL:
        return judged
    if _is_thin(stable, gate.name, asked.needed):
        words = f"segment {gate.name} has less than one in a hundred of stable's examined tokens"
        return stated(draft, CheckVerdict.NOT_COMPARED, words)
    filled = min(_most_filled(strata, gate.name) for strata in (canary, stable))
    words = _too_few(filled, asked.unit, lasts=requests_of(_counting(canary, gate.name)) >= asked.needed)
    return judged or stated(draft, CheckVerdict.INCONCLUSIVE, f"segment {gate.name}: {words}")


def _too_few(filled: int, unit: str, *, lasts: bool = False) -> str:
    """What is waited for, and once it `lasts`, what to do if that never comes."""
    words = f"too few {unit}s under any one policy: they fill {filled} buckets, and {FEWEST_BUCKETS} must be filled"
    if unit == REQUEST or not lasts:
        return words
    return (
        f"{words}; a session fills one at most, so where no more of them ask for it the deadline ends this canary: let "
        "it hold more tenants, or leave it out of canary.analysis.segments"
    )


def _most_filled(strata: Mapping[int, Stratum], name: str) -> int:
    """Buckets with something in them, under the policy that has most."""
    return max((sum(map(bool, _rows(stratum, name)[1])) for stratum in strata.values()), default=0)


def _rows(stratum: Stratum, name: str) -> Rows:
    held = stratum.segments.get(name)
    return ((), ()) if held is None else held.rows


def _is_thin(stable: Mapping[int, Stratum], name: str, needed: int) -> bool:
    """Whether it is so rare among the requests that it was counted with, if there are enough of them to tell."""
    counting = _counting(stable, name)
    examined = sums_of(counting, partial(_rows, name=name))[1]
    return requests_of(counting) >= needed and examined < THIN * sum(map(_whole, counting))


def _whole(stratum: Stratum) -> int:
    return 0 if stratum.acceptance is None else sum(stratum.acceptance.examined)


def _counting(strata: Mapping[int, Stratum], name: str) -> list[Stratum]:
    """Where gateways list the segment, if only with zeros: before a policy named it nothing of it is known, and
    gateways that are older than the operator never count it."""
    return [stratum for stratum in strata.values() if name in stratum.segments]
