"""Each way back with any one write not made, as by a kill: an abort, a rollback by command and by alert, a switch-off.

Whatever was not written, the next look goes on from what is in the cluster, and the end and what was told are the same.
"""

import itertools
from collections.abc import Callable

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, settled
from tests.domain.upgradable_world import BRIEF, Upgradable
from tests.scenarios.story_views import deployments, served, stage

from tandem_operator.domain.progress import Stage


def at_a_canary() -> World:
    world = installed(BRIEF, rate=20, kind=Upgradable)
    world.edit(target__model__revision=V2, draft__model__revision=V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    return world


def promoted() -> World:
    world = at_a_canary()
    first = world.stable
    world.run_until(lambda seen: seen.stable != first and settled(seen))
    return world


def told_to(world: World, command: str, value: str) -> None:
    world.annotations[f"tandem.dev/{command}"] = value


def abort(world: World) -> None:
    told_to(world, "abort", f"@{world.progress.rollout.revision}#1")


def roll_back(world: World) -> None:
    (other,) = set(world.verdicts()) - {world.stable}
    told_to(world, "rollback-to", f"{other}@{world.stable}#1")


def warn(world: World) -> None:
    alert(world, world.now)


def mispredict(world: World) -> None:
    world.behaviour[world.stable] = Behaviour(acceptance=0.1)


def refused(world: World) -> bool:
    return bool(world.progress.refused) and settled(world)


def switched_off(world: World) -> bool:
    return world.progress.breaker.state == "Disabled"


def speculating() -> World:
    return installed(changed(QUICK, speculation__mode="Auto"), rate=5)


Way = tuple[Callable[[], World], Callable[[World], None], Callable[[World], bool]]
WAYS: dict[str, Way] = {
    "abort": (at_a_canary, abort, refused),
    "rollback by command": (promoted, roll_back, refused),
    "rollback by alert": (promoted, warn, refused),
    "switch-off": (speculating, mispredict, switched_off),
}
QUIET_SECONDS = 60
"""In which what is left to be written is written."""


def there(way: Way, stopped: int | None) -> tuple[object, int]:
    """What stands at the end with one write not made, and how many writes there were."""
    (begin, do, reached), count = way, itertools.count()
    world = begin()
    world.stop_at = lambda _: next(count) == stopped
    do(world)
    world.run_until(reached, within=600)
    world.run(QUIET_SECONDS)
    stands = {name: world.objects["Deployment", name]["spec"] for name in deployments(world)}
    breaker = world.progress.breaker
    told = [event for event in world.reasons() if event in TOLD]
    return (stands, served(world), world.verdicts(), world.progress.refused, breaker.state, told), next(count)


TOLD = ("RollingBack", "RolledBack", "SpeculationDisabled", "CanaryStarted", "Promoted")


@pytest.mark.parametrize("name", WAYS)
def test_whichever_write_of_a_way_back_is_not_made_the_end_is_the_same(name: str) -> None:
    expected, count = there(WAYS[name], None)
    assert count > 0
    for number in range(count):
        assert there(WAYS[name], number)[0] == expected, number
