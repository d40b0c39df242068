"""Knows what steps cost on the rig, and the closed forms: speed-up at a given K, and the K for which it is highest.

Refuses to know queues, and what anybody believes. With acceptance alpha at every position (Leviathan 2023, eq. 1, with
costs apart for draft, verify and plain steps, as `domain.lookahead` has them):

    E(K) = 1 + alpha + ... + alpha^K          S(K) = t_b E(K) / (K t_d + t_v(K) + network)          S(0) = 1

A step over several sessions costs more where it holds more rows than the hardware computes for free while it reads the
weights (the roofline model, Williams 2009): `free` rows beside `row` seconds for each further one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MOST = 16
"""The largest K considered."""

Rows = Sequence["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """What one session has in a step: `rows` are computed, the last `outputs` of them yield logits."""

    rows: int
    outputs: int

    @property
    def proposed(self) -> int:
        return max(self.outputs - 1, 0)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds: `step`, `verify` more where any part verifies a proposal, `proposed` for each token of the longest one,
    `session` for each session beyond the first, `row` for each row beyond `free`."""

    step: float
    verify: float = 0.0
    proposed: float = 0.0
    session: float = 0.0
    row: float = 0.0
    free: int = 256

    def seconds(self, parts: Rows) -> float:
        """StepCost(.015, verify=.003) over a proposal of 5: .018; over a plain row: .015. A prompt's chunk is read
        along with the step and counts as no row, as `engines.pace` has it."""
        longest = max((part.proposed for part in parts), default=0)
        rows = sum(part.outputs for part in parts)
        return (
            self.step
            + (self.verify if longest else 0.0)
            + self.proposed * longest
            + self.session * (len(parts) - 1)
            + self.row * max(0, rows - self.free)
        )

    def alone(self, k: int) -> float:
        """t_v(K) of one session alone."""
        return self.seconds((Part(k + 1, k + 1),))


@dataclass(frozen=True, slots=True)
class Rig:
    """Costs of a pair. `network` seconds are spent per cycle, half of it between gateway and each of the two. `noise`
    is the standard deviation of a step's cost, as a share of it."""

    draft: StepCost = field(default_factory=lambda: StepCost(0.004))
    target: StepCost = field(default_factory=lambda: StepCost(0.015, verify=0.003))
    network: float = 0.001
    noise: float = 0.05

    def cycle(self, k: int) -> float:
        """Seconds of a round of K > 0 that meets nobody."""
        return k * self.draft.alone(0) + self.target.alone(k) + self.network


FLAT = Rig()
"""Draft 4 ms per token, verify 18 ms whatever K is, plain step 15 ms, network 1 ms per cycle."""
SLOPED = Rig(target=StepCost(0.015, proposed=0.0006))
"""The same with verify at 15 + .6 K ms."""
LOOKUP = Rig(draft=StepCost(0.0))
"""The first with a draft that looks up what was said before."""
CROWDED = Rig(
    draft=StepCost(0.004, session=0.00012), target=StepCost(0.015, proposed=0.0006, row=0.00006), network=0.001
)
"""As a batch grows: a draft step over B sessions costs 4 (1 + .03 (B - 1)) ms, a target's row beyond 256 another .06 ms
(at 256 rows as many seconds are computed as read: 15 / 256)."""
RIGS = {"flat": FLAT, "sloped": SLOPED}


def expected(alpha: float, k: int) -> float:
    """E(K): 3.36 tokens at alpha .8 and K = 4."""
    return float(sum(alpha**power for power in range(k + 1)))


def speed_up(rig: Rig, alpha: float, k: int) -> float:
    """S(K) over plain decoding, 1.44 on the flat rig at alpha .8 and K = 4."""
    return rig.target.alone(0) * expected(alpha, k) / rig.cycle(k) if k else 1.0


def best_k(rig: Rig, alpha: float, most: int = MOST) -> int:
    """The K of the optimum S*(alpha); 0 where nothing beats plain decoding."""
    return max(range(most + 1), key=lambda k: speed_up(rig, alpha, k))
