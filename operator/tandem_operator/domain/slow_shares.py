"""Knows how waiting is judged: for first tokens and for stretches of tokens, by the share of those that are slow.

Refuses to know when that is asked (`health`), and where slow begins (`evidence`).

A share tells what a mean hides, and assumes nothing about how times are spread. Times of *stretches*, 32 tokens of one
request, stand for the gaps between tokens: a round delivers several tokens at once, so a longer proposal makes gaps
longer where nobody waits longer for a sentence. How long a stretch takes does not hang on how it was cut into
deliveries (docs/decisions/0012).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandem_operator.domain.accepted import Rows, by_policy, sums_of
from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import (
    ENOUGH_FOR_AN_EDGE,
    ENOUGH_STRETCHES,
    SLOWEST_STRETCHES,
    Evidence,
    total_of,
)
from tandem_operator.domain.intervals import combine, difference, half_width
from tandem_operator.domain.samples import Stratum, Waits
from tandem_operator.domain.spec import Analysis
from tandem_operator.domain.verdicts import SMALLEST_SCALE, judge_rise, stated

STRETCH_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What is timed: what of a stratum, called how, so many of each revision at least; `margin` is the rise allowed."""

    name: str
    what: str
    read: Callable[[Stratum], Rows]
    margin: float
    needed: int
    lacking: str


def first_tokens(evidence: Evidence, analysis: Analysis, alpha: float) -> CheckResult:
    """The share of the canary's requests that wait longer than nine in ten of stable's, less stable's own share."""
    asked = Share(
        name="timeToFirstToken",
        what="requests",
        read=lambda stratum: _rows(stratum.waits),
        margin=analysis.time_to_first_token.max_slow_share_increase_basis_points / 10_000,
        needed=analysis.min_requests,
        lacking=f"needs {ENOUGH_FOR_AN_EDGE} timed requests of stable within one policy, and some of the canary",
    )
    return _judge(asked, evidence, alpha)


def stretches(evidence: Evidence, analysis: Analysis, alpha: float) -> CheckResult:
    """The share of the canary's stretches beyond what is allowed of stable's 99th percentile, less stable's own share.

    As many as lie beyond the percentile itself may lie beyond that: if 1.3 in 100 do and .1 of stable's, it fails once
    that is certain.
    """
    lacking = f"needs {ENOUGH_STRETCHES} stretches of {STRETCH_TOKENS} tokens of stable within one policy"
    short = _short_answers(evidence, needed=analysis.min_requests)
    asked = Share(
        name="interTokenLatency",
        what="stretches",
        read=lambda stratum: _rows(stratum.stretches),
        margin=SLOWEST_STRETCHES,
        needed=ENOUGH_STRETCHES,
        lacking=f"{lacking}, and some of the canary{short}",
    )
    return _judge(asked, evidence, alpha)


def _short_answers(evidence: Evidence, *, needed: int) -> str:
    """That there may never be any, once stable has answered enough to see it: what comes with the prompt is not
    timed."""
    known = total_of(evidence.strata(evidence.stable).values())
    if known is None or known.requests < needed or known.emitted > STRETCH_TOKENS * known.requests:
        return ""
    mean = known.emitted / known.requests
    return (
        f"; stable's answers have {mean:.0f} tokens on the average, and those of {STRETCH_TOKENS} or fewer hold none: "
        "where hardly any is longer the deadline ends this canary, so leave canary.analysis.interTokenLatency out"
    )


def _rows(waits: Waits | None) -> Rows:
    return ((), ()) if waits is None else waits.rows


def _judge(asked: Share, evidence: Evidence, alpha: float) -> CheckResult:
    canary, stable = evidence.strata(evidence.canary), evidence.strata(evidence.stable)
    counts = [sums_of(strata.values(), asked.read)[1] for strata in (canary, stable)]
    draft = CheckResult(
        name=asked.name,
        verdict=CheckVerdict.NO_DATA,
        threshold=f"< {asked.margin:.3f} more than stable",
        samples=f"{counts[0]} {asked.what}, stable {counts[1]} {asked.what}",
    )
    if not all(counts):
        return stated(draft, CheckVerdict.NO_DATA, asked.lacking)
    slow, usual = by_policy(canary, asked.read), by_policy(stable, asked.read)
    estimate = combine(difference(slow[policy], usual[policy]) for policy in sorted(slow.keys() & usual.keys()))
    if min(counts) < asked.needed or estimate is None:
        words = f"each revision needs {asked.needed} timed {asked.what}, over the buckets"
        return stated(draft, CheckVerdict.INCONCLUSIVE, words)
    return judge_rise(draft, estimate, asked.margin, half_width(estimate, max(asked.margin, SMALLEST_SCALE), alpha))


def are_timed(strata: Mapping[int, Stratum]) -> bool:
    """Whether gateways say how long first tokens take."""
    return any(stratum.waits is not None for stratum in strata.values())
