"""Knows whether texts with and without speculation were split by rounding, or by a fault: the certificate of near ties.

Refuses to know engines: rows of logits, tokens and numbers come in, verdicts with reasons go out.

Where kernels round differently for one row than for K + 1, two runs may part at a near tie. A bound on the gap of the
two best tokens alone would excuse nearly everything: in bf16 rows move by tenths of a logit, and most positions of a
text have a gap below twice that. So a first split is *explained* only if all of this holds:

1. Both rows are computed anew, one as plain decoding does, one as the verify did, and the pure sampler gives each
   side's token from its own row. A fault that happened once, in the run and not in the recomputation, ends here.
2. Both rows lie within a bound of a *reference*: the row of the same prefix, computed whole, without any cache, in a
   wider type. A fault that is in the recomputation too ends here: it moves logits as another context does, not as
   rounding does. The bound comes from the reference and from the same whole sequences computed in the narrow type, so
   no cache is in it, and a fault of the cache cannot widen what is allowed to it.
3. There are not more splits than gaps predict. Let f be the density of gaps at 0, and e1, e2 the changes of a gap by
   the rounding of either way. The chance of a split at a position is the integral of f P(e1 - e2 > g) over g, that is
   f E[max(e1 - e2, 0)] where f is flat over the reach of rounding. By symmetry this is f E|e1 - e2| / 2, and so f E|e|
   at most, with e measured by the calibration. Times the positions compared it bounds the mean of a Poisson number,
   and more than its upper `FALSE_ALARM` point is no accident.
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
    """Where two texts first part: their tokens, their rows [vocab], computed anew, and the reference's."""

    position: int
    plain_token: TokenId
    verified_token: TokenId
    plain_row: LogitRow
    verified_row: LogitRow
    reference_row: LogitRow


@dataclass(frozen=True, slots=True)
class Lead:
    """The chosen token, the next one, and the `gap` between them, in logits."""

    first: TokenId
    second: TokenId
    gap: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one (model, dtype). `bound` in logits; `rate` is the most splits per position that gaps predict."""

    bound: float
    rate: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """Over `positions` compared. `unexplained` holds those with a reason; more `near_ties` than `allowed` are a fault
    too."""

    positions: int
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
    rows = (split.plain_row, split.verified_row)
    if not all(largest_difference(row, split.reference_row) <= bound for row in rows):
        return Doubt.DIFFERENCE
    return None


def certify(doubts: Sequence[tuple[int, Doubt | None]], *, positions: int, calibration: Calibration) -> Certificate:
    """What `doubt` said of each split, over all the positions that were compared."""
    return Certificate(
        positions=positions,
        near_ties=sum(reason is None for _, reason in doubts),
        allowed=_poisson_limit(positions * calibration.rate),
        unexplained=tuple((position, reason) for position, reason in doubts if reason is not None),
    )


def calibrate(pairs: Sequence[tuple[LogitRow, LogitRow]], parameters: SamplingParameters) -> Calibration:
    """From rows at positions 0, 1, ... of texts, each (reference, rounded), without a cache. Gaps are unfiltered."""
    leads = [lead(reference, parameters, position) for position, (reference, _) in enumerate(pairs)]
    moved = sum(abs(_change(found, *pair)) for found, pair in zip(leads, pairs, strict=True)) / len(pairs)
    gaps = sorted(found.gap for found in leads)
    nearest = gaps[: max(1, math.ceil(NEAREST * len(gaps)))]
    density = len(nearest) / len(gaps) / nearest[-1] if nearest[-1] > 0 else math.inf
    return Calibration(
        bound=HEADROOM * max(largest_difference(*pair) for pair in pairs),
        rate=min(1.0, density * moved) if moved else 0.0,
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


def _change(found: Lead, reference: LogitRow, rounded: LogitRow) -> float:
    """By how much rounding shrinks the gap between the two best."""
    return (reference[found.first] - reference[found.second]) - (rounded[found.first] - rounded[found.second])


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
