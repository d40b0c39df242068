"""Knows what the sessions of a segment share and what each has for itself, and whose turn it is among them.

Refuses to know the rule: `lookahead` is asked, and what it answers is kept.
"""

from dataclasses import replace
from typing import Final, assert_never
from weakref import ref

from tandem_runtime.domain.acceptance import ALIKE, Own
from tandem_runtime.domain.ahead import Foresight, Overlap, head_start
from tandem_runtime.domain.calibration import Calibration
from tandem_runtime.domain.costs import COMPANY_SECONDS, NO_HEAD_START, HeadStart, Seen
from tandem_runtime.domain.lessons import ALONE, View, is_mixed
from tandem_runtime.domain.lookahead import (
    Belief,
    Bounds,
    Choice,
    Rule,
    choose,
    ending_early,
    hear,
    is_hopeless,
    learn,
    pays,
    predict,
    unanswered,
    unheard,
    waits,
)
from tandem_runtime.domain.price import FREE, price_after
from tandem_runtime.domain.tokens import Round

START_SECONDS: Final = 1.0
"""After so long another session may try what proposals cost: the first may be held by its reader."""
LISTEN_TOKENS: Final = 8
"""A draft that listens scores so many tokens at a time: one step of it, against as many of the target."""
UNHEARD_TOKENS: Final = 4096
"""Of all sessions, without a word from the one that listens for them: its reader holds it, and another's turn comes.
With 63 others eight times as many as pass between two scores of a session that goes on as they do."""
LONGEST_REST: Final = 1024
"""Tokens of all sessions for which nobody listens to a draft without hope: to score it is to read along, a message and
a step, and where it shares a machine with the target that is time of the target's. So long it may take until a draft
that was always wrong and is so no more is noticed."""
SILENCE_TOKENS: Final = LONGEST_REST + UNHEARD_TOKENS
"""Of all sessions, without a word from any draft: longer than a rest and a reader that holds who listens. Answers are
too short to be listened to, and what was heard before says no more what acceptance is."""


class Shared:
    """The one cell that the sessions of a segment share: holds the belief, adds no rule."""

    def __init__(self, belief: Belief | None = None, foresight: Foresight | None = None) -> None:
        self.belief = belief or Belief()
        self.foresight = foresight or Foresight()
        self.calibration = Calibration()
        """What the draft's confidence is worth; learnt where it is told."""
        self.batch = ALONE
        """The one that the last round shared: what a session that begins now will meet."""
        self.price = FREE
        """What the session that learnt last believes of it."""
        self._listening: ref[Lookahead] | None = None
        self._unheard = 0
        """So many tokens were said since something was heard, or since another session's turn to listen came."""
        self._rest = 0
        """Nobody listens before as many were."""
        self._silence = 0
        """So many were said since something was heard, whoever's turn it was."""
        self._starting: ref[Lookahead] | None = None
        self._started_at = 0.0
        self._mixed_since: float | None = None
        """Since when all that came back with the verdict met others who decode plainly; None: the last one did not."""

    def learn(self, own: Own, seen: Seen) -> Own:
        """From one more round of a session with that record; what its record is then."""
        self.belief, own = learn(self.belief, own, seen)
        round = seen.round
        if round.confidences:
            self.calibration = self.calibration.learned(round.confidences, round.evidence)
        return own

    def lends_ear(self, to: "Lookahead") -> bool:
        """Whether that session's draft listens for all, behind one more token: one at a time does, as long as its
        session lasts and hears, unless all rest."""
        self._unheard += 1
        self._silence += 1
        if self._silence > SILENCE_TOKENS:
            self.belief = unheard(self.belief)
        if self._unheard < self._rest:
            return False
        listening = None if self._listening is None else self._listening()
        if listening is to:
            return True
        last = None if listening is None or listening.deaf else listening.last
        if last is None or last.why.rule is not Rule.LOSES or self._unheard > self._rest + UNHEARD_TOKENS:
            self._listening, self._unheard = ref(to), self._rest
            return True
        return False

    def rest(self, *, hopeless: bool) -> None:
        """Listen less, the longer there was no hope in what was heard; at once as ever where there is some."""
        self._rest = min(max(2 * self._rest, LISTEN_TOKENS), LONGEST_REST) if hopeless else 0

    def was_kept(self, round: Round, now: float) -> bool:
        """Whether a proposal that was there with the verdict waited for a step that others began, who decode plainly:
        if all proposed, the step would have waited for them. So it is, as far as is known, where nobody else was met
        for long."""
        if round.ahead is None or not round.ahead.hit:
            return False
        if not is_mixed(round):
            self._mixed_since = None
            return False
        self._mixed_since = now if self._mixed_since is None else min(self._mixed_since, now)
        return now - self._mixed_since < COMPANY_SECONDS

    def lets_start(self, by: "Lookahead", now: float) -> bool:
        """Whether that session proposes while no cost of proposals is known: one at a time does, as long as its session
        lasts and it does not take long."""
        starting = None if self._starting is None else self._starting()
        if starting is None or not 0 <= now - self._started_at <= START_SECONDS:
            self._starting, self._started_at = ref(by), now
            return True
        return starting is by

    def head_start(self, bounds: Bounds) -> HeadStart:
        return head_start(self.foresight.belief, bounds.overlap) if _drafts_ahead(bounds) else NO_HEAD_START

    def foretold(self, bounds: Bounds, now: float) -> Choice:
        """What a session that begins now would propose. Nothing is decided by it, and no probe begun."""
        view = View(batch=self.batch, price=self.price, head_start=self.head_start(bounds))
        return choose(self.belief, bounds, now, view)[0]

    def begin(self) -> "Lookahead":
        """For one more session."""
        return Lookahead(self)

    def hear(self, *, matched: int, examined: int) -> None:
        """What a draft would have had accepted of an answer without it."""
        self._unheard = self._silence = 0
        self.belief = hear(self.belief, matched=matched, examined=examined)


