"""The simulator: time that jumps, queues whose waits are known, the product's driver at the closed form's speed."""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
from benchmarks.recorded import Outcomes
from benchmarks.simulator.acceptance import Recorded, chance
from benchmarks.simulator.clock import Stalled, VirtualClock, run_virtually
from benchmarks.simulator.costs import CROWDED, FLAT, StepCost, speed_up
from benchmarks.simulator.oracle import Fixed, Watched
from benchmarks.simulator.stations import Device, Need, Station
from benchmarks.simulator.world import ON, Books, Setting, World

from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.cells import SILENCE_TOKENS, Lookahead, Shared
from tandem_runtime.domain.lookahead import OFF, Bounds, Rule

STEP = 0.01
QUIET = replace(FLAT, noise=0.0)


def serve(
    asking: Callable[[World], Awaitable[object]],
    setting: Setting,
    *,
    rule: Lookahead | Shared | None = None,
    alpha: float = 0.8,
    bounds: Bounds = ON,
) -> Books:
    async def main() -> Books:
        world = World(
            setting, acceptance=chance(alpha, setting.seed), lookahead=rule or Shared(), bounds=lambda: bounds
        )
        await asking(world)
        return world.books

    return run_virtually(main)


def station(sessions: int = 1, device: Device | None = None) -> Station:
    return Station(StepCost(STEP), chance=lambda: 1.0, sessions=sessions, device=device or Device())


def test_an_hour_passes_at_once_and_timers_ring_in_order() -> None:
    async def main() -> list[float]:
        clock, rang = VirtualClock(), list[float]()

        async def ring(seconds: float) -> None:
            await asyncio.sleep(seconds)
            rang.append(clock.monotonic())

        await asyncio.gather(*(ring(seconds) for seconds in (3600.0, 0.5, 60.0)))
        return rang

    assert run_virtually(main) == [0.5, 60.0, 3600.0]


def test_a_world_in_which_nothing_can_happen_any_more_is_a_fault() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stalled, match="every task waits"):
        run_virtually(main)


def waits(gaps: list[float]) -> list[float]:
    """How long each of the jobs that arrive at these gaps waits for its step, one step for each."""

    async def main() -> list[float]:
        served, waited = station(), list[float]()

        async def job() -> None:
            (took,) = await served.meet(Claim(), [Need(1)])
            waited.append(took.queue_seconds)

        jobs = []
        for gap in gaps:
            await asyncio.sleep(gap)
            jobs.append(asyncio.create_task(job()))
        await asyncio.gather(*jobs)
        return waited

    return run_virtually(main)


def arrivals(load: float, count: int) -> list[float]:
    draws = random.Random(5)
    return [draws.expovariate(load / STEP) for _ in range(count)]


def test_each_wait_is_what_lindley_s_recursion_says() -> None:
    gaps = arrivals(0.8, 300)
    expected = list(accumulate(gaps[1:], lambda wait, gap: max(0.0, wait + STEP - gap), initial=0.0))
    assert waits(gaps) == pytest.approx(expected, abs=1e-9)


def test_the_mean_wait_is_that_of_an_m_d_1_queue() -> None:
    load = 0.3
    assert statistics.mean(waits(arrivals(load, 3000))) == pytest.approx(load * STEP / (2 * (1 - load)), rel=0.1)


def test_clients_are_throughput_times_response_as_little_s_law_says() -> None:
    setting = Setting(seed=1, rig=QUIET, prompt_tokens=8, answer_tokens=16, sessions=2)
    books = serve(lambda world: world.closed_loop(6, 4), setting, bounds=OFF)
    ends = [answer.arrived + answer.seconds for answer in books.answers]
    throughput = len(books.answers) / max(ends)
    assert throughput * statistics.mean(answer.seconds for answer in books.answers) == pytest.approx(6, rel=0.05)


def test_sessions_that_are_ready_share_a_step_as_far_as_its_bound_allows() -> None:
    async def main(sessions: int) -> float:
        served = station(sessions)
        await asyncio.gather(*(served.meet(Claim(), [Need(1)] * 3) for _ in range(4)))
        return asyncio.get_running_loop().time()

    assert run_virtually(lambda: main(4)) == pytest.approx(3 * STEP)
    assert run_virtually(lambda: main(2)) == pytest.approx(6 * STEP)


def test_a_long_prompt_is_read_in_chunks_beside_those_who_decode() -> None:
    async def main() -> tuple[float, float]:
        served, loop = station(8), asyncio.get_running_loop()

        async def end(need: Need) -> float:
            await served.meet(Claim(), [need])
            return loop.time()

        long, short = await asyncio.gather(end(Need(600)), end(Need(1)))
        return long, short

    assert run_virtually(main) == pytest.approx((3 * STEP, STEP))


