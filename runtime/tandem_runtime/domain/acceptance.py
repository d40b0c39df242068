"""Knows how likely a draft's guesses are to stand, from what became of earlier ones: a belief over levels and paces.

Refuses to know costs, K, sessions by name and time: a step is one examined token.

A draft's acceptance has a *level* that stays for a while and then is another: the text turns from code to prose,
another kind of request arrives, the draft was fed what it cannot guess. How often it changes is unknown too. So the
belief is a distribution over pairs (pace, level), a hidden Markov model with a grid for its states (Rabiner 1989, "A
Tutorial on Hidden Markov Models", eq. 19-20; Adams and MacKay 2007, "Bayesian Online Changepoint Detection"):

    after credits c_1 ... c_n     chance(pace, g)  *=  g^(sum c) (1 - g)^(n - sum c)      then scaled to sum 1
    between tokens                a level jumps with the pace's hazard, or drifts to its neighbours

A credit is the match bit in coupled verification, and min(1, p/q) or p(x) where the target knows them: the bit's
expectation given the token, with less variance (Rao-Blackwell). Under one constant pace this is a decayed Beta
distribution; the other paces are what a change test adds: a run of surprises, upwards or downwards, moves the belief
within a few tokens, as the CUSUM of the same likelihood ratios would (Page 1954), but by as much as the evidence says.
Where levels jump to is learnt: the *climate* is the long memory of where they have been.

    survival s_i = E[g^(w_1 + ... + w_i)]    over the belief, so that doubt about the level is in it

Positions differ. w_j, about 1, multiplies the failures of position j: a_j = g^(w_j), proportional hazards (Cox
1972). Its logarithm follows the gradient of the likelihood, d log L / d log w_j ~ (failed - expected to fail), so that
survivals are calibrated position by position. Sessions differ. A session multiplies all its failures by a frailty u
(Vaupel 1979) with mean 1: u = (1/v + failed) / (1/v + expected), where v, the variance of u among sessions, is measured
as the covariance of a session's past surprise with its next: where sessions are alike, v is 0 and all share one belief.
Failures expected of n examined positions: n (1 - s_n^(1/n)), as if all n were alike.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import copysign, exp, log
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]


class Pace(NamedTuple):
    """How a level changes, per examined token: the chance to jump anywhere, and to move to either neighbour."""

    jump: float
    drift: float


PACES: Final = (Pace(0.0005, 0.0), Pace(0.02, 0.0), Pace(0.0005, 0.01))
SWITCH: Final = 0.001
"""The chance per token that the pace itself changes."""
LEVELS: Final = 20
"""Denser towards 0 and 1, where K depends on them most; neither end is believed for certain."""
PRIOR_SHAPE: Final = (2.8, 1.2)
"""Of a Beta distribution: drafts that anybody deploys are right in 70 % of cases, give or take."""
CLIMATE_KEPT: Final = 0.998
"""Per token: the climate remembers about 500."""
CLIMATE_SHARE: Final = 0.9
"""Of jumps; the rest go where nothing was yet."""
TILT_STEP: Final = 0.005
TILT_KEPT: Final = 0.999875
"""Per round. What all positions have in common is the level's to tell, not theirs."""
TILT_MOST: Final = 2.0
GRAIN: Final = 0.05
"""Exponents are rounded to so much of their logarithm, so that their powers are computed once."""
OWN_KEPT: Final = 0.99
"""Per token: a session's frailty remembers about 100."""
KIN_KEPT: Final = 0.9995
"""Per token: how alike sessions are is a matter of thousands."""
LEAST_VARIANCE: Final = 0.05
"""Below it what a session did says less than what it costs to listen."""
OPEN: Final = 0.1
"""Of a belief that is loosened: too little to propose for it alone, enough for some tokens to turn it."""
PIECE: Final = 4
MOST_PIECES: Final = 64
"""Scored tokens are taken in pieces, as many as rounds examine; of a very long answer in so many."""
STRIDE: Final = 8
"""Survivals are computed for so many positions at a time."""
LEAST: Final = 1e-300
LONGEST_STEP: Final = 64
"""Tokens after which a level may be anywhere that it may be at all, as far as K is concerned."""

GRID: Final[Array] = (1 - np.cos(np.pi * (np.arange(LEVELS) + 0.5) / LEVELS)) / 2
_SIZE: Final = len(PACES) * LEVELS
_ONES: Final[Array] = np.ones(_SIZE)
_MOMENTS: Final[Array] = np.tile(np.stack([GRID, GRID**2]), len(PACES))
_LOG_GRID: Final[Array] = np.tile(np.log(GRID), len(PACES))


def _prior() -> Array:
    accepted, rejected = PRIOR_SHAPE
    width = np.sqrt(GRID * (1 - GRID))
    weights = GRID ** (accepted - 1) * (1 - GRID) ** (rejected - 1) * width
    return np.asarray(weights / weights.sum())


