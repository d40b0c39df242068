"""Knows what sums prove: estimates with variances, bounds that hold however often one looks, and a test of rare errors.

Refuses to know revisions, gateways and thresholds.

**Ratios of sums.** Tokens of one request are not independent, so the unit of evidence is the unit of assignment:
sums lie in buckets (or slots) g, and r = sum Y_g / sum X_g has, by linearisation with e_g = Y_g - r X_g over G
filled buckets, the variance v = G/(G-1) * sum e_g^2 / (sum X)^2 (the ratio estimator of survey sampling; Cochran,
*Sampling Techniques*, 3rd ed., section 6.3, with the finite population left out).

**Slots of two revisions.** What slows a target pod for a while slows both, and the canary's pods are younger than
stable's. Slots that follow each other are alike: compared as if they were independent, a canary equal to stable fails
in 4 to 13 % of simulated rollouts where their autocorrelation is .3 to .5, at a nominal 1 %. So the two are compared
slot by slot, where both decoded, and what they share cancels: with e_1, e_2 as above and means Y_1, Y_2 over n slots,
theta = ln r_1 - ln r_2 has d = e_1/Y_1 - e_2/Y_2 and v = sum d^2 / (n (n-1)).

**Looking often.** A fixed z test that is polled every 30 s rejects a third of all canaries that equal stable. A
mixture boundary holds at all looks at once. For a known s and a prior scale tau it is s * sqrt(q / (1 - k)) with
q = 2 ln(1/alpha) + ln(1/k) and k = s^2 / (s^2 + tau^2) (Robbins 1970; in the asymptotic form Waudby-Smith, Arbour,
Sinha, Kennedy, Ramdas, *Time-uniform central limit theory and asymptotic confidence sequences*, 2021). Here s is itself
estimated, from n units; the same mixture over a t statistic (Lai 1976; Wang, Ramdas, *Anytime-valid t-tests and
confidence sequences for Gaussian means with unknown variance*, 2024) gives

    h(s, n, tau, alpha) = s * sqrt((n - 1) * (exp(q/n) - 1) / (1 - k exp(q/n)))

which is the former for many units and infinite for too few. It is narrowest where s is near tau, so tau is the margin
that matters. Each side of a bound is used with its own alpha.

**Strata.** Estimates from spans with constant shares are combined by information: I_k = 1/s_k^2,
theta = sum I_k theta_k / sum I_k, s^2 = 1 / sum I_k. Pooling the sums instead would confound load with revision.

**Rare errors.** Given m errors of both revisions in a span in which the canary had the share w of the requests, the
canary's count is Binomial(m, w) if both err alike; conditioning on m takes out time and outages. For an error rate r
times as high the likelihood ratio is L_r = e_c ln r - m ln(1 - w + w r), and the mean of exp(L_r) over a few r is an
e-value (Ville: it ever exceeds 1/alpha with probability alpha at most).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from operator import add
from typing import Annotated

from pydantic import Field

ERROR_RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Alternatives of the error test: how many times the stable's error rate the canary might have."""

_SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the variance of its error; `units` are the buckets or slots it rests on."""

    value: float
    variance: float
    units: int

    @property
    def error(self) -> float:
        """The standard error."""
        return math.sqrt(self.variance)


@dataclass(frozen=True, slots=True)
class SlotSums:
    """Sums over the closed slots of one arm: `count` of them, x = tokens, y = milliseconds, and their products."""

    count: int = 0
    x: int = 0
    y: int = 0
    xx: int = 0
    xy: int = 0
    yy: int = 0

    def plus(self, tokens: int, milliseconds: int) -> "SlotSums":
        """One more slot."""
        x, y = tokens, milliseconds
        more = (self.xx + x * x, self.xy + x * y, self.yy + y * y)
        return SlotSums(self.count + 1, self.x + x, self.y + y, *more)


@dataclass(frozen=True, slots=True)
class PairSums:
    """Sums over the `count` slots in which two revisions decoded, of v = (tokens, milliseconds, tokens, milliseconds).

    `products` are the sums of v_i v_j for i <= j, row by row.
    """

    count: int = 0
    sums: Annotated[tuple[int, ...], Field(min_length=4, max_length=4)] = (0,) * 4
    products: Annotated[tuple[int, ...], Field(min_length=10, max_length=10)] = (0,) * 10

    def plus(self, one: tuple[int, int], other: tuple[int, int]) -> "PairSums":
        """One more slot: (tokens, milliseconds) of each."""
        slot = (*one, *other)
        more = (a * b for a, b in combinations_with_replacement(slot, 2))
        return PairSums(self.count + 1, tuple(map(add, self.sums, slot)), tuple(map(add, self.products, more)))

    def square(self, weights: Sequence[float]) -> float:
        """sum (weights . v)^2 over the slots."""
        pairs = combinations_with_replacement(range(4), 2)
        terms = (
            (1 if i == j else 2) * weights[i] * weights[j] * held
            for (i, j), held in zip(pairs, self.products, strict=True)
        )
        return max(math.fsum(terms), 0.0)


def half_width(estimate: Estimate, tau: float, alpha: float) -> float:
    """h(s, n, tau, alpha); with s = .01 and tau = .05 at alpha = .01 it is .0371 for 100 units, .0360 for many."""
    s, n = estimate.error, estimate.units
    if s == 0:
        return 0.0
    k = s**2 / (s**2 + tau**2)
    q = 2 * math.log(1 / alpha) + math.log(1 / k)
    left = 1 - k * math.exp(q / n)
    return s * math.sqrt((n - 1) * math.expm1(q / n) / left) if left > 0 else math.inf


def ratio(counted: Sequence[int], examined: Sequence[int]) -> Estimate | None:
    """sum Y / sum X over buckets with its variance; None below two filled buckets.

    Where every bucket shows the same ratio (a perfect draft), the sums cannot speak of their own spread; the binomial
    variance of (Y + 1) / (X + 2) stands in. ratio([1, 2], [2, 2]) is 3/4 with e = (-1/2, 1/2) and v = 2/1 * (1/2) / 16.
    """
    filled = [pair for pair in zip(counted, examined, strict=True) if pair[1]]
    groups, total = len(filled), sum(examined)
    if groups < 2:
        return None
    value = sum(counted) / total
    residuals = [y - value * x for y, x in filled]
    squares = math.fsum([e * e for e in residuals])
    variance = groups / (groups - 1) * squares / total**2
    return Estimate(value, variance if variance > _SMALLEST_VARIANCE else _binomial(value * total, total), groups)


def _binomial(counted: float, examined: int) -> float:
    rate = (counted + 1) / (examined + 2)
    return rate * (1 - rate) / examined


def difference(left: Estimate, right: Estimate) -> Estimate:
    """left - right of independent estimates; the units are those of the poorer side."""
    return Estimate(left.value - right.value, left.variance + right.variance, min(left.units, right.units))


def combine(parts: Iterable[Estimate]) -> Estimate | None:
    """One estimate from the strata's, weighted by information; None without any."""
    known = [(1 / max(part.variance, _SMALLEST_VARIANCE), part) for part in parts]
    if not known:
        return None
    information = math.fsum(weight for weight, _ in known)
    value = math.fsum(weight * part.value for weight, part in known) / information
    return Estimate(value, 1 / information, sum(part.units for _, part in known))


