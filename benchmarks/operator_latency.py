"""Knows how long the operator takes from a draft that stopped predicting until the policy says so, in virtual time.

Refuses to know processes and API servers. The world is the scenarios' own (`tests.domain.simulated_world`): its
gateways count, and every decision and write is the product's. Looks come as often as decisions ask for them, and
acceptance falls at any moment between two.
"""

import random
from datetime import timedelta

from tests.domain.simulated_specs import BASE, changed
from tests.domain.simulated_world import Behaviour, World, installed

WINDOW_SECONDS = 300
SLACK_SECONDS = 5.0
"""That the operator may take beyond its window."""
GOOD, BAD = 0.85, 0.15
REQUESTS_PER_SECOND = 2.0
SPEC = changed(BASE, autoDisable={"windowSeconds": WINDOW_SECONDS})


def off_after(seed: int) -> float:
    """Seconds from the fall of acceptance until the policy switches speculation off. Raises ValueError where it never
    does."""
    world = installed(SPEC, rate=REQUESTS_PER_SECOND, seed=seed)
    world.behaviour[world.stable] = Behaviour(acceptance=GOOD)
    world.run(WINDOW_SECONDS + 60)
    left = _fall(world, random.Random(seed))
    fell_at = world.now
    while not _is_off(world):
        if world.now - fell_at > timedelta(seconds=4 * WINDOW_SECONDS):
            raise ValueError(f"speculation is still on {4 * WINDOW_SECONDS} s after acceptance fell to {BAD}")
        world.tick(left)
        left = world.decisions[-1].look_again_in_seconds
    return (world.now - fell_at).total_seconds()


def _fall(world: World, chance: random.Random) -> int:
    """Acceptance falls somewhere before the next look; seconds until that one."""
    wait = world.decisions[-1].look_again_in_seconds
    passed = chance.randrange(wait)
    world.now += timedelta(seconds=passed)
    world.serve(passed)
    world.behaviour[world.stable] = Behaviour(acceptance=BAD)
    return wait - passed


def _is_off(world: World) -> bool:
    policy = world.policy()
    return policy is not None and bool(policy["speculation"]["state"] == "Off")