def test_stations_on_one_device_take_turns() -> None:
    async def main() -> float:
        device = Device()
        both = station(8, device), station(8, device)
        await asyncio.gather(*(each.meet(Claim(), [Need(1)] * 5) for each in both))
        return asyncio.get_running_loop().time()

    assert run_virtually(main) == pytest.approx(10 * STEP)


def test_a_job_that_is_cancelled_leaves_the_queue() -> None:
    async def main() -> float:
        served = station()
        left = asyncio.create_task(served.meet(Claim(), [Need(1)] * 100))
        await asyncio.sleep(1.5 * STEP)
        left.cancel()
        await served.meet(Claim(), [Need(1)])
        return asyncio.get_running_loop().time()

    assert run_virtually(main) == pytest.approx(3 * STEP)


@pytest.mark.parametrize(("alpha", "k"), [(0.8, 4), (0.3, 3)])
def test_at_constant_acceptance_the_driver_is_as_fast_as_the_closed_form(alpha: float, k: int) -> None:
    setting = Setting(seed=3, rig=QUIET, answer_tokens=700)
    plain = serve(lambda world: world.ask(0), setting, bounds=OFF)
    speculating = serve(lambda world: world.ask(0), setting, rule=Fixed(k), alpha=alpha)
    gain = plain.client_seconds / speculating.client_seconds
    assert gain == pytest.approx(speed_up(QUIET, alpha, k), rel=0.04)


def test_the_same_seed_gives_the_same_world_and_another_one_does_not() -> None:
    def books(seed: int) -> Books:
        return serve(lambda world: world.poisson(2.0, 6), Setting(seed=seed, answer_tokens=32))

    assert books(1) == books(1)
    assert books(1) != books(2)


def test_text_is_as_long_as_asked_whatever_is_proposed() -> None:
    tokens = {
        k: [
            answer.tokens for answer in serve(lambda world: world.closed_loop(3, 2), Setting(seed=k), rule=rule).answers
        ]
        for k, rule in ((0, Fixed(0)), (7, Fixed(7)))
    }
    assert tokens == {0: [128] * 6, 7: [128] * 6}


def test_requests_go_to_the_draft_with_the_fewest() -> None:
    async def main() -> list[int]:
        setting = Setting(seed=1, rig=QUIET, answer_tokens=32, drafts=2)
        world = World(setting, acceptance=chance(0.8, 1), lookahead=Fixed(4))
        await world.closed_loop(4, 1)
        return [station.usage.parts for station in world.draft_stations]

    first, second = run_virtually(main)
    assert min(first, second) > 0.7 * max(first, second)


def test_a_recorded_trace_is_served_as_it_was_recorded() -> None:
    text = Outcomes("task", "prompt", 0.0, 5, "11010111", offered="11011111", credits=(0.5,) * 8)
    trace = Recorded("pair", "recorded", "suffix lookup", (text,))

    async def main() -> list[tuple[int, int, tuple[float, ...]]]:
        world = World(Setting(seed=1, rig=QUIET), acceptance=trace, lookahead=Fixed(4))
        await world.ask(0)
        return [(seen.round.proposed, seen.round.accepted, seen.round.credits) for seen in world.books.rounds]

    assert trace.is_lookup
    assert run_virtually(main)[:2] == [(2, 2, (0.5, 0.5)), (4, 1, (0.5, 0.5))]


@dataclass
class Turning:
    """Answers of 128 tokens with an acceptance of `early`; once `turned`, of 6, where each guess is right."""

    early: float
    turned: bool = False

    def right(self, text: int, position: int) -> bool:
        return self.turned or chance(self.early, seed=1).right(text, position)

    def offered(self, text: int, position: int) -> bool:
        return True

    def credit(self, text: int, position: int) -> None:
        return None

    def lengths(self, text: int) -> tuple[int, int]:
        return 8, 6 if self.turned else 128


@pytest.mark.parametrize("early", [0.0, 0.3])
def test_a_draft_that_becomes_good_is_noticed_where_answers_are_too_short_to_be_listened_to(early: float) -> None:
    """Whether or not there was hope in what was heard of it before."""

    async def main() -> int:
        answers = Turning(early)
        world = World(Setting(seed=5), acceptance=answers, lookahead=Shared())
        await world.one_after_another(24)
        answers.turned, before = True, len(world.books.rounds)

        def since() -> list[int]:
            return world.books.k_by_round[before:]

        await world.one_after_another(1400, first=24, until=lambda: max(since(), default=0) > 1)
        return len(since()) if max(since()) > 1 else 0

    assert 0 < run_virtually(main) < SILENCE_TOKENS + 8 * 128


def test_sessions_that_share_a_target_do_not_keep_each_other_proposing_what_is_always_wrong() -> None:
    rule = Watched()
    serve(lambda world: world.closed_loop(4, 2), Setting(seed=31, rig=CROWDED), rule=rule, alpha=0.0)
    assert rule.rules.count(Rule.PAYS) < 0.1 * len(rule.rules)
