"""Starts one container's process: `python -S -m tandem_devcluster.launcher run|exec`, its orders as JSON on stdin.

It knows the kernel and no Kubernetes, and imports nothing beyond the standard library, because it is started once per
container and per exec probe.

A container gets a PID, mount, IPC and host-name namespace of its own, and a root of its own: a temporary file system
in which every top-level folder of the host is an overlay, so that it sees the host's programs and changes nothing of
the host. Its first process is the container's process 1: when it ends, the kernel ends all others. Launcher and
container die with the process that started the launcher.

`run` reports on stdout, which ends when the command has started: `pid N`, and `error ...` when it could not be started.
`exec` passes the command's output on. The exit status is the command's (128 + signal for a death by signal).
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from tandem_devcluster import linux

_HOST = "/.host"  # where the host's root stays mounted while the container's volumes are bound
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SPECIAL = ("proc", "sys", "dev", "run")
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
_JOINED = {"mnt": linux.CLONE_NEWNS, "pid": linux.CLONE_NEWPID, "uts": linux.CLONE_NEWUTS, "ipc": linux.CLONE_NEWIPC}
_ROOT_BYTES = "1g"  # of memory, at most, for what a container writes outside its volumes


def main() -> NoReturn:
    linux.die_with_parent()
    orders = json.load(sys.stdin)
    if sys.argv[1] == "run":
        linux.unshare(_NAMESPACES)
        child = os.fork()
        if child == 0:
            _run(orders)
    else:
        _join(orders["pid"])
        child = os.fork()
        if child == 0:
            _execute(orders)
    if sys.argv[1] == "run":
        os.write(1, f"pid {child}\n".encode())
        os.close(1)  # the report ends once the container's process has closed its copy by starting the command
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _run(orders: dict[str, Any]) -> NoReturn:
    """In the container's process 1: make its world, then become its command."""
    report = os.dup(1)
    os.set_inheritable(report, False)
    try:
        linux.die_with_parent()
        os.setsid()
        socket.sethostname(orders["hostname"])
        log = os.open(orders["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _make_root(Path(orders["scratch"]), orders)
        os.makedirs(orders["working_folder"], exist_ok=True)
        os.chdir(orders["working_folder"])
        _redirect(log)
        _become(orders)
    except OSError as error:
        os.write(report, f"error {error}\n".encode())
        os._exit(128)


def _redirect(output: int) -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _become(orders: dict[str, Any]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and that would be inherited
    os.umask(0o022)
    os.execvpe(orders["command"][0], orders["command"], orders["environment"])  # noqa: S606 - a container's command


def _make_root(scratch: Path, orders: dict[str, Any]) -> None:
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    occupied = _mount_points()
    linux.mount("tmpfs", str(scratch), "tmpfs", flags=linux.MS_NODEV, options=f"mode=755,size={_ROOT_BYTES}")
    root = scratch / "root"
    root.mkdir()
    linux.mount(str(root), str(root), flags=linux.MS_BIND)  # pivot_root wants a mount of its own
    layers = _mirror_host(scratch, root, occupied)
    _mount_system(root)
    (root / _HOST.lstrip("/")).mkdir()
    linux.pivot_root(str(root), str(root) + _HOST)
    os.chdir("/")
    for mount in orders["mounts"]:
        _make_place(mount["source"], mount["target"])
    if orders["read_only_root"]:
        # Before the volumes come: one that lies on a top-level folder would be made read-only in its stead.
        for layer in (*layers, "/"):
            linux.mount("none", layer, flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)
    for mount in orders["mounts"]:
        _make_place(mount["source"], mount["target"])  # once more: the place may lie in a volume that came just now
        _bind_volume(mount["source"], mount["target"], read_only=mount["read_only"])
    linux.detach(_HOST)


def _mount_points() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _mirror_host(scratch: Path, root: Path, occupied: list[str]) -> list[str]:
    """An overlay of each top-level folder; links are copied. A folder with mounts below it is shared as it is."""
    layers = []
    for entry in os.scandir("/"):
        if entry.is_symlink():
            (root / entry.name).symlink_to(os.readlink(entry.path))
        elif entry.is_dir() and entry.name not in _SPECIAL:
            (root / entry.name).mkdir()
            if any(point.startswith(f"{entry.path}/") for point in occupied):
                linux.mount(entry.path, str(root / entry.name), flags=linux.MS_BIND | linux.MS_REC)
            else:
                _overlay(entry.path, scratch, root / entry.name)
                layers.append(entry.path)
    return layers


def _overlay(lower: str, scratch: Path, target: Path) -> None:
    upper, work = (scratch / kind / target.name for kind in ("upper", "work"))
    upper.mkdir(parents=True)
    work.mkdir(parents=True)
    upper.chmod(os.stat(lower).st_mode & 0o7777)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    linux.mount("overlay", str(target), "overlay", options=options + ("" if _is_real_root() else ",userxattr"))


def _is_real_root() -> bool:
    """Whether user 0 here is the machine's root, and not an ordinary user's inside a user namespace."""
    return Path("/proc/self/uid_map").read_text().split()[2] == str(2**32 - 1)


def _mount_system(root: Path) -> None:
    for name in (*_SPECIAL, "dev/shm", "dev/pts"):
        (root / name).mkdir(exist_ok=True)
        if name in ("dev", "run"):
            linux.mount("tmpfs", str(root / name), "tmpfs", flags=linux.MS_NOSUID, options="mode=755,size=64m")
    linux.mount("proc", str(root / "proc"), "proc", flags=linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("/sys", str(root / "sys"), flags=linux.MS_BIND | linux.MS_REC)
    linux.mount("tmpfs", str(root / "dev/shm"), "tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, options="mode=1777")
    linux.mount("/dev/pts", str(root / "dev/pts"), flags=linux.MS_BIND)
    graphics = [path.name for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    for device in (*_DEVICES, *graphics):
        (root / "dev" / device).touch()
        linux.mount(f"/dev/{device}", str(root / "dev" / device), flags=linux.MS_BIND)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / name).symlink_to(f"/proc/self/{target}")


def _make_place(source: str, target: str) -> None:
    outside, inside = Path(_HOST + source), Path(target)
    if outside.is_dir():
        inside.mkdir(parents=True, exist_ok=True)
    elif not inside.exists():
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.touch()


def _bind_volume(source: str, target: str, *, read_only: bool) -> None:
    linux.mount(_HOST + source, target, flags=linux.MS_BIND)
    if read_only:
        linux.mount("none", target, flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)


def _join(pid: int) -> None:
    namespaces = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind) for name, kind in _JOINED.items()]
    for descriptor, kind in namespaces:
        linux.setns(descriptor, kind)
        os.close(descriptor)


def _execute(orders: dict[str, Any]) -> NoReturn:
    """In a process that joined the container: become one command, all its output on stdout."""
    try:
        linux.die_with_parent()
        os.chdir(orders["working_folder"])
        os.dup2(1, 2)
        _become(orders)
    except OSError as error:
        os.write(1, str(error).encode())
        os._exit(126)


if __name__ == "__main__":
    main()
