"""Knows how rows of logits become laws, choices and guesses, fast: the rules of the domain in numpy, over whole rows.

Refuses to know models, sessions and batches, and how proposals are judged. The specification is `domain.noise` and
`domain.sampling`; this module must equal it, and tests hold it to that. Two things are quicker here. Noise is a whole
array of uint64 words, with mix(token) kept per vocabulary. And only tokens that can matter are sorted, or get a
logarithm:

    top-k     those not below the k-th largest logit
    top-p     those with weight above (1 - top_p) / 2 of the mean: all others together weigh less than 1 - top_p
    coupled   those with a lucky word (one in 16, g > 2.74), and those that beat the likeliest token without one

Logits may be of any float type; all arithmetic is float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tandem_runtime.domain.errors import NotANumber
from tandem_runtime.domain.noise import Salt, gumbel, key
from tandem_runtime.domain.tokens import (
    SamplingParameters,
    SparseRow,
    TokenId,
    TokenLogprob,
    Verification,
)
from tandem_runtime.domain.verification import round_uniform
from tandem_runtime.ports import Logits

__all__ = [
    "PERTURBED",
    "SPARSE",
    "Law",
    "coupled_choice",
    "coupled_choices",
    "distribution",
    "draw",
    "guess",
    "noise_bits",
    "report_logprob",
]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

PERTURBED = 4096
"""How many of its likeliest tokens a coupled draft perturbs. Only acceptance depends on it, never the text. Fewer would
cost acceptance: of a small target with a vocabulary of 1024, 7 % of the mass at T = 1 lies beyond the 64 likeliest
tokens and 0.6 % beyond 256."""

LUCKY_WORD, LUCKY_GUMBEL = np.uint64(15 << 60), 2.75
"""Words below the first, which is u = 15/16, have a Gumbel number of 2.7405 at most: below the second."""

AT_ONCE = 1 << 14
"""Numbers in a verify's rows up to which they are judged together: there calls cost more than the rows behind the first
rejection, which one by one would not be looked at."""

SPARSE = 32
"""How many entries of q a draft samples from, and sends, in rejection mode: 1 KB for K = 4."""


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The tokens that can come, `ids` [n] ascending, and their `probabilities` [n], which add up to 1."""

    ids: Ids
    probabilities: Floats

    def of(self, token: TokenId) -> float:
        at = int(np.searchsorted(self.ids, token))
        return float(self.probabilities[at]) if at < len(self.ids) and self.ids[at] == token else 0.0


def distribution(logits: Logits, parameters: SamplingParameters) -> Law:
    """The law of the next token after all processors. `logits` [vocab]; raises NotANumber on NaN, +inf, all -inf."""
    row = _biased(logits, parameters)
    if parameters.temperature == 0:
        return Law(np.array([row.argmax()]), np.ones(1))
    return _law(row, parameters)


def coupled_choice(logits: Logits, parameters: SamplingParameters, position: int) -> TokenId:
    """The token at `position` under the shared noise: argmax over the support of logit / T + g, lowest id on ties."""
    row = _biased(logits, parameters)
    if parameters.temperature == 0:
        return int(row.argmax())
    if _is_unfiltered(parameters):
        return _lucky_argmax(row, parameters, position)
    return _perturbed_argmax(row, _law(row, parameters).ids, parameters, position)


def coupled_choices(logits: Logits, parameters: SamplingParameters, offset: int) -> Iterator[TokenId]:
    """The coupled choice after each row, made when it is asked for, or all at once where that is less work."""
    if logits.size <= AT_ONCE and parameters.temperature > 0 and _is_unfiltered(parameters):
        found = _lucky_argmaxes(logits, parameters, offset)
        if found is not None:
            return iter(found)
    return (coupled_choice(row, parameters, offset + at) for at, row in enumerate(logits))


