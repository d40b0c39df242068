"""Measures the bundled engine beside its peers on a CPU: `make bench NAME=engine_cpu` (docs/benchmarks.md).

Refuses to know how an engine is driven (`benchmarks.peers`), and how figures follow from visits (`engine_cpu_samples`).

SmolLM2-135M, greedy, fixed prompts, 128 new tokens, one, four and sixteen streams: the bundled engine off and with its
own drafters, vLLM's CPU build, transformers, and llama.cpp in a weight class of its own. Each runs in a process of its
own and is driven by its library; peers that this machine cannot have are named with the reason. Then what a step costs
by the rows in it.

    python -m benchmarks.engine_cpu [--quick] [--only tandem,transformers] [--refuse-busy]

`--quick` shows in some minutes that everything works, and writes results/engine_cpu_quick.json, which says nothing.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engine_cpu_entrants import ENTRANTS, Entrant, Stable
from benchmarks.engine_cpu_figures import figures_of, tables
from benchmarks.engine_cpu_search import STREAMS, Search
from benchmarks.engine_cpu_steps import measured_steps
from benchmarks.engine_cpu_turns import FULL, QUICK, Turns
from benchmarks.engine_processes import busy_share
from benchmarks.peers.environment import CACHE
from benchmarks.record import record
from benchmarks.smollm2 import needed_folder
from benchmarks.workload import Prompt, prompts_digest, read_prompts
from tandem_runtime.engines.cores import allowed_cores
from tandem_runtime.tokenizer import FolderTokenizer

SEED = 7
IDLE_SHARE = 0.05
"""Of the machine's time: a machine whose other processes take more is called busy."""
STEP_TURNS, QUICK_STEP_TURNS = 10, 2
LOG = CACHE / "engine_cpu.log"
"""What engines say, for a person whose peer does not start."""


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as by a key: engines end with this process
    folder = needed_folder()
    busy = _looked(refuse=options.refuse_busy)
    entrants = [entrant for entrant in ENTRANTS if not options.only or entrant.name in options.only.split(",")]
    prompts = read_prompts(FolderTokenizer(folder).encode)
    CACHE.mkdir(parents=True, exist_ok=True)
    with LOG.open("wb") as log, Stable(log) as stable:
        samples = _compared(stable, entrants, prompts, quick=options.quick)
    turns = QUICK_STEP_TURNS if options.quick else STEP_TURNS
    print("\nwhat a step costs")
    samples["steps"] = measured_steps(folder, threads=tuple(sorted({1, allowed_cores()})), turns=turns)
    samples |= {"busy_share_before": busy, "prompts_digest": prompts_digest()}
    figures = figures_of(samples)
    print("\n".join(tables(samples, figures)))
    name = "engine_cpu_quick" if options.quick else "engine_cpu"
    print(record(name, seed=SEED, figures=figures, samples=samples))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_cpu", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few turns and tokens: does it work?")
    parser.add_argument("--only", default="", help=f"of {','.join(entrant.name for entrant in ENTRANTS)}")
    parser.add_argument("--refuse-busy", action="store_true", help="end at once where others use the machine")
    return parser.parse_args()


def _looked(*, refuse: bool) -> float:
    """The share of the machine that others take now."""
    busy, load = busy_share(), os.getloadavg()[0]
    print(f"{allowed_cores()} cores; others take {busy:.1%} of them, load average {load:.2f}")
    if busy > IDLE_SHARE:
        said = f"this machine is busy ({busy:.0%}): its figures would say little"
        if refuse:
            raise SystemExit(said)
        print(f"WARNING: {said}; the result says so")
    return busy


def _compared(stable: Stable, entrants: Sequence[Entrant], prompts: list[Prompt], *, quick: bool) -> dict[str, Any]:
    print("each engine's best setting, by a short trial")
    search = Search(stable, prompts)
    for entrant in entrants:
        search.enter(entrant)
    contestants = {streams: search.contestants(streams, entrants) for streams in STREAMS}
    chosen = [each for settings in contestants.values() for each in settings]
    stable.keep({entrant.name: entrant for entrant in entrants}, chosen)
    turns = Turns(stable, prompts, QUICK if quick else FULL)
    for streams, settings in contestants.items():
        print(f"\nin turns, {streams} streams: {', '.join(each.name for each in settings)}")
        turns.take(streams, settings)
    return {
        "weights": {entrant.name: entrant.weights for entrant in entrants},
        "absent": search.absent,
        "left": turns.left,
        "started": stable.started,
        "trials": [asdict(trial) for trial in search.trials],
        "chosen": {str(streams): [asdict(each) for each in settings] for streams, settings in contestants.items()},
        "visits": [asdict(visit) for visit in turns.visits],
    }


if __name__ == "__main__":
    main()
