"""A pod's specification as this cluster runs it: JSON in, frozen values out.

It knows nothing of processes or status. The API server has validated and defaulted everything, so what is read here
without a default is always there. What cannot be run here is refused with `PodConfigError`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from tandem_devcluster.errors import PodConfigError

Object = dict[str, Any]

_SUFFIXES = {
    **{letter + "i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    "m": Decimal("0.001"),
}


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class HttpGet:
    """`host` empty means the pod's address."""

    port: int
    path: str
    scheme: str
    host: str
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TcpSocket:
    port: int
    host: str


@dataclass(frozen=True, slots=True)
class Execute:
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrpcHealth:
    port: int
    service: str


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: int


Check = HttpGet | TcpSocket | Execute | GrpcHealth
Hook = HttpGet | TcpSocket | Execute | Pause


@dataclass(frozen=True, slots=True)
class Probe:
    """How often and how long to check, and how many equal answers in a row count."""

    check: Check
    initial_delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    success_threshold: int
    failure_threshold: int


@dataclass(frozen=True, slots=True)
class Mount:
    volume: str
    path: str
    sub_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `environment` and `environment_from` stay as the API gives them, see `environment.py`."""

    name: str
    image: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    working_folder: str
    environment: tuple[Object, ...]
    environment_from: tuple[Object, ...]
    resources: Mapping[str, Mapping[str, str]]
    mounts: tuple[Mount, ...]
    startup: Probe | None
    readiness: Probe | None
    liveness: Probe | None
    pre_stop: Hook | None
    memory_limit_bytes: int | None
    message_path: str
    message_from_logs: bool
    read_only_root: bool
    restarts: RestartPolicy
    is_sidecar: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """One pod as it is to be run."""

    namespace: str
    name: str
    uid: str
    service_account: str
    init_containers: tuple[Container, ...]
    containers: tuple[Container, ...]
    volumes: tuple[Object, ...]
    grace_seconds: float
    readiness_gates: tuple[str, ...]

    @property
    def everything(self) -> tuple[Container, ...]:
        return (*self.init_containers, *self.containers)


def parse_workload(pod: Object) -> Workload:
    """Read a pod as the API server returns it.

    Raises:
        PodConfigError: it asks for something that this cluster does not offer.
    """
    spec, metadata = pod["spec"], pod["metadata"]
    policy = RestartPolicy(spec["restartPolicy"])
    return Workload(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        service_account=spec.get("serviceAccountName", "default"),
        init_containers=tuple(_parse_init(entry, policy) for entry in spec.get("initContainers", ())),
        containers=tuple(_parse_container(entry, policy, is_sidecar=False) for entry in spec["containers"]),
        volumes=tuple(spec.get("volumes", ())),
        grace_seconds=float(spec.get("terminationGracePeriodSeconds", 30)),
        readiness_gates=tuple(gate["conditionType"] for gate in spec.get("readinessGates", ())),
    )


def _parse_init(entry: Object, policy: RestartPolicy) -> Container:
    """An init container runs once; with `restartPolicy: Always` of its own it is a sidecar that stays."""
    if entry.get("restartPolicy") == RestartPolicy.ALWAYS:
        return _parse_container(entry, RestartPolicy.ALWAYS, is_sidecar=True)
    once = RestartPolicy.NEVER if policy is RestartPolicy.NEVER else RestartPolicy.ON_FAILURE
    return _parse_container(entry, once, is_sidecar=False)


def _parse_container(entry: Object, policy: RestartPolicy, *, is_sidecar: bool) -> Container:
    limit = entry.get("resources", {}).get("limits", {}).get("memory")
    ports = {port["name"]: port["containerPort"] for port in entry.get("ports", ()) if "name" in port}
    hook = entry.get("lifecycle", {}).get("preStop")
    return Container(
        name=entry["name"],
        image=entry.get("image", ""),
        command=tuple(entry.get("command", ())),
        arguments=tuple(entry.get("args", ())),
        working_folder=entry.get("workingDir", "/"),
        environment=tuple(entry.get("env", ())),
        environment_from=tuple(entry.get("envFrom", ())),
        resources=entry.get("resources", {}),
        mounts=tuple(_parse_mount(mount) for mount in entry.get("volumeMounts", ())),
        startup=_parse_probe(entry.get("startupProbe"), ports),
        readiness=_parse_probe(entry.get("readinessProbe"), ports),
        liveness=_parse_probe(entry.get("livenessProbe"), ports),
        pre_stop=None if hook is None else _parse_hook(hook, ports),
        memory_limit_bytes=None if limit is None else int(parse_quantity(limit)),
        message_path=entry.get("terminationMessagePath", "/dev/termination-log"),
        message_from_logs=entry.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        read_only_root=entry.get("securityContext", {}).get("readOnlyRootFilesystem", False),
        restarts=policy,
        is_sidecar=is_sidecar,
    )


def _parse_mount(entry: Object) -> Mount:
    if "subPathExpr" in entry:
        raise PodConfigError(f"volumeMounts: subPathExpr={entry['subPathExpr']!r} is not offered here; use subPath")
    return Mount(entry["name"], entry["mountPath"], entry.get("subPath", ""), entry.get("readOnly", False))


def _parse_probe(entry: Object | None, ports: Mapping[str, int]) -> Probe | None:
    if entry is None:
        return None
    return Probe(
        check=_parse_check(entry, ports),
        initial_delay_seconds=entry.get("initialDelaySeconds", 0),
        period_seconds=entry.get("periodSeconds", 10),
        timeout_seconds=entry.get("timeoutSeconds", 1),
        success_threshold=entry.get("successThreshold", 1),
        failure_threshold=entry.get("failureThreshold", 3),
    )


def _parse_check(entry: Object, ports: Mapping[str, int]) -> Check:
    match entry:
        case {"httpGet": get}:
            headers = tuple((header["name"], header["value"]) for header in get.get("httpHeaders", ()))
            where = _port(get["port"], ports), get.get("path", "/"), get.get("scheme", "HTTP"), get.get("host", "")
            return HttpGet(*where, headers)
        case {"tcpSocket": connect}:
            return TcpSocket(_port(connect["port"], ports), connect.get("host", ""))
        case {"exec": execute}:
            return Execute(tuple(execute["command"]))
        case {"grpc": grpc}:
            return GrpcHealth(grpc["port"], grpc.get("service") or "")
        case _:
            raise PodConfigError(f"a probe or hook with {sorted(entry)} has no action that is offered here")


def _parse_hook(entry: Object, ports: Mapping[str, int]) -> Hook:
    if "sleep" in entry:
        return Pause(entry["sleep"]["seconds"])
    check = _parse_check(entry, ports)
    if isinstance(check, GrpcHealth):
        raise PodConfigError("lifecycle.preStop: grpc is not a hook; use exec, httpGet or sleep")
    return check


def _port(value: int | str, ports: Mapping[str, int]) -> int:
    if isinstance(value, int):
        return value
    if value not in ports:
        raise PodConfigError(
            f"port {value!r} is not a named port of its container ({', '.join(ports) or 'none named'})"
        )
    return ports[value]


def parse_quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a plain number: `1.5Gi` is 1610612736, `250m` is 0.25."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * _SUFFIXES[suffix]
    return Decimal(text)


def names(containers: Iterable[Container]) -> tuple[str, ...]:
    return tuple(container.name for container in containers)
