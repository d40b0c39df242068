"""Knows the children of a SpeculativeDeployment as objects of the API, byte for byte the same for the same arguments.

Knows nothing of which of them should exist, of how many replicas are right, or of how they are written.

Target and draft Deployments are made from what a ControllerRevision stores, never from the code that would render
it today. What may change under a running revision (the live part, see `templates`) is written on the Deployment as
an annotation, so that the pods of a revision that the spec no longer means keep what they had.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from tandem_operator.domain import templates
from tandem_operator.domain.errors import Bug
from tandem_operator.domain.nested import held
from tandem_operator.domain.overlay import overlaid
from tandem_operator.domain.pools import Terms, choose
from tandem_operator.domain.revision import (
    FIRST_EDITION,
    HASH_VERSION,
    Edition,
    Role,
    RoleHash,
    adapter_values,
    draft_values,
    revision_of,
    target_values,
)
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.domain.spec import Draft, Gateway, Placement, Spec, Target, Transport
from tandem_operator.domain.templates import Engine, Owner, labels, selector

JsonObject = Mapping[str, object]

API_VERSION = "tandem.dev/v1alpha1"
KIND = "SpeculativeDeployment"
LIVE_ANNOTATION = "tandem.dev/live"
POLICY_KEY = "policy.json"
EVIDENCE_KEY = "evidence.json"
REVISIONS_KEY = "revisions.json"
DATA_VERSION = 1

PROGRESS_DEADLINE_SECONDS = 90_000
"""Loading is slow and the operator has its own deadlines; this one only has to lie above the longest of them, a day."""


NodeLabels = Sequence[Mapping[str, str]]
"""The labels of the nodes that exist."""


def revision_data(
    spec: Spec, owner: Owner, settings: OperatorTerms, *, nodes: NodeLabels | None, edition: Edition = FIRST_EDITION
) -> dict[str, object]:
    """The data of a ControllerRevision: hashes, normalised values, what was resolved, and the templates that follow.

    A pair without a draft has the key `draft` nowhere, and a first edition no key `edition`.
    `nodes` is None where the operator may not read them. Raises SpecError when an accelerator is not in the table.
    """
    revision = revision_of(spec, edition)
    resolver = _Resolver(settings, nodes)
    target = _target_engine(revision.target, spec.target, resolver)
    draft = _draft_engine(revision.draft, spec.draft, resolver)
    gateway = templates.gateway_base(owner, image=settings.runtime_image, tokenizer=spec.target.model)
    return {
        "version": DATA_VERSION,
        "hashVersion": HASH_VERSION,
        **_present(target=revision.target, draft=revision.draft, adapters=revision.adapters),
        **({"edition": asdict(edition)} if edition != FIRST_EDITION else {}),
        "values": _present(
            target=target_values(spec.target),
            draft=draft_values(spec.draft),
            adapters=adapter_values(spec.adapters) or None,
        ),
        "resolved": _present(target=_resolved(target), draft=draft and _resolved(draft)),
        "templates": _present(
            target=templates.engine_base(owner, target),
            draft=draft and templates.engine_base(owner, draft),
            gateway=gateway,
        ),
        "live": _present(target=live_part(spec, Role.TARGET), draft=draft and live_part(spec, Role.DRAFT)),
    }


def as_made_before(data: JsonObject, made: Iterable[JsonObject]) -> dict[str, object]:
    """The data of a new revision; a role hash that one of `made` has is made from what the first such one is made from.

    Revisions that share a role hash share its pods: a later template under the same hash would restart them.
    """
    known = list(made)
    templates, resolved = dict(_object(data, "templates")), dict(_object(data, "resolved"))
    for role in (Role.TARGET, Role.DRAFT):
        before = next((one for one in known if role in data and one.get(role) == data[role]), None)
        if before is not None:
            templates[role] = _object(before, "templates", role)
            resolved[role] = _object(before, "resolved", role)
    return {**data, "templates": templates, "resolved": resolved}


def _present(**values: object) -> dict[str, object]:
    """Those that are there: clients refuse null in a ControllerRevision."""
    return {name: value for name, value in values.items() if value is not None}


def controller_revision(owner: Owner, *, name: str, number: int, data: JsonObject) -> JsonObject:
    """The record of revision `name`, the `number`th of its object. Its data never changes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": _metadata(owner, f"{owner.name}-{name}", labels(owner)),
        "revision": number,
        "data": dict(data),
    }


