"""Measures how many rounds and how many idle streams one gateway carries: `make bench NAME=gateway_load`.

Refuses to know models. A gateway is one process, both engines are another, the callers are this one; engines take
stated times and compute nothing (`benchmarks.stage.engines`). Two guesses a round, all right: 3 tokens. Answers have
100 rounds and come as events.

**Load.** Open loop: requests arrive by chance (Poisson), whatever became of those before, at the rate at which 256
sessions are in progress if nothing is added. At the start 256 are, each at a place of its own. What is offered rises in
rungs, by rounds that take less time: 128 ms is 2,000 rounds a second from 256 sessions, 40 ms is 6,400. A rung is a
stretch of 15 s after 3; its sample is each round that ended in it, as what was added to it: the gap between two pieces
of text at the caller, less what the engines took in between by their own clocks. *Dropped* are streams that began in it
or before and did not come whole. The first rung at which something was dropped, or the slowest hundredth of the rounds
took more than 20 ms too long, is the last.

**Idle streams.** A fresh gateway after a few answers; then 1,000 streams of which each has had its first round, and
whose next never ends. What the process has in memory more is shared among them.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.record import record
from benchmarks.stage.added import Counts, Rounds, added_ms, counted, first_added_ms, percentile, read_rounds
from benchmarks.stage.fleet import TOKENIZER, Gateway, allow_open_files, timed_fleet
from benchmarks.stage.prompts import Told
from benchmarks.stage.streams import Stream, begun, completion

SEED, K = 29, 2
SESSIONS, ANSWER_ROUNDS = 256, 100
RUNGS: Sequence[tuple[float, float]] = ((16.0, 96.0), (15.0, 90.0), (10.0, 60.0), (8.0, 48.0), (5.0, 30.0))
"""Milliseconds of a guess and of a verify."""
SETTLE_SECONDS, MEASURED_SECONDS = 3.0, 15.0
MOST_ADDED_MS = 20.0
IDLE_STREAMS, WARM_UP_STREAMS = 1_000, 16
CALM_SECONDS = 2.0
AT_A_TIME = 20
MOST_REQUESTS = 2 * SESSIONS
"""Choices that the gateway takes at a time: more than chance makes of 256."""
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Rung:
    """One load: how long a round takes, and what follows."""

    guess_ms: float
    verify_ms: float

    @property
    def round_seconds(self) -> float:
        return (K * self.guess_ms + self.verify_ms) / 1000

    @property
    def offered_per_s(self) -> float:
        return SESSIONS / self.round_seconds

    @property
    def arrivals_per_s(self) -> float:
        return self.offered_per_s / ANSWER_ROUNDS


@dataclass(slots=True)
class Asked:
    """A stream, and how many rounds it has."""

    number: int
    rounds: int
    stream: Stream | None = None
    """Absent where it could not even be asked for."""


@dataclass(slots=True)
class Climb:
    """One rung as it was climbed. Moments are seconds of `time.monotonic`."""

    rung: Rung
    began: float = 0.0
    ended: float = 0.0
    cpu_seconds: float = 0.0
    """Of the gateway, in the measured stretch."""
    asked: list[Asked] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        return sum(each.stream is None or not each.stream.pieces(each.rounds) for each in self.asked)


class Callers:
    """Asks for streams, each with a number of its own."""

    def __init__(self, port: int, numbers: Iterator[int]) -> None:
        self._port = port
        self._numbers = numbers
        self._asking: set[asyncio.Task[None]] = set()

    def ask(self, climb: Climb, rounds: int) -> None:
        """In the background: who arrives does not wait for others."""
        asked = Asked(next(self._numbers), rounds)
        climb.asked.append(asked)
        asking = asyncio.create_task(self._ask(climb.rung, asked))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _ask(self, rung: Rung, asked: Asked) -> None:
        told = Told(asked.number, rung.guess_ms, rung.verify_ms)
        try:
            asked.stream = await begun(self._port, completion(told, tokens=asked.rounds * (K + 1)))
        except OSError:
            return
        await asked.stream.ended.wait()

    async def settled(self) -> None:
        """Returns when all have ended; who has not in time is left."""
        if self._asking:
            await asyncio.wait(self._asking, timeout=END_SECONDS)


async def climbed(gateway: Gateway, rung: Rung, callers: Callers, chance: random.Random) -> Climb:
    """One rung, until its last stream has ended."""
    climb = Climb(rung)
    for _ in range(SESSIONS):
        callers.ask(climb, chance.randint(1, ANSWER_ROUNDS))
        await asyncio.sleep(chance.expovariate(SESSIONS))
    stopping = asyncio.get_running_loop().time() + SETTLE_SECONDS - 1 + MEASURED_SECONDS
    arriving = asyncio.create_task(_arrivals(climb, callers, chance))
    await asyncio.sleep(SETTLE_SECONDS - 1)
    climb.began, before = time.monotonic(), gateway.child.cpu_seconds
    await asyncio.sleep(stopping - asyncio.get_running_loop().time())
    climb.ended, climb.cpu_seconds = time.monotonic(), gateway.child.cpu_seconds - before
    arriving.cancel()
    await callers.settled()
    for each in climb.asked:
        if each.stream is not None:
            each.stream.leave()
    return climb


async def _arrivals(climb: Climb, callers: Callers, chance: random.Random) -> None:
    """By the clock: a loop that is late makes up for it."""
    due = time.monotonic()
    while True:
        due += chance.expovariate(climb.rung.arrivals_per_s)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        callers.ask(climb, ANSWER_ROUNDS)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a rung showed."""

    added: Counts
    first: Counts
    rounds: int
    seconds: float
    dropped: int
    cpu_seconds: float
    """Of the gateway."""

    @property
    def carried_per_s(self) -> float:
        return self.rounds / self.seconds

    @property
    def holds(self) -> bool:
        return not self.dropped and percentile(self.added, 0.99) <= MOST_ADDED_MS


