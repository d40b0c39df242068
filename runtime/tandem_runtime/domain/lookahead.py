"""Knows how many tokens are worth proposing: what is believed of acceptance and costs, and the K that follows from it.

Refuses to know sums (`lessons`), sessions, clocks (time is an argument, in seconds) and who set the bounds.

What each K would bring, its speed-up S(K) over plain decoding, and which brings most, `lessons` says. In mode Auto
nothing is proposed when S(K) <= 1 + min_gain, with t_b at most what a verify pass takes, and then nothing until it is
5 % more, up to 10 % in a crowd, whose belief follows every step.

What is not known is looked at, for a price that is bounded:

- No cost of proposals is known: the middle of the bounds, in one session; the others decode plainly meanwhile. Where
  they share its steps, so much less, as all of them wait for its guesses.
- No plain token was seen: a verify pass bounds what one costs, but may cost more. Four plain tokens are asked for; and
  again where K hangs on it, since what one costs is doubtful and proposals are worth little more or less. There they
  cost nothing, by the same token.
- Nothing is proposed, since it does not pay. Acceptance stays known where a draft scores what the target says (`hear`).
  Costs, and acceptance where nobody scores, may have become better: a probe proposes a few tokens. It comes after 8
  plain rounds of each session that shares a step, as all wait for its guesses, then after twice as many each time up to
  128, then so seldom that what it is believed to lose is 0.4 % of what plain decoding takes meanwhile. Where a draft
  scores, only costs are looked at: late from the first, in a session whose draft has read along. None comes where
  proposals would lose even if they were verified at a plain token's cost and drafted at half of theirs; where nobody
  scores, each such wait leaves acceptance more open, until there is hope.

A crowd that stops since a verify pass has come to take another order of time than a plain token waits longer than for a
probe, whose one guess tells too little of the sixteen that would follow: until what was lost is .4 % of the time too.
A crowd of half as many, or fewer, does not wait: its steps may be others.

Sessions that share a target share the belief and the rule, so they begin and end to propose together. A session that
looked at the draft as it is, with few beside it, would find that proposals pay for it, and so each of those few, while
their guesses make the step longer for all who decode plainly. So the draft is priced as it would be if all in the
target's step proposed (`Batch`), as the step itself is (`costs`): all do, or none. A draft that works ahead is taken as
it is: it drafts while the target verifies, so who waits for it does not tell how many do.

A session is *warm* when its draft has read all that was emitted: its last round proposed something, or its draft is
asked for nothing, as a lookup in the text so far is. Nothing to offer is no rejection: acceptance is that of what was
proposed. A run's first token waits for the step under way, and only bounds what a plain token costs: taken for the cost
of going on, it would make proposals seem to pay wherever several sessions share a target.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, sqrt
from typing import Final, NamedTuple

from tandem_runtime.domain.acceptance import Acceptance, Own
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.calibration import Calibration
from tandem_runtime.domain.costs import NOISE, OUTLIER_FACTOR, WALK_PER_SAMPLE, Costs, Model, Seen
from tandem_runtime.domain.lessons import NEWCOMER, UNTAUGHT, Lessons, Prediction, View, Weighed, best, speed_up_of
from tandem_runtime.domain.price import judged_alone
from tandem_runtime.domain.tokens import Outlook, Stop

RETURN: Final = 0.05
"""To propose again, a round must be worth so much more than to go on proposing, and more where the batch is strange."""
DEVIATIONS: Final = 2.0
"""So many standard deviations of what a step is believed to take, if that is more: who begins does so by the best of
many looks, which flatters."""
PROBE_TOKENS: Final = 1
PROBE_ROUNDS: Final = 2
"""The first round of a probe makes the draft read what it has missed, so only the one after it tells what one costs."""
PROBE_FIRST_ROUNDS: Final = 8
PROBE_LOSS: Final = 0.004
"""Of plain decoding's time: what probes may lose of it."""
PROBE_DOUBLES_UP_TO: Final = 128
HOPE: Final = 0.5
"""Of what drafting costs: what it may have become unseen, at best."""
MEASURED_TOKENS: Final = 4
"""How many plain tokens tell what one costs, for a start."""
SURE: Final = 0.025
"""Of a plain token's cost: with less doubt than that, another look would not tell more."""
HEARD_TOKENS: Final = 8
"""So many scored tokens since the last probe say what acceptance is."""


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
    early_stop: bool = False
    """Whether drafting may end within a round by its confidence; K is then the most, which few rounds reach."""
    overlap: Overlap = Overlap.OFF

    @property
    def is_one_k(self) -> bool:
        """Whether they leave no choice: seeded requests repeat then in every verification, so nobody may shorten a
        proposal for the sake of time."""
        return self.minimum == self.maximum

    @property
    def leaves_ahead_alone(self) -> bool:
        return self.is_one_k and self.overlap is Overlap.AUTO

    @property
    def least(self) -> int:
        """The smallest K that proposes anything."""
        return min(max(self.minimum, 1), self.maximum)


