"""Knows how much memory this process holds that the kernel cannot take back.

Refuses to know GPUs and what the memory is for.

In a container of our own the kernel counts for us: `memory.current` of the control group (version 2), less the file
pages that nobody used lately, which is what Kubernetes calls the working set and evicts by. A process that is not the
first of its container shares that count with strangers, so it looks at its own anonymous pages instead.
"""

from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")
STATUS = Path("/proc/self/status")


def working_set_bytes(*, process: int, control_group: Path = CONTROL_GROUP, status: Path = STATUS) -> int:
    """`process` is this process's number, 1 where it is a container's first."""
    current = control_group / "memory.current"
    if process == 1 and current.is_file():
        inactive = _named_number(control_group / "memory.stat", "inactive_file")
        return max(0, int(current.read_text()) - inactive)
    return _named_number(status, "RssAnon:") * 1024


def _named_number(path: Path, name: str) -> int:
    """The number behind `name` at the start of a line, 0 where there is no such line."""
    for line in path.read_text().splitlines():
        if line.startswith((f"{name} ", f"{name}\t")):
            return int(line.split()[1])
    return 0
