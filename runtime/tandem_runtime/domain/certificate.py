"""Knows whether texts with and without speculation were split by rounding, or by a fault: the certificate of near ties.

Refuses to know engines: rows of logits, tokens and numbers come in, verdicts with reasons go out.

Where kernels round differently for one row than for K + 1, two runs may part at a near tie. A bound on the gap of the
two best tokens alone would excuse nearly everything: in bf16 rows move by tenths of a logit, and most positions of a
text have a gap below twice that. So a first split is *explained* only if all of this holds:

1. Both rows are computed anew from the same prefix, one as plain decoding does, one as the verify did, and the pure
   sampler gives each side's token from its own row. A fault of the run that is not in the recomputation ends here: a
   row from a sound cache does not give the faulty token.
2. The rows differ nowhere by more than the bound, calibrated on other texts for this (engine, dtype). A fault that is
   in the recomputation too ends here: it moves logits as another context does, not as rounding does.
3. There are not more splits than gaps predict. Let f be the density of gaps at 0 and d the change of a gap between the
   two ways of computing. The chance of a split at a position is the integral of f P(d > g) over g, that is f E[max(d,
   0)] where f is flat over the reach of d. Times the positions compared it is the mean of a Poisson number, and more
   than its upper `FALSE_ALARM` point is no accident.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tandem_runtime.domain.noise import Salt, bits, gumbel, key
from tandem_runtime.domain.tokens import SamplingParameters, TokenId

__all__ = [
    "Calibration",
    "Certificate",
    "Doubt",
    "Lead",
    "Split",
    "calibrate",
    "certify",
    "doubt",
    "first_split",
    "lead",
]

LogitRow: TypeAlias = Sequence[float]

FALSE_ALARM = 1e-6
"""With what chance a sound engine has more splits than are allowed."""

HEADROOM = 2.0
"""The bound over the largest difference that calibration saw: it saw hundreds of rows, service sees millions."""

LARGE_MEAN = 500.0
"""From here on a Poisson number is normal enough, and exp(-mean) will soon be 0: five deviations have chance 3e-7."""

NEAREST = 0.1
"""The share of all gaps, the smallest, from which their density at 0 is estimated."""


class Doubt(StrEnum):
    """Why a split is not explained."""

    PLAIN_ROW = "PlainRow"
    VERIFIED_ROW = "VerifiedRow"
    DIFFERENCE = "Difference"


@dataclass(frozen=True, slots=True)
class Split:
    """Where two texts first part: their tokens, and their rows [vocab], computed anew from the prefix they share."""

    position: int
    plain_token: TokenId
    verified_token: TokenId
    plain_row: LogitRow
    verified_row: LogitRow


@dataclass(frozen=True, slots=True)
class Lead:
    """The chosen token, the next one, and the `gap` between them, in logits."""

    first: TokenId
    second: TokenId
    gap: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one (engine, dtype), from an engine that is trusted. `bound` in logits; `rate` is splits per position."""

    bound: float
    rate: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """`unexplained` holds positions with reasons; more `near_ties` than `allowed` are a fault too."""

    near_ties: int
    allowed: int
    unexplained: tuple[tuple[int, Doubt], ...]

    @property
    def holds(self) -> bool:
        return not self.unexplained and self.near_ties <= self.allowed


def first_split(plain: Sequence[TokenId], verified: Sequence[TokenId]) -> int | None:
    """first_split([5, 3, 1], [5, 3, 2]) = 2."""
    return next((at for at, pair in enumerate(zip(plain, verified, strict=False)) if pair[0] != pair[1]), None)


def doubt(split: Split, *, choose: Callable[[LogitRow], TokenId], bound: float) -> Doubt | None:
    """Why `split` is no near tie; None: it is one. `choose` is the pure sampler at the split's position."""
    if choose(split.plain_row) != split.plain_token:
        return Doubt.PLAIN_ROW
    if choose(split.verified_row) != split.verified_token:
        return Doubt.VERIFIED_ROW
    if not largest_difference(split.plain_row, split.verified_row) <= bound:
        return Doubt.DIFFERENCE
    return None


def certify(doubts: Sequence[tuple[int, Doubt | None]], *, positions: int, calibration: Calibration) -> Certificate:
    """What `doubt` said of each split, over all the positions that were compared."""
    return Certificate(
        near_ties=sum(reason is None for _, reason in doubts),
        allowed=_poisson_limit(positions * calibration.rate),
        unexplained=tuple((position, reason) for position, reason in doubts if reason is not None),
    )


def calibrate(pairs: Sequence[tuple[LogitRow, LogitRow]], parameters: SamplingParameters) -> Calibration:
    """From rows at positions 0, 1, ... of trusted texts, each computed both ways. Filters are left out of gaps."""
    leads = [lead(plain, parameters, position) for position, (plain, _) in enumerate(pairs)]
    changes = [_change(found, *pair) for found, pair in zip(leads, pairs, strict=True)]
    pushed = sum(max(change, 0.0) for change in (*changes, *(-change for change in changes))) / (2 * len(pairs))
    gaps = sorted(found.gap for found in leads)
    nearest = gaps[: max(1, math.ceil(NEAREST * len(gaps)))]
    density = len(nearest) / len(gaps) / nearest[-1] if nearest[-1] > 0 else math.inf
    return Calibration(
        bound=HEADROOM * max(largest_difference(*pair) for pair in pairs),
        rate=min(1.0, density * pushed) if pushed else 0.0,
    )


def lead(row: LogitRow, parameters: SamplingParameters, position: int) -> Lead:
    """Who is chosen from `row` [vocab], bias and filters apart, and by how much: T times the noise is added."""
    scores = list(row)
    if parameters.temperature > 0:
        position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, position)
        scores = [
            score + parameters.temperature * gumbel(bits(position_key, token)) for token, score in enumerate(scores)
        ]
    first, second = sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:2]
    return Lead(first, second, scores[first] - scores[second])


def largest_difference(left: LogitRow, right: LogitRow) -> float:
    """The largest |difference|; two equal infinities do not differ, NaN differs from everything without end."""
    return max((_distance(a, b) for a, b in zip(left, right, strict=True)), default=0.0)


def _distance(left: float, right: float) -> float:
    if left == right:
        return 0.0
    distance = abs(left - right)
    return math.inf if math.isnan(distance) else distance


def _change(found: Lead, plain: LogitRow, verified: LogitRow) -> float:
    """By how much the gap between the two best shrinks."""
    return (plain[found.first] - plain[found.second]) - (verified[found.first] - verified[found.second])


def _poisson_limit(mean: float) -> int:
    """The least n with P(Poisson(mean) > n) <= FALSE_ALARM."""
    if mean > LARGE_MEAN:
        return math.ceil(mean + 5 * math.sqrt(mean))
    count, term = 0, math.exp(-mean)
    below = term
    while 1 - below > FALSE_ALARM and (count < mean or term > FALSE_ALARM * 1e-3):
        count += 1
        term *= mean / count
        below += term
    return count