OFF: Final = Bounds(0, 0)


class Rule(StrEnum):
    """Which rule settled a K."""

    WITHHELD = "Withheld"
    """The bounds allow nothing: an off slot, a policy, a request."""
    COLD_START = "ColdStart"
    """No cost of proposals is known: the middle of the bounds, or less in company, to learn."""
    AWAITED = "Awaited"
    """No cost of proposals is known, and another session is about to learn them."""
    MEASURING = "Measuring"
    """K hangs on what a plain token costs, and that is not known well enough: some, to learn it."""
    ALWAYS = "Always"
    """The best within the bounds; the mode asks for it whether it pays or not."""
    PAYS = "Pays"
    LOSES = "Loses"
    """No K is worth more than plain decoding and the least gain."""
    PROBE = "Probe"
    """None seems to, and it is time to look again."""


class Belief(NamedTuple):
    """All that is known. `k` is the last choice that was free, of any session: absent before the first, 0 while it does
    not pay."""

    lessons: Lessons = UNTAUGHT
    k: int | None = None
    plain_rounds: int = 0
    """Rounds without a proposal since the last probe."""
    probe_left: int = 0
    """Rounds that the probe under way may still take, in a warm session."""
    probe_after: int = PROBE_FIRST_ROUNDS
    heard: int = 0
    """Tokens that a draft has scored since the last probe."""
    dear_rows: int = 0
    """The most sessions in whose step a verify pass took another order of time than a plain token."""
    dear_until: float = -inf
    """Before that moment nobody begins to propose again in a step of more than half as many."""

    @property
    def acceptance(self) -> Acceptance:
        return self.lessons.acceptance

    @property
    def costs(self) -> Costs:
        return self.lessons.costs


class Why(NamedTuple):
    """What led to a K: the rule, and all that it was applied to. What was predicted for which K follows from them."""

    rule: Rule
    belief: Belief
    bounds: Bounds
    view: View
    now: float

    @property
    def costs(self) -> Model | None:
        """None: no cost is known."""
        return self.belief.lessons.model(self.view, self.now)

    @property
    def survivals(self) -> tuple[float, ...]:
        return self.belief.lessons.survivals(self.bounds.maximum, self.view.own)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """S(K) for K = 1, ..., the most that may be proposed; empty where no cost is known."""
        costs, survivals = self.costs, judged_alone(self.survivals, self.view.price)
        if costs is None:
            return ()
        return tuple(Prediction(k, speed_up_of(costs, survivals, k)) for k in range(1, self.bounds.maximum + 1))


class Choice(NamedTuple):
    """K for one round. `survivals[i]` is the believed chance that tokens 1 to i + 1 all stand, as it is before anything
    of the round is drawn; there are K of them. `plain_tokens` bounds how far to go on alone where K is 0."""

    k: int
    survivals: tuple[float, ...]
    why: Why
    plain_tokens: int | None = None
    stop: Stop | None = None
    """Where drafting ends before K, if it may."""
    outlook: Outlook | None = None
    """What the draft is to do while the round is verified. None: nothing."""


def choose(belief: Belief, bounds: Bounds, now: float, view: View) -> tuple[Choice, Belief]:
    """K for a session's next round, and the belief that remembers the choice: for hysteresis, and to probe once."""
    if bounds.maximum <= 0:
        return Choice(0, (), Why(Rule.WITHHELD, belief, bounds, view, now)), belief
    weighed = belief.lessons.weighed(view, bounds, now, _last(belief, view))
    k, rule, remembered = _settle(belief, bounds, now, view, weighed)
    plain_tokens = MEASURED_TOKENS if rule is Rule.MEASURING else None
    return Choice(k, weighed.survivals[:k], Why(rule, belief, bounds, view, now), plain_tokens), remembered


