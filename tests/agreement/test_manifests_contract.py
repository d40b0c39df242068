"""What the operator renders is what the contract between operator and runtime says."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem_operator.domain.manifests import (
    evidence_config_map,
    gateway_deployment,
    gateway_service,
    policy_config_map,
    revision_data,
    revisions_config_map,
    role_deployment,
)
from tandem_operator.domain.revision import Role
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.domain.spec import parse
from tandem_operator.domain.templates import Owner

CONTRACT = (Path(__file__).parents[2] / "docs" / "contracts.md").read_text()
OWNER = Owner(name="NAME", namespace="NS", uid="u")
SPEC = parse(
    {
        "target": {
            "model": {"uri": "hf://a/b", "revision": "0" * 40, "digest": "sha256:" + "0" * 64},
            "engineArgs": {
                "dtype": "fp32",
                "threads": "1",
                "max-sessions": "1",
                "max-length": "9",
                "kv-bytes": "9999999",
                "pace": "h100-70b",
            },
        },
        "draft": {"model": {"uri": "file:///m/draft"}},
        "gateway": {"authSecretRef": {"name": "keys"}},
        "transport": {"tlsSecretRef": {"name": "role-certificate"}},
    }
)
DATA = revision_data(SPEC, OWNER, OperatorTerms(runtime_image="i", accelerators={}), nodes=None)
TARGET: Any = role_deployment(OWNER, Role.TARGET, DATA, live={}, transport=SPEC.transport, replicas=1)
DRAFT: Any = role_deployment(OWNER, Role.DRAFT, DATA, live={}, transport=SPEC.transport, replicas=1)
GATEWAY: Any = gateway_deployment(OWNER, DATA, SPEC)


def row(start: str) -> str:
    """The line of a table of the contract that begins with `start`."""
    return next(line for line in CONTRACT.splitlines() if line.startswith(f"| {start}"))


def options(text: str) -> set[str]:
    return set(re.findall(r"--[a-z-]+", text))


def pod(deployment: Mapping[str, Any]) -> Any:
    return deployment["spec"]["template"]["spec"]


def test_commands_use_the_contracts_options() -> None:
    engine_args = re.search(r"Engine args of the Torch engine: (.*?);", CONTRACT, re.DOTALL)
    assert engine_args is not None
    target, gateway, fetch = (row(start) for start in ("target, draft", "gateway |", "init container"))
    (engine,), (front,), (fetcher,) = (
        pod(TARGET)["containers"],
        pod(GATEWAY)["containers"],
        pod(TARGET)["initContainers"],
    )
    assert options(" ".join(engine["command"])) == options(target) | options(engine_args[1])
    assert options(" ".join(front["command"])) == options(gateway)
    (tokenizer,) = pod(GATEWAY)["initContainers"]
    assert options(" ".join(fetcher["command"])) == options(fetch) - {"--tokenizer-only"}
    assert options(" ".join(tokenizer["command"])) == options(fetch) - {"--digest"}


def test_containers_ports_and_variables_are_the_contracts() -> None:
    (engine,), (front,) = pod(TARGET)["containers"], pod(GATEWAY)["containers"]
    assert (engine["name"], front["name"]) == ("engine", "gateway")
    for container, start in ((engine, "target, draft"), (front, "gateway |")):
        ports = {(str(port["containerPort"]), port["name"]) for port in container["ports"]}
        assert ports == set(re.findall(r"(\d{4}) `(\w+)`", row(start)))
        fields = {each["name"] for each in container["env"] if "valueFrom" in each}
        assert fields == {"POD_IP", "POD_NAME", "POD_UID", "POD_NAMESPACE"}


def test_a_model_in_the_pod_is_served_from_where_it_lies_and_a_fetched_one_from_the_cache() -> None:
    (target,), (draft,) = pod(TARGET)["containers"], pod(DRAFT)["containers"]
    assert target["command"][2:4] == ["--model", "/models"]
    assert draft["command"][2:4] == ["--model", "/m/draft"]


def test_names_and_labels_are_the_contracts() -> None:
    named: list[tuple[Any, str]] = [
        (TARGET, f"NAME-target-{DATA['target']}"),
        (DRAFT, f"NAME-draft-{DATA['draft']}"),
        (GATEWAY, "NAME-gateway"),
        (gateway_service(OWNER, SPEC.gateway), "NAME"),
        (policy_config_map(OWNER, {}), "NAME-policy"),
        (evidence_config_map(OWNER, {}), "NAME-evidence"),
        (revisions_config_map(OWNER, {}), "NAME-revisions"),
    ]
    assert [child["metadata"]["name"] for child, _ in named] == [name for _, name in named]
    for _, name in named:
        told = (
            name.replace(str(DATA["target"]), "<hash>").replace(str(DATA["draft"]), "<hash>").replace("NAME", "<name>")
        )
        assert f"`{told}`" in CONTRACT
    labels = set(re.findall(r"`((?:app\.kubernetes\.io|tandem\.dev)/[a-z-]+): ", CONTRACT))
    assert set(TARGET["metadata"]["labels"]) == labels
    assert set(GATEWAY["spec"]["template"]["metadata"]["labels"]) == labels - {"tandem.dev/role-hash"}
    assert set(policy_config_map(OWNER, {})["data"]) == {"policy.json"}  # type: ignore[call-overload]  # JSON
