"""Knows how many drafts a verifier can use: the same crowd with none, one, two, ... of them.

Refuses to know prices and machines: costs and acceptance are given, measured by whoever asks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.simulator.capacity import Crowd, Load, measure
from tandem_runtime.domain.lookahead import OFF

ENOUGH = 0.98
"""Of the most tokens per second that any number of drafts brings."""


@dataclass(frozen=True, slots=True)
class Choice:
    """So many `drafts` per verifier, and what the clients then get."""

    drafts: int
    load: Load


def choices(crowd: Crowd, most: int) -> Iterator[Choice]:
    """From plain decoding to the `most` drafts."""
    yield Choice(0, measure(replace(crowd, drafts=1, bounds=OFF)))
    for drafts in range(1, most + 1):
        yield Choice(drafts, measure(replace(crowd, drafts=drafts)))


def advised(found: list[Choice]) -> Choice:
    """The fewest drafts that bring nearly the most."""
    most = max(choice.load.tokens_per_second for choice in found)
    return next(choice for choice in found if choice.load.tokens_per_second >= ENOUGH * most)
