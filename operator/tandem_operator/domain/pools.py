"""Knows which nodes carry an accelerator: the table from a name (L4, H100) to node labels, tolerations and a resource.

Knows nothing of single devices, of prices, or of where the table comes from (the operator's settings).

One accelerator has several spellings, by who labelled the node (GPU feature discovery, GKE, Karpenter). Each is one
alternative of the table. Where the operator may read nodes, it takes the first alternative that an existing node
matches, so that the pod asks for what there is; else it writes an affinity that allows every alternative. Values
are compared whole: `NVIDIA-L40S` is not an L4, though it starts like one. What was chosen is kept with the
revision, so a node that comes later changes no running pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tandem_operator.domain.errors import SpecError

JsonObject = Mapping[str, object]

DEFAULT_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way in which nodes with the accelerator are labelled: `label` has one of `values`."""

    label: str
    values: tuple[str, ...]
    tolerations: tuple[JsonObject, ...] = ()
    resource: str = DEFAULT_RESOURCE


AcceleratorTable = Mapping[str, tuple[Alternative, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a pod must say to get its devices: affinity and tolerations for its spec, a resource for its container."""

    affinity: JsonObject
    tolerations: tuple[JsonObject, ...]
    resource: str
    count: int


def read_table(raw: object) -> AcceleratorTable:
    """The table from JSON: {"L4": [{"label": ..., "values": [...], "tolerations": [...], "resource": ...}]}.

    Raises SpecError with a path that starts at `accelerators`.
    """
    if not isinstance(raw, Mapping):
        raise SpecError("accelerators", raw, "must be a map from an accelerator's name to its alternatives")
    return {str(name): _read_alternatives(f"accelerators.{name}", items) for name, items in raw.items()}


def choose(
    accelerator: str, *, count: int, table: AcceleratorTable, nodes: Sequence[Mapping[str, str]] | None, path: str
) -> Terms:
    """The terms for `count` devices of a named accelerator.

    `nodes` are the labels of the existing nodes, None where the operator may not read them; `path` is the field
    that named the accelerator. Raises SpecError when the table does not hold it.
    """
    if accelerator not in table:
        known = ", ".join(sorted(table)) or "none"
        raise SpecError(path, accelerator, f"is not in the accelerator table, which holds {known}")
    chosen = _alternatives_that_exist(table[accelerator], nodes)
    return Terms(
        affinity=_affinity(chosen),
        tolerations=_distinct([toleration for each in chosen for toleration in each.tolerations]),
        resource=chosen[0].resource,
        count=count,
    )


def _alternatives_that_exist(
    alternatives: tuple[Alternative, ...], nodes: Sequence[Mapping[str, str]] | None
) -> tuple[Alternative, ...]:
    for each in alternatives:
        if any(labels.get(each.label) in each.values for labels in nodes or ()):
            return (each,)
    return tuple(each for each in alternatives if each.resource == alternatives[0].resource)


def _affinity(chosen: tuple[Alternative, ...]) -> JsonObject:
    terms = [
        {"matchExpressions": [{"key": each.label, "operator": "In", "values": list(each.values)}]} for each in chosen
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _distinct(tolerations: list[JsonObject]) -> tuple[JsonObject, ...]:
    return tuple(each for index, each in enumerate(tolerations) if each not in tolerations[:index])


def _read_alternatives(path: str, raw: object) -> tuple[Alternative, ...]:
    if not isinstance(raw, list) or not raw:
        raise SpecError(path, raw, "must be a list of at least one alternative")
    return tuple(_read_alternative(f"{path}[{index}]", item) for index, item in enumerate(raw))


def _read_alternative(path: str, raw: object) -> Alternative:
    if not isinstance(raw, Mapping):
        raise SpecError(path, raw, "must be a map with label and values")
    label, values = raw.get("label"), raw.get("values")
    if not isinstance(label, str) or not label:
        raise SpecError(f"{path}.label", label, "must be the key of a node label")
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise SpecError(f"{path}.values", values, "must be a list of at least one label value, each as text")
    resource = raw.get("resource", DEFAULT_RESOURCE)
    if not isinstance(resource, str) or "/" not in resource:
        raise SpecError(f"{path}.resource", resource, "must be an extended resource such as nvidia.com/gpu")
    tolerations = _read_tolerations(f"{path}.tolerations", raw.get("tolerations", []))
    return Alternative(label=label, values=tuple(values), tolerations=tolerations, resource=resource)


def _read_tolerations(path: str, raw: object) -> tuple[JsonObject, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, Mapping) for item in raw):
        raise SpecError(path, raw, "must be a list of tolerations as in a pod's spec")
    return tuple(cast("list[JsonObject]", raw))
