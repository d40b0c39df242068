"""Knows what the sessions of a segment share and what each has for itself, and whose turn it is among them.

Refuses to know the rule: `lookahead` is asked, and what it answers is kept.
"""

from dataclasses import replace
from typing import Final, assert_never
from weakref import ref

from tandem_runtime.domain.acceptance import ALIKE
from tandem_runtime.domain.ahead import Foresight, Overlap
from tandem_runtime.domain.calibration import Calibration
from tandem_runtime.domain.lookahead import (
    ALONE,
    Batch,
    Belief,
    Bounds,
    Choice,
    Rule,
    View,
    choose,
    ending_early,
    hear,
    learn,
    pays,
    predict,
    unanswered,
)
from tandem_runtime.domain.tokens import Round

START_SECONDS: Final = 1.0
"""After so long another session may try what proposals cost: the first may be held by its reader."""
LISTEN_TOKENS: Final = 8
"""A draft that listens scores so many tokens at a time: one step of it, against as many of the target."""


def _free(choice: Choice, last: int | None) -> int | None:
    """The last choice that followed from what K brings."""
    match choice.why.rule:
        case Rule.ALWAYS | Rule.PAYS | Rule.COLD_START:
            return choice.k
        case Rule.LOSES | Rule.PROBE:
            return 0
        case Rule.WITHHELD | Rule.AWAITED | Rule.MEASURING:
            return last
    assert_never(choice.why.rule)


class Shared:
    """The one cell that the sessions of a segment share: holds the belief, adds no rule."""

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = belief or Belief()
        self.foresight = Foresight()
        self.calibration = Calibration()
        """What the draft's confidence is worth; learnt where it is told."""
        self.batch = ALONE
        """The one that the last round shared: what a session that begins now will meet."""
        self._listening: ref[Lookahead] | None = None
        self._starting: ref[Lookahead] | None = None
        self._started_at = 0.0

    def lends_ear(self, to: "Lookahead") -> bool:
        """Whether that session's draft listens for all: one at a time does, as long as its session lasts."""
        listening = None if self._listening is None else self._listening()
        if listening is None or listening.last is None or listening.last.why.rule is not Rule.LOSES:
            self._listening = ref(to)
            return True
        return listening is to

    def lets_start(self, by: "Lookahead", now: float) -> bool:
        """Whether that session proposes while no cost of proposals is known: one at a time does, as long as its session
        lasts and it does not take long."""
        starting = None if self._starting is None else self._starting()
        if starting is None or not 0 <= now - self._started_at <= START_SECONDS:
            self._starting, self._started_at = ref(by), now
            return True
        return starting is by

    def begin(self) -> "Lookahead":
        """For one more session."""
        return Lookahead(self)

    def hear(self, *, matched: int, examined: int) -> None:
        """What a draft would have had accepted of an answer without it."""
        self.belief = hear(self.belief, matched=matched, examined=examined)


class Lookahead:
    """What one session asks: the cell that it shares with others, and what is its own. One that is handed from session
    to session, instead of begun by a cell for each, takes them all for one."""

    def __init__(self, shared: Shared | None = None) -> None:
        self.shared = shared or Shared()
        self._own = ALIKE
        self._batch = self.shared.batch
        self._k: int | None = None
        self._chosen = False
        self.last: Choice | None = None
        """Why the last K was chosen."""

    @property
    def belief(self) -> Belief:
        return self.shared.belief

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        """K within `bounds`, cut to the `most` that the session has room for."""
        self._chosen = True
        view = View(self._own, self._batch, self._k, warm, starts=self.shared.lets_start(self, now))
        choice, self.shared.belief = choose(self.shared.belief, bounds, now, view)
        self._k = _free(choice, self._k)
        if bounds.early_stop and choice.k:
            choice = ending_early(choice, self.shared.calibration)
        if choice.k > most:
            choice = replace(choice, k=most, survivals=choice.survivals[:most])
        elif choice.stop is None and choice.why.rule is not Rule.COLD_START and not bounds.leaves_ahead_alone:
            # in a cold start a hit would tell nothing of t_d
            choice = self._looking_ahead(choice, min(most, bounds.maximum), bounds.overlap)
        self.last = choice
        return choice

    def _looking_ahead(self, choice: Choice, most: int, overlap: Overlap) -> Choice:
        """With more tokens, where the draft works while the target verifies."""
        outlook = self.shared.foresight.look(choice.survivals, most, overlap)
        if outlook is None:
            return choice
        return replace(choice, k=len(outlook.survivals), survivals=outlook.survivals, outlook=outlook)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        view = View(self._own, self._batch, self._k, warm, chosen=self._chosen)
        self._chosen = False
        self.shared.belief, self._own = learn(self.shared.belief, round, now, view)
        if round.confidences:
            self.shared.calibration = self.shared.calibration.learned(round.confidences, round.evidence)
        if self.last is not None and self.last.why.bounds.overlap is not Overlap.OFF:
            self.shared.foresight.learn(round)
        self._batch = Batch(round.rows, round.draft_rows if round.proposed else self._batch.draft_rows)
        self.shared.batch = self._batch

    def unanswered(self) -> None:
        """A draft was asked for a proposal and had none."""
        self.shared.belief = unanswered(self.shared.belief)

    def hear(self, *, matched: int, examined: int) -> None:
        """What the session's draft would have had accepted of what the target said alone."""
        self.shared.hear(matched=matched, examined=examined)

    @property
    def listens(self) -> int | None:
        """After how many tokens that the target says alone its draft is to score them; None: not at all."""
        if self.last is None or self.last.why.rule is not Rule.LOSES or not self.shared.lends_ear(self):
            return None
        return LISTEN_TOKENS

    def wakes(self, now: float) -> bool:
        """Whether proposals pay by now, in a session that goes on alone because they did not."""
        last, belief = self.last, self.shared.belief
        if last is None or last.why.rule is not Rule.LOSES:
            return False
        found = predict(belief, last.why.bounds, now, last.why.view)
        return found is not None and pays(found, last.why.bounds, 0)
