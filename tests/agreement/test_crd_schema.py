"""The CRD agrees with the operator's types, and keeps its own promises: bounds everywhere, no floats, documentation."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

from tandem_operator.domain.fields import field_name
from tandem_operator.domain.quantity import Quantity
from tandem_operator.domain.queries import PLACEHOLDERS
from tandem_operator.domain.spec import Spec, parse

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / "crds" / "speculativedeployments.yaml").read_text())
SCHEMA: Mapping[str, Any] = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
FREE = "x-kubernetes-preserve-unknown-fields"
KEYWORDS = {
    "type", "format", "description", "enum", "default", "properties", "required", "items", "additionalProperties",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "nullable",
    FREE, "x-kubernetes-validations", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
}  # fmt: skip


def walk(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema below, with the path that a user would write."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in schema:
            yield from walk(schema[key], f"{path}{mark}")


EVERYTHING = [*walk(SCHEMA["spec"], "spec"), *walk(SCHEMA["status"], "status")]
SPEC_ALONE = [(path, schema) for path, schema in EVERYTHING if path.startswith("spec")]


def bound(schema: Mapping[str, Any]) -> bool:
    """Whether the value's size is limited."""
    kind = schema.get("type")
    if kind == "string":
        return "maxLength" in schema or "enum" in schema
    if kind == "array":
        return "maxItems" in schema
    if "additionalProperties" in schema:
        return "maxProperties" in schema
    return "maxLength" in schema if "x-kubernetes-int-or-string" in schema else True


def test_every_list_map_and_string_has_a_bound() -> None:
    assert [path for path, schema in EVERYTHING if not bound(schema)] == []


def test_every_number_of_the_spec_has_both_bounds() -> None:
    numbers = [(path, schema) for path, schema in SPEC_ALONE if schema.get("type") == "integer"]
    unbound = [path for path, schema in numbers if not {"minimum", "maximum"} <= set(schema)]
    assert unbound == [
        "spec.target.placement.tolerations[].tolerationSeconds",
        "spec.draft.placement.tolerations[].tolerationSeconds",
    ]


def test_there_are_no_floats() -> None:
    kinds = {schema.get("type") for _, schema in EVERYTHING}
    assert kinds == {"object", "array", "string", "integer", "boolean", None}
    assert [
        path for path, schema in EVERYTHING if "type" not in schema and "x-kubernetes-int-or-string" not in schema
    ] == []


def test_every_field_of_the_spec_is_documented() -> None:
    leaves = [(path, schema) for path, schema in SPEC_ALONE if not path.endswith(("[]", ".*"))]
    plain = (".podTemplate.metadata",)
    assert [path for path, schema in leaves if "description" not in schema and not path.endswith(plain)] == []


def test_only_keywords_that_the_api_server_knows_are_used() -> None:
    """An unquoted comma in a flow map makes a key of half a sentence, which the API server drops in silence."""
    assert [(path, set(schema) - KEYWORDS) for path, schema in EVERYTHING if set(schema) - KEYWORDS] == []
    columns = CRD["spec"]["versions"][0]["additionalPrinterColumns"]
    assert {key for column in columns for key in column} == {"name", "type", "jsonPath", "description", "priority"}


def test_every_rule_says_what_to_do() -> None:
    rules = [rule for _, schema in EVERYTHING for rule in schema.get("x-kubernetes-validations", [])]
    assert len(rules) > 10
    assert all(len(rule["message"]) > 20 for rule in rules)


def test_it_is_small_enough_for_kubectl_apply() -> None:
    assert len(json.dumps(CRD)) < 262_144 / 2


def test_every_free_form_field_is_one_that_the_operator_limits() -> None:
    free = {path for path, schema in SPEC_ALONE if schema.get(FREE)}
    overlays = {f"spec.{role}.podTemplate.spec" for role in ("target", "draft", "gateway")}
    assert free == overlays | {f"spec.{role}.placement.affinity" for role in ("target", "draft")}


