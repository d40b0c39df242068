"""The statistics of a canary, written a second time, slowly and exactly: lists of single units, and fractions.

Shared by the agreement tests; nothing here is under test. Nothing is summed before it must be, and no root or logarithm
is taken: where the product takes one, the square or the argument is given here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

Unit = tuple[int, int]
"""(y, x) of one bucket or slot."""


@dataclass(frozen=True)
class Plain:
    value: Fraction
    variance: Fraction


def ratio_of_units(units: Sequence[Unit]) -> Plain:
    """sum Y / sum X, and G/(G-1) sum (Y_g - r X_g)^2 / (sum X)^2 over units with x."""
    filled = [(y, x) for y, x in units if x]
    total = sum(x for _, x in filled)
    value = Fraction(sum(y for y, _ in filled), total)
    squares = sum((y - value * x) ** 2 for y, x in filled)
    return Plain(value, Fraction(len(filled), len(filled) - 1) * squares / total**2)


def by_information(parts: Iterable[Plain]) -> Plain:
    known = list(parts)
    information = sum((1 / part.variance for part in known), Fraction(0))
    return Plain(sum((part.value / part.variance for part in known), Fraction(0)) / information, 1 / information)


def times_per_token(strata: Sequence[Sequence[Unit]]) -> list[Plain]:
    """Of each stratum's slots (tokens, milliseconds): time per token, whose logarithm has this variance.

    The spread of one slot, in units of a slot's mean time, is common to the strata.
    """
    spread = Fraction(sum(map(_relative_squares, strata)), sum(len(slots) - 1 for slots in strata))
    return [
        Plain(Fraction(sum(y for _, y in slots), sum(x for x, _ in slots)), spread / len(slots)) for slots in strata
    ]


def _relative_squares(slots: Sequence[Unit]) -> Fraction:
    x, y = sum(x for x, _ in slots), sum(y for _, y in slots)
    return sum(((b - Fraction(y, x) * a) / Fraction(y, len(slots))) ** 2 for a, b in slots) or Fraction(0)


def times_per_token_together(strata: Sequence[Sequence[tuple[Unit, Unit]]]) -> list[Plain]:
    """Of each stratum's slots of both: the first's time per token over the second's; the residuals are paired."""
    squares = sum(_paired_squares(slots) for slots in strata)
    spread = Fraction(squares, sum(len(slots) - 1 for slots in strata))
    found = []
    for slots in strata:
        (x_1, y_1), (x_2, y_2) = _sums(slots)
        found.append(Plain(Fraction(y_1, x_1) / Fraction(y_2, x_2), spread / len(slots)))
    return found


def _sums(slots: Sequence[tuple[Unit, Unit]]) -> list[Unit]:
    return [(sum(slot[which][0] for slot in slots), sum(slot[which][1] for slot in slots)) for which in (0, 1)]


def _paired_squares(slots: Sequence[tuple[Unit, Unit]]) -> Fraction:
    total, n = Fraction(0), len(slots)
    means = _sums(slots)
    for slot in slots:
        residuals = [
            (y - Fraction(sum_y, sum_x) * x) / Fraction(sum_y, n)
            for (x, y), (sum_x, sum_y) in zip(slot, means, strict=True)
        ]
        total += (residuals[0] - residuals[1]) ** 2
    return total


def evidence_of_errors(spans: Iterable[tuple[int, int, Fraction]], times: Fraction) -> Fraction:
    """L_r over spans of (canary's errors, stable's, canary's share): r^e / (1 - w + w r)^(e + e')."""
    found = Fraction(1)
    for own, others, share in spans:
        found *= times**own / (1 - share + share * times) ** (own + others)
    return found


def mixture(h: Fraction, variance: Fraction, *, units: int, scale: Fraction) -> Fraction:
    """The squared likelihood of a mixture over a t statistic, at the distance h from the truth; it is 1/alpha^2 there.

    k ((1 + t) / (1 + k t))^n with k = s^2 / (s^2 + tau^2) and t = h^2 / ((n - 1) s^2).
    """
    k = variance / (variance + scale**2)
    t = h**2 / ((units - 1) * variance)
    return k * ((1 + t) / (1 + k * t)) ** units
