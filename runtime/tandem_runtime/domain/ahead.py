"""Knows which answers are worth preparing while a proposal is verified, and whether preparing any pays at all.

Refuses to know what tokens are guessed, who drafts them, clocks and sessions.

**Drafting ahead** (SSD, "speculative speculative decoding", 2026, arXiv 2603.03251). A proposal's verdict is
"the first j tokens stand, then y follows". While the target works it out, the draft prepares the next proposal for
*branches* (j, y): if the verdict is one of them, its proposal is there at once. What is prepared for a branch is what
would have been proposed after it anyway, token by token: the same model, the same prefix, the same noise. So neither
text nor law can depend on it, in any mode of verification.

Which branches are worth it is `fan_out`'s.

**How much of it is enough.** Tokens that are prepared cost nothing more, so as many are offered as are ready. One that
is not costs t_d, and the round R beside drafting, so by the marginal rule of `lookahead` it is worth waiting for while
s_(n+1) R > t_d E(n). That holds on a miss too: while rounds mostly cost R alone, time is dearer than it was.

**When to stop.** A step of the draft cannot be broken off, and while one runs on when the verdict has come nothing new
is begun. By the same rule a branch with n tokens takes another step while s_(n+1) R > late E(n), late being by how much
it would end behind the verdict, if it takes as long as those before it. And once the verdict is there, its answer waits
for a token under way while that holds; else what is ready is the answer, at once, whatever others wait for.

**Whether.** A hit saves the K t_d of drafting on demand, at the measured rate of hits. Against that stands what others
lose. Where B rows share the draft's steps, each wasted token makes a step longer by the cost of a row for the B - 1
others; that cost is the slope of the line through t_d by B, held to ROW_SHARE of t_d as far as B did not vary. And
where draft and target take from the same machine, the target's steps themselves get longer: some rounds are left
without drafting ahead, to compare. The wait for a step is no part of that: it comes and goes with what other sessions
do, and would be taken for harm where they began meanwhile. Auto drafts ahead while the gain exceeds all that, and
beyond a share more before it begins again. What it knows fades while it does not, so that it is tried again; with plain
tokens too, since nothing is proposed meanwhile where a draft pays only ahead.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from tandem_runtime.domain.costs import NO_HEAD_START, ROW_SHARE, HeadStart
from tandem_runtime.domain.fan_out import UNKNOWN_ACCEPTANCE
from tandem_runtime.domain.tokens import Outlook, Round

Survivals: TypeAlias = tuple[float, ...]

BRANCHES = 12
"""Rows that a session adds to the draft's steps. On an accelerator that waits for memory each adds some 3 %."""
MORE_TOKENS = 2
"""Beyond the K that pays on demand: prepared tokens cost no time, and as many are offered as are ready."""
PRIOR_HITS, PRIOR_STRENGTH = 0.7, 8.0
"""In rounds: the prior of the rate of hits speaks until about so many answers were prepared."""
KEPT_PER_ROUND = 0.97
SPREAD_TO_BELIEVE = 1.0
"""In squared rows: how much B must vary before the line through t_d by B is believed half."""
LEAST_WEIGHT = 0.1
"""Of a sample, a mean is worth nothing: with nothing new, after some hundred rounds."""
COMPARED_EVERY, COMPARED_FIRST = 256, 7
"""In Auto one round in so many goes without drafting ahead: early enough that a machine shared by both is noticed."""
PLAIN_FADES = 0.25
"""How much of a proposal a plain token of each session in a step is, where nothing is drafted ahead: so proposals that
pay no more are tried some hundred tokens later, which loses them less than a per cent."""
BEGINS_AGAIN = 1.25
"""How far the gain must exceed the harm where nothing is drafted ahead at present."""


class Overlap(StrEnum):
    """Whether the draft works while the target verifies."""

    AUTO = "Auto"
    ON = "On"
    OFF = "Off"


class Mean(NamedTuple):
    """A mean whose samples count less with each sample after them."""

    total: float = 0.0
    weight: float = 0.0

    def told(self, value: float) -> "Mean":
        return Mean(self.total * KEPT_PER_ROUND + value, self.weight * KEPT_PER_ROUND + 1)

    def faded(self, rounds: float = 1.0) -> "Mean":
        kept = KEPT_PER_ROUND**rounds
        return Mean(self.total * kept, self.weight * kept)

    @property
    def value(self) -> float | None:
        """None: nothing was seen for long."""
        return self.total / self.weight if self.weight >= LEAST_WEIGHT else None


