"""Knows how sure a draft is of a guess, from the row that it was made of: the margin that `domain.calibration` names.

Refuses to know which token was guessed, and what a margin is worth.

A token more than `REACH` temperatures below the likeliest is the second best in few rows even with its noise, and gets
none; so does what lies beyond `MOST_TOKENS` of a row that is nearly level. Logits are taken before bias and penalties.
"""

import numpy as np

from tandem_runtime.domain.noise import Salt, key
from tandem_runtime.domain.tokens import SamplingParameters, Verification
from tandem_runtime.engines.noise_words import Floats, gumbels, noise_bits
from tandem_runtime.ports import Logits

__all__ = ["confidence"]

PER_NAT, MOST = 64, 255
REACH, MOST_TOKENS = 6.0, 1024


def confidence(logits: Logits, parameters: SamplingParameters, *, verification: Verification, position: int) -> int:
    """0 to 255 for a row [vocab]. Without a second token, or where numbers are none, 255."""
    with np.errstate(all="ignore"):  # what a grammar forbids may be infinite
        scale = parameters.temperature or 1.0
        if verification is Verification.COUPLED and parameters.temperature > 0:
            margin = _margin(_perturbed(logits, parameters, position))
        else:
            margin = _margin(logits) / scale
    return round(PER_NAT * margin) if margin < MOST / PER_NAT else MOST


def _perturbed(logits: Logits, parameters: SamplingParameters, position: int) -> Floats:
    """The scores of the tokens that may be the best two."""
    scale = parameters.temperature
    likely = np.flatnonzero(logits >= logits.max() - REACH * scale)[:MOST_TOKENS]
    position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, position)
    noise = gumbels(noise_bits(position_key, likely, vocab_size=len(logits)))
    scores: Floats = logits[likely] / scale + noise
    return scores


def _margin(scores: Logits) -> float:
    if len(scores) < 2:
        return np.inf
    best = int(scores.argmax())
    second = max(scores[:best].max(initial=-np.inf), scores[best + 1 :].max(initial=-np.inf))
    return float(scores[best] - second)
