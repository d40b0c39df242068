"""A resource whose drafter has no pods: speculation is on without them, the method changes without a rollout between
those that have none, and a revision keeps what it served with when the spec means another."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.domain.simulated_specs import QUICK, V2
from tests.domain.simulated_world import Behaviour, World, installed, named, settled

from tandem_operator.domain.revision import Role


def looking_up(method: str) -> World:
    return installed({**QUICK, "draft": {"method": method}}, rate=8)


@pytest.mark.parametrize("method", ["NGram", "Suffix"])
def test_speculation_is_on_without_draft_pods(method: str) -> None:
    world = looking_up(method)
    assert world.condition("SpeculationActive")[0] == "True"
    assert world.condition("DraftReady") == ("True", "NotUsed")
    assert world.ready_pods(Role.DRAFT) == []


def test_between_methods_without_pods_the_policy_changes_and_no_revision() -> None:
    world = looking_up("None")
    name = world.stable
    assert world.condition("SpeculationActive") == ("False", "NoDraft")
    world.edit(draft__method="Suffix")
    world.run_until(lambda seen: seen.condition("SpeculationActive")[0] == "True", within=300, every=5)
    document = world.policy()
    assert document is not None
    assert [(held["name"], held.get("lookups")) for held in document["revisions"]] == [(name, ["Suffix"])]
    world.edit(draft__method="None")
    world.run_until(lambda seen: seen.condition("SpeculationActive")[0] == "False", within=300, every=5)
    document = world.policy()
    assert document is not None
    assert [(held["name"], held.get("lookups")) for held in document["revisions"]] == [(name, None)]


def told(world: World) -> dict[str, list[str] | None]:
    """The lookups of each revision with a share."""
    document = world.policy()
    assert document is not None
    return {held["name"]: held.get("lookups") for held in document["revisions"] if held["weight"]}


WAYS = [(QUICK["draft"], {"method": "NGram"}), ({"method": "NGram"}, QUICK["draft"])]


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_between_a_model_and_a_lookup_stable_is_untouched_until_the_promotion(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    world = installed({**QUICK, "draft": before}, rate=8)
    v1, held = world.stable, told(world)
    world.edit(draft=after)
    v2 = named(world)
    world.behaviour[v2] = Behaviour(acceptance=0.85, speedup=1.9)
    while world.stable == v1:
        world.tick()
        served = told(world)
        assert served.get(v1, held[v1]) == held[v1]
        assert world.condition("SpeculationActive")[0] == "True"
    wanted = None if "model" in after else ["NGram"]
    world.run_until(settled, within=120)
    assert told(world) == {v2: wanted}
    world.annotations["tandem.dev/rollback-to"] = f"{v1}@{v2}#1"
    world.run_until(lambda seen: seen.stable == v1 and settled(seen), within=120)
    assert told(world) == held


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_a_refused_change_between_a_model_and_a_lookup_leaves_stable_as_it_was(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    world = installed({**QUICK, "draft": before}, rate=8)
    held = told(world)
    world.edit(draft=after)
    world.behaviour[named(world)] = Behaviour(acceptance=0.7, speedup=1.2)  # above the floors, below stable
    world.run_until(lambda seen: seen.progress.refused == named(seen) and settled(seen), within=1500)
    assert (told(world), world.condition("SpeculationActive")[0]) == (held, "True")
    assert world.condition("RolledBack")[1] in ("AcceptanceDropFailed", "SpeedupDropFailed")


def test_what_an_older_operator_made_keeps_the_lookup_of_its_last_policy() -> None:
    world = looking_up("NGram")
    name, record = world.stable, world.objects[("ControllerRevision", f"chat-{world.stable}")]
    assert record["metadata"]["annotations"].pop("tandem.dev/draft-method") == "NGram"
    world.edit(draft=QUICK["draft"])
    world.run(60)
    assert told(world)[name] == ["NGram"]


def test_another_targets_canary_leaves_stable_the_lookup_that_it_had() -> None:
    world = looking_up("NGram")
    name = world.stable
    world.edit(draft__method="Suffix", target__model__revision=V2)
    world.run_until(lambda seen: len(told(seen)) == 2)
    assert told(world) == {name: ["NGram"], named(world): ["Suffix"]}
