"""Knows which tokens a draft's own row suggests for the target's choice at a place, likeliest first.

Refuses to know branches and whether a guess is worth anything: a wrong one costs a row of the draft, never a text.

In coupled mode the target chooses with noise that the draft knows, so tokens are ranked by logit / T + g. In the other
modes what follows a rejection is drawn from a residual law that nobody knows here: tokens are ranked by their logits.
What follows a full accept is drawn from the target's law with a number that is known, so the first guess is what that
number draws from the draft's. Filters are not looked at.
"""

from dataclasses import dataclass

import numpy as np

from tandem_runtime.domain.noise import Salt, key
from tandem_runtime.domain.tokens import SamplingParameters, TokenId, Verification
from tandem_runtime.domain.verification import round_uniform
from tandem_runtime.engines.noise_words import gumbels, noise_bits
from tandem_runtime.engines.ranking import first_ranked
from tandem_runtime.engines.sampler import biased, distribution, draw
from tandem_runtime.ports import Logits

__all__ = ["MOST_GUESSES", "Shortlist", "shortlist"]

MOST_GUESSES = 8
"""Of one token. Each further one is likely to be wrong; see `domain.ahead`."""

PERTURBED = 512
"""So many of the likeliest tokens get their noise: one behind them hardly wins by it."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """`ranked` [up to MOST_GUESSES + 1]; `drawn` is what the target draws after a full accept if its law is ours."""

    ranked: tuple[TokenId, ...]
    drawn: TokenId | None = None
    behind: tuple[float, ...] = ()
    """By how much each choice's score is behind the first's, where the target's choice goes by such scores too."""

    def after_rejection(self, rejected: TokenId, count: int) -> tuple[TokenId, ...]:
        """The first `count` guesses at what stands in the place of a token that was rejected."""
        return tuple(token for token in self.ranked if token != rejected)[:count]

    def after_all(self, count: int) -> tuple[TokenId, ...]:
        """The first `count` guesses at what follows where all proposed tokens stand."""
        first = () if self.drawn is None else (self.drawn,)
        return (*first, *(token for token in self.ranked if token not in first))[:count]


def shortlist(
    logits: Logits, parameters: SamplingParameters, *, verification: Verification, offset: int, index: int
) -> Shortlist:
    """Of `logits` [vocab], processed and with a law, `index` tokens into the round at `offset`."""
    row = biased(logits, parameters) if parameters.logit_bias else logits
    if verification is not Verification.COUPLED:
        drawn = draw(distribution(logits, parameters), round_uniform(parameters, Salt.RESIDUAL, offset, index))
        return Shortlist(tuple(first_ranked(row, MOST_GUESSES + 1).tolist()), drawn)
    pool = first_ranked(row, PERTURBED if parameters.temperature > 0 else MOST_GUESSES + 1)
    scores = row[pool].astype(np.float64)
    if parameters.temperature > 0:
        position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, offset + index)
        scores = scores / parameters.temperature + gumbels(noise_bits(position_key, pool, vocab_size=len(row)))
    first = np.argsort(-scores, kind="stable")[: MOST_GUESSES + 1]
    behind = scores[first[0]] - scores[first]
    return Shortlist(tuple(pool[first].tolist()), behind=tuple(behind.tolist()))
