"""Measures what TLS between the roles costs a round: `make bench NAME=role_tls`.

Refuses to know gateways and models. Two processes serve the same small engine, which answers at once: one in clear, one
over TLS with a certificate that is made for it. This process asks for verifies of 5 guesses, of both in turns, so that
whatever else the machine does meets both alike; a figure is the difference. One session at a time, where a round trip
is timed, and 64 at a time, where the processor time of both ends is.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.seams.role_certificates import RoleAuthority, written
from tests.seams.wire_peers import CountingTarget, opening, verify

from benchmarks.record import record
from benchmarks.stage.fleet import Child, started
from tandem_runtime.domain.tokens import Opened
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.roles import TargetRole
from tandem_runtime.wire.server import EngineServer
from tandem_runtime.wire.tls import RoleTls

GUESSES = (70_000,) * 5
"""None of them is right, so that sessions stay as short as they are."""
TURNS = 40
ROUNDS = {1: 400, 64: 40}
"""Of each session in a turn, by how many there are at a time."""


@dataclass(slots=True)
class Way:
    """One of the two servers and the link to it."""

    child: Child
    remote: RemoteTarget
    seconds: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in ROUNDS})
    """Of a round trip, the median of each turn."""
    computed: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in ROUNDS})
    """By both ends for a round, of each turn."""


async def serve(folder: str) -> None:
    """The server's process; "-" is in clear."""
    tls = None if folder == "-" else RoleTls(Path(folder))
    async with EngineServer(TargetRole(CountingTarget()), host="127.0.0.1", port=0, tls=tls) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


async def way(folder: str, log: Path, stack: AsyncExitStack) -> Way:
    child = await started(["benchmarks.role_tls", folder], log)
    stack.push_async_callback(child.kill)
    assert child.process.stdout is not None
    port = int(await child.process.stdout.readline())
    tls = None if folder == "-" else RoleTls(Path(folder))
    remote = await stack.enter_async_context(RemoteTarget(f"127.0.0.1:{port}", tls=tls))
    await remote.wait_connected()
    return Way(child, remote)


async def rounds(remote: RemoteTarget, name: str, opened: Opened, count: int) -> list[float]:
    """The seconds of each."""
    found = []
    for number in range(count):
        began = time.perf_counter()
        await remote.verify(verify(opened, name, round=number, offset=number, ids=GUESSES))
        found.append(time.perf_counter() - began)
    return found


async def turn(way: Way, sessions: int) -> None:
    """Every session is opened and closed in it."""
    names = [f"s{number}" for number in range(sessions)]
    opened = [await way.remote.open(opening(name)) for name in names]
    before = time.process_time() + way.child.cpu_seconds
    pairs = zip(names, opened, strict=True)
    found = await asyncio.gather(*(rounds(way.remote, name, each, ROUNDS[sessions]) for name, each in pairs))
    computed = time.process_time() + way.child.cpu_seconds - before
    way.seconds[sessions].append(statistics.median(seconds for each in found for seconds in each))
    way.computed[sessions].append(computed / (sessions * ROUNDS[sessions]))
    for name in names:
        await way.remote.close(opening(name).session)


async def measure(place: Path) -> tuple[Way, Way]:
    """In clear, and over TLS."""
    folder = written(place / "tls", RoleAuthority().issue())
    async with AsyncExitStack() as stack:
        clear, secured = [await way(name, place / "log", stack) for name in ("-", str(folder))]
        for number in range(TURNS):
            for one in (clear, secured) if number % 2 else (secured, clear):
                for sessions in ROUNDS:
                    await turn(one, sessions)
    return clear, secured


def figures_of(clear: Way, secured: Way) -> Mapping[str, float]:
    """In microseconds. Of trips the medians; processor time comes in ticks of many rounds, so of that the means."""
    trips = [two - one for one, two in zip(clear.seconds[1], secured.seconds[1], strict=True)]
    figures = {"trip_clear": statistics.median(clear.seconds[1]), "trip_more": statistics.median(trips)}
    for sessions in ROUNDS:
        here, there = (statistics.fmean(one.computed[sessions]) for one in (clear, secured))
        figures |= {f"cpu_clear_{sessions}": here, f"cpu_more_{sessions}": there - here}
    return {f"{name}_us": round(1e6 * seconds, 1) for name, seconds in figures.items()}


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(serve(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        clear, secured = asyncio.run(measure(Path(folder)))
    figures = figures_of(clear, secured)
    for name, value in figures.items():
        print(f"{name:24} {value:8.1f}")
    samples: dict[str, Any] = {
        name: {"seconds": one.seconds, "computed": one.computed} for name, one in (("clear", clear), ("tls", secured))
    }
    print(record("role_tls", seed=0, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
