"""A resource whose drafter has no pods: speculation is on without them, and the method changes without a rollout."""

import pytest
from tests.domain.simulated_specs import QUICK
from tests.domain.simulated_world import World, installed

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
