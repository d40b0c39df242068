"""Measures what ending a proposal early brings on recorded traces: `make bench NAME=early_stop`.

Refuses to know real engines: time is virtual, outcomes and confidences are those of real pairs (`benchmarks/traces`),
while driver, session, K rule and calibration are the product's own and begin knowing nothing. Each trace's texts of one
temperature are said one after another, three times: plainly, with K alone, and with drafting that may end early. The
gain is tokens per second over those with K alone, all seeds together.

Two rigs: the flat one of `benchmarks.simulator.costs`, and `near`, a copy of the target in few bits on the same
machine: 7 ms a token, verify 15 + .5 K, no network.

A trace knows confidence after the true prefix only. Behind a wrong guess it stands for that after the wrong one.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.record import record
from benchmarks.recorded import Outcomes, read_traces
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import FLAT, Rig, StepCost
from benchmarks.simulator.engines import RigDraft
from benchmarks.simulator.world import Setting, World
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.errors import DraftLost
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.tokens import Proposal, ProposeRound

SEED, SEEDS, MOST = 61, 1, 8
RIGS = {
    "flat": FLAT,
    "near": Rig(draft=StepCost(0.007), target=StepCost(0.015, proposed=0.0005), network=0.0),
}
WAYS = {"plain": OFF, "k_alone": Bounds(1, MOST), "early": Bounds(1, MOST, early_stop=True)}


@dataclass(frozen=True, slots=True)
class Told:
    """`Acceptance` of texts that were recorded with what the draft tells."""

    texts: Sequence[Outcomes]

    def right(self, text: int, position: int) -> bool:
        bits = self.texts[text].bits
        return position < len(bits) and bits[position] == "1"

    def offered(self, text: int, position: int) -> bool:
        return True

    def credit(self, text: int, position: int) -> float | None:
        credits = self.texts[text].credits
        return None if credits is None or position >= len(credits) else credits[position]

    def lengths(self, text: int) -> tuple[int, int]:
        return max(self.texts[text].prompt_tokens, 1), len(self.texts[text].bits)

    def confidence(self, text: int, position: int) -> int:
        """Behind the text's end, where nothing stands, it says nothing of the draft."""
        told = self.texts[text].told or ()
        return told[position] if position < len(told) else 0


@dataclass(slots=True, kw_only=True)
class Confident(RigDraft):
    """A draft of the rig that knows confidences, and ends a proposal by them."""

    told: Told

    async def propose(self, request: ProposeRound) -> Proposal:
        if request.stop is None:
            return await RigDraft.propose(self, request)
        text, at = self.held(request.session, DraftLost).text, request.base + len(request.committed)
        confidences = [self.told.confidence(text, place) for place in range(at, at + request.k)]
        k = next((k for k in range(1, request.k) if request.stop.ends(confidences[:k])), request.k)
        proposal = await RigDraft.propose(self, replace(request, k=k, stop=None))
        return replace(proposal, confidences=tuple(confidences[:k]))


@dataclass(frozen=True, slots=True)
class Run:
    """What was said in so many seconds, and how much was proposed in how many rounds with a proposal."""

    tokens: int
    seconds: float
    proposed: int
    rounds: int

    def __add__(self, other: "Run") -> "Run":
        summed = (getattr(self, name) + getattr(other, name) for name in Run.__slots__)
        return Run(*summed)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


NOTHING = Run(0, 0.0, 0, 0)


def over(told: Told, rig: Rig, bounds: Bounds, seed: int) -> Run:
    """Every text once."""

    async def main() -> Run:
        world = World(Setting(seed=seed, rig=rig), acceptance=told, lookahead=Lookahead(), bounds=lambda: bounds)
        world.drafts = [Confident(world.draft_stations[0], rig.network / 4, acceptance=told, told=told)]
        await world.one_after_another(len(told.texts))
        ks = [k for k in world.books.k_by_round if k]
        return Run(world.books.tokens, world.clock.monotonic(), sum(ks), len(ks))

    return run_virtually(main)


def told_texts() -> Iterator[tuple[str, Told]]:
    """Of each trace with confidences and each temperature."""
    for trace in read_traces():
        for temperature in sorted({each.temperature for each in trace.sequences}):
            texts = [each for each in trace.sequences if each.temperature == temperature and each.told]
            if texts:
                yield f"{trace.name} at T {temperature:g}", Told(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = range(SEED, SEED + parser.parse_args().seeds)
    samples: dict[str, object] = {}
    gains: dict[str, float] = {}
    print("trace                              rig      K alone   early    gain   tokens a proposal, K alone and early")
    for name, told in told_texts():
        for rig_name, rig in RIGS.items():
            runs = {
                way: sum((over(told, rig, bounds, seed) for seed in seeds), NOTHING) for way, bounds in WAYS.items()
            }
            plain, alone, early = (runs[way].rate for way in WAYS)
            gains[f"{name}, {rig_name}"] = early / alone
            samples[f"{name}, {rig_name}"] = {way: asdict(run) for way, run in runs.items()}
            lengths = (runs[way].proposed / max(runs[way].rounds, 1) for way in ("k_alone", "early"))
            print(
                f"{name:34} {rig_name:7} {alone / plain:8.3f} {early / plain:8.3f} {early / alone - 1:+7.1%}   "
                + " ".join(f"{length:.2f}" for length in lengths),
                flush=True,
            )
    figures = {
        "gain_mean": statistics.geometric_mean(gains.values()),
        "gain_worst": min(gains.values()),
        "gain_best": max(gains.values()),
        "gain_greedy": statistics.geometric_mean(gain for name, gain in gains.items() if " at T 0," in name),
        "gain_sampled": statistics.geometric_mean(gain for name, gain in gains.items() if " at T 0," not in name),
    }
    print(figures)
    print(
        record(
            "early_stop", seed=SEED, figures={name: round(value, 4) for name, value in figures.items()}, samples=samples
        )
    )


if __name__ == "__main__":
    main()