def optional(kind: Any) -> Any:
    """The type without None."""
    if isinstance(kind, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    return kind


def differences(kind: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """What Python's type and the CRD's schema say differently."""
    kind = optional(kind)
    if get_origin(kind) is Mapping or kind is Mapping:
        if schema.get("type") != "object":
            yield f"{path}: a map here, {schema.get('type')} there"
    elif get_origin(kind) is tuple:
        yield from differences(get_args(kind)[0], schema["items"], f"{path}[]")
    elif dataclasses.is_dataclass(kind):
        yield from field_differences(kind, schema, path)
    elif kind is Quantity:
        if not schema.get("x-kubernetes-int-or-string"):
            yield f"{path}: a quantity here, not there"
    elif issubclass(kind, StrEnum):
        if list(kind) != schema.get("enum"):
            yield f"{path}: {list(kind)} here, {schema.get('enum')} there"
    elif {int: "integer", str: "string", bool: "boolean"}[kind] != schema.get("type"):
        yield f"{path}: {kind.__name__} here, {schema.get('type')} there"


def field_differences(kind: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    hints, properties = get_type_hints(kind), schema.get("properties", {})
    names = {field_name(field.name): field for field in dataclasses.fields(kind)}
    if set(names) != set(properties):
        yield f"{path}: only on one side: {sorted(set(names) ^ set(properties))}"
    for name in set(names) & set(properties):
        yield from differences(hints[names[name].name], properties[name], f"{path}.{name}")


def test_python_and_the_crd_have_the_same_fields_of_the_same_types() -> None:
    assert list(differences(Spec, SCHEMA["spec"], "spec")) == []


def defaulted(schema: Mapping[str, Any], value: Any) -> Any:
    """`value` as the API server completes it."""
    if isinstance(value, list):
        return [defaulted(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, inner in schema.get("properties", {}).items():
        if name not in filled and "default" in inner:
            filled[name] = inner["default"]
        if name in filled:
            filled[name] = defaulted(inner, filled[name])
    return filled


@pytest.mark.parametrize(
    "raw",
    [
        {"target": {"model": {"uri": "file:///m"}}, "draft": {"model": {"uri": "file:///d"}}},
        {"target": {"model": {"uri": "file:///m"}}, "draft": {"method": "None"}},
        {
            "target": {"model": {"uri": "file:///m"}, "placement": {"accelerator": "H100"}, "cache": {}},
            "draft": {"model": {"uri": "file:///d"}, "resources": {}},
            "gateway": {"service": {}},
            "canary": {"steps": [{"percent": 5}], "analysis": {"speedup": {}}},
            "autoDisable": {"memory": {}},
            "rollback": {"onAlerts": {}},
        },
    ],
    ids=["smallest", "target alone", "empty objects"],
)
def test_python_and_the_crd_give_the_same_defaults(raw: dict[str, Any]) -> None:
    assert parse(defaulted(SCHEMA["spec"], raw)) == parse(raw)


def test_the_charts_copy_is_the_crd() -> None:
    copy = ROOT / "charts" / "tandem" / "files" / "speculativedeployments.yaml"
    assert copy.read_text() == (ROOT / "crds" / "speculativedeployments.yaml").read_text(), "run `make chart`"


def test_placeholders_of_a_query_are_those_that_the_operator_fills() -> None:
    analysis = SCHEMA["spec"]["properties"]["canary"]["properties"]["analysis"]
    query = analysis["properties"]["metrics"]["items"]["properties"]["query"]
    (rule,) = query["x-kubernetes-validations"]
    found = re.search(r"matches\('(.*)'\)", rule["rule"])
    assert found is not None
    meant = found[1]
    assert re.findall(r"\((revision[^)]*)\)", meant) == ["|".join(PLACEHOLDERS)]
    for name in PLACEHOLDERS:
        assert f"{{{{{name}}}}}" in rule["message"]
        assert f"{{{{{name}}}}}" in query["description"]
        assert re.match(meant, f'sum by (x) (rate(errors{{revision="{{{{{name}}}}}", y=~"a|b"}}[5m]\n)) > 2')
    assert not re.match(meant, 'errors{revision="{{ revision }}"}')
    assert not re.match(meant, 'errors{revision="{{canary}}"}')


def test_engine_arguments_are_those_of_the_contract() -> None:
    contract = (ROOT / "docs" / "contracts.md").read_text()
    listed = re.search(r"Engine args of the Torch engine: (.*?);", contract, re.DOTALL)
    assert listed is not None
    rule = SCHEMA["spec"]["properties"]["target"]["properties"]["engineArgs"]["x-kubernetes-validations"][0]["rule"]
    assert re.findall(r"'([a-z-]+)'", rule) == re.findall(r"`--([a-z-]+)", listed[1])
