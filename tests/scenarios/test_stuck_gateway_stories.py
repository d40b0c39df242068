"""Gateways that do not hear, and gateways that do not answer: what holds up an abort, for how long, and what never
does."""

import pytest
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push, settled
from tests.scenarios.story_views import deployments, stage, weights

from tandem_operator.domain.actions import Verb
from tandem_operator.domain.progress import Stage


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
