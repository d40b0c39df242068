"""Knows what the sessions of a segment share and what each has for itself, and whose turn it is among them.

Refuses to know the rule: `lookahead` is asked, and what it answers is kept.
"""

from dataclasses import replace
from typing import Final, assert_never
from weakref import ref

from tandem_runtime.domain.acceptance import ALIKE
from tandem_runtime.domain.ahead import Foresight, Overlap
from tandem_runtime.domain.calibration import Calibration
from tandem_runtime.domain.costs import Seen
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
from tandem_runtime.domain.price import FREE, price_after
from tandem_runtime.domain.tokens import Round

START_SECONDS: Final = 1.0
"""After so long another session may try what proposals cost: the first may be held by its reader."""
STANDS_ROUNDS: Final = 4
"""For so many rounds a choice stands at most, and so many of a session wait to be learnt from together."""
STANDS_SHIFT: Final = 0.02
"""And as long as what was said since moves the believed level by less than this: K hardly moves for it."""
STANDS_TOKENS: Final = 1.0
"""And, however firm the belief, as long as what was accepted is within so many tokens of what was believed."""
LISTEN_TOKENS: Final = 8
"""A draft that listens scores so many tokens at a time: one step of it, against as many of the target."""
UNHEARD_TOKENS: Final = 4096
"""Of other sessions, without a word from the one that listens for them: its reader holds it, and another's turn comes.
With 63 others eight times as many as pass between two scores of a session that goes on as they do."""


class Record:
    """What a session's own rounds say of it."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own = ALIKE


class Shared:
    """The one cell that the sessions of a segment share: holds the belief, adds no rule."""

    def __init__(self, belief: Belief | None = None) -> None:
        self.learnt = belief or Belief()
        """What was believed before the rounds that are not learnt from yet."""
        self.foresight = Foresight()
        self._calibration = Calibration()
        self._unlearnt: dict[Record, list[Seen]] = {}
        self.batch = ALONE
        """The one that the last round shared: what a session that begins now will meet."""
        self.price = FREE
        """What the session that learnt last believes of it."""
        self._listening: ref[Lookahead] | None = None
        self._since_heard = 0
        """So many tokens said the sessions that do not listen."""
        self._starting: ref[Lookahead] | None = None
        self._started_at = 0.0

    @property
    def belief(self) -> Belief:
        """All that is known by now."""
        self._learn()
        return self.learnt

    @belief.setter
    def belief(self, belief: Belief) -> None:
        self.learnt = belief

    @property
    def calibration(self) -> Calibration:
        """What the draft's confidence is worth; learnt where it is told."""
        self._learn()
        return self._calibration

    def note(self, record: Record, seen: Seen) -> None:
        """One more round, to be learnt from when somebody asks what is believed, or when there are enough."""
        noted = self._unlearnt.setdefault(record, [])
        noted.append(seen)
        if len(noted) >= STANDS_ROUNDS:
            self._learn()

    def _learn(self) -> None:
        if not self._unlearnt:
            return
        unlearnt, self._unlearnt = self._unlearnt, {}
        self.learnt, owns = learn(self.learnt, [(record.own, rounds) for record, rounds in unlearnt.items()])
        for record, own in zip(unlearnt, owns, strict=True):
            record.own = own
        told = [seen.round for rounds in unlearnt.values() for seen in rounds if seen.round.confidences]
        if told:
            confidences = [each for round in told for each in round.confidences]
            self._calibration = self._calibration.learned(
                confidences, [each for round in told for each in round.evidence]
            )

    def lends_ear(self, to: "Lookahead") -> bool:
        """Whether that session's draft listens for all: one at a time does, as long as its session lasts and hears."""
        listening = None if self._listening is None else self._listening()
        if listening is to:
            return True
        self._since_heard += 1
        last = None if listening is None or listening.deaf else listening.last
        if last is None or last.why.rule is not Rule.LOSES or self._since_heard > UNHEARD_TOKENS:
            self._listening, self._since_heard = ref(to), 0
            return True
        return False

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
        self._since_heard = 0
        self.belief = hear(self.belief, matched=matched, examined=examined)


