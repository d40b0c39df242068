"""What a node says about a pod: container states in, `status` of the Pod object out; and when a container restarts.

It runs nothing and reads no clock: every moment is an argument, as RFC 3339 text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from tandem_devcluster.workload import Container, Object, RestartPolicy, Workload

_BACKOFF_LIMIT_SECONDS = 300.0
RESET_AFTER_SECONDS = 600.0  # a container that ran this long starts over without delay


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    started_at: str


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    reason: str
    started_at: str
    finished_at: str
    message: str = ""


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """What is known of one container; `last` is how its previous run ended."""

    name: str
    image: str
    state: State
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False

    @property
    def ended(self) -> Terminated | None:
        return self.state if isinstance(self.state, Terminated) else None

    def moved(self, state: State) -> "ContainerStatus":
        """The same container in another state; a finished run becomes the last one."""
        last = self.state if isinstance(self.state, Terminated) else self.last
        return replace(self, state=state, last=last, ready=False, started=False)


def first_status(container: Container, reason: str) -> ContainerStatus:
    return ContainerStatus(container.name, container.image, Waiting(reason))


def restarts_after(policy: RestartPolicy, exit_code: int) -> bool:
    """Whether a container that ended so is run again."""
    match policy:
        case RestartPolicy.ALWAYS:
            return True
        case RestartPolicy.ON_FAILURE:
            return exit_code != 0
        case RestartPolicy.NEVER:
            return False
        case _:
            assert_never(policy)


def backoff_seconds(crashes: int, base_seconds: float) -> float:
    """The delay before a restart: none after the first crash, then base, 2 base, 4 base, ... at most five minutes."""
    if crashes <= 1:
        return 0.0
    return min(base_seconds * 2.0 ** (crashes - 2), _BACKOFF_LIMIT_SECONDS)


@dataclass(frozen=True, slots=True)
class PodPicture:
    """All that a pod's status is made of. `gates_met` are the custom readiness conditions that are True."""

    workload: Workload
    init: Sequence[ContainerStatus]
    main: Sequence[ContainerStatus]
    address: str
    host_address: str
    started_at: str
    gates_met: frozenset[str] = frozenset()
    failure: str = ""


def build_status(picture: PodPicture, *, now: str, before: Sequence[Object]) -> Object:
    """The status a node writes. A condition of `before` that did not change keeps its transition time."""
    phase = _phase(picture)
    status: Object = {
        "phase": phase,
        "hostIP": picture.host_address,
        "hostIPs": [{"ip": picture.host_address}],
        "podIP": picture.address,
        "podIPs": [{"ip": picture.address}],
        "startTime": picture.started_at,
        "conditions": _conditions(picture, phase, now, before),
        "containerStatuses": [_render(entry) for entry in picture.main],
    }
    if picture.init:
        status["initContainerStatuses"] = [_render(entry) for entry in picture.init]
    if picture.failure:
        status |= {"reason": "Failed", "message": picture.failure}
    return status


def _phase(picture: PodPicture) -> str:
    """Pending until every init container is done; Running while one container runs or will run again."""
    if picture.failure or _init_failed(picture):
        return "Failed"
    ends = [entry.ended for entry in picture.main]
    unborn = any(isinstance(entry.state, Waiting) and entry.last is None for entry in picture.main)
    if unborn or not _initialized(picture):
        return "Pending"
    over = [
        end is not None and not restarts_after(container.restarts, end.exit_code)
        for container, end in zip(picture.workload.containers, ends, strict=True)
    ]
    if not all(over):
        return "Running"
    return "Succeeded" if all(end is not None and end.exit_code == 0 for end in ends) else "Failed"


def _initialized(picture: PodPicture) -> bool:
    pairs = zip(picture.workload.init_containers, picture.init, strict=True)
    return all(entry.started if container.is_sidecar else _succeeded(entry) for container, entry in pairs)


def _init_failed(picture: PodPicture) -> bool:
    pairs = zip(picture.workload.init_containers, picture.init, strict=True)
    return any(
        entry.ended is not None and entry.ended.exit_code != 0 and container.restarts is RestartPolicy.NEVER
        for container, entry in pairs
    )


def _succeeded(entry: ContainerStatus) -> bool:
    return entry.ended is not None and entry.ended.exit_code == 0


def _conditions(picture: PodPicture, phase: str, now: str, before: Sequence[Object]) -> list[Object]:
    finished = "PodCompleted" if phase == "Succeeded" else "PodFailed" if phase == "Failed" else ""
    sidecars = [
        entry
        for container, entry in zip(picture.workload.init_containers, picture.init, strict=True)
        if container.is_sidecar
    ]
    unready = sorted(entry.name for entry in (*sidecars, *picture.main) if not entry.ready)
    missing = [gate for gate in picture.workload.readiness_gates if gate not in picture.gates_met]
    not_ready = f"containers with unready status: [{' '.join(unready)}]"
    return [
        _condition("PodReadyToStartContainers", True, now=now, before=before),
        _condition("Initialized", _initialized(picture), reason="ContainersNotInitialized", now=now, before=before),
        _condition(
            "ContainersReady",
            not unready and not finished,
            reason=finished or "ContainersNotReady",
            message=not_ready,
            now=now,
            before=before,
        ),
        _condition(
            "Ready",
            not unready and not finished and not missing,
            reason=finished or ("ContainersNotReady" if unready else "ReadinessGatesNotReady"),
            message=not_ready if unready else f"conditions not True: {' '.join(missing)}",
            now=now,
            before=before,
        ),
    ]


def _condition(
    kind: str, true: bool, *, now: str, before: Sequence[Object], reason: str = "", message: str = ""
) -> Object:
    status = "True" if true else "False"
    same = [entry for entry in before if entry["type"] == kind and entry["status"] == status]
    since = same[0]["lastTransitionTime"] if same else now
    explained = {"reason": "", "message": ""} if true else {"reason": reason, "message": message}
    return {"type": kind, "status": status, "lastTransitionTime": since, "lastProbeTime": None, **explained}


def _render(entry: ContainerStatus) -> Object:
    return {
        "name": entry.name,
        "image": entry.image,
        "imageID": "",
        "containerID": f"process://{entry.name}-{entry.restarts}",
        "state": _render_state(entry.state),
        "lastState": {} if entry.last is None else _render_state(entry.last),
        "restartCount": entry.restarts,
        "ready": entry.ready,
        "started": entry.started,
    }


def _render_state(state: State) -> Object:
    match state:
        case Waiting():
            return {"waiting": {"reason": state.reason, "message": state.message}}
        case Running():
            return {"running": {"startedAt": state.started_at}}
        case Terminated():
            return {
                "terminated": {
                    "exitCode": state.exit_code,
                    "reason": state.reason,
                    "message": state.message,
                    "startedAt": state.started_at,
                    "finishedAt": state.finished_at,
                }
            }
        case _:
            assert_never(state)