def guess(
    logits: Logits, parameters: SamplingParameters, *, verification: Verification, position: int, ahead: int = 0
) -> tuple[TokenId, SparseRow | None]:
    """A draft's token after `logits` [vocab], `ahead` guesses into its round, and if drawn, what it was drawn from.

    Coupled: the argmax of the `PERTURBED` likeliest tokens under the shared noise. Rejection and block: a draw from the
    `SPARSE` likeliest, renormalised and rounded to float32 first, so that the law of the draw is the law that is sent.
    """
    if verification is Verification.COUPLED:
        return _coupled_guess(logits, parameters, position), None
    law = _likeliest(distribution(logits, parameters), SPARSE)
    rounded = law.probabilities.astype(np.float32)
    u = round_uniform(parameters, Salt.DRAFT, position - ahead, ahead)
    token = draw(Law(law.ids, rounded.astype(np.float64)), u)
    return token, SparseRow(tuple(law.ids.tolist()), tuple(rounded.tolist()))


def report_logprob(logits: Logits, token: TokenId, *, alternatives: int) -> TokenLogprob:
    """log softmax of the raw `logits` [vocab] at `token` and at the likeliest `alternatives`, likeliest first."""
    row = logits.astype(np.float64)
    peak = row.max()
    logs = row - (peak + np.log(np.exp(row - peak).sum()))
    top = _first_ranked(row, alternatives)
    return TokenLogprob(float(logs[token]), tuple(zip(top.tolist(), logs[top].tolist(), strict=True)))


def draw(law: Law, u: float) -> TokenId:
    """The token where the running sum first exceeds u times the total."""
    running = np.cumsum(law.probabilities)
    at = int(np.searchsorted(running, u * running[-1], side="right"))
    return int(law.ids[min(at, len(law.ids) - 1)])


def noise_bits(position_key: int, tokens: Ids, *, vocab_size: int) -> Words:
    """`domain.noise.bits` of many tokens."""
    return _mixed(np.uint64(position_key) ^ _mixed_tokens(vocab_size)[tokens])


def _coupled_guess(logits: Logits, parameters: SamplingParameters, position: int) -> TokenId:
    if len(logits) <= PERTURBED or parameters.temperature == 0 or not _is_unfiltered(parameters):
        return coupled_choice(logits, parameters, position)
    row = _biased(logits, parameters)
    likeliest = np.sort(np.argpartition(row, -PERTURBED)[-PERTURBED:])
    return _perturbed_argmax(row, likeliest, parameters, position)


def _is_unfiltered(parameters: SamplingParameters) -> bool:
    return not parameters.top_k and parameters.top_p >= 1 and parameters.min_p <= 0


def _lucky_argmax(row: Floats, parameters: SamplingParameters, position: int) -> TokenId:
    """The perturbed argmax over a whole row, with logarithms for one token in 16 and a few more."""
    position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, position)
    words = _mixed(_mixed_tokens(len(row)) ^ np.uint64(position_key))
    scores = row / parameters.temperature
    likeliest = int(row.argmax())
    beaten = scores[likeliest] + gumbel(int(words[likeliest]))
    near = np.flatnonzero((words >= LUCKY_WORD) | (scores > beaten - LUCKY_GUMBEL))
    return int(near[(scores[near] + _gumbels(words[near])).argmax()])


def _lucky_argmaxes(logits: Logits, parameters: SamplingParameters, offset: int) -> list[TokenId] | None:
    """`_lucky_argmax` of several rows, `logits` [rows, vocab], in the calls of one. None: some row is no law, so that
    whether it matters depends on where the first rejection is."""
    rows = logits.astype(np.float64)
    for token, bias in parameters.logit_bias:
        rows[:, token] += bias
    if not np.isfinite(rows.max(axis=1)).all():
        return None
    keys = [key(parameters.seed, parameters.choice, Salt.COUPLED, offset + at) for at in range(len(rows))]
    words = _mixed(_mixed_tokens(rows.shape[1]) ^ np.array(keys, np.uint64)[:, None])
    scores = rows / parameters.temperature
    every, likeliest = np.arange(len(rows)), rows.argmax(axis=1)
    beaten = scores[every, likeliest] + _gumbels(words[every, likeliest])
    near = (words >= LUCKY_WORD) | (scores > beaten[:, None] - LUCKY_GUMBEL)
    perturbed = np.full_like(scores, -np.inf)
    perturbed[near] = scores[near] + _gumbels(words[near])
    choices: list[TokenId] = perturbed.argmax(axis=1).tolist()
    return choices


