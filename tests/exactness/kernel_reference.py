"""Knows what a decoder's rows should be: whole sequences, without any cache, in a wider type than the engine's.

Refuses to know engines. From the same sequences in the engine's own type it measures how far rounding moves a row, and
from two wrong contexts of each position how far a fault moves one: what lies between them is the certificate's power.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.exactness.kernel_texts import Rows

from tandem_runtime.domain.certificate import Calibration, calibrate, largest_difference, lead
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.engines.torch_engine.loading import load_decoder
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig, causal_attention
from tandem_runtime.tokenizer import FolderTokenizer

PAIRS = Path(__file__).resolve().parents[2] / "examples" / "pairs"
WIDER = {torch.bfloat16: torch.float32, torch.float32: torch.float64}
TINY_PROMPTS, TINY_PROMPT_TOKENS = 40, 9
FOREIGN_EVERY = 5
"""Wrong contexts are computed at every fifth position: each takes a pass of its own."""


@dataclass(frozen=True)
class Subject:
    """A model that can be loaded in any type, and prompts for it."""

    name: str
    decoder: Callable[[torch.dtype], Decoder]
    prompts: tuple[tuple[TokenId, ...], ...]


@dataclass(frozen=True)
class Power:
    """Shares of positions: those where a gap of twice the bound is excused whatever the cause, as the usual rule does,
    and those where the row of a wrong context lies within the bound."""

    excused_by_gap: float
    excused_faults: float


class Reference:
    """The rows of a subject in `dtype`: as they should be, and as rounding leaves them."""

    def __init__(self, subject: Subject, dtype: torch.dtype) -> None:
        self._wide = subject.decoder(dtype).to(WIDER[dtype])
        self._narrow = subject.decoder(dtype)

    def rows(self, tokens: Sequence[TokenId]) -> Rows:
        """After each of `tokens`."""
        return _rows_of(self._wide, tokens, np.arange(len(tokens)))

    def limits(self, texts: Sequence[tuple[TokenId, ...]], parameters: SamplingParameters) -> Calibration:
        pairs = [
            (row.tolist(), rounded.tolist())
            for text in texts
            for row, rounded in zip(self.rows(text), _rows_of(self._narrow, text, np.arange(len(text))), strict=True)
        ]
        return calibrate(pairs, parameters)

    def power(self, texts: Sequence[tuple[TokenId, ...]], parameters: SamplingParameters, *, bound: float) -> Power:
        gaps, distances = list[float](), list[float]()
        for text in texts:
            for at, row in list(enumerate(self.rows(text)))[FOREIGN_EVERY::FOREIGN_EVERY]:
                gaps.append(lead(row.tolist(), parameters, at).gap)
                distances += [
                    largest_difference(row.tolist(), other.tolist()) for other in self._foreign(text[: at + 1])
                ]
        return Power(
            excused_by_gap=float(np.mean(np.array(gaps) <= 2 * bound)),
            excused_faults=float(np.mean(np.array(distances) <= bound)),
        )

    def _foreign(self, tokens: tuple[TokenId, ...]) -> tuple[Rows, Rows]:
        """The last row where the cache lacks the token before, and where the last token stands one position late."""
        missing, late = tokens[:-2] + tokens[-1:], np.arange(len(tokens))
        late[-1] += 1
        return (
            _rows_of(self._wide, missing, np.arange(len(missing)))[-1],
            _rows_of(self._wide, tokens, late)[-1],
        )


@torch.inference_mode()
def _rows_of(
    decoder: Decoder, tokens: Sequence[TokenId], positions: Rows | np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Rows:
    logits = decoder(torch.tensor([tokens]), torch.tensor(positions)[None], causal_attention)[0]
    rows: Rows = torch.log_softmax(logits.double(), dim=-1).numpy()
    return rows


def from_folder(folder: Path) -> Subject:
    """A model in the Hugging Face layout, asked the prompts of the example pairs."""
    tokenizer = FolderTokenizer(folder)
    texts = [text for kind in json.loads((PAIRS / "prompts.json").read_text()).values() for text in kind]
    prompts = tuple(tokenizer.encode(text) for text in texts)
    return Subject(folder.name, lambda dtype: load_decoder(folder, dtype=dtype), prompts)


def tiny() -> Subject:
    """A random model: its rows have no habits that training gives."""
    chance = np.random.default_rng(3)
    prompts = chance.integers(0, _TINY.vocab_size, (TINY_PROMPTS, TINY_PROMPT_TOKENS)).tolist()
    return Subject("tiny", lambda dtype: random_decoder(_TINY, seed=11).to(dtype), tuple(map(tuple, prompts)))


_TINY = DecoderConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    tie_word_embeddings=False,
)


def random_decoder(config: DecoderConfig, *, seed: int) -> Decoder:
    """With weights so large that a row depends on all tokens before it."""
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(config).requires_grad_(False)
    for weight in decoder.parameters():
        if weight.dim() > 1:
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5 * 1.5)
    return decoder
