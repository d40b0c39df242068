"""Gateways that do not hear, and gateways that do not answer: what holds up an abort, for how long, and what never
does."""

from dataclasses import replace

import pytest
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push, settled
from tests.scenarios.story_views import deployments, stage, weights

from tandem_operator.domain.actions import Verb
from tandem_operator.domain.decide import decide
from tandem_operator.domain.observed import MUTE_AFTER, Observed
from tandem_operator.domain.plan import AGAIN_AFTER, plan
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import Role

GATEWAY = ("Deployment", "chat-gateway")


def stepping(*, gateways: int = 2) -> tuple[World, str]:
    """A canary has a share of the traffic."""
    world = installed(changed(QUICK, gateway__replicas=gateways), rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    return world, v2


def stuck(world: World, *, mute: bool) -> str:
    """One gateway stays at the policy in force, and says so or nothing."""
    name, policy = sorted(world.gateways)[0], world.policy()
    assert policy is not None
    world.gateways[name].policy, world.gateways[name].reachable = policy["number"], not mute
    return name


def replaced(world: World) -> list[str]:
    return [action.name for action in world.writes if action.kind == "Pod" and action.verb is Verb.DELETE]


@pytest.mark.parametrize("gateways", [2, 3])
def test_a_gateway_that_is_mute_for_good_is_replaced_within_a_minute_so_that_an_abort_has_a_bound(
    gateways: int,
) -> None:
    world, v2 = stepping(gateways=gateways)
    name, before = stuck(world, mute=True), deployments(world)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.run(20)
    assert (replaced(world), deployments(world)) == ([], before)
    assert world.message("Reconciling") == f"policy 4 has not reached {name}"
    world.run(40)
    assert replaced(world) == [name]
    world.run_until(settled, within=60)
    assert (deployments(world) < before, weights(world)) == (True, {world.stable: 100})


def test_a_gateway_that_misses_one_look_is_left_alone_however_old_its_policy() -> None:
    world = installed(QUICK, rate=5)
    world.run(300)
    name = sorted(world.gateways)[0]
    world.gateways[name].reachable = False
    world.tick()
    world.gateways[name].reachable = True
    world.run(60)
    assert (replaced(world), settled(world)) == ([], True)


def test_an_only_gateway_that_is_mute_is_left_and_named_since_nobody_knows_whether_it_hears() -> None:
    world, _ = stepping(gateways=1)
    name = stuck(world, mute=True)
    world.run(120)
    assert (replaced(world), world.condition("GatewayReady")) == ([], ("False", "NoAnswer"))
    assert world.message("GatewayReady").startswith(f"{name}: ready, but does not answer the operator")
    world.gateways[name].reachable, world.gateways[name].policy = True, None
    world.run(20)
    assert world.condition("GatewayReady") == ("True", "AllReady")


def test_a_mute_gateway_stays_named_when_the_operator_that_watched_it_is_started_anew() -> None:
    world, _ = stepping(gateways=1)
    stuck(world, mute=True)
    world.run(120)
    told = world.message("GatewayReady")
    world.silent.clear()
    world.tick(2)
    assert (world.condition("GatewayReady"), world.message("GatewayReady")) == (("False", "NoAnswer"), told)
    world.gateways[told.partition(":")[0]].reachable = True
    world.silent.clear()
    world.tick(2)
    assert world.condition("GatewayReady") == ("True", "AllReady")


def test_an_only_gateway_that_is_deaf_goes_once_a_second_one_answers_and_service_never_stops() -> None:
    world, v2 = stepping(gateways=1)
    name, before = stuck(world, mute=False), deployments(world)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    for _ in range(12):
        world.tick(5)
        assert world.condition("Ready") == ("True", "Serving")
    assert replaced(world) == [name]
    assert (deployments(world) < before, weights(world)) == (True, {world.stable: 100})
    assert world.objects[("Deployment", "chat-gateway")]["spec"]["replicas"] == 1
    world.run_until(settled, within=60)


def test_an_only_gateway_that_is_deaf_stays_where_no_second_one_comes_up() -> None:
    world, v2 = stepping(gateways=1)
    stuck(world, mute=False)
    world.starts_after *= 1000  # what is born from now on
    world.born = dict.fromkeys(world.born, world.now - world.starts_after)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    world.run(300)
    assert (replaced(world), world.condition("Ready")) == ([], ("True", "Serving"))
    assert world.condition("Reconciling")[0] == "True"


def test_an_only_gateway_that_is_deaf_and_misses_looks_gets_one_second_gateway_and_not_one_at_every_look() -> None:
    world, v2 = stepping(gateways=1)
    name = stuck(world, mute=False)
    world.starts_after *= 6  # what is born from now on takes half a minute
    world.born = dict.fromkeys(world.born, world.now - world.starts_after)
    world.annotations["tandem.dev/abort"] = f"@{v2}#1"
    for look in range(30):
        world.gateways[name].reachable = bool(look % 2)
        world.tick(5)
    sizes = [action.body["spec"] for action in world.writes if (action.kind, action.name) == GATEWAY]
    assert [spec["replicas"] for spec in sizes if isinstance(spec, dict)] == [1, 2, 1]
    assert replaced(world) == [name]


def deleted(seen: Observed) -> list[str]:
    return [action.name for action in plan(decide(seen), seen).actions if action.verb is Verb.DELETE]


@pytest.mark.parametrize("drains", [True, False])
def test_of_two_mute_gateways_the_second_waits_until_the_first_one_s_successor_is_in_service(
    drains: bool,
) -> None:
    """Where the operator's own way to them is cut they serve on: both at once would leave one of three."""
    world, _ = stepping(gateways=3)
    seen = world.observed()
    one, two, three = sorted(seen.of_role(Role.GATEWAY), key=lambda pod: pod.name)
    assert seen.scrape is not None
    scrape = replace(seen.scrape, documents={three.name: seen.documents[three.name]})
    silent = dict.fromkeys((one.name, two.name), seen.now - MUTE_AFTER)
    cut = replace(seen, scrape=scrape, silent=silent)
    assert deleted(cut) == [one.name]
    pods = tuple(replace(pod, leaving=drains, ready=drains) if pod == one else pod for pod in cut.pods)
    assert deleted(replace(cut, pods=pods)) == []


@pytest.mark.parametrize("drains", [True, False])
def test_a_deaf_gateway_that_alone_serves_stays_though_one_that_does_not_serve_answers(drains: bool) -> None:
    """Gateways answer the operator before they are ready, and while they drain."""
    world, _ = stepping()
    world.run(20)
    seen = world.observed()
    name = sorted(seen.documents)[0]
    assert seen.scrape is not None
    older = replace(seen.documents[name], policy=seen.documents[name].policy - 1)
    deaf = replace(seen, scrape=replace(seen.scrape, documents={**seen.documents, name: older}))
    assert deleted(deaf) == [name]
    others = {pod.name for pod in deaf.of_role(Role.GATEWAY)} - {name}
    pods = tuple(replace(pod, leaving=drains, ready=drains) if pod.name in others else pod for pod in deaf.pods)
    assert deleted(replace(deaf, pods=pods)) == []


def test_a_gateway_that_never_answered_is_not_made_anew_again_and_again() -> None:
    """Where the way to its zone is cut, its successor there is as mute: one was replaced every forty seconds."""
    world, _ = stepping()
    seen = world.observed()
    name, other = sorted(seen.documents)
    assert seen.scrape is not None
    scrape = replace(seen.scrape, documents={other: seen.documents[other]})
    mute = replace(seen, scrape=scrape, silent={name: seen.now - MUTE_AFTER})
    assert deleted(mute) == [name]
    assert deleted(replace(mute, unheard=(name,))) == []
    pods = tuple(replace(pod, started_at=seen.now - AGAIN_AFTER) if pod.name == name else pod for pod in mute.pods)
    assert deleted(replace(mute, unheard=(name,), pods=pods)) == [name]
