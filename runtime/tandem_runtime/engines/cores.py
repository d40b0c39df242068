"""Knows how many cores this process may compute on: what its affinity and its control groups leave it.

Refuses to know what computes.

A container that may use 2 of 64 cores sees all 64: with a thread for each, most of them wait for their turn, holding up
those that compute. Control groups say the limit as a quota of microseconds per period (version 2: `cpu.max`, version 1:
`cpu.cfs_quota_us`), and every group above counts too. A part of a core is no core: threads that all compute until the
quota is used up then stand still together for the rest of the period.
"""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MOST_THREADS", "SHORT_WAITING", "allowed_cores"]

SHORT_WAITING = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""Environment for OpenMP, to be set before torch is loaded: threads without work look for some ten microseconds whether
there is more, and then sleep. A step shares out work some 150 times: to wake a thread for each takes as long as the
second one saves. By default threads look for milliseconds, which takes cores from whoever computes: two busy processes
of two threads each were ten times slower so, and so they take a third longer than if threads slept at once."""

MOST_THREADS = 1024
"""OpenMP ends the whole process, without a word of ours, where the system gives it fewer threads than it asks for."""


def allowed_cores(*, root: Path = Path("/")) -> int:
    """1 or more. `root` is where the system's files hang."""
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            mounted = root / "sys/fs/cgroup" / controllers
            group = mounted / path.lstrip("/")
            for each in (group, *group.parents):
                if each.is_relative_to(mounted):
                    yield from _quota(each)


def _quota(group: Path) -> Iterator[int]:
    """Whole cores that a group may use; nothing where it sets no limit."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield int(quota) // int(period)
