"""The command that makes the pairs: ``python -m examples.pairs.make``.

Refuses to know how models learn; it says which, on what, in which order, and where the results go.

Every stage leaves its result in the work folder and is skipped when that is there, so an interrupted run goes on.
Delete the folder, or one checkpoint in it, to make that part anew.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.pairs.corpus import Corpus, build_bulletins, build_prose
from examples.pairs.training import Schedule, fresh_decoder, held_out_loss, learn, text_loss
from examples.pairs.vocabulary import VOCABULARY_TOKENS, encode_stream, train_vocabulary
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig

HERE = Path(__file__).parent
SEED = 20
BULLETIN_DOCUMENTS = 420  # about an eighth of the tokens: enough for so regular a text

TARGET = DecoderConfig(
    vocab_size=VOCABULARY_TOKENS,
    hidden_size=160,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
)


@dataclass(frozen=True, slots=True)
class Material:
    """What every stage reads: both corpora, the vocabulary, and their tokens."""

    prose: Corpus
    bulletins: Corpus
    tokenizer: Tokenizer

    def stream(self, *kinds: Corpus) -> Tensor:
        texts = [text for kind in kinds for text in kind.training]
        return torch.tensor(encode_stream(texts, self.tokenizer, seed=SEED))

    def held_out(self, kind: Corpus) -> Tensor:
        return torch.tensor(encode_stream(kind.held_out, self.tokenizer, seed=SEED))


def gather() -> Material:
    prose, bulletins = build_prose(), build_bulletins(BULLETIN_DOCUMENTS, seed=SEED)
    return Material(prose, bulletins, train_vocabulary([*prose.training, *bulletins.training]))


def make_target(material: Material, work: Path, steps: int) -> Decoder:
    decoder = fresh_decoder(TARGET, seed=SEED)
    stream = material.stream(material.prose, material.bulletins)
    say(f"target: {parameters(decoder):,} parameters, {len(stream):,} tokens of text")
    learn(
        decoder, stream, text_loss, schedule=Schedule(steps=steps), checkpoint=work / "target.pt", report=say
    )
    for name, kind in (("prose", material.prose), ("bulletins", material.bulletins)):
        say(f"target: {held_out_loss(decoder, material.held_out(kind)):.3f} nats a token on held-out {name}")
    return decoder


def parameters(decoder: Decoder) -> int:
    return sum(weight.numel() for weight in decoder.parameters())


def say(line: str) -> None:
    print(f"[{perf_counter() / 60:7.1f} min] {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=HERE / ".build")
    parser.add_argument("--target-steps", type=int, default=1400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    make_target(gather(), options.work, options.target_steps)


if __name__ == "__main__":
    main()