def ending_early(choice: Choice, calibration: Calibration) -> Choice:
    """The choice with a stop, by the rate at which its K decodes. Where confidence is known, K is the most: whether the
    next token pays is then seen guess by guess. Where no cost is known, the stop ends nothing and asks for confidence.
    """
    why, costs = choice.why, choice.why.costs
    if costs is None:
        return choice._replace(stop=calibration.stop(0.0))
    share = costs.per_token * (1 + sum(choice.survivals)) / costs.cost(choice.k)
    stop = calibration.stop(max(share, why.view.price), level=choice.survivals[0])
    if not calibration.is_known or why.rule not in (Rule.PAYS, Rule.ALWAYS):
        return choice._replace(stop=stop)
    return Choice(why.bounds.maximum, why.survivals, why, stop=stop)


def learn(belief: Belief, own: Own, seen: Seen) -> tuple[Belief, Own]:
    """The belief after one more round of a session with that record, and what the record is then. What is not the cost
    of going on teaches acceptance alone."""
    lessons, k, plain_rounds, probe_left, probe_after, heard, dear_rows, dear_until = belief
    lessons, own = lessons.taught(own, seen)
    plain_rounds += not seen.round.proposed
    return Belief(lessons, k, plain_rounds, probe_left, probe_after, heard, dear_rows, dear_until), own


def unanswered(belief: Belief) -> Belief:
    """The belief after a draft had nothing to offer: that is no rejection, and no round of a probe."""
    return belief._replace(probe_left=belief.probe_left + 1) if belief.k == 0 else belief


def hear(belief: Belief, *, matched: int, examined: int) -> Belief:
    """The belief after a draft was asked about `examined` tokens that the target emitted without it.

    Every token was asked for after the right prefix, so each match bit is an acceptance given that all before it were
    accepted, as a first guess is.
    """
    lessons = belief.lessons.heard(matched=matched, examined=examined)
    return belief._replace(lessons=lessons, heard=belief.heard + examined)


def unheard(belief: Belief) -> Belief:
    """The belief once nothing was heard for long, as where answers are too short to be listened to: a probe then looks
    for acceptance too."""
    return belief._replace(heard=0) if belief.heard else belief


def predict(belief: Belief, bounds: Bounds, now: float, view: View = NEWCOMER) -> Prediction | None:
    """The best K > 0 within the bounds as far as is known; None: no cost of proposals is."""
    return belief.lessons.weighed(view, bounds, now, _last(belief, view)).best


def _last(belief: Belief, view: View) -> int | None:
    return belief.k if view.k is None else view.k


