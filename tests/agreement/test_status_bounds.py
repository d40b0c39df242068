"""The operator's bounds of its status are the CRD's, and what people and pods say never makes a status too long."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK
from tests.domain.simulated_world import World, installed

from tandem_operator.domain.bounds import LONGEST_LIST, LONGEST_TEXT

CRD: Any = yaml.safe_load((Path(__file__).parents[2] / "crds" / "speculativedeployments.yaml").read_text())
STATUS: dict[str, Any] = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def bounds(schema: dict[str, Any], path: str, key: str) -> Iterator[tuple[str, int]]:
    """(path, bound) of everything below `schema` that has one."""
    if key in schema:
        yield path, schema[key]
    for name, part in schema.get("properties", {}).items():
        yield from bounds(part, f"{path}.{name}".lstrip("."), key)
    if "items" in schema:
        yield from bounds(schema["items"], f"{path}[]", key)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from bounds(schema["additionalProperties"], f"{path}.*", key)


def test_every_bound_of_the_crd_is_kept_and_no_other() -> None:
    enums = set(dict(bounds(STATUS, "", "enum")))
    texts = {path: bound for path, bound in bounds(STATUS, "", "maxLength") if path not in enums}
    assert texts == LONGEST_TEXT
    assert dict(bounds(STATUS, "", "maxItems")) == LONGEST_LIST


def test_a_status_fits_whatever_alerts_commands_marks_and_fetchers_say() -> None:
    world = installed(QUICK)
    long = "é" * 3000
    alert(world, world.now, name=long)
    labelled = json.loads(world.annotations[f"alert.tandem.dev/{'0' * 32}"]) | {"revision": long}
    labelled["name"] = "TandemHighErrorRate"
    world.annotations[f"alert.tandem.dev/{'1' * 32}"] = json.dumps(labelled)
    world.annotations["tandem.dev/rollback-to"] = f"{long}@{long}#1"
    world.annotations["tandem.dev/abort"] = long
    revision = next(body for (kind, _), body in world.objects.items() if kind == "ControllerRevision")
    revision["metadata"]["annotations"]["tandem.dev/reason"] = long
    assert_fits_for_a_while(world)
    shown: Any = world.status
    assert shown["alerts"][0]["name"] == long[:128]
    assert shown["handledCommands"]["tandem.dev/abort"] == long[:256]
    assert sum(event.reason == "CommandIgnored" for event in world.events) == 2


def assert_fits_for_a_while(world: World) -> None:
    for _ in range(6):
        world.tick()
        problems = [error.json_path for error in Draft202012Validator(STATUS).iter_errors(world.status)]
        assert problems == []
