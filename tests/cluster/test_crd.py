"""The resource on a real API server: what is refused and with which words, what is filled in, who may write what."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.definition import CHART, install_definition

from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.testing import Cluster
from tandem_operator.definition import fields_of, own_fields, schema_of
from tandem_operator.domain.overlay import overlaid
from tandem_operator.domain.spec import parse

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "speculativedeployments.yaml"
SPEC: Mapping[str, Any] = {
    "target": {"model": {"uri": "file:///m/target"}},
    "draft": {"model": {"uri": "file:///m/draft"}},
}


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Cluster) -> None:
    """The CRD as the chart brings it, without an operator that would act on the objects."""
    install_definition(cluster)


def manifest(spec: Mapping[str, Any], name: str = "chat") -> str:
    metadata = {"name": name}
    return json.dumps(
        {"apiVersion": "tandem.dev/v1alpha1", "kind": "SpeculativeDeployment", "metadata": metadata, "spec": spec}
    )


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[httpx.Client]:
    """The administrator's own connection: asking kubectl for each of so many refusals takes half a minute."""
    access = read_access(cluster.kubeconfig)
    with httpx.Client(base_url=access.server, verify=access.tls, trust_env=False) as client:
        yield client


def refusal(client: httpx.Client, text: str) -> str:
    """The API server's words about an object that it must refuse, asked as `kubectl apply --dry-run=server` asks."""
    where = "/apis/tandem.dev/v1alpha1/namespaces/default/speculativedeployments"
    strictly = {"dryRun": "All", "fieldValidation": "Strict"}
    answer = client.post(where, params=strictly, content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    return " ".join(str(answer.json()["message"]).split())


TARGET, DRAFT = "file:///m/target", "file:///m/draft"
HUB = {"uri": "hf://acme/legal-lora", "revision": "0" * 40}
LEGAL = {"name": "legal", "model": HUB}

WRONG: list[tuple[Mapping[str, Any], str]] = [
    ({"target": None}, "spec.target: Required value"),
    ({"draft": None}, "spec.draft: Required value"),
    ({"draft": {"model": None}}, "method Model needs draft.model with a uri; write method: None for a target"),
    ({"draft": {"method": "Suffix"}}, "only method Model has pods: remove model, engineArgs, image and podTemplate"),
    ({"draft": {"method": "None"}}, "only method Model has pods: remove model, engineArgs, image and podTemplate"),
    (
        {"draft": {"method": "Heads"}},
        'spec.draft.method: Unsupported value: "Heads": supported values: "Model", "NGram", "Suffix", "None"',
    ),
    ({"target": {"engine": "VLLM"}}, 'spec.target.engine: Unsupported value: "VLLM": supported values: "Torch"'),
    ({"target": {"model": {"uri": "/m/target"}}}, "use hf://owner/name for a Hugging Face repository, or file:///path"),
    ({"target": {"model": {"uri": "s3://bucket/m"}}}, "use hf://owner/name for a Hugging Face repository"),
    ({"target": {"model": {"uri": "hf://only-a-name"}}}, "use hf://owner/name for a Hugging Face repository"),
    ({"target": {"model": {"uri": "hf://a/b"}}}, "an hf:// model needs `revision`: the 40-digit commit"),
    ({"target": {"model": {"uri": "hf://a/b", "revision": "main"}}}, "an hf:// model needs `revision`"),
    ({"target": {"model": {"revision": "0" * 40}}}, "a file:// model has no `revision`; remove it"),
    ({"target": {"model": {"digest": "sha256:12"}}}, "write sha256: and 64 lower-case hexadecimal digits"),
    (
        {"target": {"engineArgs": {"--dtype": "fp32"}}},
        "Torch takes dtype, threads, max-sessions, max-length, kv-bytes",
    ),
    ({"target": {"engineArgs": {"threads": 1}}}, 'spec.target.engineArgs.threads: Invalid value: "integer"'),
    ({"draft": {"engineArgs": {"dtype": "$(POD_IP)"}}}, "give every engine argument a value of letters, digits"),
    ({"target": {"engineArgs": {"dtype": "fp64"}}}, "dtype is fp32 or bf16"),
    (
        {"target": {"engineArgs": {"threads": "many"}}},
        "max-sessions, max-length and kv-bytes are whole numbers above 0",
    ),
    (
        {"draft": {"engineArgs": {"max-length": "0"}}},
        "max-sessions, max-length and kv-bytes are whole numbers above 0",
    ),
    ({"target": {"replicas": -1}}, "spec.target.replicas: Invalid value: -1"),
    ({"target": {"placement": {"count": 2}}}, "placement.count above 1 needs placement.accelerator"),
    ({"draft": {"placement": {"count": 2}}}, "placement.count above 1 needs placement.accelerator"),
    ({"target": {"resources": {"limits": {"memory": "16GB"}}}}, "write a quantity such as 500m, 2 or 16Gi"),
    (
        {"target": {"resources": {"limits": {"memory": "-1Gi"}}}},
        "write a quantity such as 500m, 2 or 16Gi, not below 0",
    ),
    ({"target": {"resources": {"limits": {"cpu": -1}}}}, "write a quantity such as 500m, 2 or 16Gi, not below 0"),
    ({"target": {"cache": {"sizeLimit": "big"}}}, "write a quantity such as 50Gi"),
    ({"target": {"cache": {"sizeLimit": "-1Gi"}}}, "write a quantity such as 50Gi, not below 0"),
    ({"target": {"adaptersFolder": "srv"}}, "write a full path without a slash at its end, such as /srv/adapters"),
    ({"target": {"adaptersFolder": "/srv/../etc"}}, "write a full path without a slash at its end"),
    ({"target": {"maxAdapters": 0}}, "spec.target.maxAdapters: Invalid value: 0"),
    ({"adapters": [{"name": "a:b", "model": HUB}]}, "spec.adapters[0].name: Invalid value"),
    ({"adapters": [{"name": "-", "model": HUB}]}, "use letters, digits, dots, underscores and hyphens, a letter or"),
    ({"adapters": [{"name": "a", "model": HUB}] * 2}, 'spec.adapters[1]: Duplicate value: {"name":"a"}'),
    ({"adapters": [{"name": f"a{n}", "model": HUB} for n in range(17)]}, "spec.adapters: Too many: 17"),
    ({"adapters": [{"name": "a"}]}, "spec.adapters[0].model: Required value"),
    (
        {"canary": {"analysis": {"segments": [{"name": "tax", "adapter": "tax"}]}}, "adapters": [LEGAL]},
        "canary.analysis.segments names an adapter that is not in spec.adapters: correct the name",
    ),
    (
        {"speculation": {"plainSegments": [{"adapter": "tax"}]}},
        "speculation.plainSegments names an adapter that is not in spec.adapters: correct the name",
    ),
    ({"adapters": [{"name": "a", "model": {"uri": "hf://b/c"}}]}, "an hf:// adapter needs `revision`: the 40-digit"),
    ({"adapters": [{"name": "a", "model": {"uri": "s3://b/c"}}]}, "use hf://owner/name for a Hugging Face repository"),
    (
        {"adapters": [{"name": "a", "model": {"uri": "file:///srv/a"}}]},
        "a file:// adapter lies below target.adaptersFolder, the one folder that target pods load from",
    ),
    (
        {"adapters": [{"name": "a", "model": {"uri": "file:///srvs/a"}}], "target": {"adaptersFolder": "/srv"}},
        "a file:// adapter lies below target.adaptersFolder",
    ),
    (
        {"adapters": [{"name": "a", "model": {"uri": "file:///srv/../a"}}], "target": {"adaptersFolder": "/srv"}},
        "use hf://owner/name for a Hugging Face repository, or file:///path",
    ),
    (
        {"adapters": [{"name": "a", "model": {**HUB, "uri": "file:///srv/a"}}], "target": {"adaptersFolder": "/srv"}},
        "a file:// adapter has no `revision`; remove it",
    ),
    (
        {"adapters": [{"name": "a", "model": {**HUB, "digest": "sha256:12"}}]},
        "write sha256: and 64 lower-case hexadecimal digits, as the condition AdaptersLoaded shows them",
    ),
    ({"target": {"podTemplate": {"containers": []}}}, 'unknown field "spec.target.podTemplate.containers"'),
    (
        {"target": {"podTemplate": {"metadata": {"labels": {"tandem.dev/role": "x"}}}}},
        "labels under tandem.dev/ and app.kubernetes.io/ are the operator's; use a prefix of your own",
    ),
    (
        {"canary": {"analysis": {"metrics": [{"name": "x", "query": "y{a='{{canary}}'}", "thresholdBasisPoints": 1}]}}},
        "in double braces only {{revision}}, {{stable}}, {{namespace}} and {{name}} mean something",
    ),
    (
        {"canary": {"analysis": {"metrics": [{"name": "My metric", "query": "y", "thresholdBasisPoints": 1}]}}},
        "use letters and digits, a lower-case letter first, such as refusals or queueSeconds",
    ),
    (
        {"canary": {"analysis": {"metrics": [{"name": "x", "query": "y"}]}}},
        "spec.canary.analysis.metrics[0].thresholdBasisPoints: Required value",
    ),
    (
        {"canary": {"analysis": {"segments": [{"name": "greedy"}]}}},
        "say which requests are of the segment: give temperature, tenants, adapter or several",
    ),
    (
        {"canary": {"analysis": {"segments": [{"name": "Greedy ones", "temperature": "Greedy"}]}}},
        "use letters and digits, a lower-case letter first, such as greedy or batchJobs",
    ),
    (
        {"canary": {"analysis": {"segments": [{"name": "a", "temperature": "Hot"}, {"name": "a", "tenants": ["b"]}]}}},
        "spec.canary.analysis.segments[1]: Duplicate value",
    ),
    (
        {"canary": {"analysis": {"segments": [{"name": "a", "temperature": 0}]}}},
        'spec.canary.analysis.segments[0].temperature: Invalid value: "integer"',
    ),
    ({"speculation": {"plainSegments": [{}]}}, "say which requests: give temperature, tenants, adapter or several"),
    (
        {"speculation": {"plainSegments": [{"tenants": []}]}},
        "spec.speculation.plainSegments[0].tenants in body should have at least 1 items",
    ),
    ({"canary": {"analysis": {"interTokenLatency": {"maxP99IncreaseBasisPoints": 0}}}}, "maxP99IncreaseBasisPoints"),
    ({"servedModelName": "two words"}, "use letters, digits, dots, underscores, slashes and hyphens"),
    (
        {"target": {"engineArgs": {"dtype": "x" * 300 * 1024}}},
        "spec.target.engineArgs.dtype: Too long: may not be more",
    ),
    ({"servedModelName": "x" * 129}, "spec.servedModelName: Too long: may not be more than 128"),
    (
        {"draft": {"replicasPerTarget": {"drafts": 1}}},
        "give both, such as drafts: 1, targets: 2 for one draft pod per two target pods, or leave both at 0",
    ),
    (
        {"draft": {"replicasPerTarget": {"drafts": 9, "targets": 1}}},
        "at most 8 draft pods for each target pod: raise targets or lower drafts",
    ),
    ({"draft": {"replicasPerTarget": {"drafts": 100, "targets": 12}}}, "at most 8 draft pods for each target pod"),
    ({"gateway": {"replicas": 0}}, "spec.gateway.replicas: Invalid value: 0"),
    (
        {"gateway": {"service": {"type": "ExternalName"}}},
        'spec.gateway.service.type: Unsupported value: "ExternalName"',
    ),
    ({"speculation": {"mode": False}}, 'spec.speculation.mode: Invalid value: "boolean"'),
    ({"speculation": {"draftTokens": {"min": 9}}}, "draftTokens.min must not exceed draftTokens.max"),
    ({"speculation": {"control": {"canaryPercent": 0}}}, "spec.speculation.control.canaryPercent: Invalid value: 0"),
    (
        {"canary": {"surge": "InPlace"}},
        'spec.canary.surge: Unsupported value: "InPlace": supported values: "Auto", "SideBySide", "SharedTarget"',
    ),
    (
        {"canary": {"steps": []}},
        "spec.canary.steps: Invalid value: 0: spec.canary.steps in body should have at least 1",
    ),
    ({"canary": {"steps": [{"percent": 20}, {"percent": 10}]}}, "each step's percent must be above the one before"),
    ({"canary": {"steps": [{"percent": 20}, {"percent": 20}]}}, "each step's percent must be above the one before"),
    ({"canary": {"steps": [{"percent": 0}]}}, "percent: 0 goes with shadow: true"),
    ({"canary": {"steps": [{"percent": 5, "shadow": True}]}}, "percent: 0 goes with shadow: true"),
    ({"canary": {"steps": [{"percent": 0, "shadow": True}]}}, "the last step must serve somebody"),
    ({"canary": {"progressDeadlineSeconds": 1320}}, "holdSeconds must add up to less than progressDeadlineSeconds"),
    ({"canary": {"steps": [{"percent": 9, "holdSeconds": 14400}]}}, "raise the deadline or shorten the holds"),
    ({"canary": {"steps": [{"holdSeconds": 5}]}}, "spec.canary.steps[0].percent: Required value"),
    ({"canary": {"analysis": {"confidenceBasisPoints": 0.95}}}, "confidenceBasisPoints: Invalid value"),
    ({"canary": {"rollbackWindowSeconds": 60}}, "rollback.windowSeconds must not exceed canary.rollbackWindowSeconds"),
    ({"autoDisable": {"acceptance": {"disableBelowBasisPoints": 4000}}}, "must lie below enableAboveBasisPoints"),
    ({"autoDisable": {"speedup": {"enableAboveBasisPoints": 9000}}}, "must lie below enableAboveBasisPoints"),
    ({"autoDisable": {"memory": {"enableBelowBasisPoints": 9300}}}, "must lie below disableAboveBasisPoints"),
    ({"rollback": {"onAlerts": {"names": ["A", "A"]}}}, 'spec.rollback.onAlerts.names[1]: Duplicate value: "A"'),
    ({"autoDisabled": {}}, 'unknown field "spec.autoDisabled"'),
    ({"target": {"model": {"url": "file:///m"}}}, 'unknown field "spec.target.model.url"'),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[json.dumps(change)[:60] for change, _ in WRONG])
def test_a_wrong_spec_is_refused_with_words_that_help(
    client: httpx.Client, change: Mapping[str, Any], words: str
) -> None:
    assert words in refusal(client, manifest(overlaid(SPEC, change)))


@pytest.mark.parametrize("name", ["a" * 41, "1chat", "chat.v2", "chat_v2", "Chat"])
def test_a_name_that_children_could_not_carry_is_refused(client: httpx.Client, name: str) -> None:
    words = refusal(client, manifest(SPEC, name))
    assert "choose a name of at most 40 characters" in words or "Invalid value" in words


def test_a_client_that_is_not_strict_is_warned_of_an_unknown_field(cluster: Cluster, namespace: str) -> None:
    text = manifest({**SPEC, "fromTheFuture": 1})
    cluster.kubectl("apply", "-n", namespace, "--validate=ignore", "-f", "-", stdin=text)
    assert "fromTheFuture" not in cluster.get("specdep", "chat", namespace=namespace)["spec"]


def test_defaults_are_filled_in_and_read_as_the_operator_would_alone(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest(SPEC))
    stored = cluster.get("specdep", "chat", namespace=namespace)["spec"]
    assert stored["canary"]["steps"][0] == {"percent": 0, "holdSeconds": 120, "shadow": True, "pause": False}
    assert stored["speculation"]["draftTokens"] == {"min": 1, "max": 8}
    assert parse(stored) == parse(SPEC)


def test_the_scale_subresource_moves_the_target_and_applying_again_leaves_it(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest(SPEC))
    path = f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/speculativedeployments/chat/scale"
    assert json.loads(cluster.kubectl("get", "--raw", path))["spec"] == {"replicas": 1}
    cluster.kubectl("scale", "-n", namespace, "specdep/chat", "--replicas=4")
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest(SPEC))
    assert cluster.get("specdep", "chat", namespace=namespace)["spec"]["target"]["replicas"] == 4


