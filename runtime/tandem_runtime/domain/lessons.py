"""Knows what rounds have taught of a draft, of its acceptance and of costs, and what each K would bring by that.

Refuses to know which K is taken, what else that hangs on, and who comes to the same sums in another way.

With s_i the chance that the first i guesses all stand (`acceptance`) and the costs of `costs`:

    E(K)    = 1 + s_1 + ... + s_K                     expected tokens of a round (Leviathan 2023, eq. 1, per position)
    S(K)    = t_b E(K) / cost(K)                      speed-up over plain decoding, t_b seconds per token

K is extended while the next token pays for itself, s_(K+1) cost(K) > (cost(K+1) - cost(K)) E(K): exact where survival
falls and a further token costs no less than the one before it. Another K must be better by 1 %, so that noise does not
move it.

All of this is asked and told in every round, so it is there twice: here, as it is meant and where no compiler is at
hand, and in C (`tandem_runtime.native_lessons`). A gateway begins with the one or the other (`Beginning`), and what it
began with goes on as what it is: each lesson makes the next of its own kind.
"""

from math import inf
from typing import Final, NamedTuple, Protocol

from tandem_runtime.domain.acceptance import ALIKE, UNKNOWN, Acceptance, Own
from tandem_runtime.domain.costs import NO_HEAD_START, UNMEASURED, Costs, HeadStart, Model, Seen
from tandem_runtime.domain.price import FREE, judged_alone
from tandem_runtime.domain.tokens import Round

HYSTERESIS: Final = 0.01
"""Another K must be better by this share, so that noise does not move K."""
ALL: Final = 0.75
"""Of those in a step: fewer guesses over one's own need not mean that somebody decodes plainly."""


class Batch(NamedTuple):
    """Whom a session shares steps with, at the target and, if all whom it meets there propose, at the draft."""

    rows: int = 1
    draft_rows: float = 1
    drafting: float = 1.0
    """Of the sessions that propose, the share that is with the draft at a time, and not with the target. Before it was
    seen, all: their steps are no longer than that."""

    def after(self, round: Round) -> "Batch":
        """The next one, by whom the round met.

        With 12 of 60 sessions in the target's step and 12 others with the draft, half of those who propose draft at a
        time; if all 72 proposed, 36 would.
        """
        rows, judged = round.rows, round.proposed - round.unjudged
        if not judged:
            return self if rows == self.rows else Batch(rows, max(self.drafting * rows, 1.0), self.drafting)
        drafted, drafting = round.draft_rows, self.drafting
        draft_rows: float = drafted
        if round.ahead is None:
            drafting = drafted / (drafted + proposing_in(round))
            draft_rows = drafting * (rows + drafted)
        is_as_before = rows == self.rows and draft_rows == self.draft_rows and drafting == self.drafting
        return self if is_as_before else Batch(rows, draft_rows, drafting)


ALONE: Final = Batch()


def proposing_in(round: Round) -> float:
    """Of the sessions in the step that judged it: all guesses over one's own."""
    return min(1 + round.beside / round.judged, round.rows)


def is_mixed(round: Round) -> bool:
    """Whether many of the step that judged it decoded plainly."""
    return round.judged > 0 and proposing_in(round) < ALL * round.rows


class View(NamedTuple):
    """What is particular to one session: its own record, the batch it is in, and whether its draft is warm."""

    own: Own = ALIKE
    batch: Batch = ALONE
    k: int | None = None
    """Its last choice that was free; absent before the first."""
    warm: bool = False
    starts: bool = True
    """Whether it is the one that proposes while no cost of proposals is known."""
    price: float = FREE
    """The survival below which its target leaves guesses out."""
    head_start: HeadStart = NO_HEAD_START
    """What its draft has ready with a verdict, where it drafts ahead."""


NEWCOMER: Final = View()
"""A session of which nothing is known yet."""


class Limits(Protocol):
    """How many tokens may be proposed."""

    @property
    def minimum(self) -> int: ...

    @property
    def maximum(self) -> int: ...

    @property
    def least(self) -> int:
        """The smallest K that proposes anything."""


class Prediction(NamedTuple):
    """What K tokens per round would bring: `speed_up` over plain decoding, give or take a share of `doubt`."""

    k: int
    speed_up: float
    doubt: float = 0.0


class Weighed(NamedTuple):
    """What a session's next proposal is believed to bring."""

    survivals: tuple[float, ...]
    """The chance that tokens 1 to i + 1 all stand, up to the most that may be proposed."""
    best: Prediction | None
    """Of all that may be proposed; None: no cost of proposals is known."""
    plain_doubt: float
    """How far off t_b may be: a standard deviation, as a share of it. Infinite: no plain token was seen."""


