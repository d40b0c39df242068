"""Labels of people's own never get into a selector, none of which can be changed afterwards.

Source of the numbered case: jaeger-operator #2370 (C42).
"""

import asyncio
import copy
import json
from typing import Any

from tests.domain.simulated_specs import BASE, changed
from tests.domain.simulated_world import named, settled
from tests.domain.upgradable_world import BRIEF, NEWER, Upgradable, serving
from tests.scenarios.operator_stage import ADDRESS
from tests.scenarios.operator_stage import Stage as ClusterStage
from tests.scenarios.story_views import stage

from tandem_operator.domain.progress import Stage


def labelled(team: str) -> dict[str, Any]:
    """What an edit of the target's pods says."""
    return {"metadata": {"labels": {"team": team}}, "spec": {}}


def deployments(world: Upgradable, role: str) -> dict[str, dict[str, Any]]:
    held = ((name, body) for (kind, name), body in world.objects.items() if kind == "Deployment")
    return {name: body["spec"] for name, body in held if f"-{role}-" in name}


def selectors(world: Upgradable) -> dict[str, str]:
    """Of every child that has one, as JSON."""
    bodies = ((f"{kind} {name}", body.get("spec", {}).get("selector")) for (kind, name), body in world.objects.items())
    return {name: json.dumps(held, sort_keys=True) for name, held in bodies if held is not None}


def team_of(spec: dict[str, Any]) -> str:
    return str(spec["template"]["metadata"]["labels"]["team"])


def test_c42_a_label_of_the_pods_is_changed_by_a_canary_and_no_selector_moves() -> None:
    world = serving(changed(BRIEF, target__podTemplate=labelled("a")))
    v1, before = world.stable, selectors(world)
    world.edit(target__podTemplate=labelled("b"))
    v2 = named(world)
    assert v2 != v1
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    assert sorted(map(team_of, deployments(world, "target").values())) == ["a", "b"]
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    after = selectors(world)
    assert {name: held for name, held in after.items() if name in before} == before
    assert not any("team" in held for held in after.values())
    assert world.condition("Stalled")[0] == "False"


def test_c42_an_upgrade_of_the_operator_leaves_labelled_pods_and_their_selectors() -> None:
    world = serving(changed(BRIEF, target__podTemplate=labelled("a")))
    before = copy.deepcopy(world.objects)
    world.terms = NEWER
    world.run(120)
    assert world.objects == before


def test_c42_a_label_of_the_object_itself_changes_no_child() -> None:
    async def play() -> tuple[ClusterStage, int]:
        held = await ClusterStage(changed(BASE, target__podTemplate=labelled("a"))).settle()
        relabel(held, "a")
        await held.settle()
        written = len(held.cluster.writes)
        relabel(held, "b")
        await held.settle()
        return held, written

    held, written = asyncio.run(play())
    children = [kind for _, kind, _ in held.cluster.writes[written:] if kind is not ADDRESS[0]]
    assert children == []
    assert held.condition("Reconciling") == ("False", "Settled")


def relabel(held: ClusterStage, team: str) -> None:
    """What `kubectl label` does to the object."""
    body = copy.deepcopy(held.cluster.objects[ADDRESS])
    held.cluster.put(ADDRESS[0], {**body, "metadata": {**body["metadata"], "labels": {"team": team}}})
