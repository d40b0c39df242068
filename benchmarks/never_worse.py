"""Measures the worst that speculation does to speed, where the K rule may choose: `make bench NAME=never_worse`.

Refuses to know the best (see `rig_sequential` and `controller`). In virtual time (`benchmarks.simulator`), with costs
that grow with the batch as they do on real accelerators, and a gateway that begins knowing nothing:

    closed   1 to 64 clients that ask again as soon as they are answered, acceptance 0 to 1
    open     requests that arrive by chance at 30 to 90 % of what plain decoding can carry, 64 sessions to a step
    ahead    1 to 16 clients whose draft may work while the target verifies, as gateways have it by default; with the
             product's own step loops and branches, over rows as in `rig_overlap`
    trace    1 and 16 clients whose texts are those of each recorded trace, one client each once, 16 as many tokens as
             16 of `closed`; what was looked up costs no draft's step

The ratio is seconds per token without speculation over with it, over the same requests, as clients see it; the median
of three seeds. `worst_ratio` is the least of all but the traces', `worst_recorded` theirs. And in real time
(`engine`): the bundled engine over the trained target with a draft that is always wrong and costs what a step of a
scripted model costs, off and on in turns over the same prompts, texts compared.

`--virtual` leaves the real engine out, and with it the result file.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import ceil

from benchmarks import rig_overlap
from benchmarks.coupled_verify import PAIRS, Clock, engine_facts
from benchmarks.pair_speed import Pair, Side, knowing_nothing, load
from benchmarks.record import record
from benchmarks.rig_overlap import Asking, rows_pair, sigma_for
from benchmarks.simulator.acceptance import Recorded, chance, recorded_traces
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import CROWDED, StepCost
from benchmarks.simulator.world import ANSWER_TOKENS, ON, Books, Setting, World
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.tokenizer import FolderTokenizer

SEED, SEEDS = 31, 3
ALPHAS = (0.0, 0.3, 0.6, 0.9, 1.0)
CLIENTS = (1, 4, 16, 64)
LOADS = (0.3, 0.6, 0.9)
SESSIONS = 64
REQUESTS = {1: 16, 4: 8, 16: 4, 64: 2}
"""Of each client."""
TRACED = (1, 16)
"""Clients whose texts were recorded."""
AHEAD = {1: 8, 4: 6, 16: 3}
"""By clients, the requests of each where the draft works ahead."""
ARRIVALS = 96
ROUNDS = 6
"""How often the prompts are gone through on the real engine."""

Serving = Callable[[float, int, Bounds], Books]
"""(alpha, seed, bounds) -> what happened."""


def serve(asking: Asking, alpha: float, seed: int, bounds: Bounds) -> Books:
    async def main() -> Books:
        setting = Setting(seed=seed, rig=CROWDED, sessions=SESSIONS)
        world = World(setting, acceptance=chance(alpha, seed), lookahead=Shared(), bounds=lambda: bounds)
        await asking(world)
        return world.books

    return run_virtually(main)


def carried_per_second() -> float:
    """Requests that plain decoding can answer per second, every step full: their tokens, and a step for a chunk of each
    prompt."""
    return SESSIONS / ((Setting(seed=SEED).answer_tokens + 1) * CROWDED.target.alone(0))


async def _closed(world: World, clients: int) -> None:
    await world.closed_loop(clients, REQUESTS[clients])


async def _open(world: World, load: float) -> None:
    await world.poisson(load * carried_per_second(), ARRIVALS)


def serve_ahead(alpha: float, seed: int, bounds: Bounds, *, clients: int) -> Books:
    async def ask(world: World) -> None:
        await world.closed_loop(clients, AHEAD[clients])

    pair = rows_pair(sigma_for(alpha), sessions=clients, requests=clients * AHEAD[clients])
    return rig_overlap.serve(CROWDED, pair, seed, replace(bounds, overlap=Overlap.AUTO), asking=ask)


def settings() -> dict[str, Serving]:
    """What is asked of the gateway, by name."""
    closed = {f"closed_{clients}": partial(serve, partial(_closed, clients=clients)) for clients in CLIENTS}
    opened = {f"open_{load}": partial(serve, partial(_open, load=load)) for load in LOADS}
    return {**closed, **opened, **{f"ahead_{clients}": partial(serve_ahead, clients=clients) for clients in AHEAD}}


def serve_trace(trace: Recorded, clients: int, seed: int, bounds: Bounds) -> Books:
    rig = replace(CROWDED, draft=StepCost(0.0)) if trace.is_lookup else CROWDED
    setting = Setting(seed=seed, rig=rig, sessions=SESSIONS, draft_is_free=trace.is_lookup)

    async def main() -> Books:
        world = World(setting, acceptance=trace, lookahead=Shared(), bounds=lambda: bounds)
        await world.closed_loop(clients, _requests_of(trace, clients))
        return world.books

    return run_virtually(main)


def _requests_of(trace: Recorded, clients: int) -> int:
    """Of each client."""
    length = statistics.fmean(len(text.bits) for text in trace.texts)
    return len(trace.texts) if clients == 1 else ceil(REQUESTS[clients] * ANSWER_TOKENS / length)


def traced(found: Sequence[Recorded], seeds: int) -> tuple[dict[str, float], dict[str, object]]:
    """Ratios by clients and recorded trace."""
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    for trace in found:
        for clients in TRACED:
            name, serving = f"trace_{clients}_{trace.name}", partial(serve_trace, trace, clients)
            runs = [_run(serving(seed, OFF), serving(seed, ON)) for seed in range(SEED, SEED + seeds)]
            figures[name], samples[name] = _ratio(runs), runs
        print(f"{trace.name:24}" + "".join(f"{figures[f'trace_{clients}_{trace.name}']:10.3f}" for clients in TRACED))
    return figures, samples


def _run(off: Books, on: Books) -> dict[str, float]:
    return {
        "off_seconds": off.client_seconds,
        "on_seconds": on.client_seconds,
        "tokens": on.tokens,
        "rounds": len(on.rounds),
        "proposed": sum(on.k_by_round),
    }


def _ratio(runs: Sequence[Mapping[str, float]]) -> float:
    return round(statistics.median(run["off_seconds"] / run["on_seconds"] for run in runs), 4)


def simulated(seeds: int) -> tuple[dict[str, float], dict[str, object]]:
    """Ratios by setting and acceptance."""
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    print(f"{'plain over speculating':22}" + "".join(f"   alpha {alpha:.1f}" for alpha in ALPHAS))
    for name, serving in settings().items():
        off = {seed: serving(0.0, seed, OFF) for seed in range(SEED, SEED + seeds)}
        row = ""
        for alpha in ALPHAS:
            runs = [_run(books, serving(alpha, seed, ON)) for seed, books in off.items()]
            ratio = figures[f"{name}_alpha_{alpha}"] = _ratio(runs)
            samples[f"{name}_alpha_{alpha}"] = runs
            row += f" {ratio:11.3f}"
        print(f"{name:22}{row}", flush=True)
    return figures, samples


async def _in_turns(pair: Pair, prompts: list[str]) -> tuple[Side, Side]:
    warm, off, on = (Side(bounds, knowing_nothing()) for bounds in (OFF, OFF, ON))
    await pair.ids(prompts[0], warm, -1)
    for number, text in enumerate(prompts * ROUNDS):
        sides = (off, on) if number % 2 == 0 else (on, off)
        first, second = [await pair.ids(text, side, number) for side in sides]
        if first != second:
            raise SystemExit(f"prompt {number}: speculation changed the text")
    return off, on


def against_a_hostile_draft() -> tuple[Side, Side]:
    """Off and on over the trained target, in real time."""
    tokenizer, model = FolderTokenizer(PAIRS / "target"), load("target")
    prompts = json.loads((PAIRS / "prompts.json").read_text())["prose"]
    unlikely: TokenId = model.vocab_size - 1
    row = [0.0] * unlikely + [1.0]
    with ExitStack() as stack:
        target = stack.enter_context(BatchedTarget(model, engine_facts(PAIRS / "target"), clock=Clock()))
        wrong = ScriptedModel(lambda _: row, max_length=model.max_length)
        draft = stack.enter_context(BatchedDraft(wrong, engine_facts(PAIRS / "draft-good"), clock=Clock()))
        return asyncio.run(_in_turns(Pair(target, draft, tokenizer), prompts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--virtual", action="store_true", help="no real engine, no result file")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    figures, samples = simulated(asked.seeds)
    recorded, recorded_runs = traced(recorded_traces(), asked.seeds)
    worst_recorded = min(recorded.values())
    print(f"worst ratio of recorded texts {worst_recorded:.3f} (must be .99)")
    if asked.virtual:
        print(f"worst ratio of the others {min(figures.values()):.3f}")
        return
    off, on = against_a_hostile_draft()
    figures["engine_hostile"] = round(on.rate / off.rate, 4)
    samples["engine_hostile"] = {
        "off_tokens": off.tokens,
        "off_seconds": off.seconds,
        "on_tokens": on.tokens,
        "on_seconds": on.seconds,
    }
    print(f"bundled engine, a draft that is always wrong: {figures['engine_hostile']:.3f} of plain")
    figures["worst_ratio"] = min(figures.values())
    figures |= {**recorded, "worst_recorded": worst_recorded}
    samples |= recorded_runs
    print(f"worst ratio {figures['worst_ratio']:.3f} (must be .99, aim .995)")
    print(record("never_worse", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
