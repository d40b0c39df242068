"""The example autoscaler asks for metrics that gateways have, by labels that their pods give."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.domain.simulated_specs import QUICK
from tests.domain.simulated_world import installed

from tandem_operator.domain.observed import GROUP, LABEL_DEPLOYMENT
from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.tokens import Round
from tandem_runtime.telemetry import Metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "autoscaling"
PAGE = (ROOT / "docs" / "autoscaling.md").read_text()
CONTRACT = (ROOT / "docs" / "contracts.md").read_text()


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


HPA, MONITOR = read("hpa.yaml"), read("podmonitor.yaml")
(RULE,) = read("rules.yaml")["rules"]["external"]


def named(query: str) -> set[str]:
    return set(re.findall(r"tandem_[a-z_]+", query))


def exported() -> set[str]:
    metrics = Metrics()
    metrics.add_round(Round(4, 3, 4, 0.0, 0.01, seconds=0.02), revision="r", arm=Arm.ON)
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name for family in families for sample in family.samples}


def test_its_query_is_of_a_metric_that_gateways_export_and_the_contract_names() -> None:
    queries = [RULE["seriesQuery"], RULE["metricsQuery"], *re.findall(r"^ {4}(sum.*)$", PAGE, re.MULTILINE)]
    assert len(queries) == 3
    for query in queries:
        assert named(query) == {"tandem_decode_seconds_total"}
    assert "tandem_decode_seconds_total" in exported()
    assert "`tandem_decode_seconds_total`" in CONTRACT


def test_decode_seconds_per_second_are_answers_at_once() -> None:
    metrics = Metrics()
    for _ in range(3):  # three answers, each of ten rounds of .1 s within one second
        for _ in range(10):
            metrics.add_round(Round(4, 3, 4, 0.0, 0.01, seconds=0.1), revision="r", arm=Arm.ON)
    (sample,) = (
        sample
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == "tandem_decode_seconds_total"
    )
    assert round(sample.value, 6) == 3


def test_the_autoscaler_asks_the_adapter_for_what_it_offers_and_moves_our_kind() -> None:
    crd = yaml.safe_load((ROOT / "crds" / "speculativedeployments.yaml").read_text())["spec"]
    target = HPA["spec"]["scaleTargetRef"]
    assert target["apiVersion"] == f"{GROUP}/{crd['versions'][0]['name']}"
    assert target["kind"] == crd["names"]["kind"]
    (metric,) = HPA["spec"]["metrics"]
    asked = metric["external"]["metric"]
    assert asked["name"] == RULE["name"]["as"]
    assert asked["selector"]["matchLabels"] == {"specdep": target["name"]}
    assert HPA["spec"]["minReplicas"] > 0


def test_the_monitor_finds_gateways_by_their_labels_and_port_and_says_whose_they_are() -> None:
    world = installed(QUICK)
    template = world.objects[("Deployment", "chat-gateway")]["spec"]["template"]
    wanted = MONITOR["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= template["metadata"]["labels"].items()
    (endpoint,) = MONITOR["spec"]["podMetricsEndpoints"]
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    assert endpoint["port"] in ports
    (relabelled,) = endpoint["relabelings"]
    label = re.sub(r"[^a-z0-9]", "_", LABEL_DEPLOYMENT)
    assert relabelled == {"sourceLabels": [f"__meta_kubernetes_pod_label_{label}"], "targetLabel": "specdep"}
    assert 'specdep!=""' in RULE["seriesQuery"]


def test_the_page_names_every_file_of_the_example() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(re.findall(r"`(\w+\.yaml)`", PAGE))
    assert json.dumps(HPA)  # plain YAML, without anything that an API server could not take
