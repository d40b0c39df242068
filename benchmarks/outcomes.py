"""Knows how accept outcomes are found: a target writes, a draft reads what was written, and both are compared.

Refuses to know prompts and files.

**Coupled.** The text does not depend on the draft, and the guess at a position is the draft's choice under the same
noise: equal, or not. So one pass over the finished output tells all bits.

**Rejection.** Serving draws x from q, keeps it with chance min(1, p/q), else draws the token y from what p has over q.
That is the maximal coupling of (x, y), and it can be drawn from its other end as well: y, which follows p, is there;

    with chance min(1, q(y) / p(y))     x = y, accepted
    else                                x from max(q - p, 0), rejected

has the same law of (x, y), so of the bit and of the credit min(1, p(x) / q(x)). So here, too, one pass over a text that
the target drew by itself tells all. q is cut to its likeliest tokens, as served.

**Lookups** read the output token by token, and guess before each.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem_runtime.domain.blocks import BlockId
from tandem_runtime.domain.suffix import Text
from tandem_runtime.domain.tokens import SamplingParameters, SparseRow, TokenId, Verification
from tandem_runtime.engines.confidence import confidence
from tandem_runtime.engines.sampler import Law, coupled_choice, distribution, draw, guess
from tandem_runtime.ports import Logits, Row, StepModel

HUNDREDTHS, THOUSANDTHS = 2, 3


@dataclass(slots=True)
class Written:
    """A prompt, and what the target says after it. `rows` [output, vocab]: the target's logits before each token."""

    prompt: tuple[TokenId, ...]
    parameters: SamplingParameters
    output: list[TokenId] = field(default_factory=list)
    rows: list[Logits] = field(default_factory=list)


def write(model: StepModel, texts: Sequence[Written], *, tokens: int, ends: frozenset[TokenId]) -> None:
    """Each text up to `tokens` tokens or an end token, all in the same steps, as many as the model has sessions for."""
    share = model.blocks.count // len(texts)
    blocks = [tuple(BlockId(n) for n in range(at * share, (at + 1) * share)) for at in range(len(texts))]
    rows = [Row(blocks[at], 0, text.prompt, 1) for at, text in enumerate(texts)]
    going = list(range(len(texts)))
    while going:
        for at, [logits] in zip(going, model.forward(rows), strict=True):
            text = texts[at]
            text.output.append(coupled_choice(logits, text.parameters, len(text.output)))
            text.rows.append(logits)
        going = [at for at in going if len(texts[at].output) < tokens and texts[at].output[-1] not in ends]
        rows = [_next_row(texts[at], blocks[at]) for at in going]


def _next_row(text: Written, blocks: tuple[BlockId, ...]) -> Row:
    return Row(blocks, len(text.prompt) + len(text.output) - 1, (text.output[-1],), 1)


def read(model: StepModel, texts: Sequence[Written]) -> Iterator[Logits]:
    """For each text [output, vocab], what the model has before each token, in one pass; of texts with one prompt."""
    blocks = tuple(BlockId(block) for block in range(model.blocks.count))
    *most, last = texts[0].prompt
    if most:
        model.forward([Row(blocks, 0, tuple(most), 1)])
    for text in texts:
        [rows] = model.forward([Row(blocks, len(most), (last, *text.output[:-1]), len(text.output))])
        yield rows


def coupled_bits(draft_rows: Logits, text: Written) -> str:
    choices = (coupled_choice(row, text.parameters, at) for at, row in enumerate(draft_rows))
    return _bits(choice == token for choice, token in zip(choices, text.output, strict=True))


def rejection_outcomes(draft_rows: Logits, text: Written, chance: random.Random) -> tuple[str, tuple[float, ...]]:
    """Bits and credits. The text must follow the target's law, so not be greedy."""
    found = [
        rejection_outcome(distribution(p, text.parameters), _law_drafted(q, text.parameters), token, chance)
        for p, q, token in zip(text.rows, draft_rows, text.output, strict=True)
    ]
    return _bits(bit for bit, _ in found), tuple(round(credit, THOUSANDTHS) for _, credit in found)


def rejection_outcome(p: Law, q: Law, token: TokenId, chance: random.Random) -> tuple[bool, float]:
    """Whether a guess drawn from q stands at a place where `token`, drawn from p, came; and its credit."""
    stands = chance.random() * p.of(token) < q.of(token)
    guessed = token if stands else draw(_over(q, p), chance.random())
    return stands, min(1.0, p.of(guessed) / q.of(guessed))


def confidences(draft_rows: Logits) -> tuple[float, ...]:
    """The largest probability of each row's softmax."""
    rows = draft_rows.astype(np.float64)
    largest = 1 / np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)
    return tuple(round(float(each), HUNDREDTHS) for each in largest)


def told_confidences(draft_rows: Logits, text: Written, verification: Verification) -> tuple[int, ...]:
    """What a draft would tell with its guess at each position."""
    return tuple(
        confidence(row, text.parameters, verification=verification, position=at) for at, row in enumerate(draft_rows)
    )


def lookup_outcomes(lookup: Text, prompt: Sequence[TokenId], output: Sequence[TokenId]) -> tuple[str, str]:
    """Bits, and where something was offered."""
    lookup.read(prompt)
    guesses: list[tuple[TokenId, ...]] = []
    for token in output:
        guesses.append(lookup.guess(1).ids)
        lookup.hear((token,))
    bits = _bits(guessed == (token,) for guessed, token in zip(guesses, output, strict=True))
    return bits, _bits(bool(guessed) for guessed in guesses)


def _bits(values: Iterable[bool]) -> str:
    return "".join("1" if value else "0" for value in values)


def _law_drafted(logits: Logits, parameters: SamplingParameters) -> Law:
    _, q = guess(logits, parameters, verification=Verification.REJECTION, position=0)
    return _law(q or SparseRow((), ()))


def _law(row: SparseRow) -> Law:
    ids, weights = np.asarray(row.ids, np.int64), np.asarray(row.probabilities, np.float64)
    return Law(ids, weights / weights.sum())


def _over(q: Law, p: Law) -> Law:
    """max(q - p, 0), not renormalised."""
    return Law(q.ids, np.maximum(q.probabilities - np.array([p.of(int(token)) for token in q.ids]), 0.0))
