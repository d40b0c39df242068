"""Knows what a pod of each role looks like: command, ports, probes, volumes, the devices it asks for.

Knows nothing of Deployments, of revisions or of the user's overlay.

A pod template has two parts. The *base* follows from what is hashed and is stored with the revision, so that a
later operator, which might write it differently, leaves running pods as they are. The *live part* follows from what
may change under a running revision (resources, scheduling, deadlines, credentials); it is a fragment that is laid
over the base. Over both is laid how the roles speak to each other, which all pods of an object must do alike, whatever
their revision, and at last what a user writes in `podTemplate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem_operator.domain.pools import Terms
from tandem_operator.domain.quantity import Quantity
from tandem_operator.domain.revision import Role, RoleHash
from tandem_operator.domain.spec import (
    DEFAULT_CACHE_SIZE,
    Draft,
    Gateway,
    Model,
    Placement,
    Resources,
    Target,
    Transport,
)

JsonObject = Mapping[str, object]

HTTP_PORT = 8000
GRPC_PORT = 8001
ADMIN_PORT = 8002

MODELS_PATH = "/models"
SCRATCH_PATH = "/tmp"  # noqa: S108 - inside the pod, an emptyDir of its own
AUTH_PATH = "/etc/tandem/auth"
AUTH_KEY = "keys"
TLS_PATH = "/etc/tandem/role-tls"
TLS_KEYS = ("ca.crt", "tls.crt", "tls.key")
"""As cert-manager names them."""

ENGINE_CONTAINER = "engine"
GATEWAY_CONTAINER = "gateway"
FETCH_CONTAINER = "fetch"

STARTUP_PERIOD_SECONDS = 2
DRAFT_STARTUP_DEADLINE_SECONDS = 3600
DRAFT_GRACE_SECONDS = 30
"""A draft holds nothing that a session would miss: the target goes on without it."""
GATEWAY_STARTUP_DEADLINE_SECONDS = 3600
GATEWAY_GRACE_SECONDS = 120
"""Time for the streams of a gateway that is asked to end."""
GATEWAY_DRAIN_SECONDS = 5
"""Time for Services to forget a gateway before it stops accepting; a request that arrives in it is still served."""


LAST_WORDS_SECONDS = 10
"""Of a pod's grace: a gateway's preStop, and time to close what is still open before the kubelet kills."""
GRACE_VARIABLE = "GRACE_SECONDS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The SpeculativeDeployment that everything here belongs to."""

    name: str
    namespace: str
    uid: str


def labels(owner: Owner, role: Role | None = None, role_hash: RoleHash | None = None) -> dict[str, str]:
    """The labels of a child; those of its pods too. Gateways have no hash, since one gateway serves every revision."""
    found = {
        "app.kubernetes.io/name": "tandem",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/part-of": "tandem",
        "app.kubernetes.io/managed-by": "tandem-operator",
        "tandem.dev/deployment": owner.name,
    }
    if role is not None:
        found |= {"app.kubernetes.io/component": str(role), "tandem.dev/role": str(role)}
    if role_hash is not None:
        found["tandem.dev/role-hash"] = role_hash
    return found


def selector(owner: Owner, role: Role, role_hash: RoleHash | None = None) -> dict[str, str]:
    """The labels that never change: a Deployment's selector cannot be edited, so nothing else may enter it."""
    identity = {"tandem.dev/deployment": owner.name, "tandem.dev/role": str(role)}
    return identity if role_hash is None else {**identity, "tandem.dev/role-hash": role_hash}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the pods of a target or draft are made from; `terms` is None where no device is asked for."""

    role: Role
    role_hash: RoleHash
    model: Model
    engine_args: Mapping[str, str]
    image: str
    terms: Terms | None
    options: Sequence[str] = ()
    """Of the role's command line, beside those that all roles have."""


def engine_base(owner: Owner, engine: Engine) -> dict[str, object]:
    """The base template of target or draft pods."""
    container = {
        **_container(ENGINE_CONTAINER, engine.image, _engine_command(engine)),
        "ports": [_port("grpc", GRPC_PORT), _port("admin", ADMIN_PORT)],
        **_probes(),
        "volumeMounts": [_mount("tmp", SCRATCH_PATH), {**_mount("models", MODELS_PATH), "readOnly": True}],
    }
    spec = {**_pod_spec(container), "automountServiceAccountToken": False}
    spec["initContainers"] = [_fetch(engine.image, _fetch_command(engine.model, digest=engine.model.digest))]
    terms, near = engine.terms, _near_its_targets(owner, engine.role)
    if terms is not None:
        container["resources"] = {"limits": {terms.resource: str(terms.count)}}
        spec["tolerations"] = [dict(toleration) for toleration in terms.tolerations]
    affinity = {**(terms.affinity if terms is not None else {}), **near}
    if affinity:
        spec["affinity"] = affinity
    return {"metadata": {"labels": labels(owner, engine.role, engine.role_hash)}, "spec": spec}


