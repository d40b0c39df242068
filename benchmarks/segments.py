"""Measures whether a belief per task, or per temperature, gains over a wider one: `make bench NAME=segments`.

Refuses to know real engines: time is virtual (`benchmarks.simulator`), acceptance is that of recorded traces, while
driver, session, K rule and its segments are the product's own.

The load is what a gateway sees: 8 clients, whose requests are the texts of one trace in an order drawn by chance, so
that tasks and temperatures are mixed. They are served with one belief for all, with one for each temperature, as
`domain.segments` has it, and with one for each task within those; each begins knowing nothing. Gains are seconds of all
requests over seconds, median over `--orders` such orders: per temperature over one for all, per task over per
temperature. Narrow segments learn from less: what that costs where they divide nothing is told by lots, 8 of them, to
which prompts belong by chance. A session has a part of its belief for itself in any case.

Costs are the flat rig's. A lookup's guesses cost nothing, and where it has none it offers nothing.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias
from zlib import crc32

from benchmarks.page import shares
from benchmarks.record import record
from benchmarks.recorded import Outcomes, Trace, read_traces
from benchmarks.simulator.acceptance import Recorded, recorded
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import FLAT, LOOKUP
from benchmarks.simulator.world import Setting, World
from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.segments import Segment, Segments, heat_of

SEED, ORDERS, CLIENTS, LOTS = 31, 1, 8, 8
WORTH = 0.01
"""A segment of its own is worth so much."""
Division: TypeAlias = Callable[[Outcomes], Segment]
PAIR = "pair"
DIVISIONS: Mapping[str, Division] = {
    "one": lambda _: Segment(PAIR),
    "temperature": lambda of: Segment(PAIR, heat=heat_of(of.temperature)),
    "task": lambda of: Segment(PAIR, AdapterDigest(of.task), heat_of(of.temperature)),
    "lot": lambda of: Segment(PAIR, AdapterDigest(str(crc32(of.prompt.encode()) % LOTS)), heat_of(of.temperature)),
}
"""A task or lot stands where an adapter would, so that it begins as a segment of the same pair does."""
WITHIN = {"temperature": "one", "task": "temperature", "lot": "temperature"}
"""What each divides."""


class Mixed(World):
    """A session begins in its segment."""

    def __init__(self, load: Recorded, division: Division, setting: Setting) -> None:
        super().__init__(setting, acceptance=load, lookahead=Lookahead())
        self.load, self.division, self.segments = load, division, Segments()

    def lookahead_of(self, text: int) -> Lookahead:
        return self.segments.begin(self.division(self.load.texts[text]))


def serve(trace: Trace, division: Division, order: int) -> dict[str, float]:
    """Seconds of all requests, tokens and rounds."""
    load = mixed(trace, order)
    setting = Setting(seed=order, rig=LOOKUP if load.is_lookup else FLAT, draft_is_free=load.is_lookup)

    async def main() -> dict[str, float]:
        world = Mixed(load, division, setting)
        await world.closed_loop(CLIENTS, len(load.texts) // CLIENTS)
        books = world.books
        return {"seconds": books.client_seconds, "tokens": books.tokens, "rounds": len(books.rounds)}

    return run_virtually(main)


def mixed(trace: Trace, order: int) -> Recorded:
    """All texts of a trace, in an order of chance."""
    texts = list(trace.sequences)
    random.Random(f"{trace.name} {order}").shuffle(texts)
    return replace(recorded(trace), texts=tuple(texts))


def comparisons(trace: Trace) -> list[tuple[str, str]]:
    """What can be compared in this trace: a division that is one, and the wider one within which it divides."""

    def segments(kind: str) -> int:
        return len(set(map(DIVISIONS[kind], trace.sequences)))

    return [(wide, narrow) for narrow, wide in WITHIN.items() if segments(narrow) > segments(wide)]


def measure(trace: Trace, orders: int) -> tuple[dict[str, float], dict[str, list[dict[str, float]]]]:
    """Gains by division, and what they are computed from."""
    compared = comparisons(trace)
    kinds = dict.fromkeys(kind for both in compared for kind in both)
    samples = {kind: [serve(trace, DIVISIONS[kind], SEED + order) for order in range(orders)] for kind in kinds}
    gains = {
        narrow: statistics.median(
            one["seconds"] / many["seconds"] for one, many in zip(samples[wide], samples[narrow], strict=True)
        )
        for wide, narrow in compared
    }
    return gains, samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.segments", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trace", help="this one alone; nothing is written")
    parser.add_argument("--orders", type=int, default=ORDERS)
    asked = parser.parse_args()
    found = [trace for trace in read_traces() if comparisons(trace) and asked.trace in (None, trace.name)]
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    for trace in found:
        gains, samples[trace.name] = measure(trace, asked.orders)
        figures |= {f"{kind}_gain_{trace.name}": round(gain, 4) for kind, gain in gains.items()}
        told = "  ".join(f"per {kind} {gain:.4f}" for kind, gain in gains.items())
        print(f"{trace.name:22} {told}   ({shares(trace)})", flush=True)
    if asked.trace:
        return
    for kind in WITHIN:
        every = [value for name, value in figures.items() if name.startswith(f"{kind}_gain_")]
        worth = sum(value >= 1 + WORTH for value in every)
        figures |= {f"{kind}_gain_least": min(every), f"{kind}_gain_most": max(every), f"{kind}_worth_it": worth}
        print(f"per {kind}: {min(every):.4f} to {max(every):.4f}; worth it in {worth} of {len(every)} traces")
    print(record("segments", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
