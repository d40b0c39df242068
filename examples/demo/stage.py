"""Knows where the story plays: a dev cluster, the chart installed in it, and ports on this machine that reach into it.

Refuses to know the story.
"""

import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.demo.narrator import StoryError

ROOT = Path(__file__).resolve().parents[2]
PAIRS = "/opt/tandem/pairs"
"""Where the pods find the trained pair; the dev cluster mounts it there."""
SYSTEM_NAMESPACE = "tandem-system"
COMMAND_SECONDS = 120


@dataclass(slots=True)
class Stage:
    """One cluster, by the folder of its state."""

    state: Path
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    forwards: list["subprocess.Popen[str]"] = field(default_factory=list)

    def cluster_up(self) -> None:
        """Bring up the control plane and three nodes, with the pair mounted into every pod; idempotent."""
        pairs = ROOT / "examples" / "pairs"
        self._devcluster("up", "--folder", f"{PAIRS}={pairs}", seconds=600)

    def cluster_down(self) -> None:
        self.stop_forwards()
        self._devcluster("down")

    def stop_forwards(self) -> None:
        """End the relays of this process."""
        for process in self.forwards:
            process.terminate()
            process.communicate()
        self.forwards.clear()

    def install(self) -> None:
        """The chart as any user would install it, with a token for Alertmanager."""
        self.helm(
            "upgrade", "--install", "tandem", str(ROOT / "charts" / "tandem"),
            "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "60s",
            "--set", f"alerts.token={self.token}",
        )  # fmt: skip

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return self._run([str(self.state / "bin" / "kubectl"), *arguments], given=given)

    def helm(self, *arguments: str) -> str:
        return self._run([str(self.state / "bin" / "helm"), *arguments])

    def resource(self, namespace: str, name: str) -> dict[str, Any]:
        """The SpeculativeDeployment as it is now."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "specdep", name, "-n", namespace, "-o", "json"))
        return found

    def metrics(self, namespace: str, role: str) -> dict[str, float]:
        """The engine metrics of one pod of a role, by name and labels as the text writes them."""
        selector, path = f"tandem.dev/role={role}", "jsonpath={.items[0].status.podIP}"
        address = self.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", path)
        read = f"from urllib.request import urlopen; print(urlopen('http://{address}:8002/metrics').read().decode())"
        lines = self._run([*self._module(), "inside", sys.executable, "-c", read]).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("tandem_engine_"))
        return {name: float(value) for name, _, value in pairs}

    def forward(self, namespace: str, service: str, port: int) -> str:
        """The base URL on this machine at which `service` answers, for as long as this process lives."""
        command = [*self._module(), "forward", "--namespace", namespace, f"svc/{service}", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self._environment())
        self.forwards.append(process)
        assert process.stdout is not None
        address = process.stdout.readline().partition(" ")[0].strip()
        if not address:
            raise StoryError(f"the relay to service {service} ended at once with status {process.wait()}")
        return address

    def _devcluster(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> None:
        subprocess.run([*self._module(), *arguments], check=True, cwd=ROOT, env=self._environment(), timeout=seconds)

    def _module(self) -> list[str]:
        return [sys.executable, "-m", "tandem_devcluster", "--state", str(self.state)]

    def _environment(self) -> dict[str, str]:
        paths = f"{ROOT / 'devcluster'}{os.pathsep}{ROOT}"
        return {**os.environ, "PYTHONPATH": paths, "KUBECONFIG": str(self.state / "kubeconfig")}

    def _run(self, command: list[str], *, given: str | None = None) -> str:
        done = subprocess.run(
            command,
            check=False,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            env=self._environment(),
        )
        if done.returncode:
            shown = " ".join(word if self.token not in word else "..." for word in command)
            raise StoryError(f"{shown}\n{done.stderr.strip()}")
        return done.stdout
