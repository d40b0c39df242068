"""Knows how rows of logits become laws, choices and guesses, fast: the rules of the domain in numpy, over whole rows.

Refuses to know models, sessions and batches, and how proposals are judged. The specification is `domain.noise` and
`domain.sampling`; this module must equal it, and tests hold it to that. What is quicker here: only tokens that can
matter are sorted, or get a logarithm (for coupled choices see `coupling`):

    top-k     those not below the k-th largest logit
    top-p     those with weight above (1 - top_p) / 2 of the mean: all others together weigh less than 1 - top_p

Logits may be of any float type; every number that decides is computed in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tandem_runtime.domain.errors import NotANumber
from tandem_runtime.domain.noise import Salt
from tandem_runtime.domain.tokens import (
    SamplingParameters,
    SparseRow,
    TokenId,
    TokenLogprob,
    Verification,
)
from tandem_runtime.domain.verification import round_uniform
from tandem_runtime.engines.coupling import is_unfiltered, perturbed_choice, perturbed_choices
from tandem_runtime.engines.noise_words import Floats, Ids
from tandem_runtime.engines.ranking import first_ranked
from tandem_runtime.ports import Logits

__all__ = [
    "SPARSE",
    "Floats",
    "Law",
    "biased",
    "coupled_choice",
    "coupled_choices",
    "distribution",
    "draw",
    "guess",
    "has_law",
    "refuse_lawless",
    "report_logprob",
]

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
    row = biased(logits, parameters)
    if parameters.temperature == 0:
        return Law(np.array([row.argmax()]), np.ones(1))
    return _law(row, parameters)


def has_law(logits: Logits, parameters: SamplingParameters) -> bool:
    """Whether a next token can be drawn after `logits` [vocab]: else the functions here raise NotANumber of them."""
    try:
        biased(logits, parameters)
    except NotANumber:
        return False
    return True


def coupled_choice(logits: Logits, parameters: SamplingParameters, position: int) -> TokenId:
    """The token at `position` under the shared noise: argmax over the support of logit / T + g, lowest id on ties."""
    row = biased(logits, parameters) if parameters.logit_bias else logits
    likeliest = int(row.argmax())
    refuse_lawless(row[likeliest])
    if parameters.temperature == 0:
        return likeliest
    return perturbed_choice(row, parameters, position, likeliest=likeliest)


def coupled_choices(logits: Logits, parameters: SamplingParameters, offset: int) -> Iterator[TokenId]:
    """The coupled choice after each row, made when it is asked for, or all at once where that is less work."""
    if logits.size <= AT_ONCE and parameters.temperature > 0 and is_unfiltered(parameters):
        found = perturbed_choices(logits, parameters, offset)
        if found is not None:
            return iter(found)
    return (coupled_choice(row, parameters, offset + at) for at, row in enumerate(logits))


def guess(
    logits: Logits, parameters: SamplingParameters, *, verification: Verification, position: int, ahead: int = 0
) -> tuple[TokenId, SparseRow | None]:
    """A draft's token after `logits` [vocab], `ahead` guesses into its round, and if drawn, what it was drawn from.

    Coupled: `coupled_choice`. Rejection and block: a draw from the `SPARSE` likeliest, renormalised and rounded to
    float32 first, so that the law of the draw is the law that is sent.
    """
    if verification is Verification.COUPLED:
        return coupled_choice(logits, parameters, position), None
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
    top = first_ranked(row, alternatives)
    return TokenLogprob(float(logs[token]), tuple(zip(top.tolist(), logs[top].tolist(), strict=True)))


def draw(law: Law, u: float) -> TokenId:
    """The token where the running sum first exceeds u times the total."""
    running = np.cumsum(law.probabilities)
    at = int(np.searchsorted(running, u * running[-1], side="right"))
    return int(law.ids[min(at, len(law.ids) - 1)])


def biased(logits: Logits, parameters: SamplingParameters) -> Floats:
    """A copy of `logits` [vocab] with the request's bias; raises NotANumber on NaN, +inf, all -inf."""
    row = logits.astype(np.float64)
    for token, bias in parameters.logit_bias:
        row[token] += bias
    refuse_lawless(row.max())
    return row


def refuse_lawless(peak: np.floating) -> None:
    """Raises NotANumber for a row that has no law; `peak` is its maximum."""
    if not peak < np.inf:  # NaN wins a maximum, so this catches both
        raise NotANumber("the model's logits hold NaN or +inf; the request fails rather than guess a token")
    if peak == -np.inf:
        raise NotANumber("the model's logits are -inf for every token; nothing can be drawn")


def _law(row: Floats, parameters: SamplingParameters) -> Law:
    weights = np.exp((row - row.max()) / parameters.temperature)
    if parameters.top_k or parameters.top_p < 1:
        kept = _ranked_filters(row, weights, parameters)
        kept = kept[weights[kept] >= parameters.min_p]  # the likeliest weighs 1
        kept.sort()
    else:
        kept = np.flatnonzero((weights > 0) & (weights >= parameters.min_p))
    return Law(kept, weights[kept] / weights[kept].sum())


def _ranked_filters(row: Floats, weights: Floats, parameters: SamplingParameters) -> Ids:
    """What top-k and top-p keep, likeliest first."""
    ranked = first_ranked(row, parameters.top_k) if parameters.top_k else _heavy(row, weights, parameters.top_p)
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


def _likeliest(law: Law, count: int) -> Law:
    """The `count` likeliest tokens of a law, renormalised."""
    if len(law.ids) <= count:
        return law
    kept = np.sort(first_ranked(law.probabilities, count))
    return Law(law.ids[kept], law.probabilities[kept] / law.probabilities[kept].sum())
