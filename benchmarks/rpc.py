"""Measures what gateway and RPC add to a round of propose and verify, over real sockets: `make bench NAME=rpc`.

Refuses to know models. A gateway is one process, both engines are another, the callers are this one. The engines take
stated times and compute nothing (`benchmarks.stage.engines`): 4 ms for each of 5 guesses and 18 ms for a verify, so a
stream asks for a round every 38 ms and what is added. All guesses are right: 6 tokens a round, coupled.

A sample is one round of one stream: the gap between two pieces of text at the caller, less what draft and target took
in between by their own clocks. So it holds two calls there and back, the session, the K rule's bookkeeping, the text
and the event. With one stream, and with 64 that begin at moments spread by chance; beside them what the gateway's
process computed for a round. The same again through the floor, a gateway and engines with nothing of the product in
them (`benchmarks.stage.floor`): what gRPC, loops and system take by themselves. A verify's bytes are those of its
message, with beliefs about its guesses and without logprobs, at offset 4,096 of a text whose ids take three bytes each.
"""

import asyncio
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import record
from benchmarks.stage.added import Counts, added_ms, counted, percentile, read_rounds
from benchmarks.stage.fleet import TOKENIZER, Gateway, bare_fleet, timed_fleet
from benchmarks.stage.prompts import Told
from benchmarks.stage.streams import Stream, begun, completion, leaving
from tandem_runtime.domain.tokens import Incarnation, Proposal, SessionId, Verdict, VerifyRound
from tandem_runtime.wire import codec

SEED, K = 23, 5
GUESS_MS, VERIFY_MS = 4.0, 18.0
CYCLE_SECONDS = (K * GUESS_MS + VERIFY_MS) / 1000
ROUNDS = {1: 500, 64: 400}
"""Of each stream, by how many there are at a time: some 20 s."""
WARM_UP = 20
CPU_FIGURE = "gateway_cpu_ms_per_round"
LARGEST_ID, OFFSET, ROUND, CALL = 150_000 - 1, 4_096, 700, 1_000_000
"""Of a verify whose bytes are counted."""


@dataclass(frozen=True, slots=True)
class Run:
    """So many streams at a time, by number, and what the gateway's process computed meanwhile."""

    streams: dict[int, Stream]
    rounds: int
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        """From the first piece to the last."""
        moments = [moment for stream in self.streams.values() for moment in stream.moments]
        return max(moments) - min(moments)

    @property
    def offered_per_s(self) -> float:
        """Rounds that the streams would ask for if nothing were added."""
        return len(self.streams) / CYCLE_SECONDS

    @property
    def carried_per_s(self) -> float:
        return len(self.streams) * self.rounds / self.seconds


async def run(gateway: Gateway, count: int, first: int) -> Run:
    """`count` streams, numbered from `first`, to their ends."""
    chance, rounds = random.Random(SEED), ROUNDS[count]
    before = gateway.child.cpu_seconds
    with leaving() as streams:
        for number in range(first, first + count):
            request = completion(Told(number, GUESS_MS, VERIFY_MS), tokens=rounds * (K + 1))
            streams.append(await begun(gateway.port, request))
            await asyncio.sleep(chance.random() * 2 * CYCLE_SECONDS)
        await asyncio.gather(*(stream.ended.wait() for stream in streams))
    return Run(dict(enumerate(streams, start=first)), rounds, gateway.child.cpu_seconds - before)


async def measure(place: Path) -> dict[int, Run]:
    """By the number of streams."""
    async with timed_fleet(place, TOKENIZER, k=K) as (fleet, engines):
        gateway = await fleet.gateway("gateway")
        await gateway.until_ready(drafts=True)
        runs = {count: await run(gateway, count, first=1_000 * count) for count in ROUNDS}
        await engines.end()
    return runs


async def measure_floor(place: Path) -> dict[int, Run]:
    """Likewise."""
    async with bare_fleet(place, k=K) as (gateway, engines):
        runs = {count: await run(gateway, count, first=1_000 * count) for count in ROUNDS}
        await engines.end()
    return runs


def samples_of(ran: Run, written: Path) -> Counts:
    """By the engines' log. Ends the command where a stream was not whole."""
    log = read_rounds(written)
    found: list[float] = []
    for number, stream in ran.streams.items():
        pieces = stream.pieces(ran.rounds)
        if not pieces:
            raise SystemExit(
                f"stream {number} ended with {len(stream.moments)} events; the logs lay in {written.parent}"
            )
        found += added_ms(pieces, log[number], skipped=WARM_UP)
    return counted(found)


def bytes_of_a_verify() -> tuple[int, int]:
    """There and back."""
    life = Incarnation("life")
    guesses = Proposal(ids=(LARGEST_ID,) * K)
    asked = VerifyRound(SessionId("s"), life, ROUND, OFFSET, guesses, survivals=(0.8, 0.64, 0.5, 0.4, 0.3))
    told = Verdict(
        ROUND, OFFSET, K, LARGEST_ID, queue_seconds=0.002, forward_seconds=0.018, kv_used=0.5, rows=64, beside=300
    )
    up = codec.request_frame(asked, call=CALL, session=64, bound=life)
    return len(up), len(codec.reply_frame(told, call=CALL))


def figures_of(ran: Run, counts: Counts, *, of: str = "") -> dict[str, float]:
    streams = len(ran.streams)
    return {
        f"{of}added_p50_ms_{streams}": percentile(counts, 0.5),
        f"{of}added_p99_ms_{streams}": percentile(counts, 0.99),
        f"{of}offered_rounds_per_s_{streams}": round(ran.offered_per_s, 1),
        f"{of}carried_rounds_per_s_{streams}": round(ran.carried_per_s, 1),
        f"{of}{CPU_FIGURE}_{streams}": round(1000 * ran.cpu_seconds / (streams * ran.rounds), 3),
    }


def told(ran: Run, written: Path, *, of: str = "") -> tuple[dict[str, float], dict[str, Any]]:
    """A line about it; its figures and samples, by names that begin with `of`."""
    counts, streams = samples_of(ran, written), len(ran.streams)
    figures = figures_of(ran, counts, of=of)
    offered, carried, p50, p99, cpu = (
        figures[f"{of}{name}_{streams}"]
        for name in ("offered_rounds_per_s", "carried_rounds_per_s", "added_p50_ms", "added_p99_ms", CPU_FIGURE)
    )
    print(f"{streams:7} {offered:18} {carried:9} {p50:14.2f} {p99:8.2f} {cpu:26.3f}   {of.strip('_')}")
    whole = {"rounds": streams * ran.rounds, "seconds": ran.seconds, "cpu": ran.cpu_seconds}
    return figures, {f"{of}added_ms_{streams}": counts, f"{of}run_{streams}": whole}


def main() -> None:
    figures: dict[str, float] = {}
    samples: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        runs, bare = asyncio.run(measure(place)), asyncio.run(measure_floor(place))
        print("streams   offered rounds/s   carried   added p50 ms   p99 ms   gateway's CPU ms a round")
        for count in ROUNDS:
            for ran, written, of in ((runs[count], "rounds.json", ""), (bare[count], "floor.json", "floor_")):
                found, sampled = told(ran, place / written, of=of)
                figures |= found
                samples |= sampled
    up, down = bytes_of_a_verify()
    figures |= {"verify_bytes_up": up, "verify_bytes_down": down}
    print(f"a verify of {K} guesses: {up} bytes up, {down} down")
    print(record("rpc", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
