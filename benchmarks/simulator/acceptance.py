"""Knows which guesses of a draft are right, and refuses to know who asks, and K.

A *text* is a fixed row of tokens, told by its number: token i of it is `truth(i)`. A draft's guess for position i, given
the true prefix, is right or wrong; behind a wrong guess everything is rejected anyway. So what is said never depends on
how it was drafted.

    Chance     independent, with one alpha
    Regimes    independent, with an alpha that is asked for at each guess: it changes with time
    Recorded   as it was in a real pair; a position's bit is whether the draft would have been right there
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tandem_runtime.domain.tokens import TokenId

TRACES = Path(__file__).parent.parent / "traces"
WRONG: TokenId = 0


def truth(position: int) -> TokenId:
    """The token at that offset of any text."""
    return 1 + position % 997


class Acceptance(Protocol):
    """Asked once per guess."""

    def right(self, text: int, position: int) -> bool: ...

    def tokens(self, text: int, most: int) -> int:
        """How long that text is, at most `most`."""
        ...


@lru_cache(maxsize=256)
def _uniforms(seed: int, text: int) -> tuple[float, ...]:
    chance = random.Random(f"{seed}:{text}")
    return tuple(chance.random() for _ in range(512))


@dataclass(frozen=True, slots=True)
class Regimes:
    """`alpha()` is the share of right guesses at the moment."""

    alpha: Callable[[], float]
    seed: int

    def right(self, text: int, position: int) -> bool:
        return _uniforms(self.seed, text)[position % 512] < self.alpha()

    def tokens(self, text: int, most: int) -> int:
        return most


def chance(alpha: float, seed: int) -> Regimes:
    """The same alpha for ever."""
    return Regimes(lambda: alpha, seed)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Bits of a real pair's texts, one row per text; they are gone through in order, again and again."""

    name: str
    pair: str
    drafter: str
    bits: Sequence[Sequence[bool]] = field(repr=False)

    def right(self, text: int, position: int) -> bool:
        row = self.bits[text % len(self.bits)]
        return position < len(row) and row[position]

    def tokens(self, text: int, most: int) -> int:
        return min(len(self.bits[text % len(self.bits)]), most)

    @property
    def alpha(self) -> float:
        """The share of right guesses over all texts."""
        return sum(map(sum, self.bits)) / sum(map(len, self.bits))


def read_trace(path: Path) -> Recorded:
    """A file of `benchmarks/traces`. Raises ValueError naming file and field."""
    document = json.loads(path.read_text())
    try:
        rows = [tuple(str(bit) == "1" for bit in sequence["bits"]) for sequence in document["sequences"]]
        found = Recorded(document["name"], document["pair"], document["drafter"], [row for row in rows if row])
    except KeyError as missing:
        raise ValueError(f"{path}: the field {missing} is missing") from missing
    if not found.bits:
        raise ValueError(f"{path}: sequences hold no bits")
    return found


def recorded_traces(folder: Path = TRACES) -> list[Recorded]:
    """All that are recorded, by name."""
    return [read_trace(path) for path in sorted(folder.glob("*.json"))]
