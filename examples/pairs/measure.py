"""The command that measures acceptance: ``python -m examples.pairs.measure``.

Refuses to know speeds: it counts tokens, so its figures are the same on every machine, up to near ties of floats.

The text of a coupled target does not depend on its draft (`tandem_runtime.domain.verification`). So the target writes
each continuation once, the draft reads it in one pass, and what it would have proposed after each prefix is compared
with what came. Cut into rounds of K, that gives the same counts as serving does:

    examined = accepted + rejections          a round ends at its first rejection; what lies behind was never examined
    conditional acceptance = accepted / examined
    tokens per round = 1 + accepted / rounds
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from examples.pairs.sampling import Choose, continue_text
from examples.pairs.vocabulary import END_ID
from tokenizers import Tokenizer
from torch import Tensor

from tandem_runtime.domain.tokens import SamplingParameters, Verification
from tandem_runtime.domain.verification import verify_coupled
from tandem_runtime.engines.sampler import coupled_choice, guess
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import Decoder, causal_attention

HERE = Path(__file__).parent
TARGET, DRAFTS = "target", ("draft-good", "draft-poor")
KINDS = ("prose", "other")
TEMPERATURES = (0.0, 1.0)
LOOKAHEAD = 4
OUTPUT_TOKENS = 64
FIRST_SEED = 7000


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt, what the target wrote after it, and the chance it was written with."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    parameters: SamplingParameters


@dataclass(frozen=True, slots=True)
class Count:
    """Sums over rounds of speculation."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    rejected: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.rounds + other.rounds,
            self.proposed + other.proposed,
            self.accepted + other.accepted,
            self.rejected + other.rejected,
        )

    @property
    def conditional(self) -> float:
        return self.accepted / (self.accepted + self.rejected)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The three models and their vocabulary."""

    target: Decoder
    drafts: dict[str, Decoder]
    tokenizer: Tokenizer


def load_pairs(folder: Path) -> Pairs:
    return Pairs(
        target=load_decoder(folder / TARGET),
        drafts={name: load_decoder(folder / name) for name in DRAFTS},
        tokenizer=Tokenizer.from_file(str(folder / TARGET / "tokenizer.json")),
    )


def write_continuations(pairs: Pairs, prompts: Sequence[str], temperature: float) -> Iterator[Continuation]:
    """What the target says after each of ``prompts``, each with a seed of its own."""
    for index, text in enumerate(prompts):
        parameters = SamplingParameters(seed=FIRST_SEED + index, temperature=temperature)
        prompt = pairs.tokenizer.encode(text).ids
        written = continue_text(pairs.target, torch.tensor([prompt]), OUTPUT_TOKENS, coupled(parameters))
        yield Continuation(tuple(prompt), _ended(written[0, len(prompt) :].tolist()), parameters)


def count_rounds(draft: Decoder, text: Continuation) -> Count:
    """The rounds that ``draft`` would have needed for ``text``, and what was accepted in them."""
    proposals = _proposals(draft, text)
    count, offset = Count(), 0
    while offset < len(text.output):
        last = min(offset + LOOKAHEAD, len(text.output) - 1)  # the last token can only be what follows a proposal
        proposed = proposals[offset:last]
        accepted = verify_coupled(proposed, text.output[offset : last + 1]).accepted
        count += Count(1, len(proposed), accepted, int(accepted < len(proposed)))
        offset += accepted + 1
    return count


def coupled(parameters: SamplingParameters) -> Choose:
    """The target's own choice under the shared noise."""
    return lambda logits, offset: torch.tensor([coupled_choice(row, parameters, offset) for row in logits.numpy()])


@torch.inference_mode()
def _proposals(draft: Decoder, text: Continuation) -> list[int]:
    """What the draft would propose at each offset, given all that came before it."""
    known = torch.tensor([text.prompt + text.output[:-1]])
    rows: Tensor = draft(known, torch.arange(known.shape[1]), causal_attention)[0, len(text.prompt) - 1 :]
    return [
        guess(row, text.parameters, verification=Verification.COUPLED, position=offset)[0]
        for offset, row in enumerate(rows.numpy())
    ]


def _ended(output: list[int]) -> tuple[int, ...]:
    return tuple(output[: output.index(END_ID) + 1] if END_ID in output else output)


def measure(pairs: Pairs, prompts: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """One row per kind of traffic, temperature and draft."""
    for kind in KINDS:
        for temperature in TEMPERATURES:
            texts = list(write_continuations(pairs, prompts[kind], temperature))
            for name, draft in pairs.drafts.items():
                count = sum((count_rounds(draft, text) for text in texts), start=Count())
                yield {
                    "kind": kind,
                    "temperature": temperature,
                    "draft": name,
                    "prompts": len(texts),
                    "tokens": sum(len(text.output) for text in texts),
                    **asdict(count),
                    "conditional_acceptance": round(count.conditional, 4),
                    "tokens_per_round": round(1 + count.accepted / count.rounds, 3),
                }


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """Measured rows as the table of the README."""
    head = "| traffic | temperature | draft | prompts | tokens | examined | acceptance | tokens per round |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        examined = row["accepted"] + row["rejected"]
        lines.append(
            f"| {row['kind']} | {row['temperature']:g} | {row['draft']} | {row['prompts']} | {row['tokens']} "
            f"| {examined} | {row['conditional_acceptance']:.3f} | {row['tokens_per_round']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.pairs.measure", description="Measure the acceptance of the example pairs."
    )
    parser.add_argument("--pairs", type=Path, default=HERE, help="the folder of the three models and prompts.json")
    parser.add_argument("--record", type=Path, help="also write the figures to this file, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    prompts = json.loads((options.pairs / "prompts.json").read_text(encoding="utf-8"))
    rows = []
    for row in measure(load_pairs(options.pairs), prompts):
        rows.append(row)
        print(as_table([row]).splitlines()[-1], flush=True)
    if options.record:
        measured = {"lookahead": LOOKAHEAD, "output_tokens": OUTPUT_TOKENS, "rows": rows}
        options.record.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
