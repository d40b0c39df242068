"""The state folder: where everything of one cluster lies, and which process is its supervisor.

It starts and stops nothing. A process is identified by its id *and* its start time, so that an id reused by the kernel
after a crash is never taken for ours.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tandem_devcluster.errors import StateError
from tandem_devcluster.machine import DEFAULT_MACHINES, Machine

CONTEXT = "tandem-devcluster"
_MARKER = "this-is-a-tandem-devcluster"
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Running:
    """The supervisor of a cluster: its process outside the namespaces, and the API server's port on 127.0.0.1."""

    pid: int
    started_ticks: int
    api_port: int


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The layout of a state folder; attributes are paths and exist only once something was written there."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way in from outside the namespaces."""
        return self.root / "kubeconfig"

    @property
    def inner_kubeconfig(self) -> Path:
        """The administrator's way in for processes inside the namespaces."""
        return self.root / "pki" / "admin-inside.kubeconfig"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def client_cache(self) -> Path:
        """What `kubectl` and `helm` know of the cluster's resources."""
        return self.root / "client-cache"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def supervisor_log(self) -> Path:
        return self.logs / "supervisor.log"

    @property
    def machines_file(self) -> Path:
        return self.root / "machines.json"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Claim the folder and hold it against a second `up` or `down`; the kernel releases it when the holder dies.

        Raises:
            StateError: another holds it, or it holds something that no dev cluster made, or it cannot be written.
        """
        self._claim()
        with (self.root / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StateError(f"another up or down is at work in {self.root}; wait for it to end") from error
            yield

    def _claim(self) -> None:
        marker = self.root / _MARKER
        if self.root.exists() and not marker.exists() and any(self.root.iterdir()):
            raise StateError(f"{self.root} is not empty and not a dev cluster's; choose another folder with --state")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            raise StateError(f"cannot write to {self.root} ({error.strerror}); choose another with --state") from error

    def prepare(self) -> None:
        """Clear what an earlier cluster left in a locked folder, and make its parts anew."""
        for entry in self.root.iterdir():
            if entry.name not in (_MARKER, _LOCK):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for folder in (self.bin, self.pki, self.logs):
            folder.mkdir(mode=0o700)

    def record(self, running: Running) -> None:
        write_atomically(self.root / "cluster.json", json.dumps(asdict(running)))

    def running(self) -> Running | None:
        """The live supervisor, or None when there is none."""
        try:
            found = Running(**json.loads((self.root / "cluster.json").read_text()))
        except FileNotFoundError:
            return None
        return found if start_ticks(found.pid) == found.started_ticks else None

    def require_running(self) -> Running:
        found = self.running()
        if found is None:
            raise StateError(f"no dev cluster runs in {self.root}; start one with `make cluster-up`")
        return found

    def machines(self) -> tuple[Machine, ...]:
        """The machines this cluster is meant to have."""
        try:
            return tuple(Machine(**entry) for entry in json.loads(self.machines_file.read_text()))
        except FileNotFoundError:
            return DEFAULT_MACHINES

    def set_machines(self, machines: tuple[Machine, ...]) -> None:
        write_atomically(self.machines_file, json.dumps([asdict(machine) for machine in machines], indent=1))


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is no such live process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace the file in one step, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=mode)
    draft.write_text(text)
    draft.rename(path)
