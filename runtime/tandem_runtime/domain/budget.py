"""Knows which proposed tokens a step judges when proposals share it: those that are worth their seconds.

Refuses to know tokens, models and threads: beliefs, row counts and seconds are arguments. A proposal that is cut is
judged as if it had been that short from the start, which any round may be.

**What was drawn has no part in it**, and must have none: in rejection and block modes a guess may be judged or not by
what came before it, never by itself or by what comes after it, or the law suffers (see `domain.verification`). The
number of guesses was drawn, too: drafting stops behind an end token, or where it is unsure. With n guesses kept of m
that came, were n to hang on m, the first would be judged or not by whether the m-th was an end. So a proposal is
offered as long as it was *asked for*, with a survival for every token of that; n is decided once, when the target first
plans a step with it, and min(n, m) are judged, whatever that step or a later one has room and memory for. (Offers as
long as what came would keep the law, too: whether a slot is taken hangs on likelier ones alone, of its own proposal on
those before it. That n is said once is what cannot be left out: who waits has a long proposal more often.)

What remains is time. A shorter draft comes sooner, so it may meet another crowd than a longer one would have, and be
cut by that one's prices. No plan can know of it. Whoever wants nothing to hang on time, as for seeded requests that
repeat in these modes, fixes K (`Bounds.is_one_k`): then no beliefs are sent, and nothing is left out. Coupled text
hangs on nothing of all this.

**Which slots.** A step over n rows takes T(n) = a + b n seconds. Every row gives its plain token, and a slot that is
judged gives one more with the chance s that it and all before it stand. The slots taken are the n* with the highest
survival for which the step brings most (TurboSpec, Liu et al. 2024, arXiv 2406.14066: goodput):

    argmax over n of (rows + sum of the n highest s) / T(rows + n)

The sum is concave in n and T is convex, so the quotient rises to its greatest value and falls from there: a slot is
taken while s / b is above what the step brings without it. Survivals fall along a proposal, so what is taken of each is
a beginning. Where more rows wait than one step holds, their a is paid once per step: a max(1, n / rows of a step).

A gateway chooses K by what a round of its own costs; what a slot costs the others in the step only the target sees.

**Whose seconds.** With several tenants in a step each buys with its own share: phi = weight / all weights, and a phi in
place of a, as if it had a machine of its own that is phi as fast (generalised processor sharing, Parekh and Gallager
1993). So nobody's claims or crowds cut another's slots; who claims more than comes true slows its own rounds, and who
has many sessions fills its own share. With one tenant it is the rule above. How far a tenant goes before others over
time is `domain.batching`'s: slots are charged as rows, whether they stand or not.

**What steps cost** is measured: recursive least squares over the rows and seconds of past steps (`domain.costs`). The
slope is believed as far as it lies above its standard deviation: where nothing was learnt, nothing is cut.

**What the others lose.** A second more of a step delays those in it, and those who come while it goes on; none of the
sessions that wait for their drafts. Per second of a session's round, of C seconds from verdict to verdict, its E tokens
are lost: so where sessions are at work elsewhere for most of C, T(n) above is C over 1 + the share of them that came
during another step, which is measured, too. Under load both are T(n); a lone group in step with itself has its drafting
in C. A step that takes far longer than was expected, as when the machine was suspended, counts as
a few times what was.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import sqrt
from operator import sub

from tandem_runtime.domain.batching import Claim, Tenant
from tandem_runtime.domain.costs import Plane, learned
from tandem_runtime.domain.tokens import Priority

__all__ = ["NOTHING_MEASURED", "UNKNOWN", "Measured", "Offer", "StepSeconds", "kept_slots"]

LEAST_STEPS = 8
OUTLIER = 4.0
"""No step counts as more than so many times what was expected of it."""
APART_KEPT = 0.9
"""Of the mean of what lies between verdicts, per step: it remembers about 10."""
MOST_APART = 10.0
"""In steps: sessions that rested are soon under load again."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """T(n) = `fixed` + `per_row` n; `rows` is what one step holds, None: any number."""

    fixed: float
    per_row: float
    rows: int | None = None

    def of(self, rows: int, share: float = 1.0) -> float:
        """Of a tenant's `rows`, that has `share` of the machine."""
        steps = share if self.rows is None else max(share, rows / self.rows)
        return self.fixed * steps + self.per_row * rows


