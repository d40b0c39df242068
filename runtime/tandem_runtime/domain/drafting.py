"""Knows which of a session's drafters makes the next proposal, and how much of a guess is worth proposing.

Refuses to know who stands behind a drafter, what it guesses, and how K is chosen for each: every drafter has a
`Lookahead` of its own, with a belief in its acceptance and its costs.

For a drafter that has to be asked, the model, what it would bring is the speed-up S(K) that its Lookahead predicts. A
lookup is asked first, since it costs nothing, and says of this very guess with which chance each position stands, by
what such matches were worth of late. It learns that from every token that the target emits, whoever proposed it:
nobody has to be tried to be judged (full information, as in Not-a-Bandit, arXiv:2510.20064). With s_i these chances,

    S(j) = p_j (1 + s_1 + ... + s_j),   p_j = t_b / cost(j) from the lookup's Lookahead

is what its first j tokens would bring now, and the best j stands for it. The greatest S is chosen, but for the one who
proposed last a rival has to be better by `SWITCH_GAIN`: a model that was passed over has to read what it missed. A
drafter whose costs nobody knows yet counts as if a round took no longer than a plain token, so it is tried soon.

The model is judged by its own rounds, and would not be while others are better. So after `LOOK_AFTER_ROUNDS` without
it, it has one round; twice as many later the next, up to the most: under 2 % of the rounds are not the best known.

What decides is made of committed text and beliefs. It never looks at what a drafter drew: in rejection and block
verification the law would be wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

from tandem_runtime.domain.lookahead import Bounds, Choice, Lookahead, Mode, Rule, Why, conditional_acceptance
from tandem_runtime.domain.tokens import Drafter, Round

SWITCH_GAIN = 0.05
NEWS_TOKENS = 32
"""So many are read along with the first guess, in about the time of it."""
LOOK_AFTER_ROUNDS = 64
LOOK_AFTER_MOST_ROUNDS = 1024


class Turn(NamedTuple):
    """Who proposes, at most how many tokens, and what that is believed to bring over plain decoding."""

    drafter: Drafter
    k: int
    speed_up: float


class Pricing(Protocol):
    """What a driver asks about K, and tells of rounds; see `Lookahead`."""

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice: ...

    def learn(self, round: Round, now: float, *, warm: bool) -> None: ...

    def unanswered(self) -> None: ...


def token_prices(why: Why) -> tuple[float, ...]:
    """t_b / cost(K) for K = 1, 2, ...: what a round of K brings per expected token. Empty where no cost is known."""
    predictions = why.predictions
    survivals = accumulate(conditional_acceptance(why.belief, len(predictions)), mul)
    expected = accumulate(survivals, initial=1.0)
    next(expected)
    return tuple(prediction.speed_up / tokens for prediction, tokens in zip(predictions, expected, strict=True))


def worth_of_guess(drafter: Drafter, survivals: tuple[float, ...], choice: Choice) -> Turn | None:
    """The best part of a guess whose positions stand with these chances; None where none is worth a round.

    With t_b 15, t_v 18 and overhead 1 milliseconds, chances .9, .8, .6 bring 15/19 (1 + 2.3) = 2.6 with K = 3.
    """
    k = min(choice.k, len(survivals))
    if k == 0:
        return None
    prices = token_prices(choice.why) or (1.0,) * k
    tokens = list(accumulate(survivals[:k], initial=1.0))[1:]
    best = max(range(k), key=lambda at: prices[at] * tokens[at])
    turn = Turn(drafter, best + 1, prices[best] * tokens[best])
    bounds = choice.why.bounds
    forced = bounds.mode is Mode.ALWAYS or choice.why.rule in (Rule.PROBE, Rule.COLD_START)
    return turn if forced or turn.speed_up > 1 + bounds.min_gain else None


def worth_of_asking(drafter: Drafter, choice: Choice) -> Turn | None:
    """What a drafter is worth before it is asked; None where K is 0."""
    if choice.k == 0:
        return None
    predictions = choice.why.predictions
    expected = 1 + sum(choice.survivals)
    return Turn(drafter, choice.k, predictions[choice.k - 1].speed_up if predictions else expected)


def best_turn(turns: list[Turn], last: Drafter | None) -> Turn | None:
    """The greatest speed-up, with the advantage of who proposed last."""
    return max(turns, key=lambda turn: turn.speed_up * (1 + SWITCH_GAIN * (turn.drafter is last)), default=None)


@dataclass(slots=True)
class Looks:
    """How long the model has been passed over, in rounds of all sessions of a gateway, and when it has a look."""

    passed: int = 0
    after: int = LOOK_AFTER_ROUNDS

    def is_due(self) -> bool:
        return self.passed >= self.after

    def taken(self, *, due: bool) -> None:
        """The model proposes: because it was due, or because it was the best."""
        self.passed = 0
        self.after = min(2 * self.after, LOOK_AFTER_MOST_ROUNDS) if due else LOOK_AFTER_ROUNDS


class Beliefs:
    """What all sessions of a revision share: a Lookahead for each drafter, and the model's looks."""

    def __init__(self) -> None:
        self.looks = Looks()
        self._lookaheads: dict[Drafter, Lookahead] = {}

    def of(self, drafter: Drafter) -> Lookahead:
        """The one of that drafter, which knows nothing at first."""
        return self._lookaheads.setdefault(drafter, Lookahead())


