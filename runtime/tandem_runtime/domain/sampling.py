"""Knows how a row of logits becomes a law over tokens, and how a token is taken from that law with given chance.

Refuses to know where logits and chance come from, and tensors: this is the plain reference that engines must equal.

A row passes `domain.processors` first. Then come, in transformers' order, temperature, top-k, top-p, min-p. Each step
sees what the one before it left, renormalised. Tokens rank by logit, ties by the lower id, so:

    top-k   keeps the first k                          (exactly k: top_k = 1 is greedy, ties included)
    top-p   keeps a token iff the mass ranked before it is below top_p; the first token always stays
    min-p   keeps a token iff its probability is at least min_p times the likeliest one's

Temperature 0 is greedy: all mass on the highest logit, lowest id on ties; no filter can matter then.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from tandem_runtime.domain.noise import Salt, bits, gumbel, key
from tandem_runtime.domain.processors import NOTHING_SAID, Admitted, History, processed
from tandem_runtime.domain.tokens import SamplingParameters, TokenId

Probability: TypeAlias = float | Fraction
"""Floats in service; Fractions where a test wants the law exactly."""

Distribution: TypeAlias = Mapping[TokenId, Probability]
"""The tokens that can come, in ascending order of id, with probabilities that add up to 1. Absent tokens have none.
Dense, sparse and one-hot laws are the same thing here."""

Ranked: TypeAlias = Sequence[tuple[TokenId, Probability]]
"""Tokens with weights, likeliest first."""


def greedy_choice(row: Sequence[float]) -> TokenId:
    """The highest logit's token, the lowest id on ties: greedy_choice([1, 3, 3]) = 1."""
    return max(range(len(row)), key=lambda token: (row[token], -token))


def distribution(
    logits: Sequence[float], parameters: SamplingParameters, history: History = NOTHING_SAID, admitted: Admitted = None
) -> Distribution:
    """The law of the next token, after all steps. Shape [vocab] in; raises as `processed` does."""
    return _law(processed(logits, parameters, history, admitted), parameters)


def coupled_choice(
    logits: Sequence[float],
    parameters: SamplingParameters,
    position: int,
    history: History = NOTHING_SAID,
    admitted: Admitted = None,
) -> TokenId:
    """The token at `position` under the shared noise: argmax over the support of float64(logit) / T + g.

    Its law is `distribution(...)` of the same arguments. Temperature 0 is `greedy_choice`. Ties go to the lowest id.
    """
    row = processed(logits, parameters, history, admitted)
    if parameters.temperature == 0:
        return greedy_choice(row)
    position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, position)

    def score(token: TokenId) -> tuple[float, int]:
        return row[token] / parameters.temperature + gumbel(bits(position_key, token)), -token

    return max(_law(row, parameters), key=score)


def draw(law: Distribution, u: Probability) -> TokenId:
    """The token where the running sum, in ascending order of id, first exceeds u times the total; 0 < u < 1.

    draw({0: .25, 2: .75}, .25) = 2. If rounding leaves the sum short of the total, the last token comes.
    """
    tokens = list(law)
    threshold = u * sum(law.values())
    running: Probability = 0
    for token in tokens[:-1]:
        running += law[token]
        if threshold < running:
            return token
    return tokens[-1]


def filtered(ranked: Ranked, parameters: SamplingParameters) -> Distribution:
    """Top-k, top-p and min-p over weights that are ranked likeliest first; renormalised, in ascending order of id."""
    kept = ranked[: parameters.top_k] if parameters.top_k else ranked
    kept = _top_p(kept, parameters.top_p) if parameters.top_p < 1 else kept
    floor = parameters.min_p * kept[0][1]
    kept = [(token, weight) for token, weight in kept if weight >= floor]
    total = sum(weight for _, weight in kept)
    return {token: weight / total for token, weight in sorted(kept)}


def rank(law: Distribution) -> Ranked:
    """A law's tokens, likeliest first, ties by the lower id."""
    return sorted(law.items(), key=lambda item: (-item[1], item[0]))


def _law(row: Sequence[float], parameters: SamplingParameters) -> Distribution:
    if parameters.temperature == 0:
        return {greedy_choice(row): 1.0}
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    peak = row[order[0]]
    weights = [(token, math.exp((row[token] - peak) / parameters.temperature)) for token in order]
    return filtered([(token, weight) for token, weight in weights if weight > 0], parameters)


def _top_p(ranked: Ranked, top_p: float) -> Ranked:
    limit = top_p * sum(weight for _, weight in ranked)
    before: Probability = 0
    for count, (_, weight) in enumerate(ranked):
        if count and before >= limit:
            return ranked[:count]
        before += weight
    return ranked
