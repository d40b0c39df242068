"""Knows when counts contradict a law: chi-square with stated power, Holm's correction over many laws.

Refuses to know where counts come from. Thresholds hold for any seed: nothing here was tuned to one.

Each law gives one p-value, and Holm's step-down keeps the chance of any false alarm among all of them at 1e-6. Sample
sizes come from the power of chi-square: with non-centrality 4 n d^2, where d is the distance in total variation, a law
wrong by d is seen with probability .999 at a false alarm rate of 1e-6 from these n on:

    cells      d .1      d .05     d .02     d .01     4 n d^2
        8      2,050     8,200    51,250   205,000        82
       32      2,875    11,500    71,875   287,500       115
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

FALSE_ALARM = 1e-6
NON_CENTRALITY = {8: 82, 32: 115}
"""By the number of cells up to which it is enough."""
LEAST_EXPECTED = 5.0
"""Below so many expected counts in a cell the chi-square law is no good approximation."""

Cell = TypeVar("Cell", bound=Hashable)


@dataclass(frozen=True)
class Finding:
    """One law against its counts."""

    name: str
    p_value: float
    statistic: float
    cells: int


def samples_for(cells: int, *, distance: float) -> int:
    """The sample size from which a law over so many cells that is wrong by `distance` is seen."""
    assert cells <= 32, "the table of sample sizes ends at 32 cells"
    return math.ceil(NON_CENTRALITY[8 if cells <= 8 else 32] / (4 * distance**2))


def judged(name: str, counts: Mapping[Cell, int], law: Mapping[Cell, float]) -> Finding:
    """A count where the law has no mass is a contradiction whatever its number: p-value 0."""
    total = sum(counts.values())
    if any(count and not law.get(cell, 0) for cell, count in counts.items()):
        return Finding(name, 0.0, math.inf, len(law))
    expected = {cell: total * mass for cell, mass in law.items() if mass}
    assert min(expected.values()) >= LEAST_EXPECTED, f"{name}: a cell expects {min(expected.values()):.1f} counts"
    statistic = sum((counts.get(cell, 0) - mean) ** 2 / mean for cell, mean in expected.items())
    return Finding(name, chi_square_tail(statistic, len(expected) - 1), statistic, len(expected))


def contradicted(findings: list[Finding], *, false_alarm: float = FALSE_ALARM) -> list[Finding]:
    """Holm 1979: the k-th smallest of m p-values is compared with false_alarm / (m - k + 1), until one is larger."""
    ordered = sorted(findings, key=lambda finding: finding.p_value)
    for at, finding in enumerate(ordered):
        if finding.p_value > false_alarm / (len(ordered) - at):
            return ordered[:at]
    return ordered


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees > statistic), by the finite sums for whole and half-whole gamma functions.

    chi_square_tail(40.52, 7) = 1e-6, chi_square_tail(0, 3) = 1.
    """
    if freedom == 0:
        return 1.0
    half = statistic / 2
    if freedom % 2 == 0:
        term = tail = math.exp(-half)
        for step in range(1, freedom // 2):
            term *= half / step
            tail += term
        return tail
    tail = math.erfc(math.sqrt(half))
    term = math.exp(-half) * math.sqrt(half) / math.gamma(1.5)
    for step in range(1, (freedom + 1) // 2):
        tail += term
        term *= half / (step + 0.5)
    return tail
