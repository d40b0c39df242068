"""Knows how much memory this process cannot give back: what the kernel would have to kill it for.

Refuses to know limits and what follows from pressure. Weights that are mapped from files fill the page cache, so the
whole of a container's memory says little: clean file pages go when somebody else needs the room. Inside a container
with memory accounting (cgroup v2) the working set is `memory.current` less `inactive_file`, as Kubernetes counts it;
elsewhere it is the resident anonymous and shared pages of this process. A container is ours where we are its first
process: one of many processes on a machine, itself perhaps a container, must not be told what all of them hold.
"""

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
STATUS = Path("/proc/self/status")


def working_set_bytes(*, process: int, cgroup: Path = CGROUP, status: Path = STATUS) -> int:
    """Bytes; reads two small files of the kernel. `process` is our own number, 1 for the first of a container."""
    current = cgroup / "memory.current"
    if process != 1 or not current.is_file():
        return _resident_bytes(status)
    return int(current.read_text()) - _inactive_file_bytes(cgroup / "memory.stat")


def _inactive_file_bytes(stat: Path) -> int:
    """`name value` lines."""
    return next(int(line.split()[1]) for line in stat.read_text().splitlines() if line.startswith("inactive_file "))


def _resident_bytes(status: Path) -> int:
    """`Name:   value kB` lines."""
    kept = {"RssAnon", "RssShmem"}
    fields = (line.split() for line in status.read_text().splitlines() if line.split(":")[0] in kept)
    return sum(int(amount) * 1024 for _, amount, _ in fields)
