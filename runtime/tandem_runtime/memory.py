"""Knows how much memory this process holds that the kernel could not take back, and how much more it can have.

Refuses to know what follows from either. Weights that are mapped from files fill the page cache, so the
whole of a container's memory says little: clean file pages go when somebody else needs the room. Inside a container
with memory accounting (cgroup v2) the working set is `memory.current` less `inactive_file`, as Kubernetes counts it;
elsewhere it is the resident anonymous and shared pages of this process. A container is ours where we are its first
process: one of many processes on a machine, itself perhaps a container, must not be told what all of them hold.

What can still be taken is the least of what the machine has available and of what every container around us (a cgroup
v2 with a `memory.max`) has left of its limit, whoever in it holds the rest.
"""

from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
STATUS = Path("/proc/self/status")
MEMBERSHIP = Path("/proc/self/cgroup")
MACHINE = Path("/proc/meminfo")


def working_set_bytes(*, process: int, cgroup: Path = CGROUP, status: Path = STATUS) -> int:
    """Bytes; reads two small files of the kernel. `process` is our own number, 1 for the first of a container."""
    current = cgroup / "memory.current"
    if process != 1 or not current.is_file():
        return _resident_bytes(status)
    return _working_set(cgroup)


def available_bytes(*, machine: Path = MACHINE, membership: Path = MEMBERSHIP, cgroup: Path = CGROUP) -> int:
    """What this process can take before it is killed for it; reads small files of the kernel."""
    lines = (line.split() for line in machine.read_text().splitlines())
    free = next(int(amount) * 1024 for name, amount, *_ in lines if name == "MemAvailable:")
    return min([free, *_left(membership, cgroup)])


def _left(membership: Path, cgroup: Path) -> Iterator[int]:
    """What each container around us has left, of those with a limit. Our own place is the line `0::/its/path`."""
    lines = membership.read_text().splitlines()
    names = next((line.split("/")[1:] for line in lines if line.startswith("0::")), [])
    for depth in range(len(names) + 1):
        folder = cgroup.joinpath(*names[:depth])
        limit = folder / "memory.max"
        if limit.is_file() and (allowed := limit.read_text().strip()) != "max":
            yield int(allowed) - _held_bytes(folder)


def _working_set(cgroup: Path) -> int:
    return _current_bytes(cgroup) - _statistics(cgroup)["inactive_file"]


def _held_bytes(cgroup: Path) -> int:
    """Without any page of a file: those that were read twice, as weights are, are in use to Kubernetes, but go too."""
    statistics = _statistics(cgroup)
    return _current_bytes(cgroup) - statistics["inactive_file"] - statistics["active_file"]


def _current_bytes(cgroup: Path) -> int:
    return int((cgroup / "memory.current").read_text())


def _statistics(cgroup: Path) -> dict[str, int]:
    """`name value` lines."""
    lines = (line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    return {name: int(value) for name, value in lines}


def _resident_bytes(status: Path) -> int:
    """`Name:   value kB` lines."""
    kept = {"RssAnon", "RssShmem"}
    fields = (line.split() for line in status.read_text().splitlines() if line.split(":")[0] in kept)
    return sum(int(amount) * 1024 for _, amount, _ in fields)
