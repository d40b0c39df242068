"""A running dev cluster in the hands of a test: its clients, its objects, its addresses.

It starts nothing; the session fixture does. It can reach this cluster only: every client is given its own kubeconfig,
and a kubeconfig with any other context is refused.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tandem_devcluster.errors import StateError
from tandem_devcluster.state import CONTEXT, StateFolder

Object = dict[str, Any]

_CLIENT_SECONDS = 180


class Cluster:
    """The clients of one running cluster."""

    def __init__(self, state: StateFolder) -> None:
        state.require_running()
        context = json.loads(state.kubeconfig.read_text())["current-context"]
        if context != CONTEXT:
            raise StateError(f"context {context!r} of {state.kubeconfig} is not {CONTEXT!r}; tests use no other")
        self.state = state
        self.kubeconfig = state.kubeconfig

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl; its stdout. An error raises `CalledProcessError` with its stderr as a note."""
        return self._run(str(self.state.bin / "kubectl"), *arguments, stdin=stdin)

    def helm(self, *arguments: str, stdin: str = "") -> str:
        """Run helm; its stdout. An error raises `CalledProcessError` with its stderr as a note."""
        return self._run(str(self.state.bin / "helm"), *arguments, stdin=stdin)

    def inside(self, *command: str) -> str:
        """Run a command in the cluster's network, where pods have addresses; its stdout."""
        return self._run(*self._devcluster("inside", *command))

    def devcluster(self, *arguments: str) -> str:
        """Run the dev cluster's own command line on this cluster; its stdout."""
        return self._run(*self._devcluster(*arguments))

    def apply(self, *objects: Object, namespace: str) -> None:
        """Create or update objects, as `kubectl apply` does."""
        documents = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(documents))

    def get(self, *what: str, namespace: str) -> Object:
        """One object, or a list of them: `get("pod", "a", namespace=...)`."""
        found: Object = json.loads(self.kubectl("get", "-n", namespace, "-o", "json", *what))
        return found

    def wait(
        self, kind: str, name: str, *, namespace: str, until: Callable[[Object], bool], deadline_seconds: int = 30
    ) -> Object:
        """Watch an object until it is as wanted; a `TimeoutError` shows it as it was last."""
        last: Object = {}
        command = (*self._watch(kind, name, namespace), f"--request-timeout={deadline_seconds}s")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for last in _documents(process.stdout):
                if until(last):
                    process.kill()
                    return last
            reason = process.stderr.read()
        shown = json.dumps(last.get("status", last), indent=1)
        raise TimeoutError(f"{kind} {name} was not as wanted in {deadline_seconds} s: {shown}\n{reason}")

    @contextmanager
    def follow(self, kind: str, name: str, *, namespace: str) -> Iterator["Followed"]:
        """Watch one object for as long as the block runs."""
        with subprocess.Popen(self._watch(kind, name, namespace), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            followed = Followed(process.stdout)
            try:
                yield followed
            finally:
                process.terminate()
                followed.join()

    @contextmanager
    def forward(self, destination: str, port: int | str, *, namespace: str) -> Iterator[str]:
        """A URL on 127.0.0.1 that leads to a Service or pod for as long as the block runs."""
        command = self._devcluster("forward", destination, str(port), "-n", namespace)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().partition(" ")[0]
                if not address.startswith("http"):
                    raise StateError(f"the relay to {destination} ended at once with status {process.wait()}")
                yield address
            finally:
                process.terminate()

    def audit(self) -> Iterator[Object]:
        """The API server's audit log so far: every request with its verb, user, object and answer.

        The user of a request that failed authentication is an empty object.
        """
        for line in self.state.audit_log.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # the last one may be half written
                yield json.loads(line)

    def requests(self, user: str) -> list[Object]:
        """The audit entries of one user, in order."""
        return [entry for entry in self.audit() if entry["user"].get("username") == user]

    def _watch(self, kind: str, name: str, namespace: str) -> tuple[str, ...]:
        """An object is watched as a list of one.

        When kubectl watches an object by its name, it gets it, opens a watch at the object's latest version, and shows
        nothing of the first answer: a change between the two would never be seen.
        """
        client, one = str(self.state.bin / "kubectl"), f"--field-selector=metadata.name={name}"
        return client, "get", kind, one, "-n", namespace, "-o", "json", "--watch"

    def _devcluster(self, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "tandem_devcluster", "--state", str(self.state.root), *arguments)

    def _run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=_CLIENT_SECONDS, check=False
        )
        if done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout


class Followed(threading.Thread):
    """An object under watch: `latest` is as the API server last sent it."""

    def __init__(self, lines: Iterable[str]) -> None:
        super().__init__(name="followed", daemon=True)
        self._lines = lines
        self._latest: Object = {}
        self._arrived = threading.Event()
        self.start()

    @property
    def latest(self) -> Object:
        """Waits for the first answer.

        Raises:
            StateError: the watch has ended, so that nothing newer would come.
        """
        self._arrived.wait()
        if not self.is_alive():
            raise StateError("the watch ended: the object is gone, or the API server closed it")
        return self._latest

    def run(self) -> None:
        """Read until the watch ends."""
        for document in _documents(self._lines):
            self._latest = document
            self._arrived.set()
        self._arrived.set()


def _documents(lines: Iterable[str]) -> Iterator[Object]:
    """The objects in kubectl's indented output, each as soon as its closing line is there."""
    document: list[str] = []
    for line in lines:
        document.append(line)
        if line == "}\n":
            yield json.loads("".join(document))
            document.clear()