def live_part(spec: Spec, role: Role) -> JsonObject:
    """What the spec says now about target or draft pods and may change under them."""
    return templates.target_live(spec.target) if role is Role.TARGET else templates.draft_live(spec.draft)


def live_part_of(deployment: JsonObject) -> JsonObject | None:
    """The live part that a Deployment was last written with; None where it has none."""
    text = held(deployment, "metadata", "annotations", LIVE_ANNOTATION)
    return json.loads(text) if isinstance(text, str) else None


def stored_live_part(data: JsonObject, role: Role) -> JsonObject:
    """The live part at the time the revision was made, for when its Deployment is gone."""
    return _object(data, "live", str(role))


def role_deployment(
    owner: Owner, role: Role, data: JsonObject, *, live: JsonObject, transport: Transport, replicas: int
) -> JsonObject:
    """The Deployment of a revision's target or draft, from the revision's data.

    `transport` is the spec's of now for every revision: pods that speak otherwise than the gateways serve nobody.
    Raises Bug for the draft of a pair without one.
    """
    named = data.get(str(role))
    if not isinstance(named, str):
        raise Bug(f"revision data of {owner.name} have no {role}")
    role_hash = RoleHash(named)
    overlay = held(data, "values", str(role), "podTemplate")
    template = _speaking(overlaid(_object(data, "templates", str(role)), live), transport)
    if isinstance(overlay, Mapping):
        template = overlaid(template, overlay)
    metadata = _metadata(owner, role_name(owner, role, role_hash), labels(owner, role, role_hash))
    identity = selector(owner, role, role_hash)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata, "annotations": {LIVE_ANNOTATION: as_text(live)}},
        "spec": _deployment_spec(identity, _identified(template, data, role), replicas, surge=0),
    }


def gateway_deployment(owner: Owner, data: JsonObject, spec: Spec) -> JsonObject:
    """The gateways: base from the revision that serves, everything else from the spec as it is now."""
    base = _object(data, "templates", "gateway")
    live = templates.gateway_live(base, spec.gateway, spec.target.model)
    speaking = _speaking(overlaid(base, live), spec.transport)
    template = _identified(overlaid(speaking, spec.gateway.pod_template), data, Role.GATEWAY)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(owner, gateway_name(owner), labels(owner, Role.GATEWAY)),
        "spec": _deployment_spec(selector(owner, Role.GATEWAY), template, spec.gateway.replicas, surge=1),
    }


def pod_disruption_budget(owner: Owner, role: Role, role_hash: RoleHash | None = None) -> JsonObject:
    """One pod of a role may leave at a time; pods that are not ready never hold up a drain."""
    name = gateway_name(owner) if role_hash is None else role_name(owner, role, role_hash)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(owner, name, labels(owner, role, role_hash)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(owner, role, role_hash)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def gateway_service(owner: Owner, gateway: Gateway) -> JsonObject:
    """The Service that OpenAI clients address; it has the object's name."""
    metadata = _metadata(owner, owner.name, labels(owner, Role.GATEWAY))
    annotations = gateway.service.annotations
    port = {"name": "http", "port": gateway.service.port, "targetPort": "http", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**metadata, "annotations": dict(annotations)} if annotations else metadata,
        "spec": {"type": gateway.service.type, "ports": [port], "selector": selector(owner, Role.GATEWAY)},
    }


def gateway_account(owner: Owner) -> JsonObject:
    """Whom the gateways are to the API server."""
    metadata = _metadata(owner, gateway_name(owner), labels(owner, Role.GATEWAY))
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def gateway_role(owner: Owner) -> JsonObject:
    """What gateways may read: their own policy, and the pods of the namespace (labels cannot limit a right)."""
    read = ["get", "list", "watch"]
    policy = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [policy_name(owner)], "verbs": read}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _metadata(owner, gateway_name(owner), labels(owner, Role.GATEWAY)),
        "rules": [policy, {"apiGroups": [""], "resources": ["pods"], "verbs": read}],
    }


def gateway_role_binding(owner: Owner) -> JsonObject:
    """Gives the gateways' account the gateways' role."""
    name = gateway_name(owner)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(owner, name, labels(owner, Role.GATEWAY)),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }


