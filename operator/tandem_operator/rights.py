"""Knows which rights the operator's account needs, and which of them the API server says it lacks.

Refuses to know how they are granted; the chart does that, and a test holds its rules and this table together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Protocol

from tandem_operator.domain.nested import held, items
from tandem_operator.ports import Json, Kind

LEASE_NAME = "tandem-operator"


class Right(NamedTuple):
    """One verb on one resource, `resource/subresource` where it is one; `name` where one object is enough."""

    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource} {self.name}".rstrip()


def _each(group: str, resources: str, verbs: str, name: str = "") -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb, name) for resource, verb in product(resources.split(), verbs.split()))


IN_WATCHED = (
    *_each("tandem.dev", "speculativedeployments", "get list watch patch"),
    *_each("tandem.dev", "speculativedeployments/status", "update"),
    *_each("apps", "deployments controllerrevisions", "get list watch create patch delete"),
    *_each("policy", "poddisruptionbudgets", "get list create patch delete"),
    *_each("", "services configmaps", "get list watch create patch delete"),
    *_each("", "serviceaccounts", "get list create patch delete"),
    *_each("rbac.authorization.k8s.io", "roles rolebindings", "get list create patch delete"),
    *_each("", "pods", "get list watch delete"),
    *_each("events.k8s.io", "events", "create"),
)
"""In every namespace that is watched: what the operator uses, and what it grants to gateways."""

AT_HOME = (
    *_each("coordination.k8s.io", "leases", "create"),
    *_each("coordination.k8s.io", "leases", "get update", LEASE_NAME),
    *_each("", "nodes", "list"),
)
"""In its own namespace, and what has no namespace."""

OVER_ALL = _each("apiextensions.k8s.io", "customresourcedefinitions", "list watch")
"""Where every namespace is watched: kopf looks up what there is to watch. In named ones it asks once, at the start."""

DISPENSABLE = frozenset({Right("events.k8s.io", "events", "create"), Right("", "nodes", "list")})
"""Without these something is not told or not chosen well, and everything goes on."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """What is missing, each in words; `needed` stops work, `dispensable` does not."""

    needed: tuple[str, ...] = ()
    dispensable: tuple[str, ...] = ()


class Reviews(Protocol):
    """The part of a cluster that answers reviews."""

    async def create(self, kind: Kind, body: Json) -> Json: ...


async def find_lacking(reviews: Reviews, home: str, watched: Iterable[str]) -> Lacking:
    """Asks once per namespace; no `watched` ones means all of them, for which the rights at home stand.

    Raises ClusterError. An authoriser that cannot list its rules lacks nothing that we know of.
    """
    namespaces = tuple(watched)
    wanted: dict[str, tuple[Right, ...]] = {home: AT_HOME if namespaces else (*AT_HOME, *OVER_ALL)}
    for namespace in namespaces or (home,):
        wanted[namespace] = (*wanted.get(namespace, ()), *IN_WATCHED)
    found = [
        (right in DISPENSABLE, f"{right} in {namespace}")
        for namespace, rights in wanted.items()
        for right in await _not_granted(reviews, namespace, rights)
    ]
    needed = tuple(words for dispensable, words in found if not dispensable)
    return Lacking(needed, tuple(words for dispensable, words in found if dispensable))


async def _not_granted(reviews: Reviews, namespace: str, rights: Iterable[Right]) -> list[Right]:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": Kind.RULES_REVIEW.value,
        "spec": {"namespace": namespace},
    }
    answer = await reviews.create(Kind.RULES_REVIEW, body)
    rules = items(answer, "status", "resourceRules")
    silent = held(answer, "status", "incomplete") is True
    return [] if silent else [right for right in rights if not any(_grants(rule, right) for rule in rules)]


def _grants(rule: Mapping[str, object], right: Right) -> bool:
    names = held(rule, "resourceNames")
    named = not names or (isinstance(names, list) and right.name in names)
    asked = (("apiGroups", right.group), ("resources", right.resource), ("verbs", right.verb))
    return named and all(_holds(rule, field, value) for field, value in asked)


def _holds(rule: Mapping[str, object], field: str, value: str) -> bool:
    given = held(rule, field)
    return isinstance(given, list) and (value in given or "*" in given)
