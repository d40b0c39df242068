"""Knows how sure a row of logits is of its likeliest token: `domain.calibration`'s confidence, made of the row alone.

Refuses to know which token was drawn.
"""

import math

import numpy as np

from tandem_runtime.ports import Logits

__all__ = ["confidence"]

PER_NAT, ODDS_OF_ZERO, MOST = 16, -4.0, 255


def confidence(logits: Logits) -> int:
    """0 to 255 for a row [vocab] that has a law. Level rows of many tokens give 0, a row with one token left 255."""
    with np.errstate(under="ignore", invalid="ignore"):  # what a grammar forbids may be infinite
        others = float(np.exp(logits - logits.max()).sum()) - 1.0
    if not others > 0.0:
        return MOST
    return min(max(round(PER_NAT * (-math.log(others) - ODDS_OF_ZERO)), 0), MOST)
