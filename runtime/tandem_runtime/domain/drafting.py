"""Knows which of a session's drafters makes the next proposal, and how much of a guess is worth proposing.

Refuses to know who stands behind a drafter, what it guesses, and how K is chosen for each: every drafter has a
`Lookahead` of its own, with a belief in its acceptance and its costs.

For a drafter that has to be asked, the model, what it would bring is the speed-up S(K) that its Lookahead predicts. A
lookup is asked first, since it costs nothing, and says of this very guess with which chance each position stands, by
what such matches were worth of late. It learns that from every token that the target emits, whoever proposed it:
nobody has to be tried to be judged (full information, as in Not-a-Bandit, arXiv:2510.20064). With s_i these chances,

    E(j) = 1 + s_1 + ... + s_j,   S(j) = p_j E(j),   p_j = t_b / cost(j) from the lookup's Lookahead

is what its first j tokens would bring now. The greatest S is not always the best: the tokens that a dear round brings
would perhaps have come cheaply in the next, by a guess that is not possible yet. So a round is worth its tokens less
what its time brings elsewhere (renewal-reward; the Dinkelbach transform of the greatest ratio), with R the speed-up of
the session's last rounds:

    W = E (1 - R / S),   of a plain token 1 - R

and the greatest W is chosen, j of a lookup included; to whoever proposed last `SWITCH_GAIN` is granted, as a model that
was passed over has to read what it missed. While nothing but the model pays, R is its own speed-up and W > 1 - R where
S > 1. A drafter whose costs nobody knows counts as if a round took no longer than a plain token: it is tried soon.

The model is judged by its own rounds, and would not be while others are better. So after `LOOK_AFTER_ROUNDS` without
it, it has one round; twice as many later the next, up to the most: under 2 % of the rounds are not the best known.

What decides is made of committed text and beliefs. It never looks at what a drafter drew: in rejection and block
verification the law would be wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Protocol

from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.costs import Model
from tandem_runtime.domain.lookahead import Bounds, Choice, Mode, Rule
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.tokens import Drafter, Outlook, Round, Stop

SWITCH_GAIN = 0.05
"""Of the tokens of a round."""
PACE_KEPT = 0.85
"""A session's speed-up is that of about its last 7 rounds: texts change from copying to inventing and back."""
NEWS_TOKENS = 32
"""So many are read along with the first guess, in about the time of it."""
LOOK_AFTER_ROUNDS = 64
LOOK_AFTER_MOST_ROUNDS = 1024


def bounds_of(drafter: Drafter, bounds: Bounds) -> Bounds:
    """What is allowed to one of a pair's drafters: only a model drafts ahead."""
    is_as_it_is = drafter is Drafter.MODEL or bounds.overlap is Overlap.OFF
    return bounds if is_as_it_is else replace(bounds, overlap=Overlap.OFF)


class Turn(NamedTuple):
    """Who proposes, at most how many tokens, how many the round is believed to bring, how much faster than plainly."""

    drafter: Drafter
    k: int
    tokens: float
    speed_up: float

    def worth(self, pace: float) -> float:
        """W, in tokens, where `pace` is R."""
        return self.tokens * (1 - pace / self.speed_up)


class Pricing(Protocol):
    """What a driver asks about K, and tells of rounds; see `Lookahead`."""

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice: ...

    def learn(self, round: Round, now: float, *, warm: bool) -> None: ...

    def unanswered(self) -> None: ...

    def hear(self, *, matched: int, examined: int) -> None: ...

    def unheard(self) -> None: ...

    @property
    def listens(self) -> int | None: ...

    def wakes(self, now: float) -> bool: ...


def token_price(costs: Model | None, k: int) -> float:
    """p_k = t_b / cost(k); 1 where no cost is known."""
    return 1.0 if costs is None else costs.baseline / costs.cost(k)


def turn_of_guess(drafter: Drafter, survivals: tuple[float, ...], choice: Choice, *, pace: float) -> Turn | None:
    """The best part of a guess whose positions stand with these chances; None where none is worth a round.

    With t_b 15, t_v 18 and overhead 1 milliseconds, chances .9, .8, .6 bring 15/19 (1 + 2.3) = 2.6 with K = 3.
    """
    best = _best_part(drafter, survivals, choice, pace=pace)
    return None if best is None else _if_it_pays(best, choice, pace=pace)


