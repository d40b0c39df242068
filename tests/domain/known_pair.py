"""Firm knowledge of a pair, as tests of the K rule begin with it, and rounds that such a pair plays: t_d 4, t_v 18 and
t_b 15 milliseconds, unless they say otherwise."""

from collections.abc import Callable, Iterator

import numpy as np

from tandem_runtime.domain.acceptance import GRID, LEVELS, PACES, Acceptance
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.costs import Costs, Plane
from tandem_runtime.domain.lessons import SpelledOut
from tandem_runtime.domain.lookahead import Belief, Bounds
from tandem_runtime.domain.noise import Salt, uniform_at
from tandem_runtime.domain.tokens import Round

WIDE = Bounds(1, 16)
REQUEST_ROUNDS = 40
CATCHING_UP = 0.03
"""Seconds that a draft takes to read a prompt, or what was emitted without it."""


def firm(alpha: float) -> Acceptance:
    """Belief in this level, which lasts: between two of the grid."""
    at = float(np.interp(alpha, GRID, range(LEVELS)))
    chances = np.zeros((len(PACES), LEVELS))
    chances[0, int(at)] += 1 - at % 1
    chances[0, min(int(at) + 1, LEVELS - 1)] += at % 1
    return Acceptance(chances.ravel() / chances.sum())


def plane(milliseconds: float, slope: float = 0.0) -> Plane:
    seconds = milliseconds / 1000
    return Plane(seconds, slope / 1000, 0.0, (0.01 * seconds) ** 2, 0.0, 0.0, 1e-12, 0.0, 1e-12, 0.0)


def costs(*, t_d: float = 4, t_v: float = 18, t_b: float | None = 15, slope: float = 0, o: float = 0) -> Costs:
    """Firm knowledge, in milliseconds, at time 0."""
    return Costs(plane(t_d), plane(t_v, slope), plane(o), None if t_b is None else plane(t_b))


def belief(alpha: float, *, k: int | None = 5, **milliseconds: float) -> Belief:
    return Belief(SpelledOut(firm(alpha), costs(**milliseconds)), k)


def a_round(proposed: int, accepted: int, **changes: float) -> Round:
    seconds = {"seconds": 0.03, "forward_seconds": 0.018, "drafting_seconds": 0.004 * proposed, **changes}
    return Round(proposed, accepted, accepted + 1, 0.02, 0.019, **seconds)  # type: ignore[arg-type]  # rows name fields


def rounds(
    lookahead: Lookahead,
    acceptance: float,
    count: int,
    seed: int,
    *,
    slowed: float = 1,
    now: float = 0,
    listening: bool = False,
    bounds: Callable[[int], Bounds] = lambda _: WIDE,
) -> Iterator[int]:
    """Play requests, one by one, with costs 4 + 18 + 1 against 15 milliseconds, proposals `slowed` so much.

    Yields K by round, each within the `bounds` of its number.
    """
    opened = warm = False
    for number in range(count):
        if number % REQUEST_ROUNDS == 0:
            opened = warm = False
        k = lookahead.choose(bounds(number), 16, now, warm=warm).k
        accepted = 0
        while accepted < k and uniform_at(seed, number, Salt.ACCEPT, accepted) < acceptance:
            accepted += 1
        forward, drafting = 0.018 * slowed, 0.004 * k * slowed + (0 if warm else CATCHING_UP)
        seconds = {"forward_seconds": forward, "drafting_seconds": drafting, "seconds": 0.001 + forward + drafting}
        if k == 0:
            seconds = {"forward_seconds": 0.015, "seconds": 0.015}
        now += seconds["seconds"]
        lookahead.learn(a_round(k, accepted, prefill=k > 0 and not opened, **seconds), now, warm=warm)
        opened, warm = opened or k > 0, k > 0
        if listening and k == 0:
            lookahead.hear(matched=int(uniform_at(seed, number, Salt.ACCEPT, 0) < acceptance), examined=1)
        yield k
