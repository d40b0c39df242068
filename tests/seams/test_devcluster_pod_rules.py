"""The dev cluster's rules about pods, without a cluster: what is read, expanded, counted, decided."""

from dataclasses import replace
from typing import Any

import pytest

from tandem_devcluster.environment import Sources, build_environment, expand, expand_command
from tandem_devcluster.errors import PodConfigError, StateError
from tandem_devcluster.machine import Machine, build_node, parse_machine
from tandem_devcluster.podstatus import (
    ContainerStatus,
    PodPicture,
    Running,
    Terminated,
    Waiting,
    backoff_seconds,
    build_status,
    restarts_after,
)
from tandem_devcluster.probes import Answer, Streak
from tandem_devcluster.workload import (
    Execute,
    HttpGet,
    Object,
    Probe,
    RestartPolicy,
    Workload,
    parse_quantity,
    parse_workload,
)

NOW = "2026-01-02T03:04:05Z"
EARLIER = "2026-01-02T03:04:00Z"
UP = Running(EARLIER)
DONE = Terminated(0, "Completed", EARLIER, NOW)
CRASHED = Terminated(1, "Error", EARLIER, NOW)
NEW = Waiting("ContainerCreating")
BACKING_OFF = Waiting("CrashLoopBackOff")


def build_pod(policy: str = "Always", **spec: Any) -> Object:
    main = {"name": "main", "image": "i", "command": ["run"], **spec.pop("container", {})}
    metadata = {"namespace": "n", "name": "p", "uid": "u"}
    return {"metadata": metadata, "spec": {"restartPolicy": policy, "containers": [main], **spec}}


def status_of(state: Any, **more: Any) -> ContainerStatus:
    return ContainerStatus("main", "i", state, **more)


def picture(workload: Workload, *main: ContainerStatus, init: tuple[ContainerStatus, ...] = ()) -> PodPicture:
    return PodPicture(workload, init, main, address="10.244.1.2", host_address="10.244.1.1", started_at=EARLIER)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5Gi", 1610612736), ("250m", 0.25), ("64M", 64_000_000), ("7", 7), ("1e3", 1000), ("2k", 2000)],
)
def test_a_quantity_is_a_number(text: str, value: float) -> None:
    assert float(parse_quantity(text)) == value


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded_as_the_api_describes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


def test_later_variables_win_and_may_use_earlier_ones() -> None:
    environment = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(FROM)"},
        {"name": "FROM", "value": "own"},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}}},
    ]
    given = {"env": environment, "envFrom": [{"configMapRef": {"name": "c"}}]}
    container = parse_workload(build_pod(container=given)).containers[0]
    sources = Sources(config_maps={"c": {"FROM": "map"}}, labels={"x": "y"})
    assert build_environment(container, sources, {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "FROM": "own",
        "A": "1",
        "B": "1map",
        "LABEL": "y",
    }


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"secretKeyRef": {"name": "s", "key": "k"}}, r"env\[V\].valueFrom.secretKeyRef: s/k does not exist"),
        ({"fieldRef": {"fieldPath": "spec.nodeSelector"}}, "fieldPath='spec.nodeSelector' is not offered here"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resource='limits.cpu' is not set on main"),
    ],
)
def test_a_reference_to_nothing_is_named(entry: Object, complaint: str) -> None:
    container = parse_workload(build_pod(container={"env": [{"name": "V", "valueFrom": entry}]})).containers[0]
    with pytest.raises(PodConfigError, match=complaint):
        build_environment(container, Sources(), {})


def test_a_container_that_relies_on_its_image_is_refused() -> None:
    container = parse_workload(build_pod(container={"command": []})).containers[0]
    with pytest.raises(PodConfigError, match="container main: images are not run here"):
        expand_command(container, {})


def test_probes_are_read_with_their_named_ports() -> None:
    ports = [{"name": "http", "containerPort": 8000}]
    get = {"httpGet": {"port": "http", "path": "/x"}, "periodSeconds": 2}
    container = parse_workload(build_pod(container={"ports": ports, "readinessProbe": get})).containers[0]
    assert container.readiness == Probe(HttpGet(8000, "/x", "HTTP", "", ()), 0, 2, 1, 1, 3)


def test_a_port_name_that_no_port_has_is_refused() -> None:
    with pytest.raises(PodConfigError, match="port 'web' is not a named port"):
        parse_workload(build_pod(container={"livenessProbe": {"tcpSocket": {"port": "web"}}}))


