"""The kernel calls that Python 3.11 does not offer: namespaces, mounts, parent-death signals, addresses on loopback.

It knows no cluster and no pod. Every function raises `OSError` with the kernel's error number.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_IFF_UP_LOOPBACK_RUNNING = 0x49

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """mount(2); `kind` is the file system's name, empty for a bind or a change of flags."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def detach(target: str) -> None:
    """Unmount now for every later look-up, and for good once nothing uses it any more."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _check(_libc.pivot_root(os.fsencode(new_root), os.fsencode(put_old)), f"pivot_root {new_root}")


def die_with_parent() -> None:
    """Ask the kernel to SIGKILL this process when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def own_loopback_network(address: str, netmask: str) -> None:
    """Bring `lo` up and make the whole network around `address` local to it.

    On a loopback interface the kernel adds a `local` route for the network of every address (this is why all of 127/8
    answers), so one address with its netmask is enough for bind and connect anywhere inside it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_LOOPBACK_RUNNING))
        fcntl.ioctl(any_socket, _SIOCSIFADDR, _interface_request(b"lo:pods", address))
        fcntl.ioctl(any_socket, _SIOCSIFNETMASK, _interface_request(b"lo:pods", netmask))


def _interface_request(name: bytes, address: str) -> bytes:
    return struct.pack("16sH2x4s16x", name, socket.AF_INET, socket.inet_aton(address))
