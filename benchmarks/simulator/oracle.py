"""Knows rules of K to measure the product's by: the best where acceptance and mean costs are known, and a fixed one.

Refuses to learn. They are asked as the product's `Lookahead` is, so that they run in the same driver, with the same
ends of requests and the same prompts to be read.
"""

from collections.abc import Callable
from functools import lru_cache

from benchmarks.simulator.costs import Rig, best_k
from tandem_runtime.domain.lookahead import Bounds, Lookahead
from tandem_runtime.domain.tokens import Round


class Oracle(Lookahead):
    """K of the optimum at the acceptance `alpha()` of the moment."""

    def __init__(self, rig: Rig, alpha: Callable[[], float]) -> None:
        super().__init__()
        self._alpha = alpha
        self._best = lru_cache(maxsize=4096)(lambda rounded: best_k(rig, rounded))

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> int:
        return min(self._best(round(self._alpha(), 3)), most, bounds.maximum)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        """It knows already."""


class Fixed(Lookahead):
    """The same K for ever, as far as the answer has room."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._k = k

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> int:
        return min(self._k, most)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        """It stays as it is."""


class Watched(Lookahead):
    """The product's rule, and what it chose before the answer's end cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[int] = []

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> int:
        k = super().choose(bounds, bounds.maximum, now, warm=warm)
        self.chosen.append(k)
        return min(k, most)
