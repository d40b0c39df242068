"""Measures what a step of the bundled engine costs on one CPU thread, by the rows in it: `make bench NAME=engine_cpu`.

Refuses to know text and other engines: the weights are random, in the shape of SmolLM2-135M (30 layers, 576 / 1536, 9
query and 3 key heads, 49,152 tokens), since arithmetic costs the same whatever it says.

t_b is a plain step of one session, t_v(K) one that verifies K tokens, so K + 1 rows; all at position 128, our own
product and torch's in turns (A B B A). The products alone, without attention and what lies between, are shown apart. A
sample is CPU time of the process: what else runs on the machine does not count, but it does take caches and memory
from it. So a cost is the least of its samples, which are all kept. Beside it stands what the machine allows: the
bytes of all weights over the speed at which one thread reads memory here.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.record import record
from tandem_runtime.domain.blocks import BlockId
from tandem_runtime.engines.torch_engine.engine import DTYPES, TorchModel
from tandem_runtime.engines.torch_engine.linear import Multiplier, multiplier_for
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.ports import Row

SEED, POSITION, ROUNDS = 7, 128, 4
PROPOSED = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)
READ_BYTES = 512 * 2**20
SHAPE = DecoderConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=256,
)

Costs = dict[int, list[float]]
"""CPU milliseconds by K."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to multiply, and the engine that does."""

    name: str
    multiplier: Multiplier
    model: TorchModel
    weights: Sequence[torch.Tensor]
    startup_seconds: float


def way(name: str, dtype: torch.dtype, multiplier: Multiplier) -> Way:
    torch.manual_seed(SEED)
    decoder = Decoder(SHAPE).requires_grad_(False).to(dtype)
    began = time.process_time()
    model = TorchModel(decoder, max_sessions=1, max_length=SHAPE.max_position_embeddings, multiplier=multiplier)
    startup = time.process_time() - began
    model.forward([Row(own_blocks(model), 0, tuple(range(POSITION)), 1)])
    weights = [weight for name, weight in decoder.named_parameters() if weight.dim() > 1]
    return Way(name, multiplier, model, weights, startup)


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def own_blocks(model: TorchModel) -> tuple[BlockId, ...]:
    """All there are: the model holds one session."""
    return tuple(BlockId(block) for block in range(model.blocks.count))


def step(way: Way, k: int) -> float:
    row = Row(own_blocks(way.model), POSITION, tuple(range(k + 1)), k + 1)
    return milliseconds(lambda: way.model.forward([row]))


@torch.inference_mode()
def products(way: Way, k: int) -> float:
    """Every weight once: as many bytes and products as in a step, in more calls, since none are joined here."""
    rows = {size: torch.randn(k + 1, size).to(way.weights[0].dtype) for size in (576, 1536)}
    return milliseconds(lambda: [way.multiplier.linear(rows[weight.shape[1]], weight) for weight in way.weights])


def in_turns(ways: list[Way], measured: Callable[[Way, int], float]) -> dict[str, Costs]:
    samples: dict[str, Costs] = {each.name: {k: [] for k in PROPOSED} for each in ways}
    for each in ways:
        measured(each, 0)
    for _ in range(ROUNDS):
        for each in (*ways, *reversed(ways)):
            for k in PROPOSED:
                samples[each.name][k].append(round(measured(each, k), 3))
    return samples


def read_gigabytes_per_second() -> float:
    """One thread, the best of several passes over memory that no cache holds."""
    memory = torch.ones(READ_BYTES // 4)
    return READ_BYTES / 1e6 / min(milliseconds(memory.sum) for _ in range(8))


def table(title: str, samples: dict[str, Costs]) -> None:
    print(f"{title:34}" + "".join(f"{'K=' + str(k):>8}" for k in PROPOSED))
    for name, costs in samples.items():
        print(f"  {name:32}" + "".join(f"{min(costs[k]):8.1f}" for k in PROPOSED))


def figures_of(dtype: str, steps: Costs) -> dict[str, float]:
    plain = min(steps[0])
    return {
        f"tb_ms_{dtype}": plain,
        f"tv4_over_tb_{dtype}": round(min(steps[4]) / plain, 3),
        f"tv8_over_tb_{dtype}": round(min(steps[8]) / plain, 3),
    }


def main() -> None:
    torch.set_num_threads(1)
    read, load = read_gigabytes_per_second(), os.getloadavg()[0]
    print(f"{platform.machine()}, one thread, load average {load:.2f}; reads {read:.1f} GB/s; CPU milliseconds, least")
    figures, samples = {"read_gb_per_s": round(read, 2), "load_average": load}, {}
    for dtype, number in DTYPES.items():
        ours = multiplier_for(torch.device("cpu"))
        ways = [
            way(f"ours {dtype}", number, ours),
            way(f"torch {dtype}", number, Multiplier(functional.linear, row_invariant=False, about="torch")),
        ]
        megabytes = sum(weight.nbytes for weight in ways[0].weights) / 1e6
        print(f"\n{dtype}: {ours.about}; {megabytes:.0f} MB of weights, read in {megabytes / read:.1f} ms at best")
        for each in ways:
            print(f"  {each.name}: {each.model.determinism}, ready in {each.startup_seconds:.1f} s")
        steps, alone = in_turns(ways, step), in_turns(ways, products)
        table("a whole step", steps)
        table("products alone", alone)
        figures |= figures_of(dtype, steps[ways[0].name])
        figures |= {f"startup_s_{dtype}": round(ways[0].startup_seconds, 2), f"weights_mb_{dtype}": megabytes}
        figures[f"torch_tb_ms_{dtype}"] = min(steps[ways[1].name][0])
        samples[dtype] = {"steps": steps, "products": alone}
    figures |= {"tv4_over_tb": figures["tv4_over_tb_bf16"], "tv8_over_tb": figures["tv8_over_tb_bf16"]}
    print(f"\nt_v(4) / t_b = {figures['tv4_over_tb']:.2f} in bf16, {figures['tv4_over_tb_fp32']:.2f} in fp32")
    print(record("engine_cpu", seed=SEED, figures=figures, samples={"cpu_milliseconds": samples}))


if __name__ == "__main__":
    main()