def turn_of_asking(drafter: Drafter, choice: Choice, *, pace: float) -> Turn | None:
    """What is expected of a drafter before it is asked; None where that is not worth a round. Where it works ahead,
    what it may offer beyond the best part is what it has ready, at no price, and a stop ends drafting there; else it
    drafts all that it is asked for."""
    is_whole = choice.why.bounds.is_one_k or (choice.outlook is None and choice.stop is None)
    best = _best_part(drafter, choice.survivals, choice, pace=pace, least=choice.k if is_whole else 1)
    return None if best is None else _if_it_pays(best._replace(k=choice.k), choice, pace=pace)


def _best_part(
    drafter: Drafter, survivals: tuple[float, ...], choice: Choice, *, pace: float, least: int = 1
) -> Turn | None:
    k, costs = min(choice.k, len(survivals)), choice.why.costs
    if k == 0:
        return None
    tokens = list(accumulate(survivals[:k], initial=1.0))
    parts = [Turn(drafter, j, tokens[j], token_price(costs, j) * tokens[j]) for j in range(least, k + 1)]
    return max(parts, key=lambda part: part.worth(pace))


def _if_it_pays(turn: Turn, choice: Choice, *, pace: float) -> Turn | None:
    """Against a plain token, unless the mode or a lack of knowledge asks for a proposal all the same."""
    bounds = choice.why.bounds
    forced = bounds.mode is Mode.ALWAYS or choice.why.rule in (Rule.PROBE, Rule.COLD_START)
    pays = turn.speed_up > 1 + bounds.min_gain and turn.worth(pace) > 1 - pace
    return turn if forced or pays else None


def best_turn(turns: Sequence[Turn], last: Drafter | None, *, pace: float) -> Turn | None:
    """The greatest worth, with the advantage of who proposed last."""
    return max(
        turns,
        key=lambda turn: turn.worth(pace) + SWITCH_GAIN * turn.tokens * (turn.drafter is last),
        default=None,
    )


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


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What a session shares with others: a cell of its segment for each drafter, and the model's looks."""

    segments: Segments
    segment: Segment
    looks: Looks

    def of(self, drafter: Drafter) -> Shared:
        return self.segments.cell(replace(self.segment, drafter=drafter))


