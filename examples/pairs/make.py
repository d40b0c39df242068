"""The command that makes the pairs: ``python -m examples.pairs.make``.

Refuses to know how models learn; it says which, on what, in which order, and where the results go.

Every stage keeps its progress in the work folder and goes on from there, so an interrupted run loses half a minute.
Delete a file of that folder to make that part anew.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from examples.pairs.corpus import Corpus, build_bulletins, build_prose
from examples.pairs.publishing import publish, rounded, write_manifest
from examples.pairs.sampling import continue_text, drawn, greedy
from examples.pairs.training import (
    Schedule,
    distillation_loss,
    fresh_decoder,
    held_out_loss,
    learn,
    sharpened,
    text_loss,
    thinned_decoder,
)
from examples.pairs.vocabulary import END_ID, VOCABULARY_TOKENS, encode_stream, train_vocabulary
from tokenizers import Tokenizer
from torch import Tensor

from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig

HERE = Path(__file__).parent
SEED = 20
BULLETIN_DOCUMENTS = 400  # about an eighth of the tokens: enough for so regular a text

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
SHARPNESS = 1.3
"""The target's logits are multiplied by this, once, when it has learnt: a model this small is left unsure of all it
says, while those it stands for are sharp. Its temperature 1 is what would have been 0.77."""

GOOD_DRAFT_LAYERS = (0, 3)  # of the target: where the good draft begins
POOR_DRAFT = DecoderConfig(
    vocab_size=VOCABULARY_TOKENS,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=1024,
)

SAMPLE_ROWS, SAMPLE_PROMPT_TOKENS, SAMPLE_TOKENS = 128, 24, 232
SAMPLED_BATCHES, GREEDY_BATCHES = 8, 2
PROMPT_TOKENS = 24
PROMPTS_PER_KIND = 60
HELD_OUT_BULLETINS = 80  # the grammar repeats itself: some of these openings were trained on, and are dropped


@dataclass(frozen=True, slots=True)
class Material:
    """What every stage reads: both corpora and the vocabulary."""

    prose: Corpus
    bulletins: Corpus
    tokenizer: Tokenizer

    def training(self, *kinds: Corpus) -> Tensor:
        texts = [text for kind in kinds for text in kind.training]
        return torch.tensor(encode_stream(texts, self.tokenizer, seed=SEED))

    def held_out(self, kind: Corpus) -> Tensor:
        return torch.tensor(encode_stream(kind.held_out, self.tokenizer, seed=SEED))

    def taught(self) -> Tensor:
        """[vocab] bool: the tokens of prose, which are all that a draft is taught."""
        known = torch.zeros(VOCABULARY_TOKENS, dtype=torch.bool)
        known[self.training(self.prose)] = True
        return known


def gather() -> Material:
    prose, bulletins = build_prose(), build_bulletins(BULLETIN_DOCUMENTS, held_out=HELD_OUT_BULLETINS, seed=SEED)
    return Material(prose, bulletins, train_vocabulary([*prose.training, *bulletins.training]))


def make_target(material: Material, work: Path, steps: int) -> Decoder:
    """From text of both kinds."""
    decoder = fresh_decoder(TARGET, seed=SEED)
    stream = material.training(material.prose, material.bulletins)
    say(f"target: {parameters(decoder):,} parameters, {len(stream):,} tokens of text")
    learn(decoder, stream, text_loss, schedule=Schedule(steps=steps), checkpoint=work / "target.pt", report=say)
    for name, kind in (("prose", material.prose), ("bulletins", material.bulletins)):
        say(f"target: {held_out_loss(decoder, material.held_out(kind)):.3f} nats a token on held-out {name}")
    return rounded(sharpened(decoder, SHARPNESS))


def sample_target(target: Decoder, material: Material, work: Path) -> Tensor:
    """The target's own continuations of prose, each cut at its first token that is an end or foreign to prose."""
    kept = work / "samples.pt"
    if not kept.exists():
        texts = [text for batch in _sample_batches(target, material) for text in batch]
        torch.save(torch.cat(texts), kept)
    samples: Tensor = torch.load(kept, weights_only=True)
    say(f"samples: {len(samples):,} tokens of the target's own prose")
    return samples


