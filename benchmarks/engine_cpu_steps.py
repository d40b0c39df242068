"""Knows what a step of the bundled engine costs by the rows in it, and what this machine's memory allows.

Refuses to know text and other engines.

t_b is a plain step of one session, t_v(K) one that verifies K tokens, so K + 1 rows; at position 128, through
`load_torch_model` and its `forward`, head and logits included. K goes up and down in turns. A cost is the median of its
samples, in wall time, which are all kept.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tandem_runtime.domain.blocks import BlockId
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.ports import Row, StepModel

POSITION, LENGTH = 128, 256
PROPOSED = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)
READ_BYTES, READS = 512 * 2**20, 8
BYTES = {"bf16": 2, "fp32": 4}


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def read_gigabytes_per_second(threads: int) -> float:
    """The best of several passes over memory that no cache holds."""
    torch.set_num_threads(threads)
    memory = torch.ones(READ_BYTES // 4)
    return READ_BYTES / 1e6 / min(milliseconds(memory.sum) for _ in range(READS))


def own_blocks(model: StepModel) -> tuple[BlockId, ...]:
    """All there are: the model holds one session."""
    return tuple(BlockId(block) for block in range(model.blocks.count))


def step_samples(folder: Path, *, dtype: str, threads: int, turns: int) -> dict[str, list[float]]:
    """Milliseconds by K, as a file has it."""
    options = EngineOptions(
        model=str(folder), device="cpu", dtype=dtype, threads=threads, max_sessions=1, max_length=LENGTH
    )
    model = load_torch_model(options)
    blocks = own_blocks(model)
    model.forward([Row(blocks, 0, tuple(range(POSITION)), 1)])

    def step(k: int) -> float:
        return milliseconds(lambda: model.forward([Row(blocks, POSITION, tuple(range(k + 1)), k + 1)]))

    for k in PROPOSED:
        step(k)
    samples: dict[str, list[float]] = {str(k): [] for k in PROPOSED}
    for turn in range(turns):
        for k in PROPOSED if turn % 2 == 0 else reversed(PROPOSED):
            samples[str(k)].append(round(step(k), 3))
    return samples


def weight_bytes(folder: Path, dtype: str) -> int:
    """Of the model, whose files hold two bytes a number: a plain step reads each once."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return stored // BYTES["bf16"] * BYTES[dtype]


def step_figures(samples: dict[str, Any], *, dtype: str, threads: int) -> dict[str, float]:
    """From `samples`, as `measured_steps` gives them: t_b, two points of the curve, and the share of the memory's speed
    at which a plain step reads the weights."""
    steps = samples["milliseconds"][f"{dtype} x{threads}"]
    cost = {k: statistics.median(steps[str(k)]) for k in (0, 4, 8)}
    at_best = samples["weight_bytes"][dtype] / 1e6 / samples["read_gb_per_s"][str(threads)]
    end = f"_{dtype}_x{threads}"
    return {
        f"tb_ms{end}": round(cost[0], 3),
        f"tv4_over_tb{end}": round(cost[4] / cost[0], 4),
        f"tv8_over_tb{end}": round(cost[8] / cost[0], 4),
        f"read_share{end}": round(at_best / cost[0], 4),
    }


def measured_steps(folder: Path, *, threads: tuple[int, ...], turns: int) -> dict[str, Any]:
    """All samples, by dtype and threads; prints the curves."""
    read = {str(count): round(read_gigabytes_per_second(count), 2) for count in threads}
    print(f"memory is read at {read} GB/s by threads; milliseconds of a step, medians")
    print(f"{'':12}" + "".join(f"{'K=' + str(k):>8}" for k in PROPOSED))
    steps: dict[str, dict[str, list[float]]] = {}
    for dtype in BYTES:
        for count in threads:
            name = f"{dtype} x{count}"
            steps[name] = step_samples(folder, dtype=dtype, threads=count, turns=turns)
            line = "".join(f"{statistics.median(steps[name][str(k)]):8.1f}" for k in PROPOSED)
            print(f"{name:12}{line}", flush=True)
    return {
        "read_gb_per_s": read,
        "weight_bytes": {dtype: weight_bytes(folder, dtype) for dtype in BYTES},
        "milliseconds": steps,
    }