class Drafting:
    """One session's drafters. `Pricing` for its driver, and the judge for who combines their proposals."""

    def __init__(self, drafters: tuple[Drafter, ...], beliefs: Beliefs) -> None:
        self.drafters = drafters
        self._beliefs = beliefs
        self._lookaheads = {drafter: beliefs.of(drafter).begin() for drafter in drafters}
        self._choices: dict[Drafter, Choice] = {}
        self._last: Drafter | None = None
        """Who proposed last."""
        self._missed: int | None = None
        """Tokens that were emitted since the model's last round; absent before its first."""
        self._turn: Turn | None = None
        """The one of this round."""
        self._empty_turns = 0
        """So many of the model's, the last ones, brought nothing."""
        self._passes = 0
        """For so many rounds it is not asked for that."""
        self._tokens = self._plain_tokens = 1.0
        """Of the last rounds, decayed: what they brought, and how many plain tokens would have taken as long."""

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        """Each drafter's K; the greatest of them is the session's, within which `turn` remains. What is to be done
        while the round is verified is the model's."""
        self._choices = {
            drafter: lookahead.choose(bounds_of(drafter, bounds), most, now, warm=self._is_warm(drafter, warm=warm))
            for drafter, lookahead in self._lookaheads.items()
        }
        best = max(self._choices.values(), key=lambda choice: (choice.k, choice.plain_tokens is not None))
        outlook = self.outlook_of(Drafter.MODEL, best.k)
        return best if outlook is best.outlook else best._replace(outlook=outlook)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        """Who proposed learns from it; a plain round is everybody's."""
        self._keep_pace(round)
        if not round.proposed:
            for lookahead in self._lookaheads.values():
                lookahead.learn(round, now, warm=warm)
        elif round.drafter in self._lookaheads:
            self._lookaheads[round.drafter].learn(round, now, warm=self._is_warm(round.drafter, warm=warm))
            self._last = round.drafter
        if round.proposed and round.drafter is Drafter.MODEL:
            self._missed = self._empty_turns = 0
        elif self._missed is not None:
            self._missed += round.emitted

    def unanswered(self) -> None:
        """Nobody had anything worth proposing. A model that had its turn and nothing to say, as one whose every q holds
        ids that the target does not know, would have it again and again; it is left out for twice as many rounds each
        time."""
        if self._turn is not None and self._turn.drafter is Drafter.MODEL:
            self._empty_turns += 1
            self._passes = min(1 << self._empty_turns, LOOK_AFTER_ROUNDS)
        for drafter, choice in self._choices.items():
            if choice.k:
                self._lookaheads[drafter].unanswered()

    def hear(self, *, matched: int, examined: int) -> None:
        """What the only drafter would have had accepted."""
        self._lookaheads[self.drafters[0]].hear(matched=matched, examined=examined)

    def unheard(self) -> None:
        """The only drafter cannot be asked that now."""
        self._lookaheads[self.drafters[0]].unheard()

    @property
    def listens(self) -> int | None:
        """Only a model that drafts alone listens: lookups are asked ever again, and a model among them has looks."""
        if self.drafters != (Drafter.MODEL,):
            return None
        return self._lookaheads[Drafter.MODEL].listens

    def wakes(self, now: float) -> bool:
        return any(lookahead.wakes(now) for lookahead in self._lookaheads.values())

    def stop_of(self, drafter: Drafter) -> Stop | None:
        """Where its drafting ends before K, if it may."""
        choice = self._choices.get(drafter)
        return None if choice is None else choice.stop

    def outlook_of(self, drafter: Drafter, k: int) -> Outlook | None:
        """What it is to do once it has offered `k` tokens."""
        choice = self._choices.get(drafter)
        return None if choice is None or choice.outlook is None else choice.outlook.first(k)

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
        self._turn = self._best(guesses, able=able)
        return self._turn

    def _best(self, guesses: Mapping[Drafter, tuple[float, ...]], *, able: bool) -> Turn | None:
        pace = self.pace
        turns = [
            turn
            for drafter, survivals in guesses.items()
            if (turn := turn_of_guess(drafter, survivals, self._choices[drafter], pace=pace))
        ]
        model = self._choices.get(Drafter.MODEL)
        if model is None or not able or model.k == 0 or self._passes_over():
            return best_turn(turns, self._last, pace=pace)
        asking = turn_of_asking(Drafter.MODEL, model, pace=pace)
        best = best_turn([*turns, *([] if asking is None else [asking])], self._last, pace=pace)
        return self._with_looks(best, asking, model)

    def _passes_over(self) -> bool:
        """Whether the model is left out of this round. One that drafts alone stands in nobody's way."""
        passes, self._passes = self._passes, max(self._passes - 1, 0)
        return passes > 0 and len(self.drafters) > 1

    @property
    def pace(self) -> float:
        """R, at least that of plain tokens."""
        return max(1.0, self._tokens / self._plain_tokens)

    def _with_looks(self, best: Turn | None, asking: Turn | None, model: Choice) -> Turn | None:
        looks, chosen = self._beliefs.looks, asking is not None and best is asking
        if chosen or looks.is_due():
            looks.taken(due=not chosen)
            return best if chosen else Turn(Drafter.MODEL, model.k, 1 + sum(model.survivals), 1.0)
        looks.passed += 1
        return best

    def _keep_pace(self, round: Round) -> None:
        turn, self._turn = self._turn, None
        took = turn.tokens / turn.speed_up if round.proposed and turn is not None else 1.0
        self._tokens = PACE_KEPT * self._tokens + round.emitted
        self._plain_tokens = PACE_KEPT * self._plain_tokens + took

    def _is_warm(self, drafter: Drafter, *, warm: bool) -> bool:
        """Lookups read along. A model that takes turns has read all but some tokens, which cost it little more."""
        if drafter is Drafter.MODEL and len(self.drafters) > 1:
            return self._missed is not None and self._missed <= NEWS_TOKENS
        return warm
