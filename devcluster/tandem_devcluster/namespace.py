"""How a process enters or makes the namespaces of a cluster.

It knows nothing of what runs in them. Only single-threaded processes may call these functions: the kernel gives a new
user namespace to no process with more than one thread.

A cluster has a network namespace (its pods' addresses exist nowhere else), a PID namespace (when its first process
ends, the kernel ends every other: nothing can be left behind) and a mount namespace (for its own /proc). An ordinary
user makes a user namespace around them, in which he is root.
"""

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from tandem_devcluster import linux
from tandem_devcluster.errors import NamespaceError

POD_NETWORK = "10.244.0.0/16"
GATEWAY_ADDRESS = "10.244.0.1"
_POD_NETMASK = "255.255.0.0"


def make_cluster_namespaces() -> None:
    """Move this process into new network and mount namespaces; its next child is the first of a new PID namespace.

    Raises:
        NamespaceError: the kernel refuses, most often because unprivileged user namespaces are switched off.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWPID
    try:
        linux.unshare(flags if uid == 0 else flags | linux.CLONE_NEWUSER)
        if uid != 0:
            _become_root_inside(uid, gid)
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        linux.own_loopback_network(GATEWAY_ADDRESS, _POD_NETMASK)
    except OSError as error:
        raise NamespaceError(
            f"cannot make the cluster's namespaces ({error}); run as root, or allow unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
        ) from error


def _become_root_inside(uid: int, gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def mount_own_proc() -> None:
    """Show this PID namespace's processes in /proc; the first process of the namespace calls it."""
    linux.mount("proc", "/proc", "proc", flags=linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def enter_network_of(pid: int) -> None:
    """Move this process into the network namespace of `pid`; sockets opened before stay where they were made."""
    try:
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if os.getuid() != 0:
            user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
            linux.setns(user, linux.CLONE_NEWUSER)
            os.close(user)
        linux.setns(network, linux.CLONE_NEWNET)
        os.close(network)
    except OSError as error:
        raise NamespaceError(f"cannot enter the network of process {pid} ({error})") from error


def run_in_cluster_namespaces(body: Callable[[], int], *, bound: bool = False) -> int:
    """Run `body` as a process of new cluster namespaces; return its exit status once all of them have ended.

    Three processes: this one stays outside and stands for the cluster; the first process inside reaps orphans, as any
    process 1 must; its child runs `body`. SIGTERM, SIGINT and SIGHUP are passed on to `body`. Whichever of the three
    ends, by whatever cause, the others and everything that `body` started end too. So they do when the thread that
    started this process ends, if it is `bound` to it.
    """
    make_cluster_namespaces()
    if bound:
        linux.die_with_parent()
    first = os.fork()
    if first == 0:
        linux.die_with_parent()
        mount_own_proc()
        worker = os.fork()
        os._exit(_run_to_the_end(body) if worker == 0 else _stand_for(worker))
    return _stand_for(first)


def _run_to_the_end(body: Callable[[], int]) -> int:
    """Never return into the caller's stack, which belongs to the process outside."""
    try:
        return body()
    except BaseException:
        traceback.print_exc()
        return 1


def _stand_for(child: int) -> int:
    """Pass signals to the child and reap every orphan until the child ends; its exit status as a shell gives it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
