"""Knows which guesses of a draft are right, and refuses to know who asks, and K.

A *text* is a fixed row of tokens, told by its number: token i of it is `truth(i)`. A draft's guess for position i,
given the true prefix, is right or wrong; behind a wrong guess everything is rejected anyway. So what is said never
depends on how it was drafted.

    Regimes    independent, with an alpha that is asked for at each guess, since it may change with time
    Recorded   as it was in a real pair (files of `benchmarks/traces`): a position's bit is whether the draft would have
               been right there; of a lookup also whether it had anything to offer, and in rejection mode the chance
               with which the guess was accepted
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from benchmarks.recorded import Outcomes, Trace, read_traces
from tandem_runtime.domain.tokens import TokenId

WRONG: TokenId = 0


def truth(position: int) -> TokenId:
    """The token at that offset of any text."""
    return 1 + position % 997


class Acceptance(Protocol):
    """Asked once per guess."""

    def right(self, text: int, position: int) -> bool: ...

    def offered(self, text: int, position: int) -> bool:
        """Whether the draft has a guess there."""
        ...

    def credit(self, text: int, position: int) -> float | None:
        """The chance with which the guess was accepted, where more is known than the outcome."""
        ...

    def lengths(self, text: int) -> tuple[int, int] | None:
        """Tokens of the prompt and of the text; None: as long as anybody likes."""
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

    def offered(self, text: int, position: int) -> bool:
        return True

    def credit(self, text: int, position: int) -> float | None:
        return None

    def lengths(self, text: int) -> tuple[int, int] | None:
        return None


def chance(alpha: float, seed: int) -> Regimes:
    """The same alpha for ever."""
    return Regimes(lambda: alpha, seed)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Outcomes of a real pair; texts are gone through in order, again and again. `how` is the file's own word: recorded
    from models, or replayed from texts that no model wrote."""

    name: str
    how: str
    drafter: str
    texts: tuple[Outcomes, ...] = field(repr=False)

    def right(self, text: int, position: int) -> bool:
        return self._of(text).bits[position : position + 1] == "1"

    def offered(self, text: int, position: int) -> bool:
        of = self._of(text)
        return (of.offered or "1" * len(of.bits))[position : position + 1] == "1"

    def credit(self, text: int, position: int) -> float | None:
        credits = self._of(text).credits or ()
        return credits[position] if position < len(credits) else None

    def lengths(self, text: int) -> tuple[int, int] | None:
        return max(self._of(text).prompt_tokens, 1), len(self._of(text).bits)

    @property
    def is_lookup(self) -> bool:
        """Whether guesses were looked up in what was said before, which costs no step of a model."""
        return self.drafter.endswith("lookup")

    @property
    def alpha(self) -> float:
        """The share of right guesses among those that were offered."""
        offered = sum((text.offered or "1" * len(text.bits)).count("1") for text in self.texts)
        return sum(text.right for text in self.texts) / max(offered, 1)

    def _of(self, text: int) -> Outcomes:
        return self.texts[text % len(self.texts)]


def recorded(trace: Trace) -> Recorded:
    """Its texts in the order of the file."""
    return Recorded(trace.name, trace.how, trace.drafter, trace.sequences)


def recorded_traces() -> list[Recorded]:
    """All that are recorded, by name."""
    return [recorded(trace) for trace in read_traces()]