UNKNOWN = StepSeconds(1.0, 0.0)
"""Slots cost nothing."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a session puts before a step: `rows` that must be computed, and behind them a slot per survival, whether a
    guess came for it or not; a survival is no higher than the one before it."""

    claim: Claim
    rows: int
    survivals: tuple[float, ...] = ()


def kept_slots(offers: Sequence[Offer], seconds: StepSeconds) -> list[int]:
    """How many slots of each offer are judged.

    With T = 10 + 1 n ms, of two offers of one row, with survivals (.9, .8) and (.2, .1), all of the first is kept and
    nothing of the second.
    """
    kept = [len(offer.survivals) for offer in offers]
    if seconds.per_row <= 0 or sum(1 for count in kept if count) < 2:
        return kept
    accounts = _accounts(offers)
    weights = {account: offers[members[0]].claim.weight for account, members in accounts.items()}
    for account, members in accounts.items():
        share = weights[account] / sum(weights.values())
        for at, count in _bought([offers[member] for member in members], seconds, share):
            kept[members[at]] = count
    return kept


def _accounts(offers: Sequence[Offer]) -> Mapping[tuple[Priority, Tenant], list[int]]:
    """Who offers what: positions in `offers`."""
    accounts: dict[tuple[Priority, Tenant], list[int]] = {}
    for at, offer in enumerate(offers):
        accounts.setdefault((offer.claim.priority, offer.claim.tenant), []).append(at)
    return accounts


def _bought(offers: Sequence[Offer], seconds: StepSeconds, share: float) -> Iterator[tuple[int, int]]:
    """What one tenant takes with its share: (position in `offers`, slots), for all of them."""
    slots = [(-survival, at) for at, offer in enumerate(offers) for survival in offer.survivals]
    slots.sort()
    rows = sum(offer.rows for offer in offers)
    tokens = [*accumulate((slot[0] for slot in slots), sub, initial=float(len(offers)))]

    def is_too_dear(n: int) -> bool:
        """Whether the step brings less with slot n than without it: so do all that come after it then."""
        return tokens[n + 1] * seconds.of(rows + n, share) < tokens[n] * seconds.of(rows + n + 1, share)

    counts = [0] * len(offers)
    for _, at in slots[: bisect_left(range(len(slots)), True, key=is_too_dear)]:
        counts[at] += 1
    return enumerate(counts)


@dataclass(frozen=True, slots=True)
class Measured:
    """What past steps took, as a plane of `domain.costs` with rows in the place of K; None: nothing is known."""

    plane: Plane | None = None
    steps: int = 0
    apart: float = 0.0
    """Mean seconds of a round, by those whom a step delays, beside the step."""

    def learned(self, rows: int, seconds: float, *, now: float) -> "Measured":
        """One more step, over `rows`, that ended at `now`."""
        known = self if self.plane is not None and self.plane.fresh(now) else replace(self, plane=None, steps=0)
        usual = seconds if known.plane is None else known.plane.seconds(rows, 1)
        counted = min(max(seconds, 0.0), OUTLIER * usual)
        return replace(known, plane=learned(known.plane, counted, rows, 1, now), steps=known.steps + 1)

    def shared(self, cycle: float, came_during: float, step: float) -> "Measured":
        """A step of `step` seconds was shared by sessions whose verdicts lie `cycle` seconds apart; `came_during` of
        them, 0 to 1, came while another step went on."""
        longest = MOST_APART * max(step, 0.0)
        apart = min(max(cycle / (1 + came_during) - step, 0.0), longest)
        return replace(self, apart=APART_KEPT * self.apart + (1 - APART_KEPT) * apart)

    def seconds(self, *, now: float) -> StepSeconds:
        """T(n), a slope of 0 where none is known."""
        plane = self._known(now)
        if plane is None:
            return UNKNOWN
        slope = max(plane.per_token - sqrt(max(plane.p11, 0.0)), 0.0)
        return StepSeconds(max(plane.level, 0.0) + self.apart, slope)

    def step_alone(self, *, now: float) -> StepSeconds | None:
        """The likeliest T(n) of a step, without what lies beside it; None: not known."""
        plane = self._known(now)
        return None if plane is None else StepSeconds(plane.seconds(0, 1), max(plane.per_token, 0.0))

    def _known(self, now: float) -> Plane | None:
        plane = self.plane
        return None if plane is None or self.steps < LEAST_STEPS or not plane.fresh(now) else plane


NOTHING_MEASURED = Measured()
