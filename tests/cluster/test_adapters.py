"""Adapters of a resource on a real API server: the example, with real engines over the trained pair.

The tests are one life of one object, in order. The adapters are random ones for the trained target: nonsense, but each
its own.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from examples.demo.stage import PAIRS_FOLDER
from safetensors.torch import load_file
from tests.cluster.conftest import MODELS
from tests.cluster.test_operator import CHART, PATIENCE_SECONDS, conditions
from tests.seams.adapter_folders import saved_adapter

from tandem_devcluster.testing import Cluster, Object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "08-adapters.yaml"
NAME = "chat"
FOLDERS = ("legal", "support", "legal-2")
SHORT = {
    "gateway": {"replicas": 1},
    "canary": {"steps": [{"percent": 50, "holdSeconds": 3600}], "analysis": {"exactness": {"sampleBasisPoints": 0}}},
}


@dataclass(frozen=True, slots=True)
class Served:
    cluster: Cluster
    namespace: str

    def wait(self, kind: str, status: str, reason: str) -> Object:
        def reached(found: Object) -> bool:
            held = conditions(found).get(kind, {})
            current = held.get("observedGeneration") == found["metadata"]["generation"]
            return current and (held["status"], held["reason"]) == (status, reason)

        return self.cluster.wait(
            "specdep", NAME, namespace=self.namespace, until=reached, deadline_seconds=PATIENCE_SECONDS
        )

    def patch(self, spec: dict[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "specdep", NAME, "-n", self.namespace, "--type=merge", "-p", patch)

    def pods(self, role: str) -> dict[str, str]:
        """uids by name, of those that stay."""
        found = self.cluster.get("pod", "-l", f"tandem.dev/role={role}", namespace=self.namespace)["items"]
        stay = (pod["metadata"] for pod in found if "deletionTimestamp" not in pod["metadata"])
        return {metadata["name"]: metadata["uid"] for metadata in stay}

    def told(self) -> dict[str, tuple[int, dict[str, str]]]:
        """Weight and adapters of each revision of the policy."""
        data = self.cluster.get("configmap", f"{NAME}-policy", namespace=self.namespace)["data"]
        return {
            held["name"]: (held["weight"], {each["name"]: each["digest"] for each in held.get("adapters", ())})
            for held in json.loads(data["policy.json"])["revisions"]
        }

    def held(self) -> list[set[str]]:
        """The digests that each target pod holds."""
        found = []
        for pod in self.pods("target"):
            with self.cluster.forward(f"pod/{pod}", 8002, namespace=self.namespace) as url:
                found.append({each["digest"] for each in httpx.get(f"{url}/adapters").json()["adapters"]})
        return found

    def ask(self, url: str, model: str) -> tuple[int, str, str]:
        """Status, digest and text of one short greedy answer."""
        question = {"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        reply = httpx.post(f"{url}/v1/completions", json=question, timeout=PATIENCE_SECONDS)
        if reply.status_code != 200:
            return reply.status_code, "", reply.text
        body = reply.json()
        return 200, body["speculation"].get("adapter", ""), body["choices"][0]["text"]


@pytest.fixture(scope="module")
def served(without_crd: None, cluster: Cluster, models: Path) -> Iterator[Served]:
    """The example, with its adapters where pods find them."""
    weights = load_file(PAIRS_FOLDER / "target" / "model.safetensors")
    for seed, name in enumerate(FOLDERS):
        saved_adapter(models / "adapters" / name, weights, seed=seed)
    system, namespace = (f"{role}-{secrets.token_hex(4)}" for role in ("system", "serving"))
    cluster.kubectl("create", "namespace", namespace)
    cluster.helm("install", "tandem", CHART, "-n", system, "--create-namespace", "--wait", "--timeout", "55s")
    body = yaml.safe_load(EXAMPLE.read_text().replace("/opt/tandem/adapters", f"{MODELS}/adapters"))
    body["spec"] |= SHORT
    cluster.apply(body, namespace=namespace)
    yield Served(cluster, namespace)
    cluster.helm("uninstall", "tandem", "-n", system)
    cluster.kubectl("delete", "namespace", namespace, system)


def folder(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "model": {"uri": f"file://{MODELS}/adapters/{path}"}}


def test_the_example_serves_its_adapters_by_name(served: Served) -> None:
    found = served.wait("Reconciling", "False", "Settled")
    assert conditions(found)["AdaptersLoaded"]["reason"] == "AllLoaded"
    ((weight, adapters),) = served.told().values()
    assert (weight, sorted(adapters)) == (100, ["legal", "support"])
    with served.cluster.forward(f"svc/{NAME}", 8000, namespace=served.namespace) as url:
        listed = [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]
        answers = {model: served.ask(url, model) for model in listed}
    assert listed == ["chat", "chat:legal", "chat:support"]
    assert {model: answer[:2] for model, answer in answers.items()} == {
        "chat": (200, ""),
        "chat:legal": (200, adapters["legal"]),
        "chat:support": (200, adapters["support"]),
    }
    assert len({answer[2] for answer in answers.values()}) == 3


def test_a_canary_of_adapters_alone_has_other_weights_under_the_same_name_in_the_same_pods(served: Served) -> None:
    before = {role: served.pods(role) for role in ("target", "draft", "gateway")}
    (stable,) = served.told()
    served.patch({"adapters": [folder("legal", "legal-2"), folder("support", "support")]})
    served.cluster.wait(
        *("configmap", f"{NAME}-policy"),
        namespace=served.namespace,
        until=lambda found: '"weight":50' in found["data"]["policy.json"],
        deadline_seconds=PATIENCE_SECONDS,
    )
    (canary,) = set(served.told()) - {stable}
    told = {name: adapters["legal"] for name, (_, adapters) in served.told().items()}
    assert told[stable] != told[canary]
    assert {role: served.pods(role) for role in before} == before
    with served.cluster.forward(f"svc/{NAME}", 8000, namespace=served.namespace) as url:
        answers = [served.ask(url, "chat:legal") for _ in range(24)]
    assert {answer[0] for answer in answers} == {200}
    assert {answer[1] for answer in answers} == set(told.values())
    assert len({answer[1:] for answer in answers}) == 2


def test_an_aborted_canarys_weights_leave_the_pods_and_a_new_pod_gets_stables(served: Served) -> None:
    found = served.cluster.get("specdep", NAME, namespace=served.namespace)["status"]
    kept = set(served.told()[found["stableRevision"]][1].values())
    command = f"tandem.dev/abort=@{found['canaryRevision']}#1"
    served.cluster.kubectl("annotate", "specdep", NAME, command, "-n", served.namespace)
    served.wait("Stalled", "True", "RevisionRefused")
    assert served.held() == [kept]
    served.cluster.kubectl("delete", "pod", *served.pods("target"), "-n", served.namespace, "--grace-period=1")
    served.wait("AdaptersLoaded", "False", "Loading")
    served.wait("AdaptersLoaded", "True", "AllLoaded")
    assert served.held() == [kept]


def test_an_adapter_that_is_not_there_is_named_with_the_pod_and_its_words(served: Served) -> None:
    served.patch({"adapters": [folder("legal", "nowhere")]})
    message = conditions(served.wait("AdaptersLoaded", "False", "LoadingFailed"))["AdaptersLoaded"]["message"]
    (pod,) = served.pods("target")
    assert "adapter legal of revision" in message
    assert f"is not loaded by pod {pod}: " in message
    assert f"{MODELS}/adapters/nowhere does not exist" in message
    with served.cluster.forward(f"svc/{NAME}", 8000, namespace=served.namespace) as url:
        assert served.ask(url, "chat:legal")[0] == 200
