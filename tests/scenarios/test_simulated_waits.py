"""Simulated stations wait for sessions as the product's step loops do, and take as long as those."""

import asyncio

import pytest
from benchmarks.rig_twin import Beyond, virtually
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import StepCost
from benchmarks.simulator.stations import Asker, Device, Need, Station

from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode

STEP, AWAY, ROUNDS = 0.01, 0.002, 200
RIG = Beyond(target_step=0.0, draft_step=0.0, network=0.001).rig


def seconds_per_round(*, plainly: bool = False, sessions: int = 8) -> float:
    """Of two sessions that begin out of step, each away for a moment between two rounds."""

    async def main() -> float:
        served = Station(StepCost(STEP), chance=lambda: 1.0, sessions=sessions, device=Device())

        async def ask(number: int) -> None:
            await asyncio.sleep(number * STEP / 3)
            for _ in range(ROUNDS):
                await served.meet(Claim(), [Need(1)], asker=Asker(number, plainly=plainly))
                await asyncio.sleep(AWAY + number * STEP / 20)
            served.forget(number)

        await asyncio.gather(ask(0), ask(1))
        return asyncio.get_running_loop().time() / ROUNDS

    return run_virtually(main)


def test_a_step_waits_for_a_session_that_is_about_to_come_back() -> None:
    assert seconds_per_round() == pytest.approx(STEP + AWAY + STEP / 20, rel=0.1)


def test_those_who_decode_plainly_are_not_kept() -> None:
    assert seconds_per_round(plainly=True) == pytest.approx(2 * STEP, rel=0.05)


def test_nobody_is_waited_for_who_has_no_room_in_the_step() -> None:
    assert seconds_per_round(sessions=1) == pytest.approx(2 * STEP, rel=0.05)


@pytest.mark.parametrize("bounds", [OFF, Bounds(4, 4, Mode.ALWAYS)])
def test_stations_take_as_long_as_the_product_s_own_step_loops(bounds: Bounds) -> None:
    """At a K that is given: where the rule is free, four clients are a matter of luck."""
    for seed in (61, 62):
        loops, stations = (
            virtually(seed, 4, bounds, RIG, 0, stations=stations).client_seconds for stations in (False, True)
        )
        assert stations == pytest.approx(loops, rel=0.03)