class Lessons(Protocol):
    """What was taught so far. Nobody changes any: what a round teaches is another."""

    @property
    def acceptance(self) -> Acceptance:
        """As plain values, for who explains or writes them."""

    @property
    def costs(self) -> Costs:
        """Likewise."""

    @property
    def told(self) -> int:
        """How often acceptance was believed otherwise: as long as it stays, so does acceptance."""

    def survivals(self, positions: int, own: Own = ALIKE) -> tuple[float, ...]:
        """As `Acceptance` has them."""

    def model(self, view: View, now: float) -> Model | None:
        """Costs as that session meets them; None: not known."""

    def weighed(self, view: View, limits: Limits, now: float, last: int | None) -> Weighed:
        """What that session may expect, whose K was `last`."""

    def taught(self, own: Own, seen: Seen) -> "tuple[Lessons, Own]":
        """By one more round of a session with that record; what the record is then. What is not the cost of going on
        teaches acceptance alone."""

    def heard(self, *, matched: int, examined: int) -> "Lessons":
        """As `Acceptance` hears."""

    def loosened(self, *, acceptance: bool = False, costs: bool = False) -> "Lessons":
        """The same, of which one or both are held open."""


class SpelledOut(NamedTuple):
    """By the sums as they are written here."""

    acceptance: Acceptance = UNKNOWN
    costs: Costs = UNMEASURED
    told: int = 0

    def survivals(self, positions: int, own: Own = ALIKE) -> tuple[float, ...]:
        return self.acceptance.survivals(positions, own)

    def model(self, view: View, now: float) -> Model | None:
        batch = view.batch
        return self.costs.model(now, rows=batch.rows, draft_rows=batch.draft_rows, head_start=view.head_start)

    def weighed(self, view: View, limits: Limits, now: float, last: int | None) -> Weighed:
        survivals, costs = self.survivals(limits.maximum, view.own), self.model(view, now)
        if costs is None:
            return Weighed(survivals, None, inf)
        found = credible(best(costs, judged_alone(survivals, view.price), limits, last), costs)
        return Weighed(survivals, found, inf if costs.plain_token is None else costs.plain_doubt)

    def taught(self, own: Own, seen: Seen) -> "tuple[SpelledOut, Own]":
        acceptance = self.acceptance
        if seen.round.proposed:
            acceptance, own = acceptance.observed(seen.round.evidence, own)
        told = self.told + (acceptance is not self.acceptance)
        return SpelledOut(acceptance, self.costs.followed(seen), told), own

    def heard(self, *, matched: int, examined: int) -> "SpelledOut":
        acceptance = self.acceptance.heard(matched=matched, examined=examined)
        return self._replace(acceptance=acceptance, told=self.told + (acceptance is not self.acceptance))

    def loosened(self, *, acceptance: bool = False, costs: bool = False) -> "SpelledOut":
        return SpelledOut(
            self.acceptance.loosened() if acceptance else self.acceptance,
            self.costs.loosened() if costs else self.costs,
            self.told + acceptance,
        )


UNTAUGHT: Final = SpelledOut()
"""Before any round."""


class Beginning(NamedTuple):
    """What a pair's first segment begins with, and how it comes by its sums: a line for who asks."""

    untaught: Lessons
    about: str


IN_PYTHON: Final = Beginning(UNTAUGHT, "Python")


def best(costs: Model, survivals: tuple[float, ...], limits: Limits, last: int | None) -> Prediction:
    """The best K > 0 within the limits by the marginal rule, or `last` if it is as good.

    With t_d 4, t_v 18 at any K, t_b 15 milliseconds and a_j = .8 throughout, K = 4 and speed-up 1.48.
    """
    least, most = limits.least, limits.maximum
    k, expected, cost = least, 1 + sum(survivals[:least]), costs.cost(least)
    further = costs.per_token
    while k < most:
        if costs.head_start.hits:
            further = costs.next_token(k)
        if survivals[k] * cost <= further * expected:
            break
        expected += survivals[k]
        cost += further
        k += 1
    speed_up = costs.baseline * expected / cost
    if last is not None and last != k and least <= last <= most:
        as_before = speed_up_of(costs, survivals, last)
        if speed_up <= as_before * (1 + HYSTERESIS):
            return Prediction(last, as_before, costs.strangeness)
    return Prediction(k, speed_up, costs.strangeness)


def speed_up_of(costs: Model, survivals: tuple[float, ...], k: int) -> float:
    """S(K)."""
    return costs.baseline * (1 + sum(survivals[:k])) / costs.cost(k)


def credible(found: Prediction, costs: Model) -> Prediction:
    """No more than if a plain token took as long as the verify pass, which does as much: one that took longer was seen
    when all did, or in company, and while proposals seem to pay for it none is seen that takes less."""
    plain, most = costs.plain_token, costs.fixed + found.k * costs.verify_token
    if plain is None or plain <= most:
        return found
    return found._replace(speed_up=found.speed_up * most / plain)