def test_a_verdict_needs_as_many_answers_in_a_row_as_its_threshold() -> None:
    probe = Probe(Execute(("x",)), 0, 1, 1, success_threshold=2, failure_threshold=3)
    streak, verdicts = Streak(), []
    for healthy in (True, True, False, False, True, False, False, False, True, True):
        streak = streak.add(Answer(healthy), probe)
        verdicts.append(streak.verdict)
    assert verdicts == [None, True, True, True, True, True, True, False, False, True]


def test_back_off_doubles_to_five_minutes() -> None:
    assert [backoff_seconds(crashes, 10) for crashes in range(1, 9)] == [0, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize(
    ("policy", "after_success", "after_failure"),
    [(RestartPolicy.ALWAYS, True, True), (RestartPolicy.ON_FAILURE, False, True), (RestartPolicy.NEVER, False, False)],
)
def test_the_policy_says_when_to_restart(policy: RestartPolicy, after_success: bool, after_failure: bool) -> None:
    assert (restarts_after(policy, 0), restarts_after(policy, 1)) == (after_success, after_failure)


@pytest.mark.parametrize(
    ("policy", "status", "phase"),
    [
        ("Always", status_of(NEW), "Pending"),
        ("Always", status_of(UP), "Running"),
        ("Always", status_of(BACKING_OFF, last=CRASHED, restarts=1), "Running"),
        ("Always", status_of(DONE), "Running"),
        ("Never", status_of(DONE), "Succeeded"),
        ("Never", status_of(CRASHED), "Failed"),
        ("OnFailure", status_of(CRASHED), "Running"),
        ("OnFailure", status_of(DONE), "Succeeded"),
    ],
)
def test_the_phase_follows_from_the_containers(policy: str, status: ContainerStatus, phase: str) -> None:
    workload = parse_workload(build_pod(policy))
    assert build_status(picture(workload, status), now=NOW, before=())["phase"] == phase


@pytest.mark.parametrize(
    ("policy", "init", "phase"),
    [
        ("Always", UP, "Pending"),
        ("Always", CRASHED, "Pending"),
        ("Never", CRASHED, "Failed"),
        ("Always", DONE, "Running"),
    ],
)
def test_a_pod_is_pending_until_its_init_containers_are_done(policy: str, init: Any, phase: str) -> None:
    workload = parse_workload(build_pod(policy, initContainers=[{"name": "first", "command": ["x"]}]))
    first = ContainerStatus("first", "", init)
    assert build_status(picture(workload, status_of(UP), init=(first,)), now=NOW, before=())["phase"] == phase


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    workload = parse_workload(build_pod())
    before = build_status(picture(workload, status_of(UP)), now=EARLIER, before=())["conditions"]
    after = build_status(picture(workload, status_of(UP, ready=True)), now=NOW, before=before)["conditions"]
    assert {entry["type"]: (entry["status"], entry["lastTransitionTime"]) for entry in after} == {
        "PodReadyToStartContainers": ("True", EARLIER),
        "Initialized": ("True", EARLIER),
        "ContainersReady": ("True", NOW),
        "Ready": ("True", NOW),
    }


def test_a_readiness_gate_holds_the_pod_back_until_its_condition_is_true() -> None:
    workload = parse_workload(build_pod(readinessGates=[{"conditionType": "example.com/warm"}]))
    cold = picture(workload, status_of(UP, ready=True))
    warm = replace(cold, gates_met=frozenset({"example.com/warm"}))
    ready = [build_status(seen, now=NOW, before=())["conditions"][-1]["status"] for seen in (cold, warm)]
    assert ready == ["False", "True"]


def test_a_finished_run_becomes_the_last_one() -> None:
    again = status_of(CRASHED, ready=True, started=True).moved(UP)
    assert again == status_of(UP, last=CRASHED)


def test_a_machine_is_read_from_one_line() -> None:
    expected = Machine(name="l4-1", number=7, gpu_product="NVIDIA-L4", gpu_count=2, cpu="8", memory="32Gi")
    assert parse_machine("l4-1,gpu=NVIDIA-L4,count=2,cpu=8,memory=32Gi", 7) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,gpu=RTX", "gpu=RTX is not one of"),
        ("a,gpu=NVIDIA-L4,count=x", "count=x is not a whole number"),
        ("a,disk=1", "unknown key 'disk'"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(StateError, match=complaint):
        parse_machine(text, 1)


def test_only_gpu_nodes_carry_the_gpu_taint() -> None:
    plain = build_node(Machine(name="a", number=1))
    gpu = build_node(Machine(name="b", number=2, gpu_product="NVIDIA-L4", gpu_count=1))
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    assert (plain["spec"]["taints"], gpu["spec"]["taints"]) == ([], [taint])