def _sample_batches(target: Decoder, material: Material) -> Iterator[list[Tensor]]:
    stream, taught = material.training(material.prose), material.taught()
    chance = torch.Generator().manual_seed(SEED)
    for batch in range(SAMPLED_BATCHES + GREEDY_BATCHES):
        starts = torch.randint(len(stream) - SAMPLE_PROMPT_TOKENS, (SAMPLE_ROWS, 1), generator=chance)
        prompts = stream[starts + torch.arange(SAMPLE_PROMPT_TOKENS)]
        choose = drawn(chance) if batch < SAMPLED_BATCHES else greedy
        texts = continue_text(target, prompts, SAMPLE_TOKENS, choose)
        say(f"samples: batch {batch + 1}/{SAMPLED_BATCHES + GREEDY_BATCHES}")
        yield [_cut(text, taught) for text in texts]


def _cut(text: Tensor, taught: Tensor) -> Tensor:
    stops = (text == END_ID) | ~taught[text]
    stops[:SAMPLE_PROMPT_TOKENS] = False
    end = int(stops.to(torch.int8).argmax()) if bool(stops.any()) else len(text)
    return torch.cat((text[:end], torch.tensor([END_ID])))


def make_good_draft(target: Decoder, material: Material, work: Path, steps: int) -> Decoder:
    """Two layers of the target, taught its law on prose and on its own prose, and nothing of the other kind."""
    taught = material.taught()
    draft = thinned_decoder(target, GOOD_DRAFT_LAYERS, taught, seed=SEED)
    stream = torch.cat((material.training(material.prose), sample_target(target, material, work)))
    say(f"draft-good: {parameters(draft):,} parameters")
    schedule = Schedule(steps=steps, long_share=0.3)
    loss = distillation_loss(target, taught)
    learn(draft, stream, loss, schedule=schedule, checkpoint=work / "draft-good.pt", report=say)
    return rounded(draft)


def make_poor_draft(target: Decoder, material: Material, work: Path, steps: int) -> Decoder:
    """One narrow layer from nothing, taught the same for far too short a time."""
    draft = fresh_decoder(POOR_DRAFT, seed=SEED)
    say(f"draft-poor: {parameters(draft):,} parameters")
    loss = distillation_loss(target, material.taught())
    stream = material.training(material.prose)
    learn(draft, stream, loss, schedule=Schedule(steps=steps), checkpoint=work / "draft-poor.pt", report=say)
    return rounded(draft)


def write_prompts(material: Material, path: Path) -> None:
    """Openings of held-out documents, cut between words."""
    prompts = {
        "prose": _openings(material.prose, material.tokenizer),
        "other": _openings(material.bulletins, material.tokenizer),
    }
    path.write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
    say(f"prompts: {', '.join(f'{len(texts)} of {kind}' for kind, texts in prompts.items())}")


def _openings(kind: Corpus, tokenizer: Tokenizer) -> list[str]:
    """The first words of held-out documents, but for those that stand in a document trained on."""
    trained = "\n".join(kind.training)
    starts = (tokenizer.decode(tokenizer.encode(document).ids[:PROMPT_TOKENS]) for document in kind.held_out)
    openings = dict.fromkeys(start.rpartition(" ")[0] for start in starts)
    return [opening for opening in openings if opening not in trained][:PROMPTS_PER_KIND]


def parameters(decoder: Decoder) -> int:
    return sum(weight.numel() for weight in decoder.parameters())


def say(line: str, *, begun: float = perf_counter()) -> None:
    """One line of progress, under the minutes since the start."""
    print(f"[{(perf_counter() - begun) / 60:5.1f} min] {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.pairs.make", description="Train the example pairs.")
    parser.add_argument("--into", type=Path, default=HERE, help="where the three model folders and the prompts go")
    parser.add_argument("--work", type=Path, default=HERE / ".build", help="where progress is kept")
    parser.add_argument("--target-steps", type=int, default=1100)
    parser.add_argument("--good-steps", type=int, default=700)
    parser.add_argument("--poor-steps", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    material = gather()
    target = make_target(material, options.work, options.target_steps)
    poor = make_poor_draft(target, material, options.work, options.poor_steps)
    good = make_good_draft(target, material, options.work, options.good_steps)
    for name, decoder in (("target", target), ("draft-good", good), ("draft-poor", poor)):
        publish(decoder, material.tokenizer, options.into / name)
    for name in ("draft-good", "draft-poor"):
        write_manifest(options.into / name, of=options.into / "target")
    write_prompts(material, options.into / "prompts.json")


if __name__ == "__main__":
    main()
