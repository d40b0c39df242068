"""What the operator writes into status fits the CRD, field by field: the API server would drop what does not."""

from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push

CRD: Any = yaml.safe_load((Path(__file__).parents[2] / "crds" / "speculativedeployments.yaml").read_text())
STATUS: dict[str, Any] = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def closed(schema: Any) -> Any:
    """The schema without room for unknown fields."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    free = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    return found if free or not isinstance(schema.get("properties"), dict) else {**found, "additionalProperties": False}


def assert_fits(world: World) -> None:
    problems = [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(closed(STATUS)).iter_errors(world.status)
    ]
    assert problems == []


def test_every_status_of_a_life_fits_the_crd() -> None:
    world = World(QUICK)
    world.rate = 8
    for _ in range(30):
        world.tick()
        assert_fits(world)
    v1, v2 = world.stable, push(world, V2)
    for _ in range(40):
        world.tick()
        assert_fits(world)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    alert(world, world.now)
    for _ in range(6):
        world.tick()
        assert_fits(world)
    assert {"canary", "speculation", "gateway"} & world.status.keys()
    assert (world.stable, world.status["refusedRevision"]) == (v1, v2)
    assert {"alerts", "handledCommands", "revisions", "endpoint"} <= world.status.keys()


def test_a_status_with_an_invalid_spec_fits_the_crd() -> None:
    world = installed(changed(QUICK))
    world.edit(target__replicas="two")
    world.tick()
    assert_fits(world)


def test_the_closed_schema_would_catch_a_field_that_the_crd_lacks() -> None:
    assert not Draft202012Validator(closed(STATUS)).is_valid({"canary": {"stage": "Stepping"}})