class Lookahead:
    """What one session asks: the cell that it shares with others, and what is its own. One that is handed from session
    to session, instead of begun by a cell for each, takes them all for one."""

    def __init__(self, shared: Shared | None = None) -> None:
        self.shared = shared or Shared()
        self._own = ALIKE
        self._batch = self.shared.batch
        self._price = self.shared.price
        self._k: int | None = None
        self._begins_run = self._prepares = False
        self.deaf = False
        """Its draft could not say what it would have proposed; until the next choice another session's is asked."""
        self.last: Choice | None = None
        """Why the last K was chosen."""
        self._loses_by: int | None = None
        """How often acceptance had been believed otherwise when proposals last did not pay; absent before they did."""

    @property
    def belief(self) -> Belief:
        return self.shared.belief

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        """K within `bounds`, cut to the `most` that the session has room for."""
        self._begins_run, self.deaf = True, False
        choice = self._chosen(bounds, now, warm=warm)
        if choice.k > most:
            choice = choice._replace(k=most, survivals=choice.survivals[:most])
        if _drafts_ahead(bounds):
            choice = self._looking_ahead(choice, min(most, bounds.maximum), bounds.overlap)
        self.last = choice
        return choice

    def _chosen(self, bounds: Bounds, now: float, *, warm: bool) -> Choice:
        starts = self.shared.lets_start(self, now)
        view = View(self._own, self._batch, self._k, warm, starts, self._price, self.shared.head_start(bounds))
        choice, self.shared.belief = choose(self.shared.belief, bounds, now, view)
        self._k = _free(choice, self._k)
        self._loses_by = choice.why.belief.lessons.told
        if bounds.early_stop and choice.k:
            choice = ending_early(choice, self.shared.calibration)
        return choice

    def _looking_ahead(self, choice: Choice, most: int, overlap: Overlap) -> Choice:
        """With more tokens, where the draft works while the target verifies; in a cold start a hit would tell nothing
        of t_d, and a probe's one token nothing of whether that pays at the K that would follow. Where there is one K,
        as many are offered as that, however few are ready in time."""
        if choice.why.rule in (Rule.COLD_START, Rule.PROBE):
            return choice
        outlook = self.shared.foresight.look(choice.survivals, most, overlap)
        if outlook is None:
            return choice
        if choice.why.bounds.is_one_k:
            outlook = replace(outlook, enough=None)
        return Choice(len(outlook.survivals), outlook.survivals, choice.why, choice.plain_tokens, choice.stop, outlook)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        waited = self.shared.was_kept(round, now) if round.proposed else self._begins_run
        self._own = self.shared.learn(self._own, Seen(round, now, warm, waited))
        self._begins_run = False
        if self.last is not None and self.last.why.bounds.overlap is not Overlap.OFF:
            self.shared.foresight.learn(round, asked=self._prepares)
        self._prepares = round.prepares
        self._batch = self.shared.batch = self._batch.after(round)
        if self._price or round.unjudged:
            self._learn_price(round)

    def _learn_price(self, round: Round) -> None:
        asked = () if self.last is None else self.last.survivals[: round.proposed]
        if len(asked) == round.proposed:
            self._price = self.shared.price = price_after(self._price, asked, round.unjudged)

    def unanswered(self) -> None:
        """A draft was asked for a proposal and had none."""
        self.shared.belief = unanswered(self.shared.belief)

    def hear(self, *, matched: int, examined: int) -> None:
        """What the session's draft would have had accepted of what the target said alone."""
        self.shared.hear(matched=matched, examined=examined)
        if self.last is not None:
            self.shared.rest(hopeless=is_hopeless(self.shared.belief, self.last.why))

    def unheard(self) -> None:
        """The session's draft cannot be asked now what it would have proposed."""
        self.deaf = True

    @property
    def listens(self) -> int | None:
        """After how many tokens that the target says alone its draft is to score them; None: not at all."""
        loses = self.last is not None and self.last.why.rule is Rule.LOSES
        return LISTEN_TOKENS if loses and not self.deaf and self.shared.lends_ear(self) else None

    def wakes(self, now: float) -> bool:
        """Whether proposals pay by what was heard or tried meanwhile, in a session that goes on alone because they did
        not. What plain tokens tell of costs waits for the next choice, as it is asked behind each of them."""
        last, told = self.last, self.shared.belief.lessons.told
        if last is None or last.why.rule is not Rule.LOSES or told == self._loses_by:
            return False
        bounds, view = last.why.bounds, last.why.view
        found = predict(self.shared.belief, bounds, now, view)
        rows = view.batch.rows
        if found is not None and pays(found, bounds, 0, rows) and not waits(self.belief, now, rows):
            return True
        self._loses_by = told
        return False


def _drafts_ahead(bounds: Bounds) -> bool:
    """Whether a draft may work while the target verifies; what a stop ends early is not prepared."""
    return not (bounds.overlap is Overlap.OFF or bounds.early_stop or bounds.leaves_ahead_alone)


def _free(choice: Choice, last: int | None) -> int | None:
    """The last choice that followed from what K brings."""
    match choice.why.rule:
        case Rule.PAYS | Rule.ALWAYS | Rule.COLD_START:
            return choice.k
        case Rule.LOSES | Rule.PROBE:
            return 0
        case Rule.WITHHELD | Rule.AWAITED | Rule.MEASURING:
            return last
    assert_never(choice.why.rule)