class Lookahead:
    """What one session asks: the cell that it shares with others, and what is its own. One that is handed from session
    to session, instead of begun by a cell for each, takes them all for one."""

    def __init__(self, shared: Shared | None = None) -> None:
        self.shared = shared or Shared()
        self._record = Record()
        self._batch = self.shared.batch
        self._price = self.shared.price
        self._k: int | None = None
        self._begins_run = False
        self._standing: Choice | None = None
        """As it was before the answer's room and the draft's spare time changed it."""
        self._stood, self._surprise, self._tolerance = 0, 0.0, 0.0
        """For how many rounds, by how many tokens more were accepted than was believed, and how many are tolerated."""
        self._asleep: Belief | None = None
        """By which proposals did not pay."""
        self.deaf = False
        """Its draft could not say what it would have proposed; until the next choice another session's is asked."""
        self.last: Choice | None = None
        """Why the last K was chosen."""

    @property
    def belief(self) -> Belief:
        return self.shared.belief

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        """K within `bounds`, cut to the `most` that the session has room for."""
        self._begins_run, self.deaf = True, False
        choice = self._standing
        if choice is None or not self._stands(choice, bounds):
            choice = self._chosen(bounds, now, warm=warm)
        if choice.k > most:
            choice = replace(choice, k=most, survivals=choice.survivals[:most])
        if bounds.overlap is not Overlap.OFF and choice.stop is None and not bounds.leaves_ahead_alone:
            choice = self._looking_ahead(choice, min(most, bounds.maximum), bounds.overlap)
        self.last = choice
        return choice

    def _stands(self, choice: Choice, bounds: Bounds) -> bool:
        """Whether it is still what would be chosen, as far as anything was said since."""
        why = choice.why
        return (
            self._stood < STANDS_ROUNDS
            and -self._tolerance < self._surprise < self._tolerance
            and (why.rule is Rule.PAYS or why.rule is Rule.ALWAYS)
            and why.view.batch is self._batch
            and (why.bounds is bounds or why.bounds == bounds)
        )

    def _chosen(self, bounds: Bounds, now: float, *, warm: bool) -> Choice:
        belief = self.shared.belief
        starts = self.shared.lets_start(self, now)
        view = View(self._record.own, self._batch, self._k, warm, starts, self._price)
        choice, self.shared.belief = choose(belief, bounds, now, view)
        self._k = _free(choice, self._k)
        if bounds.early_stop and choice.k:
            choice = ending_early(choice, self.shared.calibration)
        self._standing, self._stood, self._surprise = choice, 0, 0.0
        self._tolerance = min(belief.acceptance.tolerance(STANDS_SHIFT), STANDS_TOKENS)
        self._asleep = self.shared.learnt if choice.why.rule is Rule.LOSES else None
        return choice

    def _looking_ahead(self, choice: Choice, most: int, overlap: Overlap) -> Choice:
        """With more tokens, where the draft works while the target verifies; in a cold start a hit would tell nothing
        of t_d. Where there is one K, as many are offered as that, however few are ready in time."""
        if choice.why.rule is Rule.COLD_START:
            return choice
        outlook = self.shared.foresight.look(choice.survivals, most, overlap)
        if outlook is None:
            return choice
        if choice.why.bounds.is_one_k:
            outlook = replace(outlook, enough=None)
        return replace(choice, k=len(outlook.survivals), survivals=outlook.survivals, outlook=outlook)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        self.shared.note(self._record, Seen(round, now, warm, waited=self._begins_run and not round.proposed))
        self._begins_run = False
        if self.last is not None:
            self._heed(self.last, round)
        if round.rows != self._batch.rows or (round.proposed and round.draft_rows != self._batch.draft_rows):
            self._batch = Batch(round.rows, round.draft_rows if round.proposed else self._batch.draft_rows)
        self.shared.batch = self._batch
        if self._price or round.unjudged:
            self._learn_price(round)

    def _learn_price(self, round: Round) -> None:
        """What was cut is chosen anew."""
        asked = () if self.last is None else self.last.survivals[: round.proposed]
        if len(asked) == round.proposed:
            self._price = self.shared.price = price_after(self._price, asked, round.unjudged)
        if round.unjudged:
            self._standing = None

    def _heed(self, choice: Choice, round: Round) -> None:
        """How far the round was a surprise to its choice: each credit less what was believed of its position."""
        if choice.why.bounds.overlap is not Overlap.OFF:
            self.shared.foresight.learn(round)
        before, surprise = 1.0, 0.0
        for credit, survival in zip(round.evidence, choice.survivals, strict=False):
            surprise += credit - survival / before if before else credit
            before = survival
        self._stood, self._surprise = self._stood + 1, self._surprise + surprise

    def unanswered(self) -> None:
        """A draft was asked for a proposal and had none."""
        self.shared.belief = unanswered(self.shared.belief)

    def hear(self, *, matched: int, examined: int) -> None:
        """What the session's draft would have had accepted of what the target said alone."""
        self.shared.hear(matched=matched, examined=examined)

    def unheard(self) -> None:
        """The session's draft cannot be asked now what it would have proposed."""
        self.deaf = True

    @property
    def listens(self) -> int | None:
        """After how many tokens that the target says alone its draft is to score them; None: not at all."""
        loses = self.last is not None and self.last.why.rule is Rule.LOSES
        return LISTEN_TOKENS if loses and not self.deaf and self.shared.lends_ear(self) else None

    def wakes(self, now: float) -> bool:
        """Whether proposals pay by now, in a session that goes on alone because they did not. As long as nobody has
        learnt anything, they do not."""
        last, belief = self.last, self.shared.learnt
        if last is None or last.why.rule is not Rule.LOSES or belief is self._asleep:
            return False
        found = predict(belief, last.why.bounds, now, last.why.view)
        wakes = found is not None and pays(found, last.why.bounds, 0)
        self._asleep = None if wakes else belief
        return wakes


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
