"""Measures how many clients one saturated verifier serves, drafting elsewhere or on it: `make bench NAME=capacity`.

Refuses to know real engines: time is virtual (`benchmarks.simulator`), driver and session are the product's own. A step
takes 16 sessions at most and costs 18 ms with proposals, 15 ms without, a draft step 4 ms, K is 5, acceptance .8.
*Co-located*, drafting takes the verifier's time, and goes first; *offloaded*, three machines draft, at 1 ms of network
per round. Then (1 + K t_d / t_v) = 2.11 times as many clients fit at the same speed each ("Speculation at a Distance",
arXiv 2606.25091): a verifier that never waits for drafts spends 18 ms on a batch's round instead of 38.

    clients_ratio              offloaded over co-located, at the speed that 64 co-located clients get
    clients_ratio_over_plain   offloaded over plain decoding, at the same speed
    clients_ratio_own_k        as the first, with the K that the product's rule chooses for each
"""

from dataclasses import asdict, replace

from benchmarks.record import record
from benchmarks.simulator.capacity import Crowd, Load, clients_at, measure
from benchmarks.simulator.costs import FLAT
from benchmarks.simulator.world import ON
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode

SEED, CLIENTS = 51, 64
FIVE = Bounds(5, 5, Mode.ALWAYS)
BOUND = 1 + 5 * FLAT.draft.alone(0) / FLAT.target.alone(5)
OFFLOADED = Crowd(clients=CLIENTS, rig=FLAT, alpha=0.8, seed=SEED, drafts=3, bounds=FIVE)
COLOCATED = replace(OFFLOADED, rig=replace(FLAT, network=0.0), drafts=1, colocated=True)
PLAIN = replace(OFFLOADED, drafts=1, bounds=OFF)


def around(crowd: Crowd, speed: float, low: int, high: int) -> tuple[float, list[Load]]:
    """How many clients of that kind get `speed`, and the loads that say so."""
    loads = {clients: measure(replace(crowd, clients=clients)) for clients in (low, high)}
    return clients_at(speed, loads.__getitem__, low, high), list(loads.values())


def show(name: str, loads: list[Load]) -> None:
    for load in loads:
        print(
            f"{name:22} {load.clients:7} {load.speed:20.2f} {load.tokens_per_second:12.0f} {load.mean_k:7.2f}"
            f" {load.target_busy:13.2f} {load.draft_busy:12.2f}",
            flush=True,
        )


def main() -> None:
    print("                       clients  tokens/s per client     tokens/s  mean K   target busy   draft busy")
    base = measure(COLOCATED)
    offloaded, offloaded_loads = around(OFFLOADED, base.speed, 120, 140)
    plain, plain_loads = around(PLAIN, base.speed, 38, 48)
    own = measure(replace(COLOCATED, bounds=ON))
    own_offloaded, own_loads = around(replace(OFFLOADED, bounds=ON), own.speed, 120, 160)
    for name, loads in {
        "co-located": [base],
        "offloaded": offloaded_loads,
        "plain": plain_loads,
        "co-located, own K": [own],
        "offloaded, own K": own_loads,
    }.items():
        show(name, loads)
    figures = {
        "clients_ratio": round(offloaded / CLIENTS, 4),
        "clients_ratio_over_plain": round(offloaded / plain, 4),
        "clients_ratio_own_k": round(own_offloaded / CLIENTS, 4),
        "bound": round(BOUND, 4),
    }
    print(f"offloaded over co-located {figures['clients_ratio']:.3f} (must be 1.9, aim 2.05, bound {BOUND:.2f})")
    print(f"offloaded over plain      {figures['clients_ratio_over_plain']:.3f}")
    samples = {
        "co-located": [asdict(base)],
        "offloaded": [asdict(load) for load in offloaded_loads],
        "plain": [asdict(load) for load in plain_loads],
        "co-located, own K": [asdict(own)],
        "offloaded, own K": [asdict(load) for load in own_loads],
    }
    print(record("capacity", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