def _settle(belief: Belief, bounds: Bounds, now: float, view: View, weighed: Weighed) -> tuple[int, Rule, Belief]:
    found, always, last = weighed.best, bounds.mode is Mode.ALWAYS, _last(belief, view)
    if found is None and not always and not view.starts:
        return 0, Rule.AWAITED, belief
    if found is None:
        middle = (bounds.least + bounds.maximum + 1) // 2
        k = max(middle // view.batch.rows, bounds.least)
        return k, Rule.COLD_START, belief._replace(k=k)
    if not always and _is_in_doubt(weighed.plain_doubt, bounds, found, last):
        return 0, Rule.MEASURING, belief
    is_held = last == 0 and waits(belief, now, view.batch.rows)
    if always or (pays(found, bounds, last, view.batch.rows) and not is_held):
        return found.k, Rule.ALWAYS if always else Rule.PAYS, _remembering(belief, found.k)
    if last != 0:
        return 0, Rule.LOSES, _stopped(belief, found, now, view)
    k, remembered = _probe(belief, bounds, now, weighed.survivals, view)
    return k, Rule.PROBE if k else Rule.LOSES, remembered


def pays(found: Prediction, bounds: Bounds, last: int | None, rows: int) -> bool:
    margin = _margin(rows) + found.doubt if last == 0 else 0.0
    return found.speed_up > 1 + bounds.min_gain + margin


def waits(belief: Belief, now: float, rows: int) -> bool:
    """Whether who proposes nothing stays with it, in a step of so many, since a verify pass was dear in a like one."""
    return now < belief.dear_until and 2 * rows > belief.dear_rows


def _stopped(belief: Belief, found: Prediction, now: float, view: View) -> Belief:
    """The belief once proposals stop. Where a verify pass has come to take another order of time than a plain token,
    what one lost is lost by each who shares the step, one after the other, and nobody tries it again before that is
    `PROBE_LOSS` of what passed meanwhile."""
    costs, rows, stopped = belief.lessons.model(view, now), view.batch.rows, _remembering(belief, 0)
    if costs is None or rows == 1 or costs.fixed <= OUTLIER_FACTOR * costs.baseline:
        return stopped
    until = now + rows * costs.cost(found.k) * max(1 - found.speed_up, 0.0) / PROBE_LOSS
    most_rows = max(rows, belief.dear_rows) if now < belief.dear_until else rows
    return stopped._replace(dear_rows=most_rows, dear_until=max(until, belief.dear_until))


def _margin(rows: int) -> float:
    """What to propose again takes in a step of so many sessions: 5 % up to 4, 8.3 % in 16, 10 % in 64.

    A step takes 5 % more or less, for all of its sessions alike, and each of them tells it to the belief that they
    share, which goes a share g = .1 of the way to each sample. So with B of them it goes G = 1 - (1 - g)^B of the way
    to what the last step took, and is off by 5 % sqrt(G / (2 - G)), as any mean is that forgets at such a pace: 1.1 %
    alone, 2.3 % in 4, 4.1 % in 16, 5 % in 64.
    """
    followed = 1 - (1 - WALK_PER_SAMPLE / NOISE) ** rows
    return max(RETURN, DEVIATIONS * NOISE * sqrt(followed / (2 - followed)))


def _is_in_doubt(plain_doubt: float, bounds: Bounds, found: Prediction, last: int | None) -> bool:
    """Whether K hangs on what a plain token costs. While nothing is proposed it is seen anyway, unless it never was."""
    if plain_doubt == inf:
        return True
    return last != 0 and plain_doubt > SURE and abs(found.speed_up - 1 - bounds.min_gain) < 2 * plain_doubt


def _remembering(belief: Belief, k: int) -> Belief:
    """The belief with this choice. While proposals pay, the wait for a probe shrinks to what it was at first."""
    if belief.k == k and belief.plain_rounds == 0 and belief.probe_after == PROBE_FIRST_ROUNDS:
        return belief
    probe_after = max(belief.probe_after // 2, PROBE_FIRST_ROUNDS) if k else belief.probe_after
    dear = belief.dear_rows, belief.dear_until
    return Belief(belief.lessons, k, 0, 0, probe_after, 0, *dear)


def _probe(belief: Belief, bounds: Bounds, now: float, survivals: tuple[float, ...], view: View) -> tuple[int, Belief]:
    """How many tokens to probe with, 0 where it is not the time for it: whoever shares the step waits for it too."""
    k = min(max(bounds.minimum, PROBE_TOKENS), bounds.maximum)
    if view.warm and belief.probe_left:
        return k, belief._replace(probe_left=belief.probe_left - 1)
    is_heard = belief.heard >= HEARD_TOKENS
    after = max(belief.probe_after, PROBE_DOUBLES_UP_TO) if is_heard else belief.probe_after
    if belief.plain_rounds < after * view.batch.rows or (is_heard and not view.warm):
        return 0, belief
    costs, survivals = belief.lessons.model(view, now), judged_alone(survivals, view.price)
    assert costs is not None  # else nothing would be known to lose
    rounds, later = 1 if view.warm else PROBE_ROUNDS, 2 * after
    if later > PROBE_DOUBLES_UP_TO:
        lost = costs.cost(k) / costs.baseline - 1 - sum(survivals[:k])
        later = max(PROBE_DOUBLES_UP_TO, ceil(rounds * lost / PROBE_LOSS))
    waited = belief._replace(plain_rounds=0, probe_after=later)
    if not is_heard:  # else what was heard stands: without hope it is long until more is
        waited = waited._replace(lessons=belief.lessons.loosened(acceptance=True))
        survivals = waited.lessons.survivals(bounds.maximum)
    if not _could_pay(bounds, costs, survivals):
        return 0, waited
    lessons = waited.lessons.loosened(costs=True)
    return k, waited._replace(lessons=lessons, probe_left=rounds - 1, heard=0)


def is_hopeless(belief: Belief, why: Why) -> bool:
    """Whether proposals would lose even with costs as low as they may have become since that choice: what is believed
    of acceptance leaves nothing to look for."""
    costs, bounds = why.costs, why.bounds
    return costs is not None and not _could_pay(bounds, costs, belief.lessons.survivals(bounds.maximum))


def _could_pay(bounds: Bounds, costs: Model, survivals: tuple[float, ...]) -> bool:
    """With all that was hoped of costs."""
    hoped = Model(costs.baseline, HOPE * costs.draft_token, 0.0, costs.baseline, head_start=costs.head_start)
    return best(hoped, survivals, bounds, None).speed_up > 1 + bounds.min_gain
