"""Knows what a draft's confidence is worth, learnt from what stood, and where drafting should end by it.

Refuses to know models, how confidence is computed, and what a token costs.

A draft is surer of some guesses than of others, and the surer ones stand more often. *Confidence* is the margin z
of the best token over the second, told in a byte as 64 z. Of which scores depends on the verification:

    rejection, block    the row's log-probabilities at its temperature, made of what came before the guess and not of
                        the guess: a draft that goes by them keeps the target's law (see `domain.verification`)
    coupled             the same with the shared noise on them, which is what the guess is the best of: the target adds
                        the same noise, and another token wins there only if it makes up for the margin

What it is worth differs by draft, target and temperature. So acceptance is counted by *kind*, the quarter nats of z: a
decayed Beta each, which begins at the mean of all kinds. With a(z) its estimate, the guesses made so far all stand with
chance

    s = a(z_1) a(z_2) ... a(z_j)

and one more stands with chance s a, a the mean of all, since its confidence is not known before it is drafted. It costs
what a token adds to a round, t_d + v_1 seconds (`domain.lookahead`), in which decoding makes r (t_d + v_1) tokens at
the rate r = E(K) / cost(K). So drafting goes on while

    s > least = r (t_d + v_1) / a

which is the marginal rule with the survival of these guesses in place of the mean one. (SpecDec++, Huang et al. 2024,
shows that a threshold on survival is optimal.) The first guess is always offered: it is paid for when its confidence is
known.

Sessions differ more than kinds do. Where one's own record says that its guesses stand with another chance a than those
of all, the odds of each a(z) are moved by as much.

A position that is not reached is not learnt from. Whether it is depends on the confidences before it and hardly on its
own, so the belief by position stays what it would be without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandem_runtime.domain.tokens import CONFIDENCE_KINDS, Stop, kind_of

PRIOR_ACCEPTANCE = 0.7
PRIOR_STRENGTH = 16.0
"""In observations: a kind is believed to be like the mean of all until about so many were examined."""
KEPT_IN_KIND = 0.995
"""A kind remembers about 200 examined guesses of its own."""
MEAN_STRENGTH = 4.0
KEPT_IN_MEAN = 0.98
"""The mean remembers about 50 examined guesses."""
LEAST_EXAMINED = 24.0
"""Observations, those of the prior included, before a proposal may be longer than a mean one."""


@dataclass(slots=True)
class Calibration:
    """Decayed counts by kind, and over all. Nobody changes one: it is not frozen since it is made in each round."""

    stood: Final[tuple[float, ...]] = (0.0,) * CONFIDENCE_KINDS
    examined: Final[tuple[float, ...]] = (0.0,) * CONFIDENCE_KINDS
    all_stood: Final[float] = MEAN_STRENGTH * PRIOR_ACCEPTANCE
    all_examined: Final[float] = MEAN_STRENGTH

    @property
    def mean(self) -> float:
        return self.all_stood / self.all_examined

    @property
    def is_known(self) -> bool:
        """Whether enough was heard of this draft to go by it; one that tells no confidences is never known."""
        return self.all_examined >= LEAST_EXAMINED

    @property
    def acceptance(self) -> tuple[float, ...]:
        """a(z) by kind."""
        prior = PRIOR_STRENGTH * self.mean
        counts = zip(self.stood, self.examined, strict=True)
        return tuple([(stood + prior) / (examined + PRIOR_STRENGTH) for stood, examined in counts])

    def learned(self, confidences: Sequence[int], evidence: Sequence[float]) -> "Calibration":
        """After guesses of these confidences were examined; `evidence` as in `Round`, one for each."""
        stood, examined = list(self.stood), list(self.examined)
        all_stood, all_examined = self.all_stood, self.all_examined
        for confidence, credit in zip(confidences, evidence, strict=True):
            kind = kind_of(confidence)
            stood[kind] = stood[kind] * KEPT_IN_KIND + credit
            examined[kind] = examined[kind] * KEPT_IN_KIND + 1
            all_stood, all_examined = all_stood * KEPT_IN_MEAN + credit, all_examined * KEPT_IN_MEAN + 1
        return Calibration(tuple(stood), tuple(examined), all_stood, all_examined)

    def stop(self, marginal_share: float, *, level: float | None = None) -> Stop:
        """Where to end, if one more token costs the time in which decoding makes `marginal_share` tokens, in a session
        whose guesses are believed to stand with chance `level`; None: as those of all."""
        mean = self.mean
        level = mean if level is None else level
        shift = _odds(level) / _odds(mean)
        acceptance = tuple([shift * each / (1 - each + shift * each) for each in self.acceptance])
        return Stop(min(marginal_share / max(level, marginal_share, 1e-9), 1.0), acceptance)


def _odds(chance: float) -> float:
    bounded = 0.01 if chance < 0.01 else 0.99 if chance > 0.99 else chance
    return bounded / (1 - bounded)
