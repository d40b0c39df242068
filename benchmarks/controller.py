"""Measures the K rule against an oracle that knows acceptance and costs: `make bench NAME=controller`.

Refuses to know real engines: time is virtual, costs and acceptance are stated (`benchmarks.simulator`), while driver,
session and K rule are the product's own. One client asks for 128 tokens after a prompt of 300, again and again, on the
flat rig with 5 % of noise in each step; the rule begins knowing nothing. The oracle takes the best K of the moment's
alpha in the same driver, prompts and ends of requests included. The share is tokens per second over the oracle's, both
after 6,000 cycles (`--cycles`), median of three seeds (`--seeds`). `--course NAME` takes one course alone and writes
nothing. Recorded traces stand apart: there the oracle is the best K that never changes, found by trying all.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.record import record
from benchmarks.simulator.acceptance import Recorded, Regimes, recorded_traces
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import FLAT, LOOKUP, MOST
from benchmarks.simulator.oracle import Fixed, Oracle, Watched
from benchmarks.simulator.regimes import COURSES, CYCLES, Course
from benchmarks.simulator.world import Setting, World
from tandem_runtime.domain.cells import Lookahead, Shared

SEED, SEEDS = 21, 3
MUST = {
    "constant_0.8": 0.98,
    "constant_0.3": 0.95,
    "every_300": 0.95,
    "every_40": 0.9,
    "four_regimes": 0.95,
    "ramp": 0.98,
}
TRIED = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, MOST)
"""K of the oracle over a recorded trace."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was said in so many seconds, up to the last cycle that counts; `ks` is K cycle by cycle."""

    tokens: int
    seconds: float
    ks: Sequence[int]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def sample(self) -> dict[str, float]:
        return {"tokens": self.tokens, "seconds": self.seconds, "mean_k": statistics.mean(self.ks)}


def over_course(
    course: Course, seed: int, cycles: int, rule: Callable[[Callable[[], float]], Lookahead | Shared]
) -> Run:
    """One client for so many cycles. `rule` is given the alpha of the moment, which only an oracle looks at."""

    async def main() -> Run:
        def alpha() -> float:
            return course(len(world.books.rounds))

        world = World(Setting(seed=seed, rig=FLAT), acceptance=Regimes(alpha, seed), lookahead=rule(alpha))
        await world.one_after_another(cycles, until=lambda: len(world.books.rounds) >= cycles)
        return _up_to(world, cycles)

    return run_virtually(main)


def over_trace(trace: Recorded, seed: int, rule: Lookahead | Shared) -> Run:
    """Each text of a recorded trace once, with its own prompt's length."""

    async def main() -> Run:
        rig = LOOKUP if trace.is_lookup else FLAT
        world = World(Setting(seed=seed, rig=rig, draft_is_free=trace.is_lookup), acceptance=trace, lookahead=rule)
        await world.one_after_another(len(trace.texts))
        return _up_to(world, len(world.books.rounds))

    return run_virtually(main)


def _up_to(world: World, cycles: int) -> Run:
    counted = world.books.rounds[:cycles]
    tokens = sum(seen.round.emitted for seen in counted)
    return Run(tokens, counted[-1].at, [seen.round.proposed for seen in counted])


def changes_per_100(rule: Watched, cycles: int) -> float:
    """How often K was another than the time before, per 100 cycles; what an answer's end cut is no change."""
    return 100 * sum(one != other for one, other in pairwise(rule.chosen)) / cycles


def courses(names: Sequence[str], seeds: int, cycles: int) -> tuple[dict[str, float], dict[str, object]]:
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    print("course         of the oracle  (must)   K changes per 100   tokens/s   oracle's")
    for name in names:
        shares, changes, rows = [], [], []
        for seed in range(SEED, SEED + seeds):
            rule = Watched()
            own = over_course(COURSES[name], seed, cycles, lambda _, rule=rule: rule)  # type: ignore[misc]
            known = over_course(COURSES[name], seed, cycles, lambda alpha: Oracle(FLAT, alpha))
            shares.append(own.rate / known.rate)
            changes.append(changes_per_100(rule, cycles))
            rows.append({"own": own.sample(), "oracle": known.sample(), "changes_per_100": changes[-1]})
        figures |= {
            f"share_{name}": round(statistics.median(shares), 4),
            f"changes_{name}": round(statistics.median(changes), 2),
        }
        samples[name] = rows
        print(
            f"{name:14} {statistics.median(shares):13.3f}  ({MUST[name]:.2f}) {statistics.median(changes):19.1f} "
            f"{own.rate:10.1f} {known.rate:10.1f}",
            flush=True,
        )
    return figures, samples


def traces(found: Sequence[Recorded]) -> tuple[dict[str, float], dict[str, object]]:
    """Of recorded traces: the share of the best K that never changes."""
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    for trace in found:
        own = over_trace(trace, SEED, Watched())
        fixed = {k: over_trace(trace, SEED, Fixed(k)) for k in TRIED}
        best = max(TRIED, key=lambda k: fixed[k].rate)
        share = own.rate / fixed[best].rate
        figures[f"share_recorded_{trace.name}"] = round(share, 4)
        samples[f"recorded_{trace.name}"] = {
            "own": own.sample(),
            "fixed": {str(k): run.sample() for k, run in fixed.items()},
        }
        print(
            f"{trace.how} {trace.name:20} alpha {trace.alpha:.3f}   of K = {best:2} throughout {share:.3f}   "
            f"over plain {own.rate / fixed[0].rate:.3f}",
            flush=True,
        )
    return figures, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--course", choices=COURSES, help="this one alone; nothing is written")
    parser.add_argument("--traces", action="store_true", help="the recorded ones alone; nothing is written")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    asked = parser.parse_args()
    if asked.traces:
        traces(recorded_traces())
        return
    names = [asked.course] if asked.course else list(COURSES)
    figures, samples = courses(names, asked.seeds, asked.cycles)
    if asked.course:
        return
    figures["changes_per_100"] = max(figures["changes_constant_0.8"], figures["changes_constant_0.3"])
    more_figures, more_samples = traces(recorded_traces())
    figures |= more_figures
    samples |= more_samples
    print(record("controller", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