def gateway_base(owner: Owner, *, image: str, tokenizer: Model) -> dict[str, object]:
    """The base template of gateway pods.

    `tokenizer` is the stable revision's target: revisions of one object have equal tokenizers, so it serves them
    all. From a repository only the tokenizer's files are fetched.
    """
    command = ["tandem-runtime", "gateway", "--deployment", owner.name, "--namespace", owner.namespace]
    command += [*_listening(HTTP_PORT), "--tokenizer", model_path(tokenizer)]
    container = {
        **_container(GATEWAY_CONTAINER, image, command),
        "ports": [_port("http", HTTP_PORT), _port("admin", ADMIN_PORT)],
        **_probes(),
        "lifecycle": {"preStop": {"sleep": {"seconds": GATEWAY_DRAIN_SECONDS}}},
        "volumeMounts": [_mount("tmp", SCRATCH_PATH), {**_mount("models", MODELS_PATH), "readOnly": True}],
    }
    spec = {**_pod_spec(container), "serviceAccountName": f"{owner.name}-gateway"}
    if _fetched(tokenizer):
        spec["initContainers"] = [_fetch(image, [*_fetch_command(tokenizer, digest=None), "--tokenizer-only"])]
    return {"metadata": {"labels": labels(owner, Role.GATEWAY)}, "spec": spec}


def target_live(target: Target) -> dict[str, object]:
    """The live part of target pods."""
    fragment = _live(target.resources, target.startup_deadline_seconds, target.termination_grace_seconds)
    return _live_spec(fragment, target.placement, target.model, target.cache.size_limit)


def draft_live(draft: Draft) -> dict[str, object]:
    """The live part of draft pods; empty for a draft without pods."""
    if draft.model is None:
        return {}
    fragment = _live(draft.resources, DRAFT_STARTUP_DEADLINE_SECONDS, DRAFT_GRACE_SECONDS)
    return _live_spec(fragment, draft.placement, draft.model, DEFAULT_CACHE_SIZE)


def gateway_live(base: JsonObject, gateway: Gateway, tokenizer: Model) -> dict[str, object]:
    """The live part of gateway pods; `base` is what it will be laid over."""
    fragment = _live(gateway.resources, GATEWAY_STARTUP_DEADLINE_SECONDS, GATEWAY_GRACE_SECONDS, GATEWAY_CONTAINER)
    spec = {**fragment, **(_credentials(tokenizer) if _fetched(tokenizer) else {})}
    if gateway.auth_secret_ref is not None:
        container = {
            **_first(spec["containers"]),
            "command": [*_command(base), "--auth-file", f"{AUTH_PATH}/{AUTH_KEY}"],
            "volumeMounts": [{**_mount("auth", AUTH_PATH), "readOnly": True}],
        }
        secret = {"secretName": gateway.auth_secret_ref.name, "items": [{"key": AUTH_KEY, "path": AUTH_KEY}]}
        spec |= {"containers": [container], "volumes": [{"name": "auth", "secret": secret}]}
    return {"spec": spec}


def transport_part(template: JsonObject, transport: Transport) -> dict[str, object]:
    """What makes pods of a role speak TLS to those of the others; `template` is what it will be laid over."""
    if transport.tls_secret_ref is None:
        return {}
    container = {
        "name": _first_container(template)["name"],
        "command": [*_command(template), "--role-tls", TLS_PATH],
        "volumeMounts": [{**_mount("role-tls", TLS_PATH), "readOnly": True}],
    }
    secret = {"secretName": transport.tls_secret_ref.name, "items": [{"key": key, "path": key} for key in TLS_KEYS]}
    return {"spec": {"containers": [container], "volumes": [{"name": "role-tls", "secret": secret}]}}


def model_path(model: Model) -> str:
    """Where the engine finds its model: `file:///opt/m` is at /opt/m; what is fetched lies in the cache."""
    return MODELS_PATH if _fetched(model) else model.uri.removeprefix("file://")


def adapter_options(target: Target) -> list[str]:
    """What a target is told of adapters; nothing where the spec says nothing, so that pods stay as they were made."""
    folder, most = target.adapters_folder, target.max_adapters
    found = [] if folder is None else ["--adapters-dir", folder]
    return found if most is None else [*found, "--max-adapters", str(most)]


def _fetched(model: Model) -> bool:
    return not model.uri.startswith("file://")


def _engine_command(engine: Engine) -> list[str]:
    command = ["tandem-runtime", str(engine.role), "--model", model_path(engine.model)]
    command += [*_listening(GRPC_PORT), *engine.options]
    for name, value in sorted(engine.engine_args.items()):
        command += [f"--{name}", value]
    return command


