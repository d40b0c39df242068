"""Records which guesses of real drafts their targets would have accepted: `python -m benchmarks.record_traces`.

Refuses to know what is made of it. Files go to `benchmarks/traces`, bits without text (`benchmarks.recorded`):

    tiny       the trained pair of examples/pairs, fp32: good and poor draft, and the target's own copy in 4 bits,
               coupled at T 0 and 1, and with rejection at T 1
    smollm2    SmolLM2-135M-Instruct, bf16, after real prompts: its copies in 8 and 4 bits in both ways, n-gram and
               suffix lookup. Its weights come from a file of 4 bits, so its own copy in 4 bits is flattered
    edits      replayed, no model: both lookups where what commits made of this repository's files is the output

    python -m benchmarks.record_traces tiny smollm2 --prompts 12 --tokens 128    so many prompts of each task
"""

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.coupled_verify import PAIRS
from benchmarks.outcomes import (
    Written,
    confidences,
    coupled_bits,
    lookup_outcomes,
    rejection_outcomes,
    rows_of,
    write,
)
from benchmarks.prompts import SOURCES, TASKS, Prompt, edits, pair_prompts
from benchmarks.record import cpu_model
from benchmarks.recorded import Outcomes, Trace, write_trace
from benchmarks.smollm2 import smollm2_folder
from tandem_runtime.domain.suffix import EarlierOutputs, NGramText, SuffixText, Text
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.drafters import EARLIER_BYTES
from tandem_runtime.engines.options import AS_IS, EngineOptions
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.ports import StepModel
from tandem_runtime.tokenizer import FolderTokenizer

SEED, TEMPERATURES, STREAMS = 7000, (0.0, 1.0), 8
MOST_PROMPT_TOKENS = 512
"""Longer prompts are passed over."""
LEAST_OUTPUT_TOKENS = 8
"""A model that ends its answer sooner has nothing to speculate about."""
LOOKUPS: Mapping[str, Callable[[], Text]] = {"ngram": NGramText, "suffix": SuffixText}


@dataclass(frozen=True, slots=True)
class Draft:
    """A model that drafts. `drawn`: also judged by rejection."""

    name: str
    told: str
    model: StepModel
    drawn: bool


