"""The chart agrees with the operator: its variables, its table, its rights, its alerts, its version."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tandem_operator.domain.manifests import gateway_role
from tandem_operator.domain.pools import DEFAULT_RESOURCE, read_table
from tandem_operator.domain.spec import DEFAULT_ALERTS
from tandem_operator.domain.templates import Owner
from tandem_operator.settings import PrometheusAccess, SettingsError, read_settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "tandem"
VALUES: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Mapping[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def operator_rules() -> list[Mapping[str, list[str]]]:
    names = (CHART / "templates" / "_names.tpl").read_text()
    found = re.search(r'define "tandem.rules" -\}\}(.*?)\{\{- end', names, re.DOTALL)
    assert found is not None
    rules: list[Mapping[str, list[str]]] = yaml.safe_load(found[1])
    return rules


class Recording(dict[str, str]):
    """An environment that remembers what was asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def environment(token: Path) -> dict[str, str]:
    return {
        "POD_NAMESPACE": "tandem-system",
        "POD_NAME": "operator-1",
        "TANDEM_RUNTIME_IMAGE": "tandem/runtime:0",
        "TANDEM_ALERT_TOKEN_FILE": str(token),
        "TANDEM_ACCELERATORS": json.dumps(VALUES["accelerators"]),
        "TANDEM_WATCH_NAMESPACES": "one, two",
    }


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def test_the_chart_sets_exactly_the_variables_that_the_operator_reads(token: Path) -> None:
    recording = Recording(environment(token))
    settings = read_settings(recording)
    template = (CHART / "templates" / "operator.yaml").read_text()
    given = set(re.findall(r"- \{name: ([A-Z_]+), value", template))
    assert given - {"HOME"} == recording.asked
    assert settings.watch_namespaces == ("one", "two")
    assert settings.alert_token == "secret"
    assert "secret" not in repr(settings)
    assert set(settings.terms.accelerators) == set(VALUES["accelerators"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"POD_NAMESPACE": ""}, "POD_NAMESPACE is not set: set it"),
        ({"TANDEM_LOG_FORMAT": "xml"}, "TANDEM_LOG_FORMAT is 'xml': must be text or json"),
        ({"TANDEM_PORT": "http"}, "TANDEM_PORT is 'http': must be a port"),
        ({"TANDEM_ACCELERATORS": "{"}, "TANDEM_ACCELERATORS is '{': must be JSON"),
        ({"TANDEM_ACCELERATORS": '{"L4": []}'}, "accelerators.L4 is []: must be a list of at least one"),
        ({"TANDEM_ALERT_TOKEN_FILE": "/nowhere/token"}, "cannot be read: No such file"),
        (
            {"TANDEM_PROMETHEUS_URL": "prometheus:9090"},
            "TANDEM_PROMETHEUS_URL is 'prometheus:9090': must be a base URL",
        ),
        ({"TANDEM_PROMETHEUS_URL": "http://["}, "TANDEM_PROMETHEUS_URL is 'http://[': must be a base URL"),
        ({"TANDEM_PROMETHEUS_URL": "http://p:99999"}, "must be a base URL such as"),
        ({"TANDEM_PROMETHEUS_URL": "http://me:pass@p"}, "TANDEM_PROMETHEUS_URL is '...@...': must be a base URL"),
        ({"TANDEM_PROMETHEUS_URL": "http://p/api?x=1"}, "must be a base URL such as http://prometheus.monitoring:9090"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(changed: Mapping[str, str], message: str, token: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({**environment(token), **changed})
    assert message in str(caught.value)


def test_a_prometheus_is_asked_only_where_one_is_named(token: Path) -> None:
    assert read_settings(environment(token)).prometheus is None
    named = {"TANDEM_PROMETHEUS_URL": "https://p.monitoring/prefix/", "TANDEM_PROMETHEUS_TOKEN_FILE": str(token)}
    read = read_settings({**environment(token), **named})
    assert read.prometheus == PrometheusAccess("https://p.monitoring/prefix", token)


def test_an_empty_token_is_refused(token: Path) -> None:
    token.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        read_settings(environment(token))


def test_the_default_values_meet_their_own_schema_and_every_value_is_in_it() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"typo": 1},
        {"watch": {"namespace": "one"}},
        {"replicaCount": 0},
        {"accelerators": {"L4": []}},
        {"accelerators": {"L4": [{"label": "a", "value": ["b"]}]}},
        {"service": {"port": "9090"}},
        {"prometheus": {"url": "prometheus:9090"}},
    ],
)
def test_a_wrong_value_is_refused_by_helm(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**VALUES, **wrong}, SCHEMA)


def test_every_accelerator_is_told_apart_from_every_other() -> None:
    table = read_table(VALUES["accelerators"])
    owners: dict[tuple[str, str], list[str]] = {}
    for name, alternatives in table.items():
        for each in alternatives:
            assert each.resource == DEFAULT_RESOURCE
            for value in each.values:
                owners.setdefault((each.label, value), []).append(name)
    assert [pair for pair, names in owners.items() if len(names) > 1] == []


def granted(rules: list[Mapping[str, list[str]]]) -> Iterator[tuple[str, str, str]]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from ((group, resource, verb) for verb in rule["verbs"])


def test_the_operator_holds_every_right_that_it_grants_to_gateways() -> None:
    role: Any = gateway_role(Owner(name="chat", namespace="llm", uid="u"))
    assert set(granted(role["rules"])) - set(granted(operator_rules())) == set()


def test_there_are_no_wildcards_and_no_secrets() -> None:
    rights = set(granted(operator_rules()))
    assert [right for right in rights if "*" in right] == []
    assert [right for right in rights if right[1] in ("secrets", "pods/exec")] == []


def test_the_alerts_that_roll_back_by_default_are_those_of_the_chart() -> None:
    rules, upkeep = (CHART / "templates" / "alerts.yaml").read_text().split("- name: tandem-upkeep")
    assert tuple(re.findall(r"- alert: (\w+)", rules)) == DEFAULT_ALERTS
    assert re.findall(r"- alert: (\w+)", upkeep) == ["TandemRoleCertificateEnds"]


def test_chart_and_package_have_one_version() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (package, package)
