"""Knows the six courses of acceptance that a K rule is judged by, as functions of the cycle; refuses to know the rule.

A cycle is a round, or a token where nothing is proposed, as in the literature on switching bandits: whoever speculates
well says more tokens in a regime. Acceptance is independent within a regime, and unknown to the rule.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

CYCLES = 6000

Course: TypeAlias = Callable[[int], float]
"""Alpha at a cycle."""


def turns(*alphas: float, every: int) -> Course:
    """One after another, again and again."""
    return lambda cycle: alphas[cycle // every % len(alphas)]


def _ramp(cycle: int) -> float:
    return 0.35 + 0.55 * min(cycle / CYCLES, 1.0)


COURSES: Mapping[str, Course] = MappingProxyType(
    {
        "constant_0.8": turns(0.8, every=CYCLES),
        "constant_0.3": turns(0.3, every=CYCLES),
        "every_300": turns(0.9, 0.5, every=300),
        "every_40": turns(0.9, 0.5, every=40),
        "four_regimes": turns(0.85, 0.35, 0.7, 0.95, every=300),
        "ramp": _ramp,
    }
)