def _listening(port: int) -> list[str]:
    """The kubelet fills in the variables; the grace is of the live part, so that it may change without a new base."""
    addresses = ["--host", "$(POD_IP)", "--port", str(port), "--admin-port", str(ADMIN_PORT)]
    return [*addresses, "--grace-seconds", f"$({GRACE_VARIABLE})"]


def _fetch_command(model: Model, *, digest: str | None) -> list[str]:
    command = ["tandem-runtime", "fetch", "--uri", model.uri]
    command += ["--revision", model.revision] if model.revision else []
    command += ["--digest", digest] if digest else []
    return [*command, "--into", MODELS_PATH]


def _fetch(image: str, command: list[str]) -> JsonObject:
    mounts = [_mount("tmp", SCRATCH_PATH), _mount("models", MODELS_PATH)]
    return {**_container(FETCH_CONTAINER, image, command), "volumeMounts": mounts}


def _pod_spec(container: JsonObject) -> dict[str, object]:
    return {
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "models", "emptyDir": {}}],
    }


def _container(name: str, image: str, command: list[str]) -> dict[str, object]:
    """Under the restricted Pod Security Standard; what a library writes under its home lands in the pod's own /tmp."""
    return {
        "name": name,
        "image": image,
        "command": command,
        "env": [
            _from_field("POD_IP", "status.podIP"),
            _from_field("POD_NAME", "metadata.name"),
            _from_field("POD_NAMESPACE", "metadata.namespace"),
            _from_field("POD_UID", "metadata.uid"),
            {"name": "HOME", "value": SCRATCH_PATH},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _from_field(name: str, path: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _port(name: str, number: int) -> JsonObject:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _mount(name: str, path: str) -> dict[str, object]:
    return {"name": name, "mountPath": path}


def _probes() -> JsonObject:
    """Liveness asks only whether the process turns, and a loaded machine may be slow to say so: a minute's grace."""
    ready, turns = ({"httpGet": {"path": path, "port": "admin"}} for path in ("/readyz", "/healthz"))
    return {
        "startupProbe": {**ready, "periodSeconds": STARTUP_PERIOD_SECONDS, "timeoutSeconds": 2},
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {**turns, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }


def _near_its_targets(owner: Owner, role: Role) -> JsonObject:
    """A round crosses the network twice, so a draft prefers the zone of its targets; it does not insist."""
    if role is not Role.DRAFT:
        return {}
    term = {
        "topologyKey": "topology.kubernetes.io/zone",
        "labelSelector": {"matchLabels": selector(owner, Role.TARGET)},
    }
    return {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}
    }


def _live(
    resources: Resources, deadline_seconds: int, grace_seconds: int, name: str = ENGINE_CONTAINER
) -> dict[str, object]:
    attempts = -(-deadline_seconds // STARTUP_PERIOD_SECONDS)
    drained = max(1, grace_seconds - LAST_WORDS_SECONDS)
    container: dict[str, object] = {
        "name": name,
        "startupProbe": {"failureThreshold": attempts},
        "env": [{"name": GRACE_VARIABLE, "value": str(drained)}],
    }
    amounts = {"requests": dict(resources.requests), "limits": dict(resources.limits)}
    given = {kind: values for kind, values in amounts.items() if values}
    if given:
        container["resources"] = given
    return {"containers": [container], "terminationGracePeriodSeconds": grace_seconds}


def _live_spec(
    fragment: dict[str, object], placement: Placement, model: Model, cache_size: Quantity
) -> dict[str, object]:
    spec = {
        **fragment,
        **_credentials(model),
        "volumes": [{"name": "models", "emptyDir": {"sizeLimit": cache_size}}],
        "nodeSelector": dict(placement.node_selector),
        "tolerations": [dict(toleration) for toleration in placement.tolerations],
        "affinity": dict(placement.affinity),
        "priorityClassName": placement.priority_class_name,
    }
    return {"spec": {key: value for key, value in spec.items() if value}}


def _credentials(model: Model) -> dict[str, object]:
    if model.secret_ref is None:
        return {}
    source = {"secretRef": {"name": model.secret_ref.name}}
    return {"initContainers": [{"name": FETCH_CONTAINER, "envFrom": [source]}]}


def _first(containers: object) -> Mapping[str, object]:
    assert isinstance(containers, list)
    first = containers[0]
    assert isinstance(first, Mapping)
    return first


def _first_container(template: JsonObject) -> Mapping[str, object]:
    spec = template["spec"]
    assert isinstance(spec, Mapping)
    return _first(spec["containers"])


def _command(template: JsonObject) -> list[str]:
    command = _first_container(template)["command"]
    assert isinstance(command, list)
    return command
