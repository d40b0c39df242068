"""An older definition of the resource in the cluster: it is found out, and each object says so (case C41)."""

import asyncio
import logging
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.domain.simulated_world import World

from tandem_operator import definition
from tandem_operator.definition import Definition, fields_of, own_fields, schema_of
from tandem_operator.domain.actions import Outcome
from tandem_operator.domain.conditions import report
from tandem_operator.domain.decide import decide
from tandem_operator.domain.errors import Unavailable
from tandem_operator.domain.nested import items, text
from tandem_operator.domain.plan import plan
from tandem_operator.ports import Json

CRD = Path(__file__).parents[2] / "crds" / "speculativedeployments.yaml"


def schema_without(*fields: str) -> dict[str, Any]:
    """The definition's schema as an older release had it."""
    (version,) = deepcopy(yaml.safe_load(CRD.read_text())["spec"]["versions"])
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    for field in fields:
        *outer, name = field.split(".")
        inside = schema
        for part in outer:
            inside = inside["properties"][part]
            inside = inside.get("items", inside)
        del inside["properties"][name]
    return schema


@dataclass(slots=True)
class Served:
    """Answers with these, one after the other, and the last one for good."""

    answers: list[Json | Unavailable]

    async def served_schema(self) -> Json:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Unavailable):
            raise answer
        return answer


async def followed(*answers: Json | Unavailable) -> Definition:
    served, found = Served(list(answers)), Definition()
    following = asyncio.create_task(found.follow(served))
    async with asyncio.timeout(20):
        while len(served.answers) > 1:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition, "LOOK_AGAIN_SECONDS", 0.01)


def test_a_wheel_takes_the_definition_from_its_one_source_and_not_from_the_link_to_it() -> None:
    """Where a checkout has no links, that is a file of its path, and the operator ended at its first comparison."""
    root = CRD.parents[1]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    place = definition.OWN.relative_to(root / "operator")
    assert wheel["force-include"] == {str(CRD.relative_to(root)): str(place)}
    assert f"operator/{place}" in wheel["exclude"]


def test_fields_are_named_by_where_they_stand() -> None:
    assert {"spec", "spec.target.model.uri", "spec.canary.steps.percent", "status.conditions.reason"} <= own_fields()
    assert not any(field.startswith("metadata") for field in own_fields())


async def test_a_definition_of_this_release_lacks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert (await followed(schema_without())).lacking == ()
    assert "older" not in caplog.text


async def test_an_older_definition_is_told_of_by_the_outermost_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = await followed(schema_without("spec.canary", "spec.gateway.replicas", "status.conditions.reason"))
    assert found.lacking == ("spec.canary", "spec.gateway.replicas", "status.conditions.reason")
    assert caplog.text.count("older than this operator lacking=[spec.canary, spec.gateway.replicas") == 1


async def test_what_cannot_be_read_leaves_what_was_known_and_a_newer_one_takes_it_back() -> None:
    older, refused = schema_without("spec.canary"), Unavailable("get /openapi", "hung")
    assert (await followed(older, refused)).lacking == ("spec.canary",)
    assert (await followed(older, {})).lacking == ()
    assert (await followed(older, refused, schema_without())).lacking == ()


def test_the_schema_is_that_of_the_resource_and_not_of_its_list() -> None:
    def named(kind: str, **more: object) -> Mapping[str, object]:
        return {"x-kubernetes-group-version-kind": [{"kind": kind}], **more}

    mine = named("SpeculativeDeployment", properties={"spec": {}})
    document = {"components": {"schemas": {"a": named("SpeculativeDeploymentList"), "b": mine, "c": {}}}}
    assert schema_of(document) == mine
    assert list(fields_of(schema_of(document))) == ["spec"]
    assert schema_of({}) == {}


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        (("spec.canary",), "lacks spec.canary, so they are refused or dropped: apply the CRD"),
        (
            tuple(f"spec.f{number}" for number in range(9)),
            "lacks spec.f0, spec.f1, spec.f2, spec.f3, spec.f4 and 4 more",
        ),
    ],
)
def test_each_object_says_that_the_definition_is_older(lacking: tuple[str, ...], told: str) -> None:
    seen = replace(World().observed(), lacking_fields=lacking)
    decision = decide(seen)
    status = report(seen, decision, Outcome((), None, plan(decision, seen)))
    (accepted,) = (each for each in items(status, "conditions") if each["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "DefinitionOutdated")
    assert told in text(accepted, "message")
