"""What people read and what is written: a status that is true, no needless write, and what others own left alone.

Sources of the numbered cases: Elastic cloud-on-k8s #336 (C37), kopf #686 (C38), Apache Superset operator #151 (C39),
NVIDIA Dynamo #3567 (C49).
"""

from tests.domain.simulated_specs import BASE, QUICK, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, push, settled
from tests.scenarios.story_views import deployments, stage, weights

from tandem_operator.domain.nested import text
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse


def test_models_that_do_not_fit_serve_alone_and_never_crash() -> None:
    world = World(QUICK)
    world.tokenizers[str(revision_of(parse(QUICK)).draft)] = "sha256:other"
    world.run_until(lambda seen: seen.stable != "" and settled(seen), within=120)
    assert world.condition("ModelsCompatible") == ("False", "TokenizersDiffer")
    assert (world.condition("Ready")[0], world.condition("SpeculationActive")) == (
        "True",
        ("False", "ModelsIncompatible"),
    )


def test_an_accelerator_outside_the_table_is_named_and_what_serves_goes_on() -> None:
    world = installed(QUICK, rate=5)
    v1 = world.stable
    world.edit(draft__placement__accelerator="L5")
    world.run(60)
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    message = next(item["message"] for item in world.status["conditions"] if item["type"] == "Accepted")  # type: ignore[attr-defined] # JSON
    assert message.startswith("spec.draft.placement.accelerator is 'L5'")
    assert (world.stable, world.condition("Ready")[0]) == (v1, "True")
    world.edit(draft__placement__accelerator="L4")
    world.run_until(settled, within=60)
    assert world.condition("Accepted")[0] == "True"


def test_a_spec_that_cannot_be_read_changes_nothing_but_accepted() -> None:
    world = installed(QUICK, rate=5)
    before = (dict(world.objects), world.status["stableRevision"])
    world.edit(target__replicas="two")
    world.run(30)
    assert (dict(world.objects), world.status["stableRevision"]) == before
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Ready")[0] == "True"


def test_c37_the_same_value_in_another_spelling_is_no_change() -> None:
    world = installed(changed(QUICK, target__resources={"limits": {"cpu": "1000m", "memory": "1024Mi"}}))
    world.run(60)
    writes = len(world.writes)
    world.run(300)
    world.edit(target__resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    world.run(60)
    assert (world.writes[writes:], len(world.verdicts())) == ([], 1)


def test_c38_a_steady_object_writes_nothing_and_drift_at_most_ten_times() -> None:
    world = installed(QUICK, rate=5)
    world.run(420)
    writes, statuses = len(world.writes), world.status_writes
    world.run(600)
    assert world.writes[writes:] == []
    assert world.status_writes - statuses <= 1  # the figure may have been on the edge of two points
    transitions = [item["lastTransitionTime"] for item in world.status["conditions"]]  # type: ignore[attr-defined] # JSON
    statuses = world.status_writes
    for minute in range(10):
        world.behaviour[world.stable] = Behaviour(acceptance=0.80 - minute / 100)
        world.run(60)
    assert 2 <= world.status_writes - statuses <= 10
    assert [item["lastTransitionTime"] for item in world.status["conditions"]] == transitions  # type: ignore[attr-defined] # JSON


def test_a_figure_that_is_new_is_shown_at_once_though_another_was_shown_within_the_minute() -> None:
    world = World(changed(QUICK, speculation__control={"percent": 20, "slotSeconds": 20}))
    world.rate = 5
    world.run_until(
        lambda seen: all(text(seen.status, "speculation", name) for name in ("acceptance", "speedup")), within=90
    )


def test_c38_a_canary_that_waits_for_traffic_writes_nothing() -> None:
    world = installed(BASE)
    push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.run(90)
    writes, statuses = len(world.writes), world.status_writes
    world.run(600)
    assert (len(world.writes) - writes, world.status_writes - statuses) == (0, 0)


def test_c39_a_child_scaled_directly_is_put_right_once_and_the_field_stands() -> None:
    world = installed(QUICK)
    world.edit(target__replicas=4)
    world.run(60)
    target = next(name for name in deployments(world) if "-target-" in name)
    world.objects[("Deployment", target)]["spec"]["replicas"] = 1
    writes = len(world.writes)
    world.run(120)
    assert [(action.name, action.why) for action in world.writes[writes:]] == [
        (target, f"spec.replicas differs: 4 target pods for {world.stable}")
    ]
    assert world.status["replicas"] == 4
    assert world.spec["target"]["replicas"] == 4


def test_c49_status_calls_an_edit_done_only_when_the_new_pods_serve() -> None:
    world = installed(QUICK, rate=8)
    v1, v2 = world.stable, push(world, V2)
    while True:
        world.tick(5)
        assert world.status["observedGeneration"] == world.generation
        assert world.condition("Ready")[0] == "True"
        if settled(world):
            break
        assert world.stable in (v1, v2)
    assert (world.stable, weights(world)) == (v2, {v2: 100})


def test_c49_an_edit_in_place_is_done_when_the_new_pods_are_ready() -> None:
    world = installed(QUICK)
    world.edit(target__resources={"limits": {"cpu": "2", "memory": "4Gi"}})
    world.tick(1)
    assert world.condition("Reconciling") == ("True", "WritingChildren")
    assert len(world.verdicts()) == 1


def test_a_removed_child_comes_back() -> None:
    world = installed(QUICK)
    del world.objects[("Service", "chat")]
    world.run(30)
    assert ("Service", "chat") in world.objects


def test_what_others_added_is_named_and_left_alone() -> None:
    world = installed(QUICK)
    target = next(name for name in deployments(world) if "-target-" in name)
    containers = world.objects[("Deployment", target)]["spec"]["template"]["spec"]["containers"]
    containers.append({"name": "proxy", "image": "mesh"})
    writes = len(world.writes)
    world.run(30)
    assert (world.writes[writes:], world.condition("ChildrenModified")) == ([], ("True", "ForeignAdditions"))
