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
    read,
    rejection_outcomes,
    told_confidences,
    write,
)
from benchmarks.prompts import SOURCES, TASKS, NoPrompts, Prompt, edits, pair_prompts
from benchmarks.record import cpu_model
from benchmarks.recorded import Outcomes, Trace, write_trace
from benchmarks.smollm2 import needed_folder
from tandem_runtime.domain.suffix import EarlierOutputs, NGramText, Owner, SuffixText, Text
from tandem_runtime.domain.tokens import SamplingParameters, TokenId, Verification
from tandem_runtime.drafters import EARLIER_BYTES
from tandem_runtime.engines.options import AS_IS, EngineOptions
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.ports import Logits, StepModel
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
            write_trace(trace, _made())
            print(f"{full:22} {len(outcomes):4} texts, of the first guesses right {trace.acceptance:.3f}", flush=True)


def record_models(
    recording: Recording,
    target: StepModel,
    drafts: Sequence[Draft],
    encoded: Sequence[tuple[Prompt, tuple[TokenId, ...]]],
    *,
    tokens: int,
    ends: frozenset[TokenId],
) -> None:
    """Each prompt at all temperatures: written in batches, then read by each draft. Saved after each batch, so that a
    long recording may be ended at any time."""
    ways = len(TEMPERATURES)
    at_once = STREAMS // ways
    for start in range(0, len(encoded), at_once):
        asked = encoded[start : start + at_once]
        texts = [
            Written(ids, SamplingParameters(seed=SEED + ways * (start + at) + way, temperature=temperature))
            for at, (_, ids) in enumerate(asked)
            for way, temperature in enumerate(TEMPERATURES)
        ]
        write(target, texts, tokens=tokens, ends=ends)
        for at, (prompt, _) in enumerate(asked):
            same = texts[ways * at : ways * (at + 1)]
            _record_texts(recording, drafts, prompt, [text for text in same if len(text.output) >= LEAST_OUTPUT_TOKENS])
        print(f"{recording.family}: {start + len(asked)} of {len(encoded)} prompts", flush=True)
        recording.save()


def _record_texts(recording: Recording, drafts: Sequence[Draft], prompt: Prompt, texts: Sequence[Written]) -> None:
    """Of one prompt."""
    for draft in drafts if texts else ():
        for text, rows in zip(texts, read(draft.model, texts), strict=True):
            _record_draft(recording, draft, prompt, text, rows)
    for text, (name, lookup) in itertools.product(texts, LOOKUPS.items()):
        bits, offered = lookup_outcomes(lookup(), text.prompt, text.output)
        recording.add(name, (f"{name} lookup", "Coupled"), replace(_outcomes(prompt, text, bits), offered=offered))


def _record_draft(recording: Recording, draft: Draft, prompt: Prompt, text: Written, rows: Logits) -> None:
    known = replace(_outcomes(prompt, text, coupled_bits(rows, text)), confidences=confidences(rows))
    told = told_confidences(rows, text, Verification.COUPLED)
    recording.add(draft.name, (draft.told, "Coupled"), replace(known, told=told))
    if draft.drawn and text.parameters.temperature > 0:
        chance = random.Random(f"{draft.name} {text.parameters.seed}")
        bits, credits = rejection_outcomes(rows, text, chance)
        told = told_confidences(rows, text, Verification.REJECTION)
        drawn = replace(known, bits=bits, credits=credits, told=told)
        recording.add(f"{draft.name}-rejection", (draft.told, "Rejection"), drawn)


def _outcomes(prompt: Prompt, text: Written, bits: str) -> Outcomes:
    return Outcomes(prompt.task, prompt.name, text.parameters.temperature, len(text.prompt), bits, group=prompt.group)


def tiny(prompts: int, tokens: int) -> None:
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


def smollm2(prompts: int, tokens: int) -> None:
    folder = needed_folder()
    recording = Recording("smollm2", "recorded", "SmolLM2-135M-Instruct: target bf16", "SmolLM2-135M")
    tokenizer = FolderTokenizer(folder)
    drafts = [
        Draft(weights, f"the target in {weights[3:]} bits", _model(folder, dtype="bf16", weights=weights), drawn=True)
        for weights in ("int4", "int8")
    ]
    target = _model(folder, dtype="bf16")
    encoded = list(_spread(tokenizer, prompts))
    record_models(recording, target, drafts, encoded, tokens=tokens, ends=tokenizer.end_tokens)


def replayed_edits(prompts: int, tokens: int) -> None:
    """Outputs of one commit serve the later ones of the same, as those of a tenant do."""
    recording = Recording("edits", "replayed", "none: edits of this repository are the output", "SmolLM2-135M")
    tokenizer, earlier = FolderTokenizer(needed_folder()), EarlierOutputs(EARLIER_BYTES)
    for prompt in edits():
        owner = Owner(str(prompt.group))
        ids, output = tokenizer.encode(prompt.text), tokenizer.encode(prompt.answer or "")
        if len(output) < LEAST_OUTPUT_TOKENS:
            continue
        for name, lookup in (("ngram", NGramText()), ("suffix", SuffixText(earlier.of(owner)))):
            bits, offered = lookup_outcomes(lookup, ids, output)
            outcomes = Outcomes(prompt.task, prompt.name, 0.0, len(ids), bits, offered=offered, group=prompt.group)
            recording.add(name, (f"{name} lookup", "Coupled"), outcomes)
        earlier.add(owner, output)
    recording.save()


RECORDINGS = {"tiny": tiny, "smollm2": smollm2, "edits": replayed_edits}


def _spread(tokenizer: FolderTokenizer, prompts: int) -> Iterator[tuple[Prompt, tuple[TokenId, ...]]]:
    """Of each task so many prompts, evenly from all that are short enough; the tasks take turns."""
    chosen = []
    for every in (prompts_of() for prompts_of in TASKS.values()):
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record_traces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("families", nargs="*", choices=[*RECORDINGS, []], help="which to record; all by default")
    parser.add_argument("--prompts", type=int, default=12, help="prompts of each task (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens after each at most (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for family in options.families or RECORDINGS:
            RECORDINGS[family](options.prompts, options.tokens)
    except NoPrompts as reason:
        raise SystemExit(str(reason)) from reason


if __name__ == "__main__":
    main()
