"""Measures whether a K rule per task, or per temperature, gains over one for all: `make bench NAME=segments`.

Refuses to know real engines: time is virtual (`benchmarks.simulator`), acceptance is that of recorded traces, while
driver, session and K rule are the product's own.

The load is what a gateway sees: 8 clients, whose requests are the texts of one trace, twice over, in an order drawn by
chance, so that tasks and temperatures are mixed. They are served three times: by one rule for all, by one for each
task, by one for each temperature; each begins knowing nothing. The gain is the sum of the requests' seconds under the
one over that under the many; median of so many orders. Several rules learn more slowly, so a gain may be a loss.

Costs are the flat rig's. A lookup's guesses cost nothing, and where it has none it offers nothing.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.page import shares
from benchmarks.record import record
from benchmarks.recorded import Outcomes, Trace, read_traces
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import FLAT, StepCost
from benchmarks.simulator.engines import RigDraft
from benchmarks.simulator.world import Setting, World
from tandem_runtime.domain.commands import Request
from tandem_runtime.domain.lookahead import Lookahead
from tandem_runtime.domain.tokens import Proposal, ProposeRound

SEED, ORDERS, CLIENTS, PASSES = 31, 5, 8, 2
WORTH = 0.01
"""A segment of its own is worth so much."""
FREE = replace(FLAT, draft=StepCost(0.0))
SEGMENTS: Mapping[str, Callable[[Outcomes], str]] = {
    "one": lambda _: "all",
    "task": lambda outcomes: outcomes.task,
    "temperature": lambda outcomes: str(outcomes.temperature),
}


@dataclass(frozen=True, slots=True)
class Texts:
    """`simulator.acceptance.Acceptance` over outputs in the order of a load."""

    outcomes: Sequence[Outcomes]

    def right(self, text: int, position: int) -> bool:
        return self.outcomes[text].bits[position : position + 1] == "1"

    def offers(self, text: int, position: int) -> bool:
        offered = self.outcomes[text].offered
        return offered is None or offered[position : position + 1] == "1"

    def tokens(self, text: int, most: int) -> int:
        return min(len(self.outcomes[text].bits), most)


class Lookup(RigDraft):
    """Stops where it has no guess."""

    async def propose(self, request: ProposeRound) -> Proposal:
        proposal = await super().propose(request)
        texts = self.acceptance
        assert isinstance(texts, Texts)
        text, at = self.sessions[request.session].text, request.base + len(request.committed)
        offered = [texts.offers(text, at + depth) for depth in range(len(proposal.ids))]
        return proposal.first((*offered, False).index(False))


class Mixed(World):
    """A rule for each segment, made when the segment is first met."""

    def __init__(self, texts: Texts, segment: Callable[[Outcomes], str], setting: Setting) -> None:
        super().__init__(setting, acceptance=texts, lookahead=Lookahead())
        self.texts, self.segment = texts, segment
        self.rules: dict[str, Lookahead] = {}

    def lookahead_of(self, text: int) -> Lookahead:
        return self.rules.setdefault(self.segment(self.texts.outcomes[text]), Lookahead())


class MixedLookups(Mixed):
    """The same where drafts look up: at once, and at no cost."""

    def __init__(self, texts: Texts, segment: Callable[[Outcomes], str], setting: Setting) -> None:
        super().__init__(texts, segment, setting)
        self.drafts = [Lookup(station, 0.0, acceptance=texts) for station in self.draft_stations]

    def request(self, text: int) -> Request:
        return replace(super().request(text), draft_is_free=True)


def serve(trace: Trace, segment: Callable[[Outcomes], str], order: int) -> dict[str, float]:
    """Seconds of all requests, tokens and rounds."""
    looks_up = trace.sequences[0].offered is not None
    rig, kind = (FREE, MixedLookups) if looks_up else (FLAT, Mixed)
    load = load_of(trace, order)

    async def main() -> dict[str, float]:
        world = kind(Texts(load), segment, Setting(seed=order, rig=rig))
        await world.closed_loop(CLIENTS, len(load) // CLIENTS)
        seconds = sum(answer.seconds for answer in world.books.answers)
        return {"seconds": seconds, "tokens": world.books.tokens, "rounds": len(world.books.rounds)}

    return run_virtually(main)


def load_of(trace: Trace, order: int) -> list[Outcomes]:
    """All texts of a trace so many times over, in an order of chance."""
    load = list(trace.sequences) * PASSES
    random.Random(f"{trace.name} {order}").shuffle(load)
    return load


def kinds(trace: Trace) -> list[str]:
    """The ways to divide this trace in more than one segment."""
    return [name for name, segment in SEGMENTS.items() if len(set(map(segment, trace.sequences))) > 1]


def measure(trace: Trace, orders: int) -> tuple[dict[str, float], dict[str, list[dict[str, float]]]]:
    """Gains by kind of segment, and what they are computed from."""
    samples = {
        kind: [serve(trace, SEGMENTS[kind], SEED + order) for order in range(orders)] for kind in ("one", *kinds(trace))
    }
    gains = {
        kind: statistics.median(
            one["seconds"] / many["seconds"] for one, many in zip(samples["one"], samples[kind], strict=True)
        )
        for kind in kinds(trace)
    }
    return gains, samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.segments", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trace", help="this one alone; nothing is written")
    parser.add_argument("--orders", type=int, default=ORDERS)
    asked = parser.parse_args()
    found = [trace for trace in read_traces() if kinds(trace) and asked.trace in (None, trace.name)]
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    for trace in found:
        gains, samples[trace.name] = measure(trace, asked.orders)
        figures |= {f"{kind}_gain_{trace.name}": round(gain, 4) for kind, gain in gains.items()}
        told = "  ".join(f"per {kind} {gain:.4f}" for kind, gain in gains.items())
        print(f"{trace.name:22} {told}   ({shares(trace)})", flush=True)
    for kind in ("task", "temperature"):
        every = [value for name, value in figures.items() if name.startswith(f"{kind}_gain_")]
        figures[f"{kind}_gain_most"] = max(every, default=1.0)
        figures[f"{kind}_worth_it"] = sum(value >= 1 + WORTH for value in every)
        print(f"per {kind}: the most is {figures[f'{kind}_gain_most']:.4f}, of {len(every)} traces")
    if asked.trace is None:
        print(record("segments", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
