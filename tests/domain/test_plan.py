"""Plans: their order, their reasons, and nothing to do twice."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.domain.simulated_specs import QUICK, V2, V3, changed
from tests.domain.simulated_world import World, installed, push, settled

from tandem_operator.domain.actions import Action, Verb
from tandem_operator.domain.decide import decide
from tandem_operator.domain.drift import additions, first_difference, sealed
from tandem_operator.domain.plan import plan
from tandem_operator.domain.spec import SurgeMode

ORDER = (
    (Verb.APPLY, "evidence"),
    (Verb.PERSIST, ""),
    (Verb.ANNOTATE, "ControllerRevision"),
    (Verb.CREATE, ""),
    (Verb.APPLY, "children"),
    (Verb.APPLY, "policy"),
    (Verb.ANNOTATE, "SpeculativeDeployment"),
    (Verb.DELETE, ""),
)


def place(action: Action, *, made: bool) -> int:
    """`made`: the pods that the policy sends somebody to have their Deployments."""
    if action.verb is Verb.APPLY:
        part = "evidence" if action.name == "chat-evidence" else "children"
        part = "policy" if action.name == "chat-policy" and not made else part
        return ORDER.index((Verb.APPLY, part))
    if action.verb is Verb.ANNOTATE:
        return ORDER.index((Verb.ANNOTATE, action.kind))
    return ORDER.index((action.verb, ""))


def test_every_plan_of_a_life_is_in_order_and_says_why() -> None:
    world = World(QUICK)
    world.rate = 20
    looks = 0
    for commit in ("", V2, V3):
        if commit:
            push(world, commit)
        for _ in range(40):
            world.tick()
            seen = world.observed()
            actions = plan(decide(seen), seen).actions
            made = ("ConfigMap", "chat-policy") not in world.objects or world.decisions[-1].stable != ""
            places = [place(action, made=made) for action in actions]
            assert places == sorted(places), [str(action) for action in actions]
            assert all(action.why for action in actions)
            looks += bool(actions)
    assert looks > 0


def test_a_delete_waits_for_every_gateway_to_follow_the_policy() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.progress.rollout.stage == "Stepping")
    held = world.policy()
    assert held is not None
    late = sorted(world.gateways)[1]
    world.gateways[late].policy = held["number"]
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.tick(2)
    world.tick(2)
    assert [action for action in world.writes if action.verb is Verb.DELETE] == []
    world.gateways[late].policy = None
    world.tick(2)
    (gone,) = [action for action in world.writes if action.verb is Verb.DELETE]
    assert (gone.kind, gone.body) == ("Deployment", {"metadata": {"uid": f"uid-Deployment-{gone.name}"}})


def test_old_revisions_go_and_those_in_use_stay() -> None:
    quick = changed(QUICK, revisionHistoryLimit=1, canary__steps=[{"percent": 50, "holdSeconds": 10}])
    world = installed(quick, rate=20)
    stables = [world.stable]
    for digit in "2345":
        name = push(world, digit * 40)
        world.run_until(lambda seen, name=name: seen.stable == name and settled(seen))  # type: ignore[misc] # bound now
        stables.append(name)
    world.run(60)
    kept = {name.removeprefix("chat-") for kind, name in world.objects if kind == "ControllerRevision"}
    assert kept == set(stables[-3:])  # stable, the one before, and one more


edits = st.fixed_dictionaries(
    {},
    optional={
        "target__replicas": st.integers(0, 5),
        "draft__replicas": st.integers(1, 3),
        "gateway__replicas": st.integers(1, 3),
        "draft__model__revision": st.sampled_from([V2, V3]),
        "target__model__revision": st.sampled_from([V2, V3]),
        "target__resources": st.sampled_from([{}, {"limits": {"memory": "1024Mi"}}, {"requests": {"cpu": "500m"}}]),
        "paused": st.booleans(),
        "canary__surge": st.sampled_from([str(mode) for mode in SurgeMode]),
        "rollback__keepWarm": st.sampled_from([{"seconds": 0}, {"replicas": 3}]),
        "speculation__mode": st.sampled_from(["Auto", "Always", "Off"]),
        "gateway__service": st.just({"port": 9000}),
        "draft": st.just({"method": "None"}),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(edits, min_size=1, max_size=3))
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(rounds: list[dict[str, Any]]) -> None:
    world = World(changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10}]))
    for paths in rounds:
        drafts = {} if "draft" in paths else {"draft": copy.deepcopy(QUICK["draft"])}
        world.edit(**{**drafts, **paths})
        for _ in range(6):
            world.tick(10)
        world.look()  # at the same moment: whatever the look before wrote is there
        seen = world.observed()
        assert [str(action) for action in plan(decide(seen), seen).actions] == []


# Drift

WANTED: dict[str, Any] = {
    "metadata": {"name": "x", "labels": {"a": "b"}},
    "spec": {
        "replicas": 2,
        "template": {
            "containers": [
                {"name": "engine", "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"memory": "1024Mi"}}}
            ],
            "tolerations": [{"key": "gpu"}],
        },
    },
}


def edited(path: str, value: object) -> dict[str, Any]:
    live = copy.deepcopy(WANTED)
    *parents, last = path.split("/")
    place: Any = live
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return live


@pytest.mark.parametrize(
    ("live", "difference"),
    [
        (WANTED, None),
        (edited("spec/template/containers/0/resources/limits/memory", "1Gi"), None),
        (edited("spec/template/containers/0/terminationMessagePath", "/dev/log"), None),
        (edited("spec/template/containers/0/resources/limits/memory", "2Gi"), "resources.limits.memory"),
        (edited("spec/replicas", 3), "spec.replicas"),
        (edited("spec/replicas", None), "spec.replicas"),
        (edited("metadata/labels", {"a": "b", "c": "d"}), None),
        (edited("metadata/labels", {"a": "c"}), "metadata.labels.a"),
        (edited("spec/template/tolerations", []), "spec.template.tolerations"),
        (edited("spec/template/tolerations/0", {"key": "cpu"}), "spec.template.tolerations[0].key"),
        (edited("spec/template/containers", []), "spec.template.containers[engine].name"),
        (edited("spec/template/containers/0/env/0/value", "2"), "spec.template.containers[engine].env[A].value"),
    ],
)
def test_a_difference_is_what_we_wanted_and_is_not_there(live: dict[str, Any], difference: str | None) -> None:
    found = first_difference(WANTED, live)
    assert (found is None) == (difference is None)
    assert difference is None or (found is not None and found.endswith(difference))


def test_entries_of_others_are_named_and_are_no_difference() -> None:
    live = copy.deepcopy(WANTED)
    live["spec"]["template"]["containers"].append({"name": "proxy"})
    live["spec"]["template"]["containers"][0]["env"].append({"name": "B", "value": "2"})
    assert first_difference(WANTED, live) is None
    assert list(additions(WANTED, live)) == [
        "spec.template.containers[proxy]",
        "spec.template.containers[engine].env[B]",
    ]


def test_what_is_no_longer_wanted_changes_the_seal() -> None:
    less = copy.deepcopy(WANTED)
    del less["spec"]["template"]["tolerations"]
    assert first_difference(less, sealed(WANTED)) is None
    assert first_difference(sealed(less), sealed(WANTED)) == "metadata.annotations.tandem.dev/applied"
