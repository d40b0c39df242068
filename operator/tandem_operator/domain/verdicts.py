"""Knows how an estimate becomes the result of a check: which verdict a bound gives, and how its numbers are put down.

Refuses to know which evidence was looked at, and against which rule (`health`).

A bound is compared, never a point. A drop fails where the whole interval lies below zero and it reaches the margin, and
passes where it certainly lies above the margin.
"""

import math
from dataclasses import replace

from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.intervals import Estimate

SMALLEST_SCALE = 0.005
"""tau where a drop of nothing at all is allowed."""


def stated(draft: CheckResult, verdict: CheckVerdict, message: str, *, value: str = "") -> CheckResult:
    """A verdict without an interval: what is missing, or what is plain."""
    return replace(draft, verdict=verdict, message=message, value=value or draft.value)


def judge_drop(draft: CheckResult, estimate: Estimate, margin: float, h: float) -> CheckResult:
    """Against a margin of 0.05 the loss -0.02 +- 0.01 passes, -0.06 +- 0.04 fails, and -0.02 +- 0.04 is too wide."""
    if estimate.value + h < 0 and estimate.value - h <= -margin:
        return decided(draft, CheckVerdict.FAIL, estimate, h, "worse than stable, and by the margin as far as is known")
    if estimate.value - h > -margin:
        return decided(draft, CheckVerdict.PASS, estimate, h, "not worse than stable by the margin")
    return decided(draft, CheckVerdict.INCONCLUSIVE, estimate, h, "the interval is still too wide for the margin")


def judge_rise(draft: CheckResult, estimate: Estimate, margin: float, h: float) -> CheckResult:
    """What is bad when it rises, judged as what is bad when it drops."""
    mirrored = judge_drop(draft, replace(estimate, value=-estimate.value), margin, h)
    return decided(draft, mirrored.verdict, estimate, h, mirrored.message)


def decided(draft: CheckResult, verdict: CheckVerdict, estimate: Estimate, h: float, message: str) -> CheckResult:
    """A verdict with its interval, as three decimals."""
    return _with_interval(draft, verdict, (estimate.value, estimate.value - h, estimate.value + h), message)


def decided_ratio(draft: CheckResult, verdict: CheckVerdict, estimate: Estimate, h: float, message: str) -> CheckResult:
    """As `decided`, for an estimate that is a logarithm."""
    numbers = (estimate.value, estimate.value - h, estimate.value + h)
    return _with_interval(draft, verdict, tuple(map(math.exp, numbers)), message)


def grand(log_value: float) -> str:
    """exp of a logarithm as text, whatever its size."""
    return f"{math.exp(log_value):.3g}" if log_value < 20 else f"e^{log_value:.0f}"


def _with_interval(draft: CheckResult, verdict: CheckVerdict, numbers: tuple[float, ...], message: str) -> CheckResult:
    """The result with its bounds, where there are any: so few units may say nothing of their own spread."""
    value, low, high = (f"{number:.3f}" if math.isfinite(number) else "" for number in numbers)
    return replace(draft, verdict=verdict, value=value, low=low if high else "", high=high, message=message)
