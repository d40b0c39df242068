"""Knows the pair as one version: which values make it what it is, and the hashes that name them.

Knows nothing of images that were defaulted, of manifests or of when a revision was made.

A revision is (target hash, draft hash, adapters hash). Pods belong to a role hash, so two revisions that differ in
the draft alone share the target's pods. Hashed is what changes the tokens or the speed of a role's pods: model,
engine, its arguments, image where given, podTemplate, accelerator and count. Replicas, scheduling details,
resources and all policy are not.

A hash must outlive the operator that made it: a release that gives a field a new default, or adds a field, must not
change the hash of any stored spec, else every fleet would roll. So the algorithm has a version, and each version
its own table of defaults, frozen here; a value that equals its default there is left out before hashing. Never edit
a version's table; add a version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

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


@dataclass(frozen=True, slots=True)
class Revision:
    """A pair as hashes; `draft` is None for a target that serves alone."""

    target: RoleHash
    draft: RoleHash | None
    adapters: RoleHash = NOTHING

    @property
    def name(self) -> RevisionName:
        """Eight hexadecimal digits that stand for all three."""
        parts = {"target": self.target, "draft": self.draft, "adapters": self.adapters}
        return RevisionName(_digest("revision", parts))


def revision_of(spec: Spec) -> Revision:
    """The revision that a spec means."""
    draft = draft_values(spec.draft)
    return Revision(
        target=RoleHash(_digest(Role.TARGET, target_values(spec.target))),
        draft=None if draft is None else RoleHash(_digest(Role.DRAFT, draft)),
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
            "podTemplate": target.pod_template,
            **_device_values(target.placement),
        }
    )


def draft_values(draft: Draft) -> JsonObject | None:
    """What is hashed of a draft, normalised; None where it has no pods: lookups are policy, as they change no text."""
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


def _device_values(placement: Placement) -> JsonObject:
    return {"accelerator": placement.accelerator, "count": placement.count}


def _normalised(values: JsonObject) -> JsonObject:
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in sorted(values.items())
        if value is not None and not (name in _DEFAULTS and value == _DEFAULTS[name])
    }


def _digest(kind: str, values: JsonObject) -> str:
    """SHA-256 over one spelling of the values as JSON, cut to 8 digits: a name, not a seal."""
    document = {"hash": HASH_VERSION, "kind": str(kind), "values": values}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
