"""A batch in which speculation costs more than it gives: requests side by side praise it, slots show it, and the
product's own window and breaker switch it off."""

import pytest
from benchmarks.saturated import CLIENTS, by_slots, switched_off, true_speedup


def test_a_saturated_batch_is_switched_off_for_its_speed_where_a_request_arm_would_praise_it() -> None:
    world = switched_off(seed=3)
    assert world.condition("SpeculationActive") == ("False", "SpeedupLow")
    assert "SpeculationDisabled" in world.reasons()
    policy = world.policy()
    assert policy is not None
    assert policy["speculation"]["state"] == "Off"
    assert true_speedup() == pytest.approx(0.61, abs=0.01)
    assert by_slots(world) == pytest.approx(true_speedup(), abs=0.05)
    assert world.arms.speedup == pytest.approx(1.9, abs=0.1)


def test_what_is_switched_off_for_its_speed_serves_faster_from_then_on() -> None:
    world = switched_off(seed=4)
    before, tokens = world.batch.now, sum(world.arms.tokens.values())
    speculating = tokens / (sum(world.arms.seconds.values()) / CLIENTS)
    plain = sum(turn.round.emitted for _ in range(200) for turn in world.batch.step(on=False))
    assert plain / (world.batch.now - before) > 1.5 * speculating
