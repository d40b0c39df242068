"""Secrets that an object's pods have mounted, on a real control plane: certificates of roles, and API keys that go."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.conftest import MODELS
from tests.cluster.tiny_model import write_model
from tests.seams.role_certificates import RoleAuthority, written

from tandem_devcluster.testing import Cluster, Object
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.tls import RoleTls

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CHART = str(Path(__file__).parents[2] / "charts" / "tandem")
PATIENCE_SECONDS = 120
AUTHORITY = RoleAuthority()
TWO = "acme:first-secret\nbeta:second-secret\n"
SPEC: dict[str, Any] = {
    "target": {"model": {"uri": f"file://{MODELS}/target"}},
    "draft": {"model": {"uri": f"file://{MODELS}/draft"}},
    "gateway": {"replicas": 1, "authSecretRef": {"name": "api-keys"}},
    "transport": {"tlsSecretRef": {"name": "chat-roles"}},
}


def secret(name: str, files: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": files}


@dataclass(frozen=True, slots=True)
class Serving:
    """The object's namespace, and how its pods are found."""

    cluster: Cluster
    namespace: str

    def pods(self) -> dict[str, str]:
        """The uids of its pods by name."""
        found = self.cluster.get("pod", "-l", "tandem.dev/deployment=chat", namespace=self.namespace)["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def completes(self, url: str, key: str) -> int:
        question = {"model": "chat", "prompt": "the quick brown fox", "max_tokens": 4, "temperature": 0}
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{url}/v1/completions", json=question, headers=headers, timeout=60).status_code


@pytest.fixture
def serving(without_crd: None, cluster: Cluster, models: Path, namespace: str) -> Iterator[Serving]:
    system = f"system-{secrets.token_hex(4)}"
    for role in ("target", "draft"):
        write_model(models / role)
    cluster.helm("install", "tandem", CHART, "-n", system, "--create-namespace", "--wait", "--timeout", "55s")
    cluster.apply(secret("chat-roles", AUTHORITY.issue()), secret("api-keys", {"keys": TWO}), namespace=namespace)
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "SpeculativeDeployment", "metadata": {"name": "chat"}}
    cluster.apply({**body, "spec": SPEC}, namespace=namespace)
    ready = ("--for=condition=Ready", f"--timeout={PATIENCE_SECONDS}s")
    cluster.kubectl("wait", "specdep/chat", "-n", namespace, *ready)
    yield Serving(cluster, namespace)
    cluster.helm("uninstall", "tandem", "-n", system)
    cluster.kubectl("delete", "namespace", system, "--wait=false")


async def trouble_of(address: str, tls: RoleTls | None) -> str | None:
    """Why there is no link; None where there is one."""
    async with RemoteTarget(address, tls=tls) as remote, asyncio.timeout(60):
        while remote.trouble == "not connected yet":
            await asyncio.sleep(0.05)
        return remote.trouble


def test_pods_speak_tls_by_a_mounted_certificate_and_a_key_that_leaves_its_secret_is_refused(
    serving: Serving, tmp_path: Path
) -> None:
    cluster, namespace, before = serving.cluster, serving.namespace, serving.pods()
    with cluster.forward("svc/chat", 8000, namespace=namespace) as url:
        answers = [serving.completes(url, key) for key in ("first-secret", "second-secret", "no-secret")]
        renewed = secret("chat-roles", AUTHORITY.issue())
        cluster.apply(secret("api-keys", {"keys": "beta:second-secret\n"}), renewed, namespace=namespace)
        deadline = time.monotonic() + 60
        while serving.completes(url, "first-secret") != 401:
            assert time.monotonic() < deadline, "the key is still taken"
            time.sleep(0.5)
        later = serving.completes(url, "second-secret")
    (target,) = [name for name in before if "-target-" in name]
    ours = RoleTls(written(tmp_path / "ours", AUTHORITY.issue()))
    with cluster.forward(f"pod/{target}", 8001, namespace=namespace) as url:
        address = url.removeprefix("http://")
        troubles = [asyncio.run(trouble_of(address, tls)) for tls in (ours, None)]
    assert (answers, later) == ([200, 200, 401], 200)
    assert troubles[0] is None
    assert troubles[1] is not None
    assert "if the other end speaks TLS" in troubles[1]
    assert serving.pods() == before
