"""An engine takes as many threads as the system lets its process compute on, and they sleep soon without work; and
gRPC wakes no more of them for a message than it must."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tandem_runtime.engines.cores import SHORT_WAITING, allowed_cores
from tandem_runtime.wire.transport import FEWER_THREADS

HERE = len(os.sched_getaffinity(0))

GROUPS: dict[str, tuple[dict[str, str], int]] = {
    "no control groups": ({}, 64),
    "version 2, no limit": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
    "version 2": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
    "a part of a core is none": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "390000 100000\n"}, 3),
    "less than a core is one": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
    "a group above": (
        {
            "proc/self/cgroup": "0::/pods/mine\n",
            "sys/fs/cgroup/pods/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/pods/mine/cpu.max": "800000 100000\n",
        },
        2,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "3:memory:/a\n2:cpu,cpuacct:/a\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "500000\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        },
        5,
    ),
    "version 1, no limit, seen from inside": (
        {
            "proc/self/cgroup": "1:cpu:/docker/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        64,
    ),
    "files that say nothing": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "\n"}, 64),
}


@pytest.mark.parametrize(("files", "cores"), GROUPS.values(), ids=GROUPS)
def test_control_groups_and_affinity_bound_the_cores(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert allowed_cores(root=tmp_path) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert allowed_cores(root=tmp_path) == 1


def test_on_this_machine_it_is_no_more_than_the_affinity() -> None:
    assert 1 <= allowed_cores() <= HERE


SHOWN = """
import os, sys
from tandem_runtime.main import run
try:
    run(["--help"])
except SystemExit:
    pass
print(*(os.environ.get(name, "-") for name in sys.argv[1:]), "torch" in sys.modules, "grpc" in sys.modules, sep=",")
"""


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        ({}, "active,1000,0"),
        ({"GOMP_SPINCOUNT": "0"}, "active,0,0"),
        ({"OMP_WAIT_POLICY": "passive"}, "passive,-,-"),  # which a count of ours would overrule
    ],
)
def test_threads_are_told_how_long_to_wait_before_torch_is_loaded_unless_the_environment_says_otherwise(
    own: dict[str, str], seen: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in SHORT_WAITING} | own
    assert _environment_after_start(environment, SHORT_WAITING) == f"{seen},False,False"


@pytest.mark.parametrize("own", [{}, {"GRPC_EXPERIMENTS": "own"}])
def test_grpc_is_told_to_wake_fewer_threads_before_it_is_loaded_unless_the_environment_says_otherwise(
    own: dict[str, str],
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in FEWER_THREADS} | own
    assert _environment_after_start(environment, ["GRPC_EXPERIMENTS"]) == ",".join(
        [*(FEWER_THREADS | own).values(), "False", "False"]
    )


def _environment_after_start(environment: Mapping[str, str], names: Iterable[str]) -> str:
    """The values of these, and whether torch and gRPC were loaded by then."""
    command = [sys.executable, "-c", SHOWN, *names]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return told.stdout.splitlines()[-1]