PRIOR: Final = _prior()
_NEW_HAUNTS: Final[Array] = CLIMATE_SHARE * np.tile(np.eye(LEVELS), (len(PACES), len(PACES))) + (
    1 - CLIMATE_SHARE
) * np.outer(np.tile(PRIOR, len(PACES)), _ONES)
"""To where a belief about the level adds to where levels jump to."""


class Surprise(NamedTuple):
    """Of some tokens of one session: how many failed, and how many its segment's belief expected to."""

    tokens: int
    failed: float
    expected: float


class Own(NamedTuple):
    """A session's failures, and how many the segment's belief expected."""

    failed: float = 0.0
    expected: float = 0.0

    def told(self, surprise: Surprise) -> "Own":
        kept = OWN_KEPT**surprise.tokens
        return Own(self.failed * kept + surprise.failed, self.expected * kept + surprise.expected)


class Kin(NamedTuple):
    """How far a session's past surprise tells its next: two sums whose quotient is the variance of frailties."""

    together: float = 0.0
    expected: float = 20.0

    def told(self, own: Own, surprise: Surprise) -> "Kin":
        kept, next_one = KIN_KEPT**surprise.tokens, surprise.failed - surprise.expected
        together = self.together * kept + (own.failed - own.expected) * next_one
        return Kin(together, self.expected * kept + own.expected * surprise.expected)


ALIKE: Final = Own()
STRANGERS: Final = Kin()


