"""Knows how fast many clients are served by one verifier, and how many are served at a given speed each.

Refuses to know what the drafting costs elsewhere. Clients ask again as soon as they are answered; speed per client is
tokens per second of the verifier over clients, counted while all of them are at work: from when each has had an answer
until the first has had its last. With more clients than a step takes a verifier is saturated, and the speed falls as
one over the clients; between two counts of clients one over the speed is interpolated.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulator.acceptance import chance
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import Rig
from benchmarks.simulator.stations import Usage
from benchmarks.simulator.world import ON, Books, Setting, World
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.lookahead import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who is served by what: `requests` of each client, of which the first does not count."""

    clients: int
    rig: Rig
    alpha: float
    seed: int
    drafts: int = 1
    colocated: bool = False
    sessions: int = 16
    requests: int = 3
    bounds: Bounds = ON


@dataclass(frozen=True, slots=True)
class Load:
    """`speed` in tokens per second of each client; shares of the time that target and drafts computed."""

    clients: int
    speed: float
    target_busy: float
    draft_busy: float
    mean_k: float

    @property
    def tokens_per_second(self) -> float:
        return self.speed * self.clients


def measure(crowd: Crowd) -> Load:
    async def main() -> Load:
        setting = Setting(
            seed=crowd.seed,
            rig=crowd.rig,
            sessions=crowd.sessions,
            drafts=crowd.drafts,
            colocated=crowd.colocated,
        )
        acceptance = chance(crowd.alpha, crowd.seed)
        world = World(setting, acceptance=acceptance, lookahead=Shared(), bounds=lambda: crowd.bounds)
        await world.closed_loop(crowd.clients, crowd.requests)
        return _load(crowd, world)

    return run_virtually(main)


def clients_at(speed: float, loads: Callable[[int], Load], low: int, high: int) -> float:
    """How many clients get `speed` each, from loads at `low` and `high` clients, which should stand close around it."""
    slow, fast = 1 / loads(high).speed, 1 / loads(low).speed
    return low + (high - low) * (1 / speed - fast) / (slow - fast)


def _load(crowd: Crowd, world: World) -> Load:
    began, ended = _while_all_work(crowd, world.books)
    counted = [seen.round for seen in world.books.rounds if began < seen.at <= ended]
    elapsed = world.clock.monotonic()
    return Load(
        clients=crowd.clients,
        speed=sum(round.emitted for round in counted) / (ended - began) / crowd.clients,
        target_busy=_busy([world.target_station.usage], elapsed),
        draft_busy=_busy([station.usage for station in world.draft_stations], elapsed),
        mean_k=sum(round.proposed for round in counted) / len(counted),
    )


def _while_all_work(crowd: Crowd, books: Books) -> tuple[float, float]:
    """From the last client's first answer to the first client's last."""
    ends: dict[int, list[float]] = {}
    for answer in books.answers:
        ends.setdefault(answer.text // crowd.requests, []).append(answer.arrived + answer.seconds)
    return max(min(times) for times in ends.values()), min(max(times) for times in ends.values())


def _busy(usages: list[Usage], elapsed: float) -> float:
    return sum(usage.busy_seconds for usage in usages) / len(usages) / elapsed