def shown(climb: Climb, log: Rounds) -> Shown:
    added: list[float] = []
    first: list[float] = []
    for each in climb.asked:
        pieces = [] if each.stream is None else each.stream.pieces(each.rounds)
        if each.stream is None or not pieces:
            continue
        rounds = log[each.number]
        per_round = added_ms(pieces, rounds, skipped=1)
        added += [ms for ms, end in zip(per_round, pieces[1:], strict=True) if climb.began <= end < climb.ended]
        if climb.began <= pieces[0] < climb.ended:
            first.append(first_added_ms(each.stream.asked, pieces, rounds))
    rounds_counted = len(added) + len(first)
    seconds = climb.ended - climb.began
    return Shown(counted(added), counted(first), rounds_counted, seconds, climb.dropped, climb.cpu_seconds)


async def climb_in(place: Path, rung: Rung) -> Shown:
    """One rung, on processes of its own."""
    async with timed_fleet(place, TOKENIZER, k=K) as (fleet, engines):
        gateway = await fleet.gateway("gateway", "--max-requests", str(MOST_REQUESTS))
        await gateway.until_ready(drafts=True)
        climb = await climbed(gateway, rung, Callers(gateway.port, itertools.count()), random.Random(SEED))
        await engines.end()
    return shown(climb, read_rounds(place / "rounds.json"))


@dataclass(frozen=True, slots=True)
class Idle:
    """Bytes that a gateway's process had, with how many streams that were idle."""

    before: int
    after: int
    streams: int

    @property
    def per_stream(self) -> float:
        return (self.after - self.before) / self.streams


