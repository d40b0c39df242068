"""The operator as the chart installs it, on a real API server, with a tiny untrained pair in real engines.

The tests are one life of one object, in order: it is created, serves, is disturbed, and goes. C45 is from babylon PR
3376.
"""

import json
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

from tandem_devcluster.testing import Cluster, Object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CHART = str(Path(__file__).parents[2] / "charts" / "tandem")
NAME = "chat"
PATIENCE_SECONDS = 120
"""A machine that also does something else takes a minute to start three engines."""
KINDS = "deployment,service,configmap,serviceaccount,role,rolebinding,pdb,controllerrevision,pod"


@dataclass(frozen=True, slots=True)
class Installed:
    """One release of the chart, two replicas, and the namespace of the object."""

    cluster: Cluster
    system: str
    namespace: str

    def object(self) -> Object:
        return self.cluster.get("specdep", NAME, namespace=self.namespace)

    def wait(self, kind: str, status: str, *, reason: str = "") -> Object:
        def reached(found: Object) -> bool:
            condition = conditions(found).get(kind, {})
            current = condition.get("observedGeneration") == found["metadata"]["generation"]
            return current and condition["status"] == status and reason in ("", condition["reason"])

        return self.cluster.wait(
            "specdep", NAME, namespace=self.namespace, until=reached, deadline_seconds=PATIENCE_SECONDS
        )

    def settle(self) -> Object:
        return self.wait("Reconciling", "False", reason="Settled")

    def patch(self, spec: dict[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "specdep", NAME, "-n", self.namespace, "--type=merge", "-p", patch)

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{self.system}:tandem-operator"

    def holder(self) -> str:
        """The pod that leads."""
        lease = self.cluster.get("lease", "tandem-operator", namespace=self.system)
        return str(lease["spec"].get("holderIdentity", ""))

    def operators(self) -> list[str]:
        """The operator's pods, but those that are leaving."""
        label = ("-l", "app.kubernetes.io/name=tandem-operator")
        found = self.cluster.get("pod", *label, namespace=self.system)["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def grant(self, rules: list[Object]) -> None:
        """Let the operator's role hold these rules and no others."""
        patch = json.dumps({"rules": rules})
        self.cluster.kubectl("patch", "clusterrole", "tandem-operator", "--type=merge", "-p", patch)

    def deployment(self, role: str) -> str:
        found = self.cluster.get("deployment", "-l", f"tandem.dev/role={role}", namespace=self.namespace)["items"]
        return str(found[0]["metadata"]["name"])

    def requests(self, account: str) -> list[Object]:
        return self.cluster.requests(account)


def conditions(found: Object) -> dict[str, Any]:
    return {condition["type"]: condition for condition in found.get("status", {}).get("conditions", [])}


SPEC = {
    "target": {"model": {"uri": f"file://{MODELS}/target"}},
    "draft": {"model": {"uri": f"file://{MODELS}/draft"}},
    "gateway": {"replicas": 1},
}


@pytest.fixture(scope="module")
def installed(without_crd: None, cluster: Cluster, models: Path) -> Iterator[Installed]:
    """The chart installed with two replicas, and one object applied."""
    system, namespace = (f"{role}-{secrets.token_hex(4)}" for role in ("system", "serving"))
    for role in ("target", "draft"):
        write_model(models / role)
    cluster.kubectl("create", "namespace", namespace)
    install = ("--create-namespace", "--set", "replicaCount=2", "--wait", "--timeout", "55s")
    cluster.helm("install", "tandem", CHART, "-n", system, *install)
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "SpeculativeDeployment", "metadata": {"name": NAME}}
    cluster.apply({**body, "spec": SPEC}, namespace=namespace)
    yield Installed(cluster, system, namespace)
    cluster.helm("uninstall", "tandem", "-n", system)
    cluster.kubectl("delete", "namespace", namespace, system)


def test_the_object_becomes_ready_and_answers_through_its_service(installed: Installed) -> None:
    found = installed.settle()
    assert {kind: found["status"] for kind, found in conditions(found).items() if kind in HEALTHY} == HEALTHY
    with installed.cluster.forward(f"svc/{NAME}", 8000, namespace=installed.namespace) as url:
        question = {"model": NAME, "prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=question, timeout=PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 12)


HEALTHY = {"Ready": "True", "Accepted": "True", "ModelsCompatible": "True", "DraftReady": "True", "Stalled": "False"}


def test_neither_the_object_nor_a_child_of_its_has_a_finalizer_c36(installed: Installed) -> None:
    ours = ("-l", f"tandem.dev/deployment={NAME}")
    held = [installed.object(), *installed.cluster.get(KINDS, *ours, namespace=installed.namespace)["items"]]
    assert len(held) > len(KINDS.split(","))
    assert [each["metadata"]["name"] for each in held if "finalizers" in each["metadata"]] == []


def test_a_steady_object_causes_no_write_but_leases(installed: Installed) -> None:
    installed.settle()
    renewals = 0

    def renewed_ten_times(lease: Object) -> bool:
        nonlocal renewals
        renewals += 1
        return renewals > 10

    before = len(installed.requests(installed.account))
    lease = ("lease", "tandem-operator")
    installed.cluster.wait(*lease, namespace=installed.system, until=renewed_ten_times, deadline_seconds=90)
    done = installed.requests(installed.account)[before:]
    written = [f"{entry['verb']} {entry['requestURI']}" for entry in done if entry["verb"] not in READS]
    assert [line for line in written if "/leases" not in line] == []


READS = ("get", "list", "watch")


def test_a_deleted_child_comes_back_and_a_scaled_one_is_put_right(installed: Installed) -> None:
    draft, target, namespace = installed.deployment("draft"), installed.deployment("target"), installed.namespace
    before = installed.cluster.get("deployment", draft, namespace=namespace)["metadata"]["uid"]
    installed.cluster.kubectl("scale", "deployment", target, "--replicas=3", "-n", namespace)
    installed.cluster.wait(
        *("deployment", target), namespace=namespace, until=lambda found: found["spec"]["replicas"] == 1
    )
    installed.cluster.kubectl("delete", "deployment", draft, "-n", namespace)
    installed.cluster.kubectl(
        "wait", "--for=create", f"deployment/{draft}", "-n", namespace, f"--timeout={PATIENCE_SECONDS // 3}s"
    )
    assert installed.cluster.get("deployment", draft, namespace=namespace)["metadata"]["uid"] != before


def test_a_wrong_spec_is_named_by_its_field_and_what_serves_goes_on(installed: Installed) -> None:
    installed.settle()
    installed.patch({"target": {"placement": {"accelerator": "L5"}}})
    found = installed.wait("Accepted", "False")
    assert "spec.target.placement.accelerator is 'L5'" in conditions(found)["Accepted"]["message"]
    assert conditions(found)["Ready"]["status"] == "True"
    installed.patch({"target": {"placement": {"accelerator": None}}})
    installed.wait("Accepted", "True")


def test_memory_pressure_switches_speculation_off_and_lets_it_try_again_when_it_is_over(installed: Installed) -> None:
    """A target holds hundreds of megabytes for torch alone: above a fifth of 1 GiB, far below an eighth of 16 GiB."""
    marks = {"disableAboveBasisPoints": 2000, "enableBelowBasisPoints": 1250}
    installed.patch({"target": {"resources": limited("1Gi")}, "autoDisable": {"memory": marks, "cooldownSeconds": 1}})
    pressed = installed.wait("MemoryPressure", "True")["status"]["speculation"]
    assert (pressed["state"], pressed["reason"]) == ("Disabled", "MemoryPressure")
    installed.patch({"target": {"resources": limited("16Gi")}})
    relieved = installed.wait("MemoryPressure", "False")["status"]["speculation"]
    assert relieved["state"] in ("Probing", "Active")


def limited(memory: str) -> dict[str, Any]:
    return {"requests": {"memory": "64Mi"}, "limits": {"memory": memory}}


def test_a_killed_leader_is_followed_by_the_other_which_goes_on(installed: Installed) -> None:
    holder = installed.holder()
    assert holder in installed.operators()
    assert len(installed.operators()) == 2
    installed.patch({"draft": {"replicas": 2}})
    installed.cluster.kubectl("delete", "pod", holder, "-n", installed.system, "--grace-period=0", "--force")
    found = installed.settle()
    assert conditions(found)["DraftReady"]["message"] == "2/2 pods are ready"
    assert installed.holder() not in ("", holder)


def test_no_request_of_the_operator_or_the_gateway_is_forbidden_c45(installed: Installed) -> None:
    accounts = (installed.account, f"system:serviceaccount:{installed.namespace}:{NAME}-gateway")
    done = [entry for account in accounts for entry in installed.requests(account)]
    assert {entry["user"]["username"] for entry in done} == set(accounts)
    refused = [
        f"{entry['verb']} {entry['requestURI']}" for entry in done if entry.get("responseStatus", {}).get("code") == 403
    ]
    assert refused == []


def test_a_missing_verb_is_named_in_readiness_and_events_and_nodes_can_be_done_without_c45(
    installed: Installed,
) -> None:
    role = json.loads(installed.cluster.kubectl("get", "clusterrole", "tandem-operator", "-o", "json"))
    dispensable = [rule for rule in role["rules"] if rule["resources"] not in (["nodes"], ["events"])]
    needed = [rule for rule in dispensable if rule["resources"] != ["speculativedeployments/status"]]
    installed.grant(needed)
    installed.cluster.kubectl("delete", "pod", *installed.operators(), "-n", installed.system)
    pod = installed.operators()[0]
    running = "--for=jsonpath={.status.phase}=Running"
    installed.cluster.kubectl("wait", f"pod/{pod}", "-n", installed.system, running, "--timeout=50s")
    with installed.cluster.forward(f"pod/{pod}", 9090, namespace=installed.system) as url:
        assert when_known(f"{url}/readyz") == (503, f"rights are missing: {MISSING} in {installed.system}\n")
        installed.grant(dispensable)
        installed.cluster.kubectl(
            "wait", f"pod/{pod}", "-n", installed.system, "--for=condition=Ready", "--timeout=50s"
        )
        assert "tandem_operator_queue_depth" in httpx.get(f"{url}/metrics").text
    installed.patch({"draft": {"replicas": 1}})
    installed.settle()
    installed.grant(role["rules"])


MISSING = "update speculativedeployments/status.tandem.dev"


def when_known(url: str) -> tuple[int, str]:
    """What readiness says once the process listens and has heard of its rights."""
    deadline, said = time.monotonic() + PATIENCE_SECONDS, (0, "")
    while time.monotonic() < deadline:
        try:
            reply = httpx.get(url, timeout=PATIENCE_SECONDS)
        except httpx.TransportError:
            said = (0, "nobody listens")
        else:
            said = (reply.status_code, reply.text)
            if "not said yet" not in reply.text:
                return said
        time.sleep(0.2)
    return said


def test_a_deleted_object_leaves_nothing(installed: Installed) -> None:
    installed.cluster.kubectl("delete", "specdep", NAME, "-n", installed.namespace)
    ours = ("-l", f"tandem.dev/deployment={NAME}", "-n", installed.namespace)
    installed.cluster.kubectl("wait", "--for=delete", KINDS, *ours, f"--timeout={PATIENCE_SECONDS // 3}s")
    assert installed.cluster.kubectl("get", KINDS, *ours, "-o", "name") == ""


def test_a_namespace_goes_though_no_operator_is_there_any_more_c36(installed: Installed) -> None:
    """With an object that was on its way, and children of all kinds."""
    cluster, namespace = installed.cluster, f"leaving-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", namespace)
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "SpeculativeDeployment", "metadata": {"name": NAME}}
    cluster.apply({**body, "spec": SPEC}, namespace=namespace)
    cluster.wait("deployment", f"{NAME}-gateway", namespace=namespace, until=bool, deadline_seconds=PATIENCE_SECONDS)
    cluster.kubectl("scale", "deployment/tandem-operator", "-n", installed.system, "--replicas=0")
    cluster.kubectl("wait", "--for=delete", "pod", "--all", "-n", installed.system, "--timeout=30s")
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := cluster.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "jsonpath={.status}"):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