class OnDemand(NamedTuple):
    """Decayed sums over proposals that were drafted on demand, at t_d seconds per token in steps that B rows shared."""

    proposals: float = 0.0
    rows: float = 0.0
    rows_squared: float = 0.0
    seconds: float = 0.0
    rows_seconds: float = 0.0

    def told(self, round: Round) -> "OnDemand":
        kept, rows = KEPT_PER_ROUND, round.draft_rows
        seconds = drafting_seconds(round) / round.proposed
        return OnDemand(
            proposals=kept * self.proposals + 1,
            rows=kept * self.rows + rows,
            rows_squared=kept * self.rows_squared + rows * rows,
            seconds=kept * self.seconds + seconds,
            rows_seconds=kept * self.rows_seconds + rows * seconds,
        )

    @property
    def mean_rows(self) -> float:
        return self.rows / self.proposals if self.proposals else 1.0

    @property
    def token_seconds(self) -> float | None:
        return self.seconds / self.proposals if self.proposals else None

    @property
    def row_seconds(self) -> float:
        """What one more row adds to a step."""
        if not self.proposals:
            return 0.0
        rows, seconds = self.rows / self.proposals, self.seconds / self.proposals
        spread = self.rows_squared / self.proposals - rows * rows
        tilt = self.rows_seconds / self.proposals - rows * seconds
        return max((tilt + SPREAD_TO_BELIEVE * ROW_SHARE * seconds) / (spread + SPREAD_TO_BELIEVE), 0.0)


class Belief(NamedTuple):
    """What came of drafting ahead lately. `hits` is the mean of 1 for a hit and 0 for a miss, per round for which
    something was to be prepared, `wasted` of tokens, per round for which something was."""

    hits: Mean = Mean()
    ready: Mean = Mean()
    """Tokens of the proposals that were there with the verdict."""
    wasted: Mean = Mean()
    on_demand: OnDemand = OnDemand()
    beside: Mean = Mean()
    """R, a round's seconds beside drafting."""
    while_ahead: Mean = Mean()
    """The target's own seconds of a round, while the draft drafted ahead."""
    while_idle: Mean = Mean()
    """The same, while it did not."""
    is_ahead: bool = True
    """The last choice."""
    looks: int = 0

    @property
    def rate(self) -> float:
        """Hits per round for which something was to be prepared."""
        return (self.hits.total + PRIOR_HITS * PRIOR_STRENGTH) / (self.hits.weight + PRIOR_STRENGTH)

    @property
    def ready_tokens(self) -> float:
        """How many are ready where a round hits; before the first, as many as the draft has time for beside reading the
        last one."""
        if self.ready.value is not None:
            return self.ready.value
        token_seconds, round_seconds = self.on_demand.token_seconds, self.beside.value
        return max(round_seconds / token_seconds - 1, 1.0) if token_seconds and round_seconds else 0.0

    @property
    def harm_seconds(self) -> float:
        """What others lose by one round's drafting ahead, as far as anything is known."""
        others = self.on_demand.mean_rows - 1
        crowding = (self.wasted.value or 0.0) * self.on_demand.row_seconds * others if others > 0 else 0.0
        ahead, idle = self.while_ahead.value, self.while_idle.value
        return crowding + (0.0 if ahead is None or idle is None else max(ahead - idle, 0.0))


def drafting_seconds(round: Round) -> float:
    """The draft's own; all that the gateway saw, where the draft does not tell."""
    return round.drafting_seconds or round.draft_seconds


def learn(belief: Belief, round: Round, *, asked: bool = False) -> Belief:
    """The belief after a round. One that read a prompt tells nothing, nor does one that proposed nothing. `asked` says
    that the round before, of the same session, had this one's proposal prepared: a draft that cannot do so misses."""
    if round.prefill:
        return belief
    if not round.proposed:
        return belief if belief.is_ahead else _rested(belief, PLAIN_FADES / round.rows)
    ahead, verifying = round.ahead, round.forward_seconds or round.verify_seconds
    hit = ahead is not None and ahead.hit
    return Belief(
        hits=belief.hits.faded() if ahead is None and not asked else belief.hits.told(float(hit)),
        ready=belief.ready.told(_ready_tokens(belief, round)) if hit else belief.ready,
        wasted=belief.wasted.faded() if ahead is None else belief.wasted.told(ahead.wasted),
        on_demand=belief.on_demand if hit else belief.on_demand.told(round),
        beside=belief.beside.told(max(round.seconds - drafting_seconds(round), 0.0)),
        while_ahead=belief.while_ahead.told(verifying) if round.prepares else belief.while_ahead.faded(),
        while_idle=belief.while_idle if round.prepares else belief.while_idle.told(verifying),
        is_ahead=belief.is_ahead,
        looks=belief.looks,
    )