class Drafting:
    """One session's drafters. `Pricing` for its driver, and the judge for who combines their proposals."""

    def __init__(self, drafters: tuple[Drafter, ...], beliefs: Beliefs) -> None:
        self.drafters = drafters
        self._beliefs = beliefs
        self._lookaheads = {drafter: beliefs.of(drafter) for drafter in drafters}
        self._choices: dict[Drafter, Choice] = {}
        self._last: Drafter | None = None
        """Who proposed last."""
        self._missed: int | None = None
        """Tokens that were emitted since the model's last round; absent before its first."""

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        """Each drafter's K; the greatest of them is the session's, within which `turn` remains."""
        self._choices = {
            drafter: lookahead.choose(bounds, most, now, warm=self._is_warm(drafter, warm=warm))
            for drafter, lookahead in self._lookaheads.items()
        }
        return max(self._choices.values(), key=lambda choice: choice.k)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        """Who proposed learns from it; a plain round is everybody's."""
        if not round.proposed:
            for lookahead in self._lookaheads.values():
                lookahead.learn(round, now, warm=warm)
        elif round.drafter in self._lookaheads:
            self._lookaheads[round.drafter].learn(round, now, warm=self._is_warm(round.drafter, warm=warm))
            self._last = round.drafter
        if round.proposed and round.drafter is Drafter.MODEL:
            self._missed = 0
        elif self._missed is not None:
            self._missed += round.emitted

    def unanswered(self) -> None:
        """Nobody had anything worth proposing."""
        for drafter, choice in self._choices.items():
            if choice.k:
                self._lookaheads[drafter].unanswered()

    def k_of(self, drafter: Drafter) -> int:
        """How much it may be asked for in this round."""
        choice = self._choices.get(drafter)
        return 0 if choice is None else choice.k

    def survivals_of(self, drafter: Drafter, k: int) -> tuple[float, ...]:
        """What is believed of the model's next `k` guesses."""
        choice = self._choices.get(drafter)
        return () if choice is None else choice.survivals[:k]

    def turn(self, guesses: Mapping[Drafter, tuple[float, ...]], *, able: bool) -> Turn | None:
        """Whose proposal the round takes; None: nothing is worth one. `guesses` holds the chances of each lookup's
        guess, `able` says whether the model can be asked now."""
        turns = [
            turn
            for drafter, survivals in guesses.items()
            if (turn := worth_of_guess(drafter, survivals, self._choices[drafter]))
        ]
        model = self._choices.get(Drafter.MODEL) if able else None
        asking = None if model is None else worth_of_asking(Drafter.MODEL, model)
        if asking is None:
            return best_turn(turns, self._last)
        looks, best = self._beliefs.looks, best_turn([*turns, asking], self._last)
        if best is asking or looks.is_due():
            looks.taken(due=best is not asking)
            return asking
        looks.passed += 1
        return best

    def _is_warm(self, drafter: Drafter, *, warm: bool) -> bool:
        """Lookups read along. A model that takes turns has read all but some tokens, which cost it little more."""
        if drafter is Drafter.MODEL and len(self.drafters) > 1:
            return self._missed is not None and self._missed <= NEWS_TOKENS
        return warm