@dataclass(slots=True, eq=False)
class Acceptance:
    """The belief about one segment. Two are equal only if they are the same, and nobody changes one: it is not frozen
    since making it, in each round, would take three times as long."""

    chances: Final[Array]
    """[pace x level], adding up to 1."""
    haunts: Final[Array] = field(default_factory=lambda: np.tile(PRIOR, len(PACES)))
    """[pace x level]: where levels jump to, the climate and a little of everything; the same for each pace."""
    tilts: Final[tuple[float, ...]] = ()
    """log w_j, as far as positions were examined."""
    shape: Final[tuple[int, ...]] = ()
    """The tilts in whole grains."""
    kin: Final[Kin] = STRANGERS

    def survivals(self, positions: int, own: Own = ALIKE) -> tuple[float, ...]:
        """s_1 ... s_n; a position that was never examined is believed to be like the one before it."""
        if positions <= 0:
            return ()
        frailty = 0 if own is ALIKE else _grains(_log_frailty(own, self.kin))
        return _survivals(self, frailty, -(-positions // STRIDE) * STRIDE)[:positions]

    def conditionals(self, positions: int) -> list[float]:
        """a_1 ... a_n: the chance of each position, given that all before it stand, in a session like the others."""
        survivals = self.survivals(positions)
        return [after / before if before else 0.0 for before, after in zip((1.0, *survivals), survivals, strict=False)]

    def observed(self, credits: tuple[float, ...], own: Own) -> tuple["Acceptance", Own]:
        """After a round of a session with that record: the credits of the positions that were examined because all
        before them were accepted. Also what the record is then."""
        if not credits:
            return self, own
        tokens = len(credits)
        expected = self.conditionals(tokens)
        surprise = Surprise(tokens, tokens - sum(credits), tokens - sum(expected))
        chances, haunts = _believed(self.chances, self.haunts, _likelihood(self.shape[:tokens], 1.0, credits), tokens)
        tilts = _tilted(self.tilts, credits, expected)
        shape = (*[round(tilt / GRAIN) for tilt in tilts[:tokens]], *self.shape[tokens:])
        return Acceptance(chances, haunts, tilts, shape, self.kin.told(own, surprise)), own.told(surprise)

    def heard(self, *, matched: int, examined: int) -> "Acceptance":
        """After `examined` first guesses, of which `matched` would have been accepted, evenly among them as far as is
        told: so a level that jumped meanwhile is not believed to have done so after the last."""
        if not examined:
            return self
        pieces = min(-(-examined // PIECE), MOST_PIECES)
        likelihood = _likelihood(self.shape[:1], examined / pieces, (matched / pieces,))
        chances, haunts = self.chances, self.haunts
        for _ in range(pieces):
            chances, haunts = _believed(chances, haunts, likelihood, round(examined / pieces))
        return replace(self, chances=chances, haunts=haunts)

    def loosened(self) -> "Acceptance":
        """The same belief with a part of it held open: nothing was heard for long, and a level may have jumped."""
        return replace(self, chances=(1 - OPEN) * self.chances + OPEN / len(PACES) * self.haunts)


UNKNOWN: Final = Acceptance(np.tile(PRIOR / len(PACES), len(PACES)))
"""Before anything was examined."""


def _believed(chances: Array, haunts: Array, likelihood: Array, tokens: int) -> tuple[Array, Array]:
    """Chances and haunts after so many tokens, which were that likely in each state."""
    step = min(tokens, LONGEST_STEP)
    seen: Array = likelihood * chances
    seen /= float(seen.dot(_ONES))  # dividing by a scalar of numpy takes twice as long
    moved: Array = _moves(step).dot(seen)
    jumped = moved[_SIZE : 2 * _SIZE]
    jumped *= haunts
    jumped += moved[:_SIZE]
    wanted = CLIMATE_KEPT**step * haunts
    wanted += moved[2 * _SIZE :]
    return jumped, wanted


def _log_frailty(own: Own, kin: Kin) -> float:
    variance = kin.together / kin.expected
    if variance < LEAST_VARIANCE:
        return 0.0
    return log((1 / variance + own.failed) / (1 / variance + own.expected))


def _grains(logarithm: float) -> int:
    return round(logarithm / GRAIN)


def _tilted(tilts: tuple[float, ...], credits: tuple[float, ...], expected: list[float]) -> tuple[float, ...]:
    """The tilts after a round."""
    unseen = len(credits) - len(tilts)
    known = (*tilts, *(tilts[-1:] or (0.0,)) * unseen) if unseen > 0 else tilts
    moved = [
        tilt
        if -TILT_MOST < (tilt := TILT_KEPT * before + TILT_STEP * (chance - credit)) < TILT_MOST
        else copysign(TILT_MOST, tilt)
        for before, credit, chance in zip(known, credits, expected, strict=False)
    ]
    return (*moved, *known[len(moved) :])


@lru_cache(maxsize=512)
def _weights(shape: tuple[int, ...], positions: int) -> tuple[float, ...]:
    """w_1 ... w_n; a position without a tilt of its own has the last one's."""
    known = [*shape, *[shape[-1] if shape else 0] * (positions - len(shape))]
    return tuple([exp(grains * GRAIN) for grains in known[:positions]])


@lru_cache(maxsize=64)
def _survivals(belief: Acceptance, frailty: int, positions: int) -> tuple[float, ...]:
    """A belief never changes, and is asked again: by the choice, by what is learnt next, by other sessions."""
    return tuple(_powers(belief.shape, frailty, positions).dot(belief.chances).tolist())


@lru_cache(maxsize=512)
def _powers(shape: tuple[int, ...], frailty: int, positions: int) -> Array:
    """[position, pace x level]: g^(w_1 + ... + w_i), each w_i times the frailty, whose logarithm is in grains."""
    exponents = np.cumsum(_weights(shape, positions)) * exp(frailty * GRAIN)
    return np.asarray(np.exp(np.outer(exponents, _LOG_GRID)))


@lru_cache(maxsize=512)
def _likelihood(shape: tuple[int, ...], examined: float, credited: tuple[float, ...]) -> Array:
    """[pace x level], 1 at its most: of positions that were examined so often each, and credited with so much. There
    are few outcomes, and they come again; credits seldom do."""
    counts = np.array([*(examined,) * len(credited), *credited])
    logarithms: Array = counts.dot(_evidence(shape, len(credited)))
    logarithms -= logarithms.max()
    return np.exp(logarithms, out=logarithms)


@lru_cache(maxsize=512)
def _evidence(shape: tuple[int, ...], positions: int) -> Array:
    """[2 positions, pace x level]: counts times this are the logarithm of the likelihood. With a_j = g^(w_j) it is
    the sum of examined_j log(1 - a_j) + credited_j log(a_j / (1 - a_j))."""
    accepted = np.outer(_weights(shape, positions), _LOG_GRID)
    refused = np.log1p(-np.exp(accepted))
    return np.vstack([refused, accepted - refused])


@lru_cache(maxsize=LONGEST_STEP)
def _moves(tokens: int) -> Array:
    """What some tokens do to the belief, as a linear map of the chances [pace x level]: to the chances of levels that
    did not jump; below, repeated for each level, to that of a pace whose level did; and to what the haunts gain."""
    paces = len(PACES)
    jumped = np.repeat([1 - (1 - pace.jump) ** tokens for pace in PACES], LEVELS)
    switching = (1 - SWITCH) * np.eye(paces) + SWITCH / paces
    drifting = np.zeros((_SIZE, _SIZE))
    for number, pace in enumerate(PACES):
        at = slice(number * LEVELS, (number + 1) * LEVELS)
        drifting[at, at] = _drift(pace.drift)
    once = np.kron(switching, np.eye(LEVELS)) @ drifting
    stay = np.linalg.matrix_power(once, tokens) * (1 - jumped)
    jump = np.kron(np.eye(paces), np.ones((LEVELS, LEVELS))) * jumped
    return np.vstack([stay, jump, (1 - CLIMATE_KEPT**tokens) * _NEW_HAUNTS])


def _drift(share: float) -> Array:
    """One token's move of a level to its neighbours; at the ends it stays."""
    move = np.eye(LEVELS) * (1 - 2 * share) + share * (np.eye(LEVELS, k=1) + np.eye(LEVELS, k=-1))
    move[0, 0] += share
    move[-1, -1] += share
    return np.asarray(move)
