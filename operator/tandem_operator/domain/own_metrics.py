"""Knows how a number of the user's own is held against its threshold.

Refuses to know where the number comes from (`readings`) and what follows from the verdict (`health`).

The number has no interval: its query says what is averaged over what, and only its author knows how sure that is. So it
is compared as it is, once per interval, and never before the canary has `minRequests` requests: the first refusal of
one answer is a rate of 1.
"""

from collections.abc import Sequence
from dataclasses import replace

from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.readings import Reading, Trouble
from tandem_operator.domain.spec import Comparison, MetricCheck

PREFIX = "metrics."
"""Before a metric's name in status, so that it is never taken for a check of the product."""

_SIGNS = {Comparison.LESS_THAN: "<", Comparison.GREATER_THAN: ">"}
_TROUBLES = {Trouble.PROVIDER_ERROR: CheckVerdict.PROVIDER_ERROR, Trouble.NO_DATA: CheckVerdict.NO_DATA}


def judge(metric: MetricCheck, readings: Sequence[Reading], *, requests: int, needed: int) -> CheckResult:
    """0.012 against `LessThan` 100 basis points fails, once the canary has served the `needed` requests."""
    draft = CheckResult(
        name=f"{PREFIX}{metric.name}",
        verdict=CheckVerdict.NO_DATA,
        threshold=f"{_SIGNS[metric.operator]} {_threshold(metric):g}",
        samples=f"{requests} requests",
        message="Prometheus was not asked yet",
    )
    asked = (metric.name, metric.query)
    reading = next((known for known in readings if (known.name, known.query) == asked), None)
    if reading is None:
        return draft
    if reading.value is None:
        trouble = _TROUBLES[reading.trouble or Trouble.NO_DATA]
        return replace(draft, verdict=trouble, message=reading.note)
    return _compared(metric, replace(draft, value=f"{reading.value:.6g}"), reading.value, short=requests < needed)


def _compared(metric: MetricCheck, draft: CheckResult, value: float, *, short: bool) -> CheckResult:
    if short:
        words = "too few requests of the revision; see analysis.minRequests"
        return replace(draft, verdict=CheckVerdict.INCONCLUSIVE, message=words)
    if _holds(metric, value):
        return replace(draft, verdict=CheckVerdict.PASS, message="as wanted")
    return replace(draft, verdict=CheckVerdict.FAIL, message="the query's number is not as wanted")


def _threshold(metric: MetricCheck) -> float:
    return metric.threshold_basis_points / 10_000


def _holds(metric: MetricCheck, value: float) -> bool:
    below = metric.operator is Comparison.LESS_THAN
    return value < _threshold(metric) if below else value > _threshold(metric)
