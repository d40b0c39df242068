"""Knows how many tokens are worth proposing: a belief about acceptance and costs, and the K that follows from it.

Refuses to know sessions, clocks (time is an argument, in seconds that never go back) and who set the bounds.

With a_j the chance that position j is accepted given that all before it are, and survival s_i = a_1 ... a_i:

    E(K)    = 1 + s_1 + ... + s_K                     expected tokens of a round (Leviathan 2023, eq. 1, per position)
    cost(K) = o + K t_d + t_v(K)                      o: network, queue and the gateway; t_v(K) = v_0 + v_1 K
    S(K)    = t_b E(K) / cost(K)                      speed-up over plain decoding, t_b seconds per token

K is extended while the next token pays for itself, s_(K+1) cost(K) > (t_d + v_1) E(K): exact where survival falls and
costs are linear. In mode Auto nothing is proposed when S(K) <= 1 + min_gain. t_b includes what a plain token costs
beside its forward; where no plain token was seen, v_0 stands for its forward, which never flatters speculation.

Beliefs fade: acceptance with each observation, costs with each observation and with age, so that what was true an hour
ago does not decide. One belief serves all sessions of a (revision) in a gateway.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tandem_runtime.domain.tokens import Round


class Mode(StrEnum):
    """`AUTO` may choose K = 0 because it pays better; `ALWAYS` keeps within the bounds whatever it costs."""

    AUTO = "Auto"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be proposed now. `maximum` 0 is speculation off: an off slot, a policy, a request."""

    minimum: int
    maximum: int
    mode: Mode = Mode.AUTO
    min_gain: float = 0.01


OFF = Bounds(0, 0)


@dataclass(frozen=True, slots=True)
class Belief:
    """Heads only: fields follow."""


def choose(belief: Belief, bounds: Bounds, now: float) -> tuple[int, Belief]:
    """K for the next round, and the belief that remembers the choice (hysteresis; a probe is claimed by one session)."""
    raise NotImplementedError


def learn(belief: Belief, round: Round, now: float) -> Belief:
    """The belief after one more round."""
    raise NotImplementedError


class Lookahead:
    """The one cell that sessions of a revision share: holds the belief, adds no rule.

    lookahead.choose(bounds, most, now) -> K;  lookahead.learn(round, now)
    """

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = belief or Belief()

    def choose(self, bounds: Bounds, most: int, now: float) -> int:
        """K within `bounds`, cut to the `most` that the session has room for."""
        k, self.belief = choose(self.belief, bounds, now)
        return min(k, most)

    def learn(self, round: Round, now: float) -> None:
        self.belief = learn(self.belief, round, now)
