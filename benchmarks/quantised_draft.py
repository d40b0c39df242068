"""Measures a draft that is a copy of its target with weights of 8 or 4 bits: `make bench NAME=quantised_draft`.

Refuses to know sessions and how K is chosen: what such a copy guesses right, and what a guess costs.

**Quality.** The target in bf16 writes after real openings (`prompts.json` of the example pair: sentences of Python's
documentation), greedily and at T = 1 with shared noise. The copy then reads the same tokens. Its share of *equal*
tokens is that of positions at which it would have chosen the target's next token, by the same noise: what a driver sees
as acceptance of the first guess. Two targets: the example pair's, whose weights were never rounded, and SmolLM2-135M.
**The latter flatters int4**: its weights come from a file of 4 bits with a scale and an offset for each 32 inputs
(Q4_1), which is our own grid but for rounding of those two, so that rounding again loses almost nothing. Take the
example pair's figure for what 4 bits cost a model whose weights were not on such a grid.

**Cost.** All products of a step of SmolLM2 for 1, 2, 4 and 8 rows on one thread, and bytes of the weights they read;
then the whole step. CPU milliseconds of the process, the ways in turns (A B C C B A); a cost is the least of its
samples, all of which are kept.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.coupled_verify import PAIRS
from benchmarks.engine_cpu_steps import own_blocks
from benchmarks.record import record
from benchmarks.smollm2 import needed_folder
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.engines.options import AS_IS, WEIGHTS, EngineOptions
from tandem_runtime.engines.sampler import coupled_choice
from tandem_runtime.engines.torch_engine.engine import TorchModel, load_torch_model
from tandem_runtime.engines.torch_engine.linear import multiplier_for
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import Decoder, Linear
from tandem_runtime.engines.torch_engine.quantised import BITS, Rounding, quantised_multiplier
from tandem_runtime.ports import Row
from tandem_runtime.tokenizer import FolderTokenizer

SEED, ROUNDS, POSITION, LENGTH = 7, 4, 128, 256
ROWS = (1, 2, 4, 8)
PROMPTS, TOKENS = {"pair": 12, "smollm2": 4}, 40
CPU = torch.device("cpu")


def options(folder: Path, weights: str) -> EngineOptions:
    return EngineOptions(
        model=str(folder), device="cpu", dtype="bf16", weights=weights, max_sessions=1, max_length=LENGTH
    )


def written(model: TorchModel, prompt: tuple[TokenId, ...], parameters: SamplingParameters) -> list[TokenId]:
    """`TOKENS` tokens after the prompt, end tokens or not."""
    text: list[TokenId] = []
    at, piece = 0, prompt
    while len(text) < TOKENS:
        [[row]] = model.forward([Row(own_blocks(model), at, piece, 1)])
        at, piece = at + len(piece), (coupled_choice(row, parameters, len(text)),)
        text += piece
    return text


def guessed(
    model: TorchModel, prompt: tuple[TokenId, ...], text: list[TokenId], parameters: SamplingParameters
) -> list[TokenId]:
    """What the model would choose at each position of `text`, given what comes before."""
    tokens = (*prompt, *text[:-1])
    [rows] = model.forward([Row(own_blocks(model), 0, tokens, len(text))])
    return [coupled_choice(row, parameters, at) for at, row in enumerate(rows)]


def equal_bits(folder: Path, *, prompts: int) -> dict[str, dict[str, list[int]]]:
    """By weights and temperature, for each position whether the copy's token is the target's."""
    encode = FolderTokenizer(folder).encode
    openings = [encode(text)[:48] for text in json.loads((PAIRS / "prompts.json").read_text())["prose"][:prompts]]
    models = {weights: load_torch_model(options(folder, weights)) for weights in WEIGHTS}
    found: dict[str, dict[str, list[int]]] = {weights: {"0": [], "1": []} for weights in BITS}
    for number, prompt in enumerate(openings):
        for temperature in ("0", "1"):
            parameters = SamplingParameters(seed=SEED + number, temperature=float(temperature))
            text = written(models[AS_IS], prompt, parameters)
            for weights in BITS:
                guesses = guessed(models[weights], prompt, text, parameters)
                found[weights][temperature] += [int(a == b) for a, b in zip(guesses, text, strict=True)]
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """The products of one kind of weights: each with the number of its inputs."""

    weights: str
    linear: Linear
    products: list[tuple[int, torch.Tensor]]
    model: TorchModel

    @property
    def megabytes(self) -> float:
        return sum(weight.nbytes for _, weight in self.products) / 1e6

    @torch.inference_mode()
    def multiply(self, rows: int) -> float:
        inputs = {size: torch.randn(rows, size).bfloat16() for size, _ in self.products}
        return milliseconds(lambda: [self.linear(inputs[size], weight) for size, weight in self.products])

    def step(self, rows: int) -> float:
        row = Row(own_blocks(self.model), POSITION, tuple(range(rows)), rows)
        return milliseconds(lambda: self.model.forward([row]))


def way(folder: Path, weights: str) -> Way:
    model = load_torch_model(options(folder, weights))
    model.forward([Row(own_blocks(model), 0, tuple(range(POSITION)), 1)])
    if weights == AS_IS:
        decoder = load_decoder(folder, dtype=torch.bfloat16)
        return Way(weights, multiplier_for(CPU).linear, list(products_of(decoder)), model)
    decoder = load_decoder(folder, dtype=torch.bfloat16, packing=Rounding(BITS[weights]))
    return Way(weights, quantised_multiplier(CPU).linear, list(products_of(decoder)), model)


def products_of(decoder: Decoder) -> Iterator[tuple[int, torch.Tensor]]:
    """As many bytes and products as in a step, in more calls, since none are joined here."""
    config = decoder.config
    inputs = {"o_proj": config.num_attention_heads * config.head_dim, "down_proj": config.intermediate_size}
    for name, module in decoder.named_modules():
        if isinstance(module, torch.nn.Linear):
            yield inputs.get(name.rpartition(".")[2], config.hidden_size), module.weight
    if decoder.lm_head is None:
        yield config.hidden_size, decoder.model.embed_tokens.weight


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def in_turns(ways: list[Way], measured: Callable[[Way, int], float]) -> dict[str, dict[int, list[float]]]:
    samples: dict[str, dict[int, list[float]]] = {each.weights: {rows: [] for rows in ROWS} for each in ways}
    for _ in range(ROUNDS):
        for each in (*ways, *reversed(ways)):
            for rows in ROWS:
                samples[each.weights][rows].append(round(measured(each, rows), 3))
    return samples


def main() -> None:
    torch.set_num_threads(1)
    figures, quality = {"load_average": os.getloadavg()[0]}, {}
    smollm2 = needed_folder()
    for name, folder in (("pair", PAIRS / "target"), ("smollm2", smollm2)):
        quality[name] = equal_bits(folder, prompts=PROMPTS[name])
        for weights, found in quality[name].items():
            shares = {temperature: sum(bits) / len(bits) for temperature, bits in found.items()}
            figures |= {f"equal_t{t}_{name}_{weights}": round(share, 4) for t, share in shares.items()}
            told = ", ".join(f"T = {t}: {share:.3f}" for t, share in shares.items())
            print(f"{name} {weights}: the target's tokens guessed at {told} of {len(found['0'])} positions each")
    ways = [way(smollm2, weights) for weights in WEIGHTS]
    costs = {"products": in_turns(ways, Way.multiply), "steps": in_turns(ways, Way.step)}
    for each in ways:
        kind = "bf16" if each.weights == AS_IS else each.weights
        figures[f"product_mb_{kind}"] = round(each.megabytes, 1)
        for what, samples in costs.items():
            least = {rows: min(samples[each.weights][rows]) for rows in ROWS}
            figures |= {f"{what}_ms_{rows}_rows_{kind}": figure for rows, figure in least.items()}
            told = ", ".join(f"{rows} rows {figure:.1f}" for rows, figure in least.items())
            print(f"smollm2 {kind}: {each.megabytes:.0f} MB; {what}, ms: {told}")
    print(record("quantised_draft", seed=SEED, figures=figures, samples={"equal": quality, "cpu_milliseconds": costs}))


if __name__ == "__main__":
    main()