def test_the_status_holds_the_operators_bookkeeping_and_the_columns_show_it(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest(SPEC))
    status = {
        "phase": "Canary",
        "stableRevision": "6f2c9a41",
        "canary": {"percent": 25},
        "speculation": {"state": "Active", "acceptance": "0.69", "speedup": "1.52", "reason": "PaysOff"},
        "progress": {"rollout": {"stage": "Stepping", "anything": [1, {"deep": True}]}},
    }
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "-n", namespace, "specdep/chat", "--subresource=status", "--type=merge", "-p", patch)
    unseen = {"observedGeneration": -1}
    assert cluster.get("specdep", "chat", namespace=namespace)["status"] == {**unseen, **status}
    heads, values = cluster.kubectl("get", "-n", namespace, "specdep", "-o", "wide").splitlines()
    wanted = "NAME READY PHASE SPECULATION ACCEPTANCE SPEEDUP REVISION CANARY% TARGET DRAFT REASON AGE"
    assert " ".join(heads.split()) == wanted
    assert values.split()[:-1] == [
        "chat",
        "Canary",
        "Active",
        "0.69",
        "1.52",
        "6f2c9a41",
        "25",
        TARGET,
        DRAFT,
        "PaysOff",
    ]


def test_explain_reads_well(cluster: Cluster) -> None:
    text = " ".join(cluster.kubectl("explain", "specdep.spec.speculation.verification").split())
    assert "ENUM: Auto Coupled Block Rejection" in text
    assert "the served tokens are those of the target alone" in text
    text = " ".join(cluster.kubectl("explain", "specdep.spec.canary.analysis.metrics.query").split())
    assert "PromQL that gives one number: a scalar, or a vector of one element" in text


