"""What a process node pretends to be: its size, its GPUs, and the Node object that says so.

It runs nothing. Labels are those that NVIDIA's GPU feature discovery writes (device name with spaces as dashes, memory
in MiB), the taint is the one that GKE puts on GPU nodes.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem_devcluster.errors import StateError

KUBELET_PORT = 10250
GPU_RESOURCE = "nvidia.com/gpu"
_PODS_PER_NODE = "64"
_DEFAULT_CPU = "16"
_DEFAULT_MEMORY = "64Gi"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_GPU_TRAITS = {
    "NVIDIA-L4": {"memory": "23034", "family": "ada-lovelace", "compute.major": "8", "compute.minor": "9"},
    "NVIDIA-H100-80GB-HBM3": {"memory": "81559", "family": "hopper", "compute.major": "9", "compute.minor": "0"},
    "NVIDIA-H200": {"memory": "143771", "family": "hopper", "compute.major": "9", "compute.minor": "0"},
}


@dataclass(frozen=True, slots=True)
class Machine:
    """One pretended machine. `number` picks its addresses (10.244.<number>.0/24); `failed` means switched off.

    `folders` are shown to every container, read-only, as if its image held them: path inside to path on this machine.
    """

    name: str
    number: int
    gpu_product: str = ""
    gpu_count: int = 0
    cpu: str = _DEFAULT_CPU
    memory: str = _DEFAULT_MEMORY
    failed: bool = False
    folders: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"10.244.{self.number}.1"

    def pod_address(self, offset: int) -> str:
        return f"10.244.{self.number}.{offset}"


DEFAULT_MACHINES = (
    Machine(name="cpu-0", number=1),
    Machine(name="l4-0", number=2, gpu_product="NVIDIA-L4", gpu_count=4),
    Machine(name="h100-0", number=3, gpu_product="NVIDIA-H100-80GB-HBM3", gpu_count=8),
)


def parse_machine(text: str, number: int) -> Machine:
    """Read `name[,gpu=NVIDIA-L4,count=4][,cpu=16][,memory=64Gi]`.

    Example: `l4-1,gpu=NVIDIA-L4,count=2`.

    Raises:
        StateError: an unknown key, an unknown GPU, or a count that is no number.
    """
    name, *pairs = text.split(",")
    given = dict(pair.partition("=")[::2] for pair in pairs)
    unknown = given.keys() - {"gpu", "count", "cpu", "memory"}
    if unknown:
        raise StateError(f"node {text!r}: unknown key {min(unknown)!r}; use gpu, count, cpu, memory")
    product = given.get("gpu", "")
    if product and product not in _GPU_TRAITS:
        raise StateError(f"node {text!r}: gpu={product} is not one of {', '.join(_GPU_TRAITS)}")
    count = given.get("count", "1" if product else "0")
    if not count.isdecimal():
        raise StateError(f"node {text!r}: count={count} is not a whole number")
    return Machine(
        name=name,
        number=number,
        gpu_product=product,
        gpu_count=int(count),
        cpu=given.get("cpu", _DEFAULT_CPU),
        memory=given.get("memory", _DEFAULT_MEMORY),
    )


def build_node(machine: Machine) -> dict[str, Any]:
    """The Node object this machine registers."""
    taints = [{"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}] if machine.gpu_count else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": machine.name, "labels": _labels(machine)},
        "spec": {"podCIDR": f"10.244.{machine.number}.0/24", "taints": taints},
    }


def build_node_status(machine: Machine, *, now: str, version: str) -> dict[str, Any]:
    """The Node's status: capacity, addresses, where its kubelet endpoint is, and that it is ready since `now`."""
    capacity = {"cpu": machine.cpu, "memory": machine.memory, "pods": _PODS_PER_NODE, "ephemeral-storage": "100Gi"}
    if machine.gpu_count:
        capacity[GPU_RESOURCE] = str(machine.gpu_count)
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": machine.address},
            {"type": "Hostname", "address": machine.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "conditions": [_condition(kind, now) for kind in _CONDITIONS],
        "nodeInfo": _node_info(machine, version),
    }


_CONDITIONS = {
    "Ready": ("True", "ProcessNodeReady", "runs pods as local processes"),
    "MemoryPressure": ("False", "NotWatched", "memory of the whole machine is not watched"),
    "DiskPressure": ("False", "NotWatched", "disk space is not watched"),
    "PIDPressure": ("False", "NotWatched", "process counts are not watched"),
}


def _condition(kind: str, now: str) -> dict[str, str]:
    status, reason, message = _CONDITIONS[kind]
    moments = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": message, **moments}


def _labels(machine: Machine) -> dict[str, str]:
    labels = {
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        "node.kubernetes.io/instance-type": "process-node",
    }
    if machine.gpu_count:
        traits = {f"nvidia.com/gpu.{trait}": value for trait, value in _GPU_TRAITS[machine.gpu_product].items()}
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": machine.gpu_product,
            "nvidia.com/gpu.count": str(machine.gpu_count),
            **traits,
        }
    return labels


def _node_info(machine: Machine, version: str) -> dict[str, str]:
    return {
        "machineID": machine.name,
        "systemUUID": machine.name,
        "bootID": machine.name,
        "kernelVersion": "host",
        "osImage": "the host's file system",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": version,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": _architecture(),
    }


def _architecture() -> str:
    """As Go calls it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())
