"""Knows which of the user's queries are to be asked in a look, and in which words.

Refuses to know who is asked (`ports.Metrics`) and how answers read (`readings`).

A query is asked while the canary serves somebody, at the pace of the analysis. A look at an object without a canary
asks nothing.
"""

from collections.abc import Mapping

from tandem_operator.domain import evidence, rollout
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.nested import text
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.spec import Spec, parse

PLACEHOLDERS = ("revision", "stable", "namespace", "name")
"""What may stand in double braces; the CRD refuses others."""


def due(seen: Observed) -> Mapping[str, str]:
    """PromQL by the metric's name; nothing where nothing is to be asked now."""
    moved = seen.progress.rollout
    spec = _read(seen) if rollout.on_trial(moved) else None
    if spec is None or not spec.canary.analysis.metrics or not rollout.canary_percent(moved, spec.canary):
        return {}
    kept = evidence.read(seen.config_text("evidence", "evidence.json"))
    if kept is not None and (kept.canary, kept.since) != (moved.revision, moved.first_policy):
        kept = None
    if not evidence.is_due(kept, seen.now, interval_seconds=spec.canary.analysis.interval_seconds):
        return {}
    stable = text(seen.resource.status, "stableRevision")
    words = (moved.revision, stable, seen.resource.namespace, seen.resource.name)
    known = dict(zip(PLACEHOLDERS, words, strict=True))
    return {metric.name: filled(metric.query, known) for metric in spec.canary.analysis.metrics}


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
