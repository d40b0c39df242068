"""Measures where the time of one decoded token goes in the bundled engine: `make bench NAME=engine_profile`.

Refuses to know other engines. SmolLM2-135M, one stream, greedy, all cores, at some 128 tokens of text.

A token is decoded by the driver over `BatchedTarget`; the parts are told apart from outside, so that they stay
comparable when the engine changes:

    products     all calls of `linear` in a step, each timed
    attention    what a step at position 128 takes longer than one at position 0
    between      the rest of a step: norms, rotation, activations, the embedding, tensors made and split
    choosing     a verdict over one row of logits
    loop         the rest of a token: the step loop, its thread, the session, the driver, the text
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_cpu_steps import BYTES, own_blocks
from benchmarks.peers.tandem_engine import Tandem
from benchmarks.record import record
from benchmarks.smollm2 import needed_folder
from benchmarks.workload import read_prompts
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, Verification
from tandem_runtime.engines.cores import allowed_cores
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.rejection import verify
from tandem_runtime.engines.torch_engine.engine import DTYPES, TorchModel
from tandem_runtime.engines.torch_engine.linear import multiplier_for
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.ports import Logits, Row
from tandem_runtime.tokenizer import FolderTokenizer

SEED, LENGTH, POSITION, REPEATS, TOKENS = 7, 512, 128, 30, 96
PARTS = ("products", "attention", "between", "choosing", "loop")


@dataclass(slots=True)
class Stopwatch:
    """Seconds spent in what it wraps, and how often."""

    seconds: float = 0.0
    calls: int = 0

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            result = work(*given)
            self.seconds += time.perf_counter() - began
            self.calls += 1
            return result

        return timed


@dataclass(slots=True)
class Loaded:
    """A model whose products are timed."""

    model: TorchModel
    products: Stopwatch = field(default_factory=Stopwatch)

    def step_seconds(self, position: int) -> float:
        """The median of plain steps at `position`."""
        row = Row(own_blocks(self.model), position, (1,), 1)
        return statistics.median(_seconds(lambda: self.model.forward([row])) for _ in range(REPEATS))

    def product_seconds(self) -> float:
        """Of the products of one plain step, the mean of as many."""
        before = self.products.seconds
        self.step_seconds(POSITION)
        return (self.products.seconds - before) / REPEATS

    def choice_seconds(self) -> float:
        logits: Logits = self.model.forward([Row(own_blocks(self.model), POSITION, (1,), 1)])[0]
        asked = SamplingParameters(seed=SEED, temperature=0.0)

        def choose() -> object:
            return verify(logits, Proposal(), asked, verification=Verification.COUPLED, offset=0)

        return statistics.median(_seconds(choose) for _ in range(REPEATS))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def loaded(folder: Path, dtype: str) -> Loaded:
    decoder = load_decoder(folder, dtype=DTYPES[dtype], device="cpu")
    multiplier = multiplier_for(torch.device("cpu"))
    products = Stopwatch()
    timed = replace(multiplier, linear=products.around(multiplier.linear))
    return Loaded(TorchModel(decoder, max_sessions=1, max_length=LENGTH, multiplier=timed), products)


def token_seconds(model: TorchModel, folder: Path, prompt: Sequence[int]) -> float:
    """Between two tokens of a text, through the driver; the median of all gaps."""
    engine = Tandem(model, EngineOptions(model=str(folder), max_length=LENGTH))
    try:
        (stream,) = engine.generate([list(prompt)], tokens=TOKENS, way="off")
    finally:
        engine.end()
    moments = [at for at, _ in stream.events]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(moments))


def profile(folder: Path, dtype: str) -> dict[str, float]:
    """Seconds: what was measured."""
    one = loaded(folder, dtype)
    prompt = next(each for each in read_prompts(FolderTokenizer(folder).encode) if each.kind == "edit")
    one.step_seconds(0)
    return {
        "token": token_seconds(one.model, folder, prompt.ids[: POSITION - TOKENS // 2]),
        "step": one.step_seconds(POSITION),
        "step_at_0": one.step_seconds(0),
        "products": one.product_seconds(),
        "choosing": one.choice_seconds(),
    }


def parts(measured: dict[str, float]) -> dict[str, float]:
    """Milliseconds by part; they add up to a token."""
    attention = max(measured["step"] - measured["step_at_0"], 0.0)
    seconds = {
        "products": measured["products"],
        "attention": attention,
        "between": measured["step"] - measured["products"] - attention,
        "choosing": measured["choosing"],
        "loop": measured["token"] - measured["step"] - measured["choosing"],
    }
    return {part: round(seconds[part] * 1e3, 3) for part in PARTS}


def main() -> None:
    threads = allowed_cores()
    torch.set_num_threads(threads)
    folder = needed_folder()
    samples: dict[str, dict[str, float]] = {}
    figures: dict[str, float] = {}
    print(f"{threads} threads; milliseconds of one token" + "".join(f"{part:>12}" for part in (*PARTS, "token")))
    for dtype in BYTES:
        measured = samples[dtype] = profile(folder, dtype)
        token = round(measured["token"] * 1e3, 3)
        figures |= {f"{part}_ms_{dtype}": value for part, value in parts(measured).items()} | {
            f"token_ms_{dtype}": token
        }
        print(f"{dtype:36}" + "".join(f"{value:12.2f}" for value in (*parts(measured).values(), token)))
    print(record("engine_profile", seed=SEED, figures=figures, samples={"seconds": samples, "threads": threads}))


if __name__ == "__main__":
    main()
