"""Knows where the story plays: a dev cluster, the chart installed in it, and ports on this machine that reach into it.

Refuses to know the story.
"""

import secrets
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.narrator import StoryError

from tandem_devcluster.errors import DevClusterError
from tandem_devcluster.testing import Cluster, Object

ROOT = Path(__file__).resolve().parents[2]
PAIRS = "/opt/tandem/pairs"
"""Where the pods find the trained pair, if the dev cluster was brought up with PAIRS_FOLDER there."""
PAIRS_FOLDER = ROOT / "examples" / "pairs"
SYSTEM_NAMESPACE = "tandem-system"


@dataclass(slots=True)
class Stage:
    """One cluster that runs; `relays` holds what this process has open into it."""

    cluster: Cluster
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    relays: ExitStack = field(default_factory=ExitStack)

    def install(self) -> None:
        """The chart as any user would install it, with a token for Alertmanager."""
        self._tell(
            self.cluster.helm,
            "upgrade", "--install", "tandem", str(ROOT / "charts" / "tandem"),
            "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "100s",
            "--set", f"alerts.token={self.token}",
        )  # fmt: skip

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self._tell(lambda *words: self.cluster.kubectl(*words, stdin=stdin), *arguments)

    def follow(self, namespace: str, name: str) -> Callable[[], Object]:
        """The SpeculativeDeployment as it is now, at every call, until this process ends."""
        followed = self.relays.enter_context(self.cluster.follow("specdep", name, namespace=namespace))
        return lambda: followed.latest

    def metrics(self, namespace: str, role: str) -> dict[str, float]:
        """The engine metrics of one pod of a role, by name and labels as the text writes them."""
        selector, path = f"tandem.dev/role={role}", "jsonpath={.items[0].status.podIP}"
        address = self.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", path)
        read = f"from urllib.request import urlopen; print(urlopen('http://{address}:8002/metrics').read().decode())"
        lines = self._tell(self.cluster.inside, sys.executable, "-c", read).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("tandem_engine_"))
        return {name: float(value) for name, _, value in pairs}

    def forward(self, namespace: str, service: str, port: int) -> str:
        """The base URL on this machine at which `service` answers, for as long as this process lives."""
        return self.relays.enter_context(self.cluster.forward(f"svc/{service}", port, namespace=namespace))

    def _tell(self, client: Callable[..., str], *arguments: str) -> str:
        try:
            return client(*arguments)
        except subprocess.CalledProcessError as error:
            shown = " ".join(word if self.token not in word else "..." for word in error.cmd)
            raise StoryError(f"{shown}\n{error.stderr.strip()}") from None
        except DevClusterError as error:
            raise StoryError(str(error)) from error
