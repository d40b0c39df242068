"""A recorded look decides as it did when it was recorded, says where it does not, and never holds a secret."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.domain.simulated_specs import BASE, QUICK, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, push

from tandem_operator.domain import recording
from tandem_operator.domain.decide import decide
from tandem_operator.domain.observed import Child
from tandem_operator.domain.record import RecordError

RECORDED = sorted((Path(__file__).parent / "recorded_looks").glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_look_gives_the_recorded_decision(path: Path) -> None:
    assert recording.replay(path.read_text()).differences == ()


def test_every_look_of_a_canary_replays_to_the_same_decision() -> None:
    world = installed(QUICK, rate=5)
    push(world, V2, Behaviour(acceptance=0.85, speedup=1.7))
    for _ in range(12):
        world.tick()
        seen = world.observed()
        played = recording.replay(recording.write(seen))
        assert (played.decision, played.differences) == (decide(seen), ())


def test_another_decision_is_named_by_its_place() -> None:
    document = json.loads(recording.write(installed().observed()))
    document["decision"]["lookAgainInSeconds"] = 77
    played = recording.replay(json.dumps(document))
    assert played.differences == ("decision.lookAgainInSeconds: recorded 77, now 10",)


@pytest.mark.parametrize("document", ["", "[" * 100_000, "[]", "{}", '{"format": 1}', '{"format": 2, "observed": {}}'])
def test_what_is_no_recorded_look_is_refused(document: str) -> None:
    with pytest.raises(RecordError):
        recording.replay(document)


def variable(name: str, **how: Any) -> dict[str, Any]:
    container = {"name": "engine", "env": [{"name": name, **how}]}
    return changed(BASE, target__podTemplate={"spec": {"containers": [container]}})


def test_a_spec_with_a_plain_secret_reveals_it_by_its_place_also_when_it_is_of_an_older_revision() -> None:
    world = installed(variable("HF_TOKEN", value="hf_abc"))
    place = "target.podTemplate.spec.containers[engine].env[HF_TOKEN]"
    assert recording.revealed_by(world.observed()) == f"spec.{place}"
    world.spec = BASE
    assert str(recording.revealed_by(world.observed())).endswith(place)


def flags(*words: str) -> dict[str, Any]:
    container = {"name": "engine", "args": list(words)}
    return changed(BASE, target__podTemplate={"spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (flags("serve", "--api-key", "abc"), "spec.target.podTemplate.spec.containers[engine].args[--api-key]"),
        (flags("--hf-token=abc"), "spec.target.podTemplate.spec.containers[engine].args[--hf-token]"),
        (changed(BASE, target__engineArgs={"api-key": "abc"}), "spec.target.engineArgs.api-key"),
    ],
)
def test_an_argument_reveals_a_secret_as_a_variable_does(spec: dict[str, Any], place: str) -> None:
    world = World()
    world.spec = spec
    assert recording.revealed_by(world.observed()) == place


def test_what_somebody_put_into_a_deployment_is_looked_at_too() -> None:
    seen = installed().observed()
    container = {"name": "sidecar", "env": [{"name": "VAULT_TOKEN", "value": "hvs_abc"}]}
    body = {
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    seen = replace(seen, children=(*seen.children, Child(body)))
    assert recording.revealed_by(seen) == "Deployment d.spec.containers[sidecar].env[VAULT_TOKEN]"


@pytest.mark.parametrize(
    "spec",
    [
        BASE,
        variable("MAX_TOKENS", value="4096"),
        flags("--max-num-batched-tokens", "8192", "--enforce-eager"),
        variable("HF_TOKEN", valueFrom={"secretKeyRef": {"name": "hub", "key": "token"}}),
        variable("TOKENIZERS_PARALLELISM", value="false"),
    ],
)
def test_what_holds_no_secret_reveals_nothing(spec: dict[str, Any]) -> None:
    assert recording.revealed_by(installed(spec).observed()) is None


def test_the_copy_of_the_spec_that_kubectl_keeps_is_left_out() -> None:
    world = installed()
    world.annotations[recording.APPLIED_BY_KUBECTL] = "hf_abc"
    assert "hf_abc" not in recording.write(world.observed())