def policy_config_map(owner: Owner, policy: JsonObject) -> JsonObject:
    """What gateways are told."""
    return _config_map(owner, policy_name(owner), POLICY_KEY, policy)


def evidence_config_map(owner: Owner, evidence: JsonObject) -> JsonObject:
    """What gateways that are gone had counted."""
    return _config_map(owner, f"{owner.name}-evidence", EVIDENCE_KEY, evidence)


def revisions_config_map(owner: Owner, kept: JsonObject) -> JsonObject:
    """The records of what is in use, a second time."""
    return _config_map(owner, f"{owner.name}-revisions", REVISIONS_KEY, kept)


def role_name(owner: Owner, role: Role, role_hash: RoleHash) -> str:
    return f"{owner.name}-{role}-{role_hash}"


def gateway_name(owner: Owner) -> str:
    return f"{owner.name}-gateway"


def policy_name(owner: Owner) -> str:
    return f"{owner.name}-policy"


def as_text(value: JsonObject) -> str:
    """One spelling of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class _Resolver(NamedTuple):
    """What resolves an image and an accelerator's name at the moment a revision is made."""

    settings: OperatorTerms
    nodes: NodeLabels | None

    def image(self, given: str | None) -> str:
        return given or self.settings.runtime_image

    def terms(self, placement: Placement, path: str) -> Terms | None:
        if placement.accelerator is None:
            return None
        table = self.settings.accelerators
        return choose(placement.accelerator, count=placement.count, table=table, nodes=self.nodes, path=path)


def _target_engine(role_hash: RoleHash, target: Target, resolver: _Resolver) -> Engine:
    return Engine(
        role=Role.TARGET,
        role_hash=role_hash,
        model=target.model,
        engine_args=target.engine_args,
        image=resolver.image(target.image),
        terms=resolver.terms(target.placement, "spec.target.placement.accelerator"),
        options=templates.adapter_options(target),
    )


def _draft_engine(role_hash: RoleHash | None, draft: Draft, resolver: _Resolver) -> Engine | None:
    if role_hash is None or draft.model is None:
        return None
    return Engine(
        role=Role.DRAFT,
        role_hash=role_hash,
        model=draft.model,
        engine_args=draft.engine_args,
        image=resolver.image(draft.image),
        terms=resolver.terms(draft.placement, "spec.draft.placement.accelerator"),
    )


def _resolved(engine: Engine) -> JsonObject:
    terms = engine.terms
    if terms is None:
        return {"image": engine.image}
    accelerator = {
        "affinity": terms.affinity,
        "tolerations": [dict(each) for each in terms.tolerations],
        "resource": terms.resource,
        "count": terms.count,
    }
    return {"image": engine.image, "accelerator": accelerator}


def _speaking(template: JsonObject, transport: Transport) -> JsonObject:
    return overlaid(template, templates.transport_part(template, transport))


def _identified(template: JsonObject, data: JsonObject, role: Role) -> JsonObject:
    """The template with our labels back in place, whatever an overlay said of them: the selector rests on them."""
    ours = _object(data, "templates", str(role), "metadata", "labels")
    return overlaid(template, {"metadata": {"labels": ours}})


def _deployment_spec(
    identity: Mapping[str, str], template: JsonObject, replicas: int, *, surge: int
) -> dict[str, object]:
    """Engines make room first (devices are few), gateways come up first (no request may find none)."""
    strategy = {"maxSurge": surge, "maxUnavailable": 1 - surge}
    return {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
        "selector": {"matchLabels": dict(identity)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": strategy},
        "template": dict(template),
    }


def _config_map(owner: Owner, name: str, key: str, value: JsonObject) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(owner, name, labels(owner)),
        "data": {key: as_text(value)},
    }


def _metadata(owner: Owner, name: str, found: Mapping[str, str]) -> dict[str, object]:
    """Owned, so that a deleted object leaves nothing; not blocking, so that deleting never waits for us."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid, "controller": True}
    return {"name": name, "namespace": owner.namespace, "labels": dict(found), "ownerReferences": [reference]}


def _object(data: JsonObject, *path: str) -> JsonObject:
    found = held(data, *path)
    if not isinstance(found, Mapping):
        raise Bug(f"revision data hold no {'.'.join(path)}")
    return found
