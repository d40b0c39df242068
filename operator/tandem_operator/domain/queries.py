"""Knows which of the user's queries are to be asked in a look, and in which words.

Refuses to know who is asked (`ports.Metrics`) and how answers read (`readings`).

A query is asked while the canary serves somebody, at the pace of the analysis. A look at an object without a canary
asks nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tandem_operator.domain import evidence, rollout
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.nested import text
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.spec import Spec, parse

PLACEHOLDERS = ("revision", "stable", "namespace", "name")
"""What may stand in double braces; the CRD refuses others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked for a metric: `promql` is `written` with its placeholders filled."""

    name: str
    written: str
    promql: str


def due(seen: Observed) -> tuple[Query, ...]:
    """The queries to be asked now."""
    moved = seen.progress.rollout
    spec = _read(seen) if rollout.on_trial(moved) else None
    if spec is None or not spec.canary.analysis.metrics or not rollout.canary_percent(moved, spec.canary):
        return ()
    kept = evidence.read(seen.config_text("evidence", "evidence.json"))
    if kept is not None and (kept.canary, kept.since) != (moved.revision, moved.first_policy):
        kept = None
    if not evidence.is_due(kept, seen.now, interval_seconds=spec.canary.analysis.interval_seconds):
        return ()
    stable = text(seen.resource.status, "stableRevision")
    words = (moved.revision, stable, seen.resource.namespace, seen.resource.name)
    known = dict(zip(PLACEHOLDERS, words, strict=True))
    return tuple(
        Query(name=metric.name, written=metric.query, promql=filled(metric.query, known))
        for metric in spec.canary.analysis.metrics
    )


def filled(query: str, words: Mapping[str, str]) -> str:
    """`errors{revision="{{revision}}"}` names the revision on trial."""
    for name, word in words.items():
        query = query.replace(f"{{{{{name}}}}}", word)
    return query


def _read(seen: Observed) -> Spec | None:
    try:
        return parse(seen.resource.spec)
    except SpecError:
        return None  # the look itself says so
