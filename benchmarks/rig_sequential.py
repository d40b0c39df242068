"""Measures the K rule on the rig against the closed-form optimum: `make bench NAME=rig_sequential`.

Refuses to know real engines: time is virtual, costs and acceptance are stated (`benchmarks.simulator`), while driver,
session and K rule are the product's own. 32 requests of 128 tokens come one after another to a gateway that has seen
nothing before; prompts of 300 tokens are read, steps cost 5 % more or less, and the K rule is told neither acceptance
nor costs. The speed-up is over the same requests without speculation, seconds over seconds; the optimum S*(alpha) is
that of a round without prompts, ends and noise, with the best K for a known alpha.
"""

import statistics

from benchmarks.record import record
from benchmarks.simulator.acceptance import chance
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import RIGS, Rig, best_k, speed_up
from benchmarks.simulator.oracle import Oracle
from benchmarks.simulator.world import ON, Books, Setting, World
from tandem_runtime.domain.cells import Lookahead, Shared
from tandem_runtime.domain.lookahead import OFF, Bounds

SEED, SEEDS, REQUESTS = 11, 3, 32
ALPHAS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def serve(rig: Rig, alpha: float, seed: int, lookahead: Lookahead | Shared, bounds: Bounds = ON) -> Books:
    async def main() -> Books:
        setting = Setting(seed=seed, rig=rig)
        world = World(setting, acceptance=chance(alpha, seed), lookahead=lookahead, bounds=lambda: bounds)
        await world.one_after_another(REQUESTS)
        return world.books

    return run_virtually(main)


def main() -> None:
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    ratios: dict[str, float] = {}
    print("rig     alpha   S* at K   speed-up   of S*   of an oracle's   tokens a round   mean K")
    for name, rig in RIGS.items():
        plain = {seed: serve(rig, 0.0, seed, Shared(), OFF) for seed in range(SEED, SEED + SEEDS)}
        for alpha in ALPHAS:
            runs = []
            for seed, off in plain.items():
                on = serve(rig, alpha, seed, Shared())
                known = serve(rig, alpha, seed, Oracle(rig, chance(alpha, seed).alpha))
                runs.append(
                    {
                        "off_seconds": off.client_seconds,
                        "on_seconds": on.client_seconds,
                        "oracle_seconds": known.client_seconds,
                        "tokens": on.tokens,
                        "rounds": len(on.rounds),
                        "proposed": sum(on.k_by_round),
                    }
                )
            optimum = speed_up(rig, alpha, best_k(rig, alpha))
            gain = statistics.median(run["off_seconds"] / run["on_seconds"] for run in runs)
            share = statistics.median(run["oracle_seconds"] / run["on_seconds"] for run in runs)
            rounds = sum(run["rounds"] for run in runs)
            per_round = sum(run["tokens"] for run in runs) / rounds
            mean_k = sum(run["proposed"] for run in runs) / rounds
            print(
                f"{name:7} {alpha:5.2f} {optimum:6.3f} {best_k(rig, alpha):2} {gain:10.3f} {gain / optimum:7.3f} "
                f"{share:16.3f} {per_round:16.2f} {mean_k:8.2f}"
            )
            key = f"{name}_{alpha}"
            ratios[key] = gain / optimum
            figures |= {f"speedup_{key}": round(gain, 4), f"ratio_{key}": round(gain / optimum, 4)}
            samples[key] = {"optimum": optimum, "best_k": best_k(rig, alpha), "runs": runs}
    figures["min_ratio_to_optimum"] = round(min(ratios.values()), 4)
    print(f"least ratio to the optimum {figures['min_ratio_to_optimum']:.3f} (must be .97, aim .99)")
    print(record("rig_sequential", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
