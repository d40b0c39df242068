"""Knows what Prometheus answered to a query of the user's: one number, or why there is none.

Refuses to know what is asked when (`queries`), and what a number means for a canary (`own_metrics`).

`GET|POST /api/v1/query` gives `{"status": "success", "data": {"resultType": ..., "result": ...}}`, where a scalar's
result is `[time, "value"]` and a vector's a list of series with such a `value`; an error has `errorType` and `error`
(Prometheus, *HTTP API*, "Instant queries" and "Format overview"). A query that cannot give one number is the provider's
trouble and not the canary's: several series, a range, text, and an answer that carries warnings, since those say that a
part of the data is missing. No series, NaN and an infinity (a division by no traffic) are no data.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tandem_operator.domain.nested import held, items, mapping, text

LONGEST_NOTE = 300
"""Of a provider's own words: they name a place in a query and may quote all of it."""

REMARK = "PromQL info:"
"""Prometheus before 3.0 puts hints on how a query is written among its warnings; nothing is missing then."""


class Trouble(StrEnum):
    """Why there is no number."""

    PROVIDER_ERROR = "ProviderError"
    NO_DATA = "NoData"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The answer to the query of one metric: a finite `value`, or the trouble and a note on it.

    `query` is as the spec had it, so that its number is never held against the threshold of another.
    """

    name: str
    query: str = ""
    value: float | None = None
    trouble: Trouble | None = None
    note: str = ""


def read(name: str, answer: bytes) -> Reading:
    """The reading in a provider's answer, whatever it is."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return provider_error(name, "its answer is no JSON")
    if text(found, "status") != "success":
        words = f"{text(found, 'errorType')}: {text(found, 'error')}".strip(": ")
        return provider_error(name, words or "its answer has no status")
    warnings = held(found, "warnings")
    grave = [] if not isinstance(warnings, list) else [word for word in warnings if not str(word).startswith(REMARK)]
    if grave:
        return provider_error(name, f"it warns: {grave[0]}")
    return _value(name, mapping(found, "data"))


def provider_error(name: str, note: str) -> Reading:
    return _troubled(name, Trouble.PROVIDER_ERROR, note)


def _troubled(name: str, trouble: Trouble, note: str) -> Reading:
    """JSON may hold half of a pair of surrogates, which no document of ours can."""
    told = note[:LONGEST_NOTE].encode("utf-8", "replace").decode("utf-8")
    return Reading(name=name, trouble=trouble, note=told)


def _value(name: str, data: Mapping[str, object]) -> Reading:
    kind = text(data, "resultType")
    match kind:
        case "scalar":
            return _number(name, held(data, "result"))
        case "vector":
            series = items(data, "result")
            if len(series) > 1:
                return provider_error(name, f"the query gives {len(series)} series; aggregate them, as sum(...) does")
            return _number(name, held(series[0], "value")) if series else _no_data(name, "the query gives no series")
        case _:
            return provider_error(name, f"the query gives a {kind or 'nothing'}; write one that gives a number")


def _number(name: str, sample: object) -> Reading:
    """`[1767225600, "0.02"]` is 0.02."""
    written = sample[1] if isinstance(sample, list) and len(sample) == 2 else None
    try:
        value = float(written if isinstance(written, str) else "none")
    except ValueError:
        return provider_error(name, "its answer holds no number")
    if not math.isfinite(value):
        return _no_data(name, f"the query gives {written}")
    return Reading(name=name, value=value)


def _no_data(name: str, note: str) -> Reading:
    return _troubled(name, Trouble.NO_DATA, note)
