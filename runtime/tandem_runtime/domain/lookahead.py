"""Knows how many tokens are worth proposing: a belief about acceptance and costs, and the K that follows from it.

Refuses to know sessions, clocks (time is an argument, in seconds that never go back) and who set the bounds.

With a_j the chance that position j is accepted given that all before it are, and survival s_i = a_1 ... a_i:

    E(K)    = 1 + s_1 + ... + s_K                     expected tokens of a round (Leviathan 2023, eq. 1, per position)
    cost(K) = o + K t_d + t_v(K)                      o: network, queue and the gateway; t_v(K) = v_0 + v_1 K
    S(K)    = t_b E(K) / cost(K)                      speed-up over plain decoding, t_b seconds per token

K is extended while the next token pays for itself, s_(K+1) cost(K) > (t_d + v_1) E(K): exact where survival falls and
costs are linear. In mode Auto nothing is proposed when S(K) <= 1 + min_gain. t_b includes what a plain token costs
beside its forward; where no plain token was seen, v_0 stands for it, which t_v(K) bounds.

Beliefs fade: acceptance with each observation, costs with each observation and with age, so that what was true an hour
ago does not decide. While nothing is proposed, nothing is learnt but by probes, and a belief from a bad minute (a busy
machine, a draft that warms up) would last: so each probe first loosens what it is about to measure, and goes on in its
session until the draft has caught up. One belief serves all sessions of a (revision) in a gateway.

A session is *warm* when its last round proposed something: its draft has then read all that was emitted. One whose
draft is asked for nothing, as a lookup in the text so far is, always is. Nothing to offer is no rejection: such a round
teaches what a plain token costs, and acceptance is that of what was proposed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from operator import mul

from tandem_runtime.domain.ahead import Foresight, Overlap
from tandem_runtime.domain.tokens import Outlook, Round

PRIOR_ACCEPTANCE = 0.7
PRIOR_STRENGTH = 4.0
"""In observations: the prior speaks until about this many tokens were examined at a position."""
KEPT_PER_OBSERVATION = 0.95
"""Acceptance remembers about 20 examined tokens per position."""
LOOSE_STRENGTH = 8.0
"""In observations: while speculation is off, a handful of probes must be able to bring it back."""
MEAN_SAMPLES = 20
"""Costs remember about 20 rounds."""
LOOSE_SAMPLES = 2
"""So many rounds is a cost worth that a probe is about to measure."""
HALF_LIFE_SECONDS = 10.0
"""In the line through t_v(K) a K that was not tried for so long weighs half."""
AGE_LIMIT_SECONDS = 1800.0
"""A cost that was not measured for so long is not known; plain decoding is measured in off slots, minutes apart."""
HYSTERESIS = 0.01
"""Another K must be better by this share, so that noise does not move K."""
PROBE_TOKENS = 2
PROBE_ROUNDS = 3
"""The first round of a probe makes the draft read what it has missed, so only those after it tell what one costs."""
PROBE_FIRST_ROUNDS = 8
PROBE_MOST_ROUNDS = 128
"""While speculation does not pay, a probe begins after so many plain rounds; the wait doubles up to the most."""


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
    overlap: Overlap = Overlap.OFF


OFF = Bounds(0, 0)


@dataclass(frozen=True, slots=True)
class Mean:
    """An exponentially weighted mean, in seconds, and when it last learned."""

    value: float
    samples: int
    at: float

    def fresh(self, now: float) -> bool:
        return now - self.at <= AGE_LIMIT_SECONDS

    def weight(self, now: float) -> float:
        return self.samples * math.exp2((self.at - now) / HALF_LIFE_SECONDS)

    def loosened(self) -> "Mean":
        """The same value, which the next few rounds can change."""
        return replace(self, samples=min(self.samples, LOOSE_SAMPLES))


@dataclass(frozen=True, slots=True)
class Costs:
    """What rounds cost, in seconds: absent where nothing was measured."""

    draft_token: Mean | None = None
    """t_d, the draft's own seconds per proposed token."""
    overhead: Mean | None = None
    """o, what a round with K > 0 costs beside drafting and forward."""
    plain_token: Mean | None = None
    """t_b, all seconds per token where nothing is proposed."""
    forward: Mapping[int, Mean] = field(default_factory=dict)
    """t_v by K, 0 included."""

    def loosened(self) -> "Costs":
        """Before a probe: what proposals cost may change; plain decoding is known from every round."""
        return replace(
            self,
            draft_token=self.draft_token and self.draft_token.loosened(),
            overhead=self.overhead and self.overhead.loosened(),
            forward={k: mean.loosened() if k else mean for k, mean in self.forward.items()},
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """Decayed counts of one position: accepted and rejected, given that all positions before it were accepted."""

    accepted: float = 0.0
    rejected: float = 0.0

    def chance(self, prior: float) -> float:
        strength = self.accepted + self.rejected + PRIOR_STRENGTH
        return (self.accepted + prior * PRIOR_STRENGTH) / strength

    def observed(self, *, accepted: bool) -> "Tally":
        kept, lost = self.accepted * KEPT_PER_OBSERVATION, self.rejected * KEPT_PER_OBSERVATION
        return Tally(kept + 1, lost) if accepted else Tally(kept, lost + 1)

    def loosened(self) -> "Tally":
        """The same rate, held no more firmly than a few probes can change."""
        share = min(1.0, LOOSE_STRENGTH / max(self.accepted + self.rejected, 1e-9))
        return Tally(self.accepted * share, self.rejected * share)


@dataclass(frozen=True, slots=True)
class Belief:
    """All that is known. `k` is the last choice that was free: absent before the first, 0 while it does not pay."""

    tallies: tuple[Tally, ...] = ()
    costs: Costs = field(default_factory=Costs)
    k: int | None = None
    plain_rounds: int = 0
    """Rounds without a proposal since the last probe."""
    probe_left: int = 0
    """Rounds that the probe under way may still take, in a warm session."""
    probe_after: int = PROBE_FIRST_ROUNDS


@dataclass(frozen=True, slots=True)
class Prediction:
    """What K tokens per round would bring: `speed_up` over plain decoding."""

    k: int
    speed_up: float


class Rule(StrEnum):
    """Which rule settled a K."""

    WITHHELD = "Withheld"
    """The bounds allow nothing: an off slot, a policy, a request."""
    COLD_START = "ColdStart"
    """No cost is known: the middle of the bounds, to learn."""
    ALWAYS = "Always"
    """The best within the bounds; the mode asks for it whether it pays or not."""
    PAYS = "Pays"
    LOSES = "Loses"
    """No K is worth more than plain decoding and the least gain."""
    PROBE = "Probe"
    """None seems to, and it is time to look again."""


@dataclass(frozen=True, slots=True)
class Why:
    """What led to a K: the rule, and all that it was applied to. What was predicted for which K follows from them."""

    rule: Rule
    belief: Belief
    bounds: Bounds
    now: float

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """S(K) for K = 1, ..., the most that may be proposed; empty where no cost is known."""
        model = _model(self.belief, self.bounds.maximum, self.now)
        if model is None:
            return ()
        return tuple(Prediction(k, model.speed_up(k)) for k in range(1, self.bounds.maximum + 1))


@dataclass(frozen=True, slots=True)
class Choice:
    """K for one round. `survivals[i]` is the believed chance that tokens 1 to i + 1 all stand, as it is before anything
    of the round is drawn; there are K of them."""

    k: int
    survivals: tuple[float, ...]
    why: Why
    outlook: Outlook | None = None
    """What the draft is to do while the round is verified. None: nothing."""


def choose(belief: Belief, bounds: Bounds, now: float, *, warm: bool) -> tuple[Choice, Belief]:
    """K for a session's next round, and the belief that remembers the choice: for hysteresis, and to probe once."""
    k, rule, remembered = _settle(belief, bounds, now, warm=warm)
    survivals = tuple(accumulate(conditional_acceptance(belief, k), mul))
    return Choice(k, survivals, Why(rule, belief, bounds, now)), remembered


def _settle(belief: Belief, bounds: Bounds, now: float, *, warm: bool) -> tuple[int, Rule, Belief]:
    if bounds.maximum <= 0:
        return 0, Rule.WITHHELD, belief
    found = predict(belief, bounds, now)
    if found is None:
        middle = (max(bounds.minimum, 1) + bounds.maximum + 1) // 2
        return middle, Rule.COLD_START, replace(belief, k=middle)
    always = bounds.mode is Mode.ALWAYS
    if always or _pays(belief, bounds, found):
        remembered = replace(belief, k=found.k, plain_rounds=0, probe_after=PROBE_FIRST_ROUNDS)
        return found.k, Rule.ALWAYS if always else Rule.PAYS, remembered
    if belief.k != 0:
        return 0, Rule.LOSES, replace(belief, k=0, plain_rounds=0, probe_after=PROBE_FIRST_ROUNDS)
    k, remembered = _probe(belief, bounds, warm=warm)
    return k, Rule.PROBE if k else Rule.LOSES, remembered


def learn(belief: Belief, round: Round, now: float, *, warm: bool) -> Belief:
    """The belief after one more round of a session. What is not the cost of going on (a prompt, or what the draft of a
    session that was not warm had missed) teaches acceptance alone."""
    tallies = list(belief.tallies) + [Tally()] * (round.examined - len(belief.tallies))
    for position in range(round.examined):
        tallies[position] = tallies[position].observed(accepted=position < round.accepted)
    caught_up = warm or not round.proposed
    costs = _learn_costs(belief.costs, round, now) if caught_up and not round.prefill else belief.costs
    plain_rounds = belief.plain_rounds + (1 if round.proposed == 0 else 0)
    return replace(belief, tallies=tuple(tallies), costs=costs, plain_rounds=plain_rounds)


def unanswered(belief: Belief) -> Belief:
    """The belief after a draft had nothing to offer: that is no rejection, and no round of a probe."""
    return replace(belief, probe_left=belief.probe_left + 1) if belief.k == 0 else belief


def hear(belief: Belief, *, matched: int, examined: int) -> Belief:
    """The belief after a draft was asked about `examined` tokens that the target emitted without it.

    Every token was asked for after the right prefix, so each match bit is an acceptance given that all before it were
    accepted: the first position learns them all, and the deeper ones, not tried since, are believed to be like it.
    """
    if not examined:
        return belief
    first = belief.tallies[0] if belief.tallies else Tally()
    kept = KEPT_PER_OBSERVATION**examined
    each = (1 - kept) / (1 - KEPT_PER_OBSERVATION) / examined
    accepted, rejected = matched * each, (examined - matched) * each
    heard = Tally(first.accepted * kept + accepted, first.rejected * kept + rejected)
    return replace(belief, tallies=(heard,))


def conditional_acceptance(belief: Belief, positions: int) -> tuple[float, ...]:
    """a_1 ... a_n: an unexamined position is believed to be like the one before it, the first like the prior."""
    chances: list[float] = []
    for position in range(positions):
        tally = belief.tallies[position] if position < len(belief.tallies) else Tally()
        chances.append(tally.chance(chances[-1] if chances else PRIOR_ACCEPTANCE))
    return tuple(chances)


def predict(belief: Belief, bounds: Bounds, now: float) -> Prediction | None:
    """The best K > 0 within the bounds by the marginal rule, the last choice if it is as good; None: no cost is known.

    With t_d 4, t_v 18 at any K, t_b 15 milliseconds and a_j = .8 throughout, K = 4 and speed-up 1.48.
    """
    model = _model(belief, bounds.maximum, now)
    if model is None:
        return None
    k = min(max(bounds.minimum, 1), bounds.maximum)
    while k < bounds.maximum and model.survival(k + 1) * model.cost(k) > model.marginal_seconds * model.expected(k):
        k += 1
    last = belief.k or k
    within = max(bounds.minimum, 1) <= last <= bounds.maximum
    if within and model.speed_up(k) <= model.speed_up(last) * (1 + HYSTERESIS):
        k = last
    return Prediction(k, model.speed_up(k))


@dataclass(frozen=True, slots=True)
class _Model:
    """E(K) and cost(K) under one belief."""

    survivals: tuple[float, ...]
    overhead: float
    draft_token: float
    forward_start: float
    forward_slope: float
    plain_token: float

    @property
    def marginal_seconds(self) -> float:
        return self.draft_token + self.forward_slope

    def survival(self, position: int) -> float:
        return self.survivals[position - 1]

    def expected(self, k: int) -> float:
        return 1 + sum(self.survivals[:k])

    def cost(self, k: int) -> float:
        return self.overhead + self.forward_start + k * self.marginal_seconds

    def speed_up(self, k: int) -> float:
        return self.plain_token * self.expected(k) / self.cost(k)


def _model(belief: Belief, maximum: int, now: float) -> _Model | None:
    costs = belief.costs
    measured = {k: mean for k, mean in costs.forward.items() if mean.fresh(now)}
    if costs.draft_token is None or not costs.draft_token.fresh(now) or not measured:
        return None
    start, slope = _line(measured, now)
    plain = costs.plain_token
    return _Model(
        survivals=tuple(accumulate(conditional_acceptance(belief, maximum), mul)),
        overhead=costs.overhead.value if costs.overhead else 0.0,
        draft_token=costs.draft_token.value,
        forward_start=start,
        forward_slope=slope,
        plain_token=plain.value if plain is not None and plain.fresh(now) else start,
    )


def _line(means: Mapping[int, Mean], now: float) -> tuple[float, float]:
    """Least squares through the means of t_v by K, each weighing as its samples and age do; slope at least 0."""
    weights = {k: mean.weight(now) for k, mean in means.items()}
    total = sum(weights.values())
    middle_k = sum(weights[k] * k for k in means) / total
    middle_seconds = sum(weights[k] * mean.value for k, mean in means.items()) / total
    spread = sum(weights[k] * (k - middle_k) ** 2 for k in means)
    tilt = sum(weights[k] * (k - middle_k) * (mean.value - middle_seconds) for k, mean in means.items())
    slope = max(tilt / spread, 0.0) if spread > 0 else 0.0
    return max(middle_seconds - slope * middle_k, 0.0), slope


def _pays(belief: Belief, bounds: Bounds, found: Prediction) -> bool:
    margin = HYSTERESIS if belief.k == 0 else 0.0
    return found.speed_up > 1 + bounds.min_gain + margin


def _probe(belief: Belief, bounds: Bounds, *, warm: bool) -> tuple[int, Belief]:
    k = min(max(bounds.minimum, PROBE_TOKENS), bounds.maximum)
    if warm and belief.probe_left:
        return k, replace(belief, probe_left=belief.probe_left - 1)
    if belief.plain_rounds < belief.probe_after:
        return 0, belief
    later = min(2 * belief.probe_after, PROBE_MOST_ROUNDS)
    tallies, costs = tuple(tally.loosened() for tally in belief.tallies), belief.costs.loosened()
    begun = replace(belief, tallies=tallies, costs=costs, plain_rounds=0, probe_after=later)
    return k, replace(begun, probe_left=PROBE_ROUNDS - 1)


def _learn_costs(costs: Costs, round: Round, now: float) -> Costs:
    forward_seconds = round.forward_seconds or round.verify_seconds
    known = costs.forward.get(round.proposed)
    forward = {**costs.forward, round.proposed: _learned(known, forward_seconds, now)}
    if round.proposed == 0:
        return replace(costs, forward=forward, plain_token=_learned(costs.plain_token, round.seconds, now))
    if round.ahead is not None and round.ahead.hit:
        return replace(costs, forward=forward)
    drafting_seconds = round.drafting_seconds or round.draft_seconds
    overhead_seconds = max(round.seconds - drafting_seconds - forward_seconds, 0.0)
    return replace(
        costs,
        forward=forward,
        draft_token=_learned(costs.draft_token, drafting_seconds / round.proposed, now),
        overhead=_learned(costs.overhead, overhead_seconds, now),
    )


def _learned(mean: Mean | None, seconds: float, now: float) -> Mean:
    if mean is None or not mean.fresh(now):
        return Mean(seconds, 1, now)
    samples = min(mean.samples + 1, MEAN_SAMPLES)
    return Mean(mean.value + (seconds - mean.value) / samples, samples, now)


class Lookahead:
    """The one cell that the sessions of a revision share: holds the belief, adds no rule."""

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = belief or Belief()
        self.foresight = Foresight()

    def choose(self, bounds: Bounds, most: int, now: float, *, warm: bool) -> Choice:
        """K within `bounds`, cut to the `most` that the session has room for."""
        choice, self.belief = choose(self.belief, bounds, now, warm=warm)
        most = min(most, bounds.maximum)
        outlook = self.foresight.look(choice.survivals[:most], most, bounds.overlap)
        if outlook is None:
            return replace(choice, k=min(choice.k, most), survivals=choice.survivals[:most])
        return replace(choice, k=len(outlook.survivals), survivals=outlook.survivals, outlook=outlook)

    def learn(self, round: Round, now: float, *, warm: bool) -> None:
        self.belief = learn(self.belief, round, now, warm=warm)
        self.foresight.learn(round)

    def unanswered(self) -> None:
        """A draft was asked for a proposal and had none."""
        self.belief = unanswered(self.belief)

    def hear(self, *, matched: int, examined: int) -> None:
        """What a draft would have had accepted of an answer without it."""
        self.belief = hear(self.belief, matched=matched, examined=examined)