@dataclass(slots=True)
class Recording:
    """Traces that grow, by name, of one pair."""

    family: str
    how: str
    pair: str
    tokenizer: str
    told: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Drafter and verification."""
    found: dict[str, list[Outcomes]] = field(default_factory=dict)

    def add(self, name: str, told: tuple[str, str], outcomes: Outcomes) -> None:
        self.told[name] = told
        self.found.setdefault(name, []).append(outcomes)

    def save(self) -> None:
        for name, outcomes in self.found.items():
            drafter, verification = self.told[name]
            prompts = {task: SOURCES[task] for task in dict.fromkeys(each.task for each in outcomes)}
            full = f"{self.family}-{name}"
            trace = Trace(full, self.how, self.pair, drafter, verification, self.tokenizer, prompts, tuple(outcomes))
            path = write_trace(trace, _made())
            print(f"{path.name:28} {len(outcomes):4} sequences, acceptance of the first guess {trace.acceptance:.3f}")


def record_models(
    recording: Recording,
    target: StepModel,
    drafts: Sequence[Draft],
    encoded: Sequence[tuple[Prompt, tuple[int, ...]]],
    *,
    tokens: int,
    ends: frozenset[TokenId],
) -> None:
    """Each prompt at both temperatures: written in batches, then read by each draft."""
    asked = [(prompt, ids, temperature) for temperature in TEMPERATURES for prompt, ids in encoded]
    for start in range(0, len(asked), STREAMS):
        batch = asked[start : start + STREAMS]
        texts = [
            Written(ids, SamplingParameters(seed=SEED + start + at, temperature=temperature), [])
            for at, (_, ids, temperature) in enumerate(batch)
        ]
        write(target, texts, tokens=tokens, ends=ends)
        for (prompt, _, _), text in zip(batch, texts, strict=True):
            if len(text.output) >= LEAST_OUTPUT_TOKENS:
                _record_text(recording, target, drafts, prompt, text)
        _progress(f"{recording.family}: {start + len(batch)} of {len(asked)} texts")


def _record_text(
    recording: Recording, target: StepModel, drafts: Sequence[Draft], prompt: Prompt, text: Written
) -> None:
    drawn = text.parameters.temperature > 0 and any(draft.drawn for draft in drafts)
    target_rows = rows_of(target, text) if drawn else None
    for draft in drafts:
        rows = rows_of(draft.model, text)
        sure = confidences(rows)
        known = replace(_outcomes(prompt, text, coupled_bits(rows, text)), confidences=sure)
        recording.add(draft.name, (draft.told, "Coupled"), known)
        if target_rows is not None and draft.drawn:
            chance = random.Random(f"{draft.name} {text.parameters.seed}")
            bits, credits = rejection_outcomes(target_rows, rows, text, chance)
            recording.add(
                f"{draft.name}-rejection", (draft.told, "Rejection"), replace(known, bits=bits, credits=credits)
            )
    for name, lookup in LOOKUPS.items():
        bits, offered = lookup_outcomes(lookup(), text.prompt, text.output)
        recording.add(name, (f"{name} lookup", "Coupled"), replace(_outcomes(prompt, text, bits), offered=offered))


def _outcomes(prompt: Prompt, text: Written, bits: str) -> Outcomes:
    return Outcomes(prompt.task, prompt.name, text.parameters.temperature, len(text.prompt), bits, group=prompt.group)


def tiny(prompts: int, tokens: int) -> Recording:
    recording = Recording("tiny", "recorded", "examples/pairs: target fp32", "examples/pairs")
    tokenizer = FolderTokenizer(PAIRS / "target")
    drafts = [
        Draft("good", "draft-good, fp32", _model(PAIRS / "draft-good"), drawn=True),
        Draft("poor", "draft-poor, fp32", _model(PAIRS / "draft-poor"), drawn=True),
        Draft("int4", "the target in 4 bits", _model(PAIRS / "target", weights="int4"), drawn=True),
    ]
    asked = [*pair_prompts("prose", "prose")[:prompts], *pair_prompts("other", "bulletins")[:prompts]]
    encoded = [(prompt, tokenizer.encode(prompt.text)) for prompt in asked]
    record_models(recording, _model(PAIRS / "target"), drafts, encoded, tokens=tokens, ends=tokenizer.end_tokens)
    return recording


def smollm2(prompts: int, tokens: int) -> Recording:
    folder = smollm2_folder()
    recording = Recording("smollm2", "recorded", "SmolLM2-135M-Instruct: target bf16", "SmolLM2-135M")
    tokenizer = FolderTokenizer(folder)
    drafts = [
        Draft(weights, f"the target in {weights[3:]} bits", _model(folder, dtype="bf16", weights=weights), drawn=True)
        for weights in ("int4", "int8")
    ]
    target = _model(folder, dtype="bf16")
    encoded = list(_spread(tokenizer, prompts))
    record_models(recording, target, drafts, encoded, tokens=tokens, ends=tokenizer.end_tokens)
    return recording


def replayed_edits(prompts: int, tokens: int) -> Recording:
    """Outputs of one commit serve the later ones of the same, as those of a tenant do."""
    recording = Recording("edits", "replayed", "none: edits of this repository are the output", "SmolLM2-135M")
    tokenizer, earlier = FolderTokenizer(smollm2_folder()), EarlierOutputs(EARLIER_BYTES)
    for prompt in edits():
        owner = str(prompt.group).encode()
        ids, output = tokenizer.encode(prompt.text), tokenizer.encode(prompt.answer or "")
        if len(output) < LEAST_OUTPUT_TOKENS:
            continue
        for name, lookup in (("ngram", NGramText()), ("suffix", SuffixText(earlier.of(owner)))):
            bits, offered = lookup_outcomes(lookup, ids, output)
            outcomes = Outcomes(prompt.task, prompt.name, 0.0, len(ids), bits, offered=offered, group=prompt.group)
            recording.add(name, (f"{name} lookup", "Coupled"), outcomes)
        earlier.add(owner, output)
    return recording


RECORDINGS = {"tiny": tiny, "smollm2": smollm2, "edits": replayed_edits}


def _spread(tokenizer: FolderTokenizer, prompts: int) -> Iterator[tuple[Prompt, tuple[TokenId, ...]]]:
    """Of each task so many prompts, evenly from all that are short enough; the tasks take turns."""
    chosen = []
    for every in (read() for read in TASKS.values()):
        encoded = [(prompt, tokenizer.encode(prompt.text)) for prompt in every]
        short = [each for each in encoded if len(each[1]) <= MOST_PROMPT_TOKENS]
        chosen.append(short[:: max(1, len(short) // prompts)][:prompts])
    for turn in itertools.zip_longest(*chosen):
        yield from (each for each in turn if each is not None)


def _model(folder: Path, *, dtype: str = "fp32", weights: str = AS_IS) -> StepModel:
    return load_torch_model(
        EngineOptions(
            model=str(folder),
            device="cpu",
            dtype=dtype,
            weights=weights,
            max_sessions=STREAMS,
            max_length=MOST_PROMPT_TOKENS + 512,
        )
    )


def _made() -> dict[str, object]:
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": cpu_model(),
        "python": sys.version.split()[0],
        "versions": {package: version(package) for package in ("tandem", "torch", "numpy")},
        "seed": SEED,
    }


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record_traces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("families", nargs="*", choices=[*RECORDINGS, []], help="which to record; all by default")
    parser.add_argument("--prompts", type=int, default=12, help="prompts of each task (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens after each at most (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for family in options.families or RECORDINGS:
        RECORDINGS[family](options.prompts, options.tokens).save()


if __name__ == "__main__":
    main()