def log_time_per_token(strata: Sequence[SlotSums]) -> list[Estimate]:
    """ln(sum Y / sum X) of each stratum of one arm, in its order; every stratum needs two slots.

    v = n/(n-1) * (sum YY - 2 r sum XY + r^2 sum XX) / (sum Y)^2 for a stratum by itself. A stratum of a few slots says
    little of its own spread, and weights from it would favour the luckiest; so the spread of one slot, n v, is pooled
    over the strata by their degrees of freedom, which for a single stratum is the same.
    """
    spread = math.fsum(_squares(sums) for sums in strata) / max(1, sum(sums.count - 1 for sums in strata))
    return [
        Estimate(math.log(sums.y / sums.x), max(spread / sums.count, _SMALLEST_VARIANCE), sums.count) for sums in strata
    ]


def _squares(sums: SlotSums) -> float:
    """sum e^2 / (mean Y)^2: the squared residuals in units of a slot's mean time."""
    r = sums.y / sums.x
    squares = sums.yy - 2 * r * sums.xy + r * r * sums.xx
    return max(squares, 0.0) * sums.count**2 / sums.y**2


def faster(slow: Mapping[int, SlotSums], fast: Mapping[int, SlotSums]) -> Estimate | None:
    """ln of how many times faster `fast` is than `slow`, by stratum; None where none has two slots of each."""
    shared = [
        policy for policy in sorted(slow.keys() & fast.keys()) if min(slow[policy].count, fast[policy].count) >= 2
    ]
    slower = log_time_per_token([slow[policy] for policy in shared])
    faster_ones = log_time_per_token([fast[policy] for policy in shared])
    return combine(difference(one, other) for one, other in zip(slower, faster_ones, strict=True))


def faster_together(strata: Iterable[PairSums]) -> Estimate | None:
    """ln of how many times faster the second is than the first, over the slots of both; None without two slots.

    The spread of one slot is pooled over the strata as in `log_time_per_token`.
    """
    known = [held for held in strata if held.count >= 2]
    if not known:
        return None
    spread = math.fsum(_paired_squares(held) for held in known) / sum(held.count - 1 for held in known)
    return combine(
        Estimate(_log_ratio(held), max(spread / held.count, _SMALLEST_VARIANCE), held.count) for held in known
    )


def _log_ratio(held: PairSums) -> float:
    x_1, y_1, x_2, y_2 = held.sums
    return math.log(y_1 / x_1) - math.log(y_2 / x_2)


def _paired_squares(held: PairSums) -> float:
    """sum d^2: e_1/Y_1 - e_2/Y_2 is linear in a slot's tokens and milliseconds."""
    x_1, y_1, x_2, y_2 = held.sums
    n = held.count
    return held.square((-n / x_1, n / y_1, n / x_2, -n / y_2))


def error_evidence(canary_errors: int, stable_errors: int, share: float) -> tuple[float, ...]:
    """What one span adds to ln L_r for each of ERROR_RATIOS; `share` is the canary's part of the requests."""
    both = canary_errors + stable_errors
    return tuple(canary_errors * math.log(r) - both * math.log(1 - share + share * r) for r in ERROR_RATIOS)


def log_e_value(evidence: Sequence[float]) -> float:
    """ln of the mean of exp(L_r); 0 says nothing, ln(1/alpha) is a rejection at alpha."""
    highest = max(evidence)
    return highest + math.log(math.fsum(math.exp(part - highest) for part in evidence) / len(evidence))
