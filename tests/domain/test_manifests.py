"""The children as objects: whole, against golden files, and the promises that hold for every spec.

A changed golden file shows which running pods a change of the code would restart. `UPDATE_GOLDEN=1` writes them anew.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.domain.errors import Bug, SpecError
from tandem_operator.domain.manifests import (
    controller_revision,
    evidence_config_map,
    gateway_account,
    gateway_deployment,
    gateway_role,
    gateway_role_binding,
    gateway_service,
    live_part,
    live_part_of,
    pod_disruption_budget,
    policy_config_map,
    revision_data,
    revisions_config_map,
    role_deployment,
    stored_live_part,
)
from tandem_operator.domain.pools import Alternative
from tandem_operator.domain.revision import Role, revision_of
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.domain.spec import Spec, Transport, parse
from tandem_operator.domain.templates import Owner

GOLDEN = Path(__file__).parent / "golden"
OWNER = Owner(name="chat", namespace="llm", uid="6c0f7b52-0000-4000-8000-000000000000")
GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}
TERMS = OperatorTerms(
    runtime_image="tandem/runtime:0.1.0",
    accelerators={
        "L4": (
            Alternative(label="nvidia.com/gpu.product", values=("NVIDIA-L4",), tolerations=(GPU,)),
            Alternative(label="cloud.google.com/gke-accelerator", values=("nvidia-l4",), tolerations=(GPU,)),
        ),
        "H100": (Alternative(label="nvidia.com/gpu.product", values=("NVIDIA-H100-PCIe",), tolerations=(GPU,)),),
    },
)
SMALLEST: Mapping[str, Any] = {
    "target": {"model": {"uri": "file:///m/target"}},
    "draft": {"model": {"uri": "file:///m/draft"}},
}
RICH: Mapping[str, Any] = {
    "target": {
        "model": {
            "uri": "hf://acme/target",
            "revision": "0" * 40,
            "digest": "sha256:" + "a" * 64,
            "secretRef": {"name": "hub"},
        },
        "engineArgs": {"threads": "4", "dtype": "bf16"},
        "replicas": 2,
        "placement": {
            "accelerator": "H100",
            "count": 8,
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}]
                    }
                }
            },
            "priorityClassName": "serving",
        },
        "resources": {"requests": {"cpu": "8000m"}, "limits": {"memory": "65536Mi"}},
        "cache": {"sizeLimit": "300Gi"},
        "startupDeadlineSeconds": 601,
        "terminationGraceSeconds": 300,
        "podTemplate": {
            "metadata": {"labels": {"team": "chat", "tandem.dev/role": "stolen"}, "annotations": {"a": "b"}},
            "spec": {
                "containers": [
                    {"name": "engine", "env": [{"name": "OMP_NUM_THREADS", "value": "4"}]},
                    {"name": "side", "image": "side:1"},
                ],
                "terminationGracePeriodSeconds": 400,
            },
        },
    },
    "draft": {"model": {"uri": "file:///m/draft"}, "image": "mine:2", "placement": {"accelerator": "L4"}},
    "gateway": {
        "replicas": 3,
        "resources": {"limits": {"memory": "1Gi"}},
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"lb": "internal"}},
        "authSecretRef": {"name": "api-keys"},
        "podTemplate": {"spec": {"containers": [{"name": "gateway", "env": [{"name": "LOG", "value": "debug"}]}]}},
    },
    "transport": {"tlsSecretRef": {"name": "role-certificate"}},
}
NODES = [{"nvidia.com/gpu.product": "NVIDIA-L4"}]


def children(spec: Spec, nodes: list[dict[str, str]] | None) -> list[Mapping[str, object]]:
    """Every child of one object with one revision."""
    revision, data = revision_of(spec), revision_data(spec, OWNER, TERMS, nodes=nodes)
    roles = [(Role.TARGET, revision.target), (Role.DRAFT, revision.draft)]
    made = [
        controller_revision(OWNER, name=revision.name, number=1, data=data),
        gateway_account(OWNER),
        gateway_role(OWNER),
        gateway_role_binding(OWNER),
        gateway_service(OWNER, spec.gateway),
        policy_config_map(OWNER, {"version": 1, "number": 1}),
        evidence_config_map(OWNER, {}),
        revisions_config_map(OWNER, {"revisions": []}),
        gateway_deployment(OWNER, data, spec),
        pod_disruption_budget(OWNER, Role.GATEWAY),
    ]
    for role, role_hash in roles:
        if role_hash is not None:
            made += [
                role_deployment(OWNER, role, data, live=live_part(spec, role), transport=spec.transport, replicas=1),
                pod_disruption_budget(OWNER, role, role_hash),
            ]
    return made


@pytest.mark.parametrize(
    ("name", "raw", "nodes"),
    [
        ("smallest", SMALLEST, None),
        ("rich", RICH, NODES),
        ("target-alone", {"target": SMALLEST["target"], "draft": {"method": "None"}}, None),
    ],
)
def test_children_are_what_the_golden_file_holds(
    name: str, raw: Mapping[str, Any], nodes: list[dict[str, str]] | None
) -> None:
    path = GOLDEN / f"{name}.yaml"
    plain = json.loads(json.dumps(children(parse(raw), nodes)))
    text = yaml.safe_dump_all(plain, sort_keys=True, width=120)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def data_of(raw: Mapping[str, Any] = SMALLEST, terms: OperatorTerms = TERMS) -> dict[str, Any]:
    return revision_data(parse(raw), OWNER, terms, nodes=None)


def target_deployment(data: Mapping[str, object], raw: Mapping[str, Any] = SMALLEST) -> Mapping[str, Any]:
    spec = parse(raw)
    live = live_part(spec, Role.TARGET)
    return role_deployment(OWNER, Role.TARGET, data, live=live, transport=spec.transport, replicas=1)


def test_a_later_operator_with_another_image_and_table_leaves_a_stored_revision_as_it_was() -> None:
    stored = json.loads(json.dumps(data_of(RICH)))
    later = OperatorTerms(runtime_image="tandem/runtime:9", accelerators={})
    assert target_deployment(stored, RICH) == target_deployment(data_of(RICH), RICH)
    assert data_of({**SMALLEST}, later)["resolved"]["target"] == {"image": "tandem/runtime:9"}
    assert stored["resolved"]["target"]["image"] == "tandem/runtime:0.1.0"


def test_the_selector_holds_identity_alone_and_pods_carry_it_whatever_an_overlay_says() -> None:
    spec = target_deployment(data_of(RICH), RICH)["spec"]
    identity = {
        "tandem.dev/deployment": "chat",
        "tandem.dev/role": "target",
        "tandem.dev/role-hash": revision_of(parse(RICH)).target,
    }
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"] == {"matchLabels": identity}
    assert {**labels, **identity} == labels
    assert labels["team"] == "chat"


def test_the_users_overlay_is_laid_last() -> None:
    pod = target_deployment(data_of(RICH), RICH)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 400
    assert [container["name"] for container in pod["containers"]] == ["engine", "side"]


def test_a_change_in_place_changes_only_the_live_part() -> None:
    raw = {**SMALLEST, "target": {**SMALLEST["target"], "resources": {"limits": {"memory": "1Gi"}}}}
    data = data_of()
    before, after = target_deployment(data), target_deployment(data, raw)
    assert before["metadata"]["name"] == after["metadata"]["name"]
    assert after["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}
    assert live_part_of(after) == live_part(parse(raw), Role.TARGET)


def test_all_pods_of_an_object_speak_tls_by_the_spec_of_now_whatever_their_revision_was_made_with() -> None:
    secured = {**SMALLEST, "transport": {"tlsSecretRef": {"name": "role-certificate"}}}
    spec, stored = parse(secured), data_of()
    assert revision_of(spec) == revision_of(parse(SMALLEST))
    assert data_of(secured) == stored
    plain = target_deployment(stored)
    made: list[Any] = [
        gateway_deployment(OWNER, stored, spec),
        *(
            role_deployment(
                OWNER, role, stored, live=stored_live_part(stored, role), transport=spec.transport, replicas=1
            )
            for role in (Role.TARGET, Role.DRAFT)
        ),
    ]
    for deployment in made:
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"][-2:] == ["--role-tls", "/etc/tandem/role-tls"]
        assert {"name": "role-tls", "mountPath": "/etc/tandem/role-tls", "readOnly": True} in container["volumeMounts"]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "role-tls"]
        assert volume["secret"]["secretName"] == "role-certificate"
    assert live_part_of(made[1]) == live_part_of(plain)
    assert "role-tls" not in json.dumps(plain)


def test_the_same_amount_in_another_spelling_is_the_same_bytes() -> None:
    one = {**SMALLEST, "target": {**SMALLEST["target"], "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}}
    two = {**SMALLEST, "target": {**SMALLEST["target"], "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}}
    assert json.dumps(target_deployment(data_of(one), one)) == json.dumps(target_deployment(data_of(two), two))


def test_the_live_part_survives_on_the_deployment_and_in_the_revision() -> None:
    data = data_of(RICH)
    live = live_part(parse(RICH), Role.TARGET)
    assert live_part_of(target_deployment(data, RICH)) == live
    assert stored_live_part(data, Role.TARGET) == live
    assert live_part_of({"metadata": {}}) is None


def test_both_the_accelerators_and_the_users_node_terms_must_hold() -> None:
    pod = target_deployment(data_of(RICH), RICH)["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [[expression["key"] for expression in term["matchExpressions"]] for term in terms]
    assert keys == [["nvidia.com/gpu.product", "spot"]]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert pod["tolerations"] == [GPU, {"key": "team", "operator": "Exists"}]


def test_the_fetcher_alone_sees_the_hubs_secret() -> None:
    pod = target_deployment(data_of(RICH), RICH)["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert all("envFrom" not in container for container in pod["containers"])


def test_a_pair_without_a_draft_has_no_draft_deployment() -> None:
    data = data_of({"target": SMALLEST["target"], "draft": {"method": "None"}})
    assert "draft" not in data
    assert all("draft" not in data[part] for part in ("values", "resolved", "templates", "live"))
    with pytest.raises(Bug, match="have no draft"):
        role_deployment(OWNER, Role.DRAFT, data, live={}, transport=Transport(), replicas=1)


def test_an_unknown_accelerator_is_named_with_its_path() -> None:
    raw = {**SMALLEST, "draft": {**SMALLEST["draft"], "placement": {"accelerator": "L40"}}}
    with pytest.raises(SpecError) as caught:
        data_of(raw)
    assert caught.value.path == "spec.draft.placement.accelerator"


def test_revision_data_without_templates_are_a_bug() -> None:
    with pytest.raises(Bug, match=r"hold no templates\.target"):
        role_deployment(OWNER, Role.TARGET, {"target": "0" * 8}, live={}, transport=Transport(), replicas=1)


def test_every_child_belongs_to_its_owner_and_carries_the_common_labels() -> None:
    for child in children(parse(RICH), None):
        metadata: Any = child["metadata"]
        assert metadata["namespace"] == "llm"
        assert [(owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [(OWNER.uid, True)]
        assert metadata["labels"]["tandem.dev/deployment"] == "chat"


def test_the_longest_name_keeps_every_derived_name_and_label_legal() -> None:
    owner = Owner(name="a" * 40, namespace="llm", uid="u")
    spec = parse(SMALLEST)
    data = revision_data(spec, owner, TERMS, nodes=None)
    longest: Any = role_deployment(owner, Role.TARGET, data, live={}, transport=spec.transport, replicas=1)
    names = [
        longest["metadata"]["name"],
        gateway_deployment(owner, data, spec)["metadata"]["name"],  # type: ignore[index]  # JSON
    ]
    assert max(len(name) for name in names) <= 63