def test_deleting_everything_of_kind_all_leaves_it(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest(SPEC))
    cluster.kubectl("delete", "all", "--all", "-n", namespace)
    assert cluster.get("tandem", namespace=namespace)["items"][0]["metadata"]["name"] == "chat"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_is_applied_as_it_stands(cluster: Cluster, path: Path) -> None:
    (document,) = yaml.safe_load_all(path.read_text())
    shown = cluster.kubectl("apply", "--dry-run=server", "-f", str(path))
    assert shown.split()[0] == f"speculativedeployment.tandem.dev/{document['metadata']['name']}"


def test_the_operators_account_may_annotate_and_never_write_spec(cluster: Cluster, namespace: str) -> None:
    wanted = ("account", "rights", "admission")
    shown = [part for name in wanted for part in ("--show-only", f"templates/{name}.yaml")]
    rendered = cluster.helm("template", "tandem", str(CHART), "-n", namespace, *shown)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=rendered)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest(SPEC))
    account = f"--as=system:serviceaccount:{namespace}:tandem-operator"
    try:
        _wait_until_in_force(cluster, namespace, account)
        cluster.kubectl("annotate", "-n", namespace, account, "specdep/chat", "alert.tandem.dev/0a=x")
        with pytest.raises(subprocess.CalledProcessError) as caught:
            cluster.kubectl("scale", "-n", namespace, account, "specdep/chat", "--replicas=4")
        assert "forbidden" in caught.value.stderr
        with pytest.raises(subprocess.CalledProcessError) as caught:
            cluster.kubectl(*_patch_of_spec(namespace, account))
        assert "spec belongs to its users" in caught.value.stderr
    finally:
        cluster.kubectl("delete", "-n", namespace, "-f", "-", stdin=rendered)


def _patch_of_spec(namespace: str, account: str) -> tuple[str, ...]:
    return "patch", "-n", namespace, account, "specdep/chat", "--type=merge", "-p", '{"spec": {"paused": true}}'


def _wait_until_in_force(cluster: Cluster, namespace: str, account: str) -> None:
    """The API server learns of rights and policies by its own watches, a moment after they were written."""
    deadline, said = time.monotonic() + 30, ""
    while "spec belongs to its users" not in said:
        assert time.monotonic() < deadline, said
        try:
            cluster.kubectl(*_patch_of_spec(namespace, account), "--dry-run=server")
        except subprocess.CalledProcessError as error:
            said = error.stderr


def test_the_fields_that_the_api_server_tells_of_are_those_of_the_definition(client: httpx.Client) -> None:
    """So an older one is found out (`test_definition`); the API server tells of a new definition some seconds later."""
    deadline, served = time.monotonic() + 60, frozenset[str]()
    while not served and time.monotonic() < deadline:
        answer = client.get("/openapi/v3/apis/tandem.dev/v1alpha1")
        served = frozenset(fields_of(schema_of(answer.json() if answer.status_code == httpx.codes.OK else {})))
    assert served >= own_fields()
