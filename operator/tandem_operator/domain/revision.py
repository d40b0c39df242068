"""Knows the pair as one version: which values make it what it is, and the hashes that name them.

Knows nothing of images that were defaulted, of manifests or of when a revision was made.

A revision is (target hash, draft hash, adapters hash). Pods belong to a role hash, so two revisions that differ in
the draft alone share the target's pods, and two that differ in adapters alone share all of them: targets load
adapters while they serve. Hashed is what changes the tokens or the speed of a role's pods: model,
engine, its arguments, image where given, podTemplate, accelerator and count. Replicas, scheduling details,
resources and all policy are not.

What a role is made from besides (an image that was defaulted, the terms of its devices, the template as an operator
renders it) is not hashed either, so that an upgrade of the operator rolls nothing. Where somebody asks for it, a role
is made anew from the same values, as another *edition*, whose number goes into the hash: these are other pods.

A hash must outlive the operator that made it: a release that gives a field a new default, or adds a field, must not
change the hash of any stored spec, else every fleet would roll. So the algorithm has a version, and each version
its own table of defaults, frozen here; a value that equals its default there is left out before hashing. Never edit
a version's table; add a version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from tandem_operator.domain.lora import Adapter
from tandem_operator.domain.spec import Draft, DraftMethod, JsonObject, Placement, Spec, Target

RoleHash = NewType("RoleHash", str)
RevisionName = NewType("RevisionName", str)

HASH_VERSION = 1
NOTHING = RoleHash("00000000")
"""Stands for adapters where there are none, and in status for the draft of a pair without one."""

_DEFAULTS: Mapping[str, object] = {
    "method": "Model",
    "engine": "Torch",
    "engineArgs": {},
    "podTemplate": {},
    "count": 1,
}


class Role(StrEnum):
    """What a pod is for."""

    GATEWAY = "gateway"
    DRAFT = "draft"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """In which making each role is: 0 is the first one of its values, 3 the one that came with revision number 3."""

    target: int = 0
    draft: int = 0
    gateway: int = 0


FIRST_EDITION = Edition()


@dataclass(frozen=True, slots=True)
class Revision:
    """A pair as hashes; `draft` is None for a target that serves alone. Gateways have no hash, but an edition."""

    target: RoleHash
    draft: RoleHash | None
    adapters: RoleHash = NOTHING
    edition: Edition = FIRST_EDITION

    @property
    def name(self) -> RevisionName:
        """Eight hexadecimal digits that stand for all of it; those of the first edition know of no other."""
        parts: dict[str, object] = {"target": self.target, "draft": self.draft, "adapters": self.adapters}
        parts |= {"gateway": self.edition.gateway} if self.edition.gateway else {}
        return RevisionName(_digest("revision", parts))


def revision_of(spec: Spec, edition: Edition = FIRST_EDITION) -> Revision:
    """The revision that a spec means, with each role in this edition."""
    draft = draft_values(spec.draft)
    return Revision(
        target=_role_hash(Role.TARGET, target_values(spec.target), edition.target),
        draft=None if draft is None else _role_hash(Role.DRAFT, draft, edition.draft),
        adapters=_adapters_hash(adapter_values(spec.adapters)),
        edition=edition,
    )


def target_values(target: Target) -> JsonObject:
    """What is hashed of a target, normalised: absent and default values left out."""
    return _normalised(
        {
            "uri": target.model.uri,
            "revision": target.model.revision,
            "digest": target.model.digest,
            "engine": str(target.engine),
            "engineArgs": target.engine_args,
            "image": target.image,
            "adaptersFolder": target.adapters_folder,
            "maxAdapters": target.max_adapters,
            "podTemplate": target.pod_template,
            **_device_values(target.placement),
        }
    )


def draft_values(draft: Draft) -> JsonObject | None:
    """What is hashed of a draft, normalised; None where it has no pods: a lookup changes no text, and stands on the
    revision's record instead."""
    if draft.model is None or draft.method is not DraftMethod.MODEL:
        return None
    return _normalised(
        {
            "method": str(draft.method),
            "uri": draft.model.uri,
            "revision": draft.model.revision,
            "digest": draft.model.digest,
            "engine": str(draft.engine),
            "engineArgs": draft.engine_args,
            "image": draft.image,
            "podTemplate": draft.pod_template,
            **_device_values(draft.placement),
        }
    )


def adapter_values(adapters: Sequence[Adapter]) -> Sequence[JsonObject]:
    """What is hashed of adapters, normalised, in the order of their names: the spec's order means nothing."""
    named = ((each.name, each.model) for each in sorted(adapters, key=lambda each: each.name))
    return [
        _normalised({"name": name, "uri": model.uri, "revision": model.revision, "digest": model.digest})
        for name, model in named
    ]


def content_of(values: JsonObject) -> str:
    """Sixteen digits that stand for what an adapter is made of, whatever its name."""
    return _digest("adapter", {name: value for name, value in values.items() if name != "name"}, digits=16)


def _device_values(placement: Placement) -> JsonObject:
    return {"accelerator": placement.accelerator, "count": placement.count}


def _normalised(values: JsonObject) -> JsonObject:
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in sorted(values.items())
        if value is not None and not (name in _DEFAULTS and value == _DEFAULTS[name])
    }


def _role_hash(role: Role, values: JsonObject, edition: int) -> RoleHash:
    return RoleHash(_digest(role, {**values, "edition": edition} if edition else values))


def _adapters_hash(values: Sequence[JsonObject]) -> RoleHash:
    return RoleHash(_digest("adapters", {"adapters": values})) if values else NOTHING


def _digest(kind: str, values: JsonObject, *, digits: int = 8) -> str:
    """SHA-256 over one spelling of the values as JSON, cut to some digits: a name, not a seal."""
    document = {"hash": HASH_VERSION, "kind": str(kind), "values": values}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
