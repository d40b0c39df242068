"""Knows which verdicts on a proposal are worth preparing an answer for, each with the chance that it comes.

Refuses to know what tokens are guessed, who drafts them, and whether preparing any pays (`ahead`).

A verdict is "the first j tokens stand, then y follows". With survivals s_i, the believed chance that tokens 1 to i all
stand (s_0 = 1), exactly j of K stand with chance

    o_j = s_j - s_(j+1)  for j < K,      o_K = s_K

Of y the draft has a ranking of its own. Where its first choice is right with chance a, its choice number r (from 0) is
right with about a LESS_EACH^r, given that those before it were wrong: for j < K number 0 was the proposed token itself.
So much holds on an average. In coupled mode the draft knows more: it and the target rank by the same noise, so a choice
is the target's for sure where it leads by much, and in doubt where another one is close behind. With d_r by how much
choice r is behind the first,

    P(the target chooses r) = exp(-d_r / u) / (sum over the choices of exp(-d_i / u) + what lies behind them)

(Bradley & Terry 1952; how far the target's scores are off the draft's is what u says). u is what makes the verdicts
that came likeliest, of some that are tried. Rejections are then expected where they are likely to come, and few guesses
hit as often as many that are spread by averages.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import exp, log
from typing import TypeAlias

__all__ = ["LEAST_CHANCE", "Chances", "Worth", "fan_out", "on_average"]

Chances: TypeAlias = tuple[float, ...]
"""Of a draft's choices at one place, in its order: how likely the target's is this one."""

LEAST_CHANCE = 0.01
"""A branch that is less likely is not worth its row."""
LESS_EACH = 0.85
"""How much less often each further guess is right, given that those before it were wrong: simulated for laws that
differ by Gaussian noise in the logits, .67 and .57 behind .81, .54 and .52 behind .72."""
UNKNOWN_ACCEPTANCE = 0.7
"""Of the token after all proposed ones, where nothing was believed of any."""
CHOICES = 9
"""Of one place, looked at."""
UNITS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""What u may be, in units of the scores."""
LIKELY_UNIT = 0.4
"""Where nothing was said yet."""
KEPT_PER_PLACE = 0.99
BEYOND = 2.0
"""What lies behind the choices that are looked at weighs as much as so many of the last of them."""
LEAST_LIKELY = 1e-6


@dataclass(frozen=True, slots=True)
class Worth:
    """What verdicts have said of how much a lead is worth: for each of `UNITS` their decayed log-likelihood."""

    said: tuple[float, ...] = tuple(-abs(log(unit / LIKELY_UNIT)) for unit in UNITS)

    def told(self, behind: Sequence[float], rank: int | None) -> "Worth":
        """`behind` [n] is by how much each choice is behind the first, `rank` which one it was; None: none of them."""
        return Worth(
            tuple(
                KEPT_PER_PLACE * before + log(max(_chance(_chances(behind, unit), rank), LEAST_LIKELY))
                for before, unit in zip(self.said, UNITS, strict=True)
            )
        )

    def chances(self, behind: Sequence[float]) -> Chances:
        best = max(range(len(UNITS)), key=self.said.__getitem__)
        return _chances(behind, UNITS[best])


def _chances(behind: Sequence[float], unit: float) -> Chances:
    weights = [exp(-each / unit) for each in behind[:CHOICES]]
    total = sum(weights) + BEYOND * weights[-1]
    return tuple(weight / total for weight in weights)


def _chance(chances: Chances, rank: int | None) -> float:
    return 1 - sum(chances) if rank is None or rank >= len(chances) else chances[rank]


def on_average(survivals: Sequence[float]) -> tuple[Chances, ...]:
    """Of the choices at each place of a proposal, and behind it: K + 1 rows."""
    found, before, right = list[Chances](), 1.0, UNKNOWN_ACCEPTANCE
    for survival in survivals:
        right = min(survival / before, 1.0) if before > 0 else 0.0
        found.append(_ladder(right))
        before = survival
    return (*found, _ladder(right))


def _ladder(right: float) -> Chances:
    found, left = list[float](), 1.0
    for _ in range(CHOICES):
        found.append(left * right)
        left, right = left * (1 - right), right * LESS_EACH
    return tuple(found)


def fan_out(places: Sequence[Chances], branches: int) -> tuple[Chances, ...]:
    """For each outcome, of 0 to K accepted tokens, with which chance each of the guesses comes that is worth a branch,
    in order; of `places` K + 1 rows, the likeliest `branches` in all. For j < K choice 0 is what was proposed.

    fan_out(on_average((.8, .64, .51, .41)), 8) has 2, 2, 1, 1 and 2 of them.
    """
    outcomes = [*_outcomes(places)]
    worth = nlargest(branches, ((chance, -at) for at, row in enumerate(outcomes) for chance in row))
    numbers = Counter(-at for chance, at in worth if chance >= LEAST_CHANCE)
    return tuple(row[: numbers[at]] for at, row in enumerate(outcomes))


def _outcomes(places: Sequence[Chances]) -> list[Chances]:
    found, standing = list[Chances](), 1.0
    for at, chances in enumerate(places):
        guesses = chances if at == len(places) - 1 else chances[1:]
        found.append(tuple(standing * chance for chance in guesses))
        standing *= chances[0]
    return found
