"""Knows rules of K to measure the product's by: the best where acceptance and mean costs are known, and a fixed one.

Refuses to learn. They are asked as the product's `Lookahead` is, so that they run in the same driver, with the same
ends of requests and the same prompts to be read.
"""

from collections.abc import Callable
from functools import lru_cache

from benchmarks.simulator.costs import Rig, best_k
from tandem_runtime.domain.cells import Lookahead, Shared
from tandem_runtime.domain.lookahead import OFF, Bounds, Choice, Rule
from tandem_runtime.domain.tokens import Round


class Oracle(Lookahead):
    """K of the optimum at the acceptance `alpha()` of the moment."""

    def __init__(self, rig: Rig, alpha: Callable[[], float]) -> None:
        super().__init__()
        self._alpha = alpha
        self._best = lru_cache(maxsize=4096)(lambda rounded: best_k(rig, rounded))

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        alpha = self._alpha()
        k = min(self._best(round(alpha, 3)), most, bounds.maximum)
        survivals = tuple(alpha ** (position + 1) for position in range(k))
        return super().choose(OFF, most, now, warm=warm)._replace(k=k, survivals=survivals)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        """It knows already."""


class Fixed(Lookahead):
    """The same K for ever, as far as the answer has room; each guess is believed to stand."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._tokens = k

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        k = min(self._tokens, most, bounds.maximum)
        return super().choose(OFF, most, now, warm=warm)._replace(k=k, survivals=(1.0,) * k)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        """It stays as it is."""


class Watched(Shared):
    """The product's rule: what it chose for all sessions before the answers' ends cut it, and by which of its rules.
    `told` is called after each choice."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[int] = []
        self.rules: list[Rule] = []
        self.told: Callable[[], None] = lambda: None

    def begin(self) -> Lookahead:
        return _Watched(self)


class _Watched(Lookahead):
    def __init__(self, shared: Watched) -> None:
        super().__init__(shared)
        self._watched = shared

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        choice = super().choose(bounds, bounds.maximum, now, warm=warm)
        self._watched.chosen.append(choice.k)
        self._watched.rules.append(choice.why.rule)
        self._watched.told()
        return choice._replace(k=min(choice.k, most), survivals=choice.survivals[:most])
