"""Knows how one piece of a pod template is laid over another.

Knows nothing of what the pieces say. The rules are those that people know from `kubectl patch`: maps merge by key,
null removes a key, containers merge by name. What differs between lists is in the tables below; lists that are in
none are replaced whole, as `command` and `args` must be.

Node affinity is special: a pod's `nodeSelectorTerms` are alternatives, so two demands that must both hold are every
pairing of their alternatives: (a or b) and (c or d) = ac or ad or bc or bd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeGuard

from tandem_operator.domain.nested import held

JsonObject = Mapping[str, object]

MERGED_BY_NAME = frozenset({"containers", "initContainers"})
"""An entry merges into the one of the same name."""

REPLACED_BY_KEY: Mapping[str, str] = {"volumes": "name", "env": "name", "ports": "name", "volumeMounts": "mountPath"}
"""An entry replaces the one with the same key whole: two sources of one volume or one variable would be invalid."""

APPENDED = frozenset(
    {"tolerations", "envFrom", "imagePullSecrets", "preferredDuringSchedulingIgnoredDuringExecution", "hostAliases"}
)
"""Lists that only grow."""


def overlaid(base: JsonObject, patch: JsonObject) -> dict[str, object]:
    """`base` with `patch` over it; neither is changed.

    overlaid({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}}) == {"b": {"c": 2, "d": 3}}
    """
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _laid_over(key, base.get(key), value)
    return merged


def _laid_over(key: str, below: object, above: object) -> object:
    if isinstance(above, Mapping):
        return overlaid(below if isinstance(below, Mapping) else {}, above)
    if _is_list(below) and _is_list(above):
        return _lists_laid_over(key, list(below), list(above))
    return above


def _lists_laid_over(key: str, below: list[object], above: list[object]) -> list[object]:
    if key in MERGED_BY_NAME:
        return _by_key(below, above, "name", merge=True)
    if key in REPLACED_BY_KEY:
        return _by_key(below, above, REPLACED_BY_KEY[key], merge=False)
    if key in APPENDED:
        return [*below, *(item for item in above if item not in below)]
    if key == "nodeSelectorTerms":
        return [_both(one, other) for one, other in product(below, above)]
    return above


def _by_key(below: list[object], above: list[object], key: str, *, merge: bool) -> list[object]:
    entries = {held(item, key): item for item in below}
    for item in above:
        name = held(item, key)
        old = entries.get(name)
        if merge and isinstance(old, Mapping) and isinstance(item, Mapping):
            entries[name] = overlaid(old, item)
        else:
            entries[name] = item
    return list(entries.values())


def _both(one: object, other: object) -> dict[str, object]:
    """One node selector term that demands what both demand."""
    joined: dict[str, object] = {}
    for field in ("matchExpressions", "matchFields"):
        demands = [*_listed(held(one, field)), *_listed(held(other, field))]
        if demands:
            joined[field] = demands
    return joined


def _listed(value: object) -> Sequence[object]:
    return list(value) if _is_list(value) else []


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