def _ready_tokens(belief: Belief, round: Round) -> float:
    """Tokens of a hit, but for those that were drafted once the verdict was there."""
    token_seconds = belief.on_demand.token_seconds
    return max(round.proposed - round.drafting_seconds / token_seconds, 0.0) if token_seconds else round.proposed


def _rested(belief: Belief, rounds: float) -> Belief:
    """What is known of harm fades."""
    return belief._replace(wasted=belief.wasted.faded(rounds), while_ahead=belief.while_ahead.faded(rounds))


def look(belief: Belief, survivals: Survivals, most: int, overlap: Overlap) -> tuple[Outlook | None, Belief]:
    """What the draft is to do while the round after this choice of K = len(survivals) tokens is verified, and the
    belief that remembers the choice. At most `most` tokens fit. Where no cost is known yet, it is tried."""
    if not survivals or overlap is Overlap.OFF:
        return None, belief
    is_ahead = overlap is Overlap.ON or _pays(belief, len(survivals))
    compares = overlap is Overlap.AUTO and belief.looks % COMPARED_EVERY == COMPARED_FIRST
    chosen = Belief(*belief[:-2], is_ahead, belief.looks + 1)
    if compares or not is_ahead:
        return None, chosen
    further = extended(survivals, min(len(survivals) + MORE_TOKENS, most))
    token_seconds, round_seconds = belief.on_demand.token_seconds, belief.beside.value
    known = token_seconds is not None and round_seconds is not None
    least = enough(further, token_seconds or 0.0, round_seconds or 0.0) if known else len(survivals)
    return Outlook(further, BRANCHES, least), chosen


def head_start(belief: Belief, overlap: Overlap) -> HeadStart:
    """What K may count on: as the last choice was whether to draft ahead, so will the next be, but where no harm of it
    is known any more."""
    if overlap is Overlap.OFF or not (belief.is_ahead or overlap is Overlap.ON or not belief.harm_seconds):
        return NO_HEAD_START
    return HeadStart(belief.rate, belief.ready_tokens)


def _pays(belief: Belief, k: int) -> bool:
    token_seconds = belief.on_demand.token_seconds
    if token_seconds is None:
        return True
    gain = belief.rate * k * token_seconds
    return gain > belief.harm_seconds * (1.0 if belief.is_ahead else BEGINS_AGAIN)


class Foresight:
    """The one cell that the sessions of a segment share: holds the belief, adds no rule."""

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = belief or Belief()

    def kindred(self) -> "Foresight":
        """For another segment of the pair: rounds cost the same there, but how often branches hit is its own."""
        known = self.belief
        return Foresight(known._replace(hits=Mean(), ready=Mean(), wasted=Mean(), is_ahead=True, looks=0))

    def look(self, survivals: Survivals, most: int, overlap: Overlap) -> Outlook | None:
        outlook, self.belief = look(self.belief, survivals, most, overlap)
        return outlook

    def learn(self, round: Round, *, asked: bool) -> None:
        self.belief = learn(self.belief, round, asked=asked)


def extended(survivals: Survivals, length: int) -> Survivals:
    """As many survivals, each further token as likely to stand behind those before it as the last."""
    if length <= len(survivals):
        return survivals
    before, last = (1.0, 1.0, *survivals)[-2:]
    step = last / before if survivals and before > 0 else UNKNOWN_ACCEPTANCE
    return (*survivals, *[last * step**further for further in range(1, length - len(survivals) + 1)])


def enough(survivals: Sequence[float], token_seconds: float, round_seconds: float) -> int:
    """How many prepared tokens are worth more at once than one more of them later, by t_d and R; at least 1.

    With t_d 4 and R 19 milliseconds: 2 at an acceptance of .8, 3 at .9.
    """
    expected = 1.0
    for count, survival in enumerate(survivals):
        if count and survival * round_seconds <= token_seconds * expected:
            return count
        expected += survival
    return max(len(survivals), 1)


def goes_on(survivals: Sequence[float], ready: int, *, late_seconds: float, round_seconds: float) -> bool:
    """Whether a branch with so many tokens takes a step that ends so long behind the verdict."""
    if late_seconds <= 0:
        return True
    return survivals[ready] * round_seconds > late_seconds * (1 + sum(survivals[:ready]))
