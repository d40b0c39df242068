"""Every example is one that the operator reads, in fields that the CRD has, and that the chart's table can place."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.domain.manifests import revision_data
from tandem_operator.domain.pools import read_table
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.domain.spec import Canary, Gateway, InterTokenGate, Rollback, Speculation, parse
from tandem_operator.domain.templates import Owner

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "examples" / "demo").glob("*.yaml")])
CRD = yaml.safe_load((ROOT / "crds" / "speculativedeployments.yaml").read_text())
SPEC_SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
VALUES = yaml.safe_load((ROOT / "charts" / "tandem" / "values.yaml").read_text())


def documents(path: Path) -> list[dict[str, Any]]:
    loaded = yaml.safe_load_all(path.read_text())
    return [document for document in loaded if document["kind"] == "SpeculativeDeployment"]


def used(value: object, path: str = "") -> Iterator[str]:
    """The paths of all fields in a value, list positions left out."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{path}.{name}"
            yield from used(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from used(inner, path)


def declared(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from declared(inner, f"{path}.{name}")
    if "items" in schema:
        yield from declared(schema["items"], path)


def open_paths(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Fields below which users choose the names."""
    if "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from open_paths(inner, f"{path}.{name}")


def shared(field: str) -> str:
    """One name for the blocks that target, draft and gateway have in common."""
    return re.sub(r"^\.(draft|gateway)\.(model|placement|resources|podTemplate)", r".target.\2", field)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_is_read_and_rendered(path: Path) -> None:
    terms = OperatorTerms(runtime_image="tandem/runtime:0", accelerators=read_table(VALUES["accelerators"]))
    fields, free = set(declared(SPEC_SCHEMA)), tuple(f"{each}." for each in open_paths(SPEC_SCHEMA))
    for document in documents(path):
        owner = Owner(name=document["metadata"]["name"], namespace="default", uid="u")
        revision_data(parse(document["spec"]), owner, terms, nodes=None)
        unknown = {field for field in used(document["spec"]) if field not in fields and not field.startswith(free)}
        assert unknown == set()


def test_examples_are_numbered_smallest_first() -> None:
    numbered = [path for path in EXAMPLES if path.parent.name == "examples"]
    assert [path.name[:2] for path in numbered] == [f"{number:02}" for number in range(1, len(numbered) + 1)]
    assert len([line for line in numbered[0].read_text().splitlines() if not line.startswith("#")]) <= 10


def test_the_last_example_names_every_field_with_its_default() -> None:
    path = ROOT / "examples" / "09-every-field.yaml"
    (document,) = documents(path)
    shown = {shared(field) for field in used(document["spec"])}
    assert {shared(field) for field in declared(SPEC_SCHEMA)} - shown == set()
    spec = parse(document["spec"])
    # What is shown of these has no default.
    analysis = dataclasses.replace(spec.canary.analysis, metrics=(), segments=(), inter_token_latency=InterTokenGate())
    canary = dataclasses.replace(spec.canary, analysis=analysis)
    speculation = dataclasses.replace(spec.speculation, plain_segments=())
    assert (speculation, canary, spec.rollback) == (Speculation(), Canary(), Rollback())
    assert (
        dataclasses.replace(spec.gateway, resources=Gateway().resources, pod_template={}).replicas == Gateway().replicas
    )


def test_the_notes_of_the_chart_show_the_smallest_example() -> None:
    notes = (ROOT / "charts" / "tandem" / "templates" / "NOTES.txt").read_text()
    shown = re.search(r"<<END\n(.*?)  END", notes, re.DOTALL)
    assert shown is not None
    (smallest,) = documents(ROOT / "examples" / "01-smallest.yaml")
    assert yaml.safe_load(shown[1])["spec"] == smallest["spec"]