def _perturbed_argmax(row: Floats, support: Ids, parameters: SamplingParameters, position: int) -> TokenId:
    position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, position)
    words = noise_bits(position_key, support, vocab_size=len(row))
    return int(support[(row[support] / parameters.temperature + _gumbels(words)).argmax()])


def _gumbels(words: Words) -> Floats:
    u = ((words >> np.uint64(12)).astype(np.float64) + 0.5) / (1 << 52)
    numbers: Floats = -np.log(-np.log(u))
    return numbers


def _biased(logits: Logits, parameters: SamplingParameters) -> Floats:
    row = logits.astype(np.float64)
    for token, bias in parameters.logit_bias:
        row[token] += bias
    peak = row.max()
    if not peak < np.inf:  # NaN wins a maximum, so this catches both
        raise NotANumber("the model's logits hold NaN or +inf; the request fails rather than guess a token")
    if peak == -np.inf:
        raise NotANumber("the model's logits are -inf for every token; nothing can be drawn")
    return row


def _law(row: Floats, parameters: SamplingParameters) -> Law:
    weights = np.exp((row - row.max()) / parameters.temperature)
    if parameters.top_k or parameters.top_p < 1:
        kept = _ranked_filters(row, weights, parameters)
        kept = kept[weights[kept] >= parameters.min_p * weights[kept[0]]]
        kept.sort()
    else:
        kept = np.flatnonzero((weights > 0) & (weights >= parameters.min_p))
    return Law(kept, weights[kept] / weights[kept].sum())


def _ranked_filters(row: Floats, weights: Floats, parameters: SamplingParameters) -> Ids:
    """What top-k and top-p keep, likeliest first."""
    ranked = _first_ranked(row, parameters.top_k) if parameters.top_k else _heavy(row, weights, parameters.top_p)
    ranked = ranked[weights[ranked] > 0]
    if parameters.top_p >= 1:
        return ranked
    total = weights[ranked].sum() if parameters.top_k else weights.sum()
    running = np.cumsum(weights[ranked])
    count = 1 + int(np.searchsorted(running, parameters.top_p * total, side="left"))
    return ranked[:count]


def _heavy(row: Floats, weights: Floats, top_p: float) -> Ids:
    """The tokens that top-p can keep, likeliest first."""
    floor = 0.5 * (1 - top_p) * weights.sum() / len(weights)
    candidates = np.flatnonzero(weights > floor)
    return candidates[np.argsort(-row[candidates], kind="stable")]


def _first_ranked(row: Floats, count: int) -> Ids:
    """The `count` highest of `row`, highest first, ties by the lower id."""
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= len(row):
        return np.argsort(-row, kind="stable")
    candidates = np.flatnonzero(row >= np.partition(row, len(row) - count)[len(row) - count])
    return candidates[np.argsort(-row[candidates], kind="stable")][:count]


def _likeliest(law: Law, count: int) -> Law:
    """The `count` likeliest tokens of a law, renormalised."""
    if len(law.ids) <= count:
        return law
    kept = np.sort(_first_ranked(law.probabilities, count))
    return Law(law.ids[kept], law.probabilities[kept] / law.probabilities[kept].sum())


def _mixed(words: Words) -> Words:
    """`domain.noise.mix` of many words, in their own place; uint64 arithmetic wraps as the definition asks."""
    words += np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


@lru_cache(maxsize=8)
def _mixed_tokens(vocab_size: int) -> Words:
    return _mixed(np.arange(vocab_size, dtype=np.uint64))