async def idled(gateway: Gateway, numbers: Iterator[int]) -> Idle:
    """Ends the command where not all could be had."""
    warm = [await begun(gateway.port, completion(Told(next(numbers), 1, 2), tokens=60)) for _ in range(WARM_UP_STREAMS)]
    await asyncio.gather(*(stream.ended.wait() for stream in warm))
    await asyncio.sleep(CALM_SECONDS)
    before, streams = gateway.child.resident_bytes, list[Stream]()
    while len(streams) < IDLE_STREAMS:
        requests = [completion(Told(next(numbers), 1, None), tokens=60) for _ in range(AT_A_TIME)]
        streams += await asyncio.gather(*(begun(gateway.port, request) for request in requests))
        await asyncio.sleep(0.1)
    await asyncio.sleep(CALM_SECONDS)
    idle = Idle(before, gateway.child.resident_bytes, sum(bool(each.moments) for each in streams))
    for stream in streams:
        stream.leave()
    if idle.streams < IDLE_STREAMS:
        raise SystemExit(
            f"{idle.streams} of {IDLE_STREAMS} streams began; the gateway's log says why the others did not"
        )
    return idle


async def idle_in(place: Path) -> Idle:
    async with timed_fleet(place, TOKENIZER, k=K) as (fleet, _):
        gateway = await fleet.gateway("gateway", "--max-requests", str(IDLE_STREAMS + WARM_UP_STREAMS))
        await gateway.until_ready(drafts=True)
        return await idled(gateway, itertools.count())


def climb_all() -> Iterator[tuple[Rung, Shown]]:
    """Up to the first rung that does not hold."""
    for guess_ms, verify_ms in RUNGS:
        rung = Rung(guess_ms, verify_ms)
        with tempfile.TemporaryDirectory() as place:
            seen = asyncio.run(climb_in(Path(place), rung))
        yield rung, seen
        if not seen.holds:
            return


def line_of(rung: Rung, seen: Shown) -> str:
    p50, p99 = (percentile(seen.added, share) for share in (0.5, 0.99))
    first, busy = percentile(seen.first, 0.99), seen.cpu_seconds / seen.seconds
    told = f"{rung.offered_per_s:18.0f} {1000 * rung.round_seconds:10.0f} {seen.carried_per_s:9.0f}"
    return f"{told} {p50:14.2f} {p99:8.2f} {first:14.1f} {seen.dropped:9} {busy:14.2f}"


def main() -> None:
    allow_open_files()
    print("offered rounds/s   round ms   carried   added p50 ms   p99 ms   first p99 ms   dropped   gateway cores")
    rungs: dict[str, Any] = {}
    most, first = 0.0, None
    for rung, seen in climb_all():
        print(line_of(rung, seen), flush=True)
        rungs[f"{rung.offered_per_s:.0f}"] = {
            "added_ms": seen.added,
            "first_added_ms": seen.first,
            "rounds": seen.rounds,
            "seconds": seen.seconds,
            "dropped": seen.dropped,
            "gateway_cpu_seconds": seen.cpu_seconds,
        }
        first = first or seen
        most = max(most, seen.carried_per_s) if seen.holds else most
    if first is None or not first.added:
        raise SystemExit("not one stream of the first rung came whole")
    with tempfile.TemporaryDirectory() as place:
        idle = asyncio.run(idle_in(Path(place)))
    print(f"{idle.streams} idle streams: {idle.before / 2**20:.0f} MB before, {idle.after / 2**20:.0f} with them")
    figures = {
        "rounds_per_s": round(most, 1),
        "carried_rounds_per_s": round(first.carried_per_s, 1),
        "added_p50_ms": percentile(first.added, 0.5),
        "added_p99_ms": percentile(first.added, 0.99),
        "dropped": first.dropped,
        "bytes_per_idle_stream": round(idle.per_stream),
        "gateway_cpu_ms_per_round": round(1000 * first.cpu_seconds / first.rounds, 3),
    }
    samples = {"rungs": rungs, "idle": {"before": idle.before, "after": idle.after, "streams": idle.streams}}
    print(record("gateway_load", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
