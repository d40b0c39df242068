"""Knows what rounds cost, in seconds, from what they did cost: t_d(B), t_v(B, K), t_b(B) and what lies between.

Refuses to know acceptance, which K is chosen, and clocks: the moment of a sample is an argument.

Each cost is a plane over K and the batch B (sessions that shared the step), c + s_K K + s_B (B - 1), followed by
recursive least squares for coefficients that wander (Kalman 1960; Ljung 1999, "System Identification", eq. 11.27):

    gain = P h / (h' P h + r)      coefficients += gain (seconds - h' coefficients)      P -= gain h' P,  P += q

with h = (1, K, B - 1), noise r = (5 % of the cost)^2 and a walk q that lets the level move by half a per cent a sample
and a per cent a second. The slopes begin at 0, believed to a few per cent: as long as K and B stay, they stay, and no
window runs empty of what told them, as it does under exponential forgetting. A draft's step alone is believed to become
longer by `ROW_SHARE` for each further session before any batch was seen: sessions that share a belief begin to propose
together, and all at once would find out what that costs.

    cost(K) = o + v(B, 0) + K (t_d(B) + s_K)     a round's seconds, K > 0; o: network, queue and the gateway
            - h min(K, n) t_d(B)                 where a share h of the rounds finds n guesses drafted ahead
    t_b(B)                                       all seconds of a plain token; unknown until one was seen

Sessions share steps, so K is the mean of the step: all guesses that it judged over the sessions in it. That is what all
of them would choose, since all choose by the same rule; one that looked at its own K alone would find that the others'
guesses cost the same whatever it does, and so would they. A plain token whose step judged others' guesses says no more
than that t_b is not larger, until none was seen alone for `COMPANY_SECONDS` in which nobody of this belief proposed:
the others of those who begin to look for t_b are still about to end their rounds, which may be long.

Guards. A round that took more than three times what was predicted, or less than a third, is a suspended machine, a
pause of the collector, a clock that was set: it teaches no cost. A second one in a row is a change, and is believed at
once. Seconds below 0 or not finite teach nothing, and time that goes back does not age anything. A plane that learnt
nothing for `AGE_LIMIT_SECONDS` is not known.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, sqrt
from typing import Final, NamedTuple

from tandem_runtime.domain.tokens import Round

NOISE: Final = 0.05
WALK_PER_SAMPLE: Final = 0.005
WALK_PER_SECOND: Final = 0.01
SLOPE_DOUBT: Final = 0.03
"""By how much of a cost one more token, or one more session, may change it: a standard deviation."""
ROW_SHARE: Final = 0.03
"""What a row adds to a draft's step, as a share of it, on an accelerator that waits for memory."""
SLOPE_WALK: Final = 0.0005
MANY: Final = WALK_PER_SAMPLE / SLOPE_WALK
"""Sessions beside one's own: in a larger batch a slope moves the cost by more, and wanders less."""
LOOSE: Final = 0.25
"""Of a cost: how far off it may be after a change."""
OUTLIER_FACTOR: Final = 3.0
LEAST_SECONDS: Final = 1e-9
"""Nothing takes less, whatever a coarse clock says."""
COMPANY_SECONDS: Final = 1.0
"""For so long a plain token without others' guesses is waited for: while what one costs is looked for, sessions that
share a belief propose nothing, but there may be others at the target."""
AGE_LIMIT_SECONDS: Final = 1800.0
"""A cost that was not measured for so long is not known; plain decoding is measured in off slots, minutes apart."""
_NOISE_VARIANCE, _SAMPLE_VARIANCE, _SECOND_VARIANCE, _SLOPE_VARIANCE = (
    deviation**2 for deviation in (NOISE, WALK_PER_SAMPLE, WALK_PER_SECOND, SLOPE_WALK)
)
"""Shares of the cost, squared."""


class Plane(NamedTuple):
    """Coefficients c, s_K, s_B in seconds, the upper half of their covariance P, and when a sample last came."""

    level: float
    per_token: float
    per_session: float
    p00: float
    p01: float
    p02: float
    p11: float
    p12: float
    p22: float
    at: float

    def seconds(self, k: float, rows: float) -> float:
        """Slopes below 0 are noise: a longer proposal or a larger batch is no cheaper. What is left is then the belief
        given that the slope is 0, a Gaussian's conditional mean."""
        level, per_token, per_session = self[:3]
        if per_token < 0:
            level -= self.p01 / self.p11 * per_token
            per_session -= self.p12 / self.p11 * per_token
            per_token = 0.0
        if per_session < 0:
            level -= self.p02 / self.p22 * per_session
            per_session = 0.0
        seconds = level + per_token * k + per_session * (rows - 1)
        return seconds if seconds > 0 else 0.0

    def doubt(self, seconds: float, rows: int, now: float) -> float:
        """The standard deviation of the cost at K = 0 by now, as a share of it, which is `seconds`."""
        x, walked = rows - 1, _SECOND_VARIANCE * max(now - self.at, 0.0)
        variance = max(self.p00 + 2 * self.p02 * x + self.p22 * x * x, 0.0)
        return sqrt(variance / max(seconds, LEAST_SECONDS) ** 2 + walked)

    def strangeness(self, seconds: float, rows: int) -> float:
        """How far off the cost may be because it was seen at other batches: a standard deviation, as a share of it. It
        is that of the slope, times the distance from where the samples lie."""
        if self.p22 <= 0:  # a step that took no time has no slope
            return 0.0
        distance = rows - 1 + self.p02 / self.p22
        return sqrt(self.p22) * abs(distance) / max(seconds, LEAST_SECONDS)

    def fresh(self, now: float) -> bool:
        return now - self.at <= AGE_LIMIT_SECONDS

    def loosened(self) -> "Plane":
        """The same values, which the next few rounds can change."""
        return self._replace(p00=max(self.p00, (LOOSE * self.level) ** 2))


def begun(seconds: float, k: float, rows: int, now: float, *, row_share: float = 0.0) -> Plane:
    """The plane of one sample, of which each further session is believed to add a share."""
    noise, slope = (NOISE * seconds) ** 2, (SLOPE_DOUBT * seconds) ** 2
    others = rows - 1
    level = seconds / (1 + row_share * others)
    return Plane(
        level, 0.0, row_share * level,
        noise + slope * (k * k + others * others), -slope * k, -slope * others,
        slope, 0.0, slope, now,
    )  # fmt: skip


def learned(plane: Plane | None, seconds: float, k: float, rows: int, now: float) -> Plane:
    """The plane after a sample of `seconds` for K = `k` in a step of `rows` sessions."""
    if plane is None:
        return begun(seconds, k, rows, now)
    c, sk, sb, p00, p01, p02, p11, p12, p22, at = plane
    x, elapsed = rows - 1, now - at if now > at else 0.0
    scale = max(c + sk * k + sb * x, seconds / OUTLIER_FACTOR, LEAST_SECONDS) ** 2
    walk = WALK_PER_SAMPLE / x if x > MANY else SLOPE_WALK
    p00 += scale * (_SAMPLE_VARIANCE + _SECOND_VARIANCE * elapsed)
    p11 += scale * _SLOPE_VARIANCE
    p22 += scale * walk * walk
    if not (k or p01 or p12):  # as ever, if K never was another: then this sample tells nothing of s_K
        u, w = p00 + p02 * x, p02 + p22 * x
        total = u + w * x + scale * _NOISE_VARIANCE
        miss = (seconds - c - sb * x) / total
        c, sb = c + u * miss, sb + w * miss
        return Plane(
            c, sk, sb, p00 - u * u / total, p01, p02 - u * w / total, p11, p12, p22 - w * w / total, at + elapsed
        )
    u, v, w = p00 + p01 * k + p02 * x, p01 + p11 * k + p12 * x, p02 + p12 * k + p22 * x
    total = u + v * k + w * x + scale * _NOISE_VARIANCE
    miss = (seconds - c - sk * k - sb * x) / total
    return Plane(
        c + u * miss, sk + v * miss, sb + w * miss,
        p00 - u * u / total, p01 - u * v / total, p02 - u * w / total,
        p11 - v * v / total, p12 - v * w / total, p22 - w * w / total,
        at + elapsed,
    )  # fmt: skip


class HeadStart(NamedTuple):
    """What drafting ahead brings: in a share `hits` of the rounds the first `tokens` guesses, on the average, are there
    with the verdict of the round before."""

    hits: float
    tokens: float


NO_HEAD_START: Final = HeadStart(0.0, 0.0)


class Model(NamedTuple):
    """Costs at one batch, as the K rule needs them: everything in seconds. `plain_token` is t_b, None where no plain
    token was seen."""

    fixed: float
    """o + v(B, 0)."""
    draft_token: float
    verify_token: float
    plain_token: float | None
    plain_doubt: float = 0.0
    """How far off t_b may be: a standard deviation, as a share of it."""
    strangeness: float = 0.0
    """Likewise v(B, 0), as far as proposals were verified at other batches."""
    head_start: HeadStart = NO_HEAD_START

    @property
    def per_token(self) -> float:
        """t_d + s_K."""
        return self.draft_token + self.verify_token

    def next_token(self, k: int) -> float:
        """What a guess behind `k` others adds: never less than those before it, since what is ready comes first."""
        hits, ready = self.head_start
        left = ready - k
        if not hits or left <= 0:
            return self.per_token
        return self.verify_token + self.draft_token * (1 - hits * (left if left < 1 else 1.0))

    @property
    def baseline(self) -> float:
        """What a plain token costs, or as much as it can: a verify pass of one row."""
        seconds = self.fixed if self.plain_token is None else self.plain_token
        return seconds if seconds > LEAST_SECONDS else LEAST_SECONDS

    def cost(self, k: int) -> float:
        hits, ready = self.head_start
        seconds = self.fixed + k * self.per_token
        if hits:
            seconds -= hits * min(k, ready) * self.draft_token
        return seconds if seconds > LEAST_SECONDS else LEAST_SECONDS


class Seen(NamedTuple):
    """A round, and when it ended."""

    round: Round
    now: float
    warm: bool = True
    """Whether its session's draft had nothing to catch up with."""
    waited: bool = False
    """Whether it may have waited for a step of others under way: if it is plain, it bounds t_b from above, else o."""

    @property
    def tells_costs(self) -> bool:
        """A prompt, or what a draft had missed, is not the cost of going on; and all its seconds must be possible."""
        round = self.round
        if round.prefill or (round.proposed and not self.warm):
            return False
        seconds, verify, forward = round.seconds, round.verify_seconds, round.forward_seconds
        draft, drafting = round.draft_seconds, round.drafting_seconds
        is_finite = seconds + verify + forward + draft + drafting < inf  # so none of them is NaN either
        return is_finite and min(seconds, verify, forward, draft, drafting) >= 0


@dataclass(slots=True, eq=False)
class Costs:
    """What is known of a pair's costs: absent where nothing was measured. Two are equal only if they are the same, and
    nobody changes one: it is not frozen since making it, in each round, would take three times as long."""

    draft_token: Final[Plane | None] = None
    """t_d(B), the draft's own seconds per proposed token."""
    forward: Final[Plane | None] = None
    """t_v(B, K), K > 0."""
    overhead: Final[Plane | None] = None
    """o, what a round with K > 0 costs beside drafting and forward."""
    plain: Final[Plane | None] = None
    """t_b(B)."""
    doubted: Final[bool] = False
    """Whether the next round with proposals is believed even if it is unlike all before: the last one was so too."""
    plain_doubted: Final[bool] = False
    """The same of a plain one."""
    company_since: Final[float | None] = None
    """Since when no plain token was seen whose step judged no guesses, and nothing was proposed; None: the last one was
    such, or something was."""

    def model(
        self, now: float, *, rows: int = 1, draft_rows: float = 1, head_start: HeadStart = NO_HEAD_START
    ) -> Model | None:
        """At a batch of `rows` sessions in the target and `draft_rows` in the draft; None: not known."""
        return _model(self, now, rows, draft_rows, head_start)

    def followed(self, seen: Seen) -> "Costs":
        """After one more round."""
        if not seen.tells_costs:
            return self
        is_unlike = self._is_unlike(seen.round)
        if not seen.round.proposed:
            return self._plain_learned(seen, is_unlike=is_unlike)
        if not is_unlike:
            return self._after(seen)
        return self.loosened()._after(seen) if self.doubted else replace(self, doubted=True)

    def _plain_learned(self, seen: Seen, *, is_unlike: bool) -> "Costs":
        round, now, _, waited = seen
        since = None if not round.beside else now if self.company_since is None else min(self.company_since, now)
        bounds = waited or (since is not None and now - since < COMPANY_SECONDS)
        here = self if since == self.company_since else replace(self, company_since=since)
        if bounds and self.plain is None:
            return here if round.beside else replace(here, plain=begun(round.seconds, 0, round.rows, now).loosened())
        if bounds and self.plain is not None and round.seconds > self.plain.seconds(0, round.rows):
            return here
        if is_unlike and not here.plain_doubted:
            return replace(here, plain_doubted=True)
        known = here.loosened() if is_unlike else here
        plain = learned(known.plain, round.seconds, 0, round.rows, now)
        return Costs(
            known.draft_token, known.forward, known.overhead, plain, known.doubted, company_since=known.company_since
        )

    def loosened(self) -> "Costs":
        """The same, which the next few rounds can change: before a look at what may be otherwise by now."""
        return replace(
            self,
            draft_token=self.draft_token and self.draft_token.loosened(),
            forward=self.forward and self.forward.loosened(),
            overhead=self.overhead and self.overhead.loosened(),
            plain=self.plain and self.plain.loosened(),
            doubted=True,
        )

    def _after(self, seen: Seen) -> "Costs":
        """After a round with proposals."""
        round, now = seen.round, seen.now
        forward = round.forward_seconds or round.verify_seconds
        drafting = round.drafting_seconds or round.draft_seconds
        draft_token = self.draft_token
        if not _was_prepared(round):
            draft_token = _drafting_learned(draft_token, drafting / round.proposed, round.draft_rows, now)
        return Costs(
            draft_token,
            learned(self.forward, forward, _guesses(round), round.rows, now),
            self._overhead_learned(max(round.seconds - drafting - forward, 0.0), seen),
            self.plain,
            plain_doubted=self.plain_doubted,
        )

    def _overhead_learned(self, seconds: float, seen: Seen) -> Plane | None:
        known = self.overhead
        if known is not None and seen.waited and seconds > known.level:
            return known
        return learned(known, seconds, 0, 1, seen.now)

    def _is_unlike(self, round: Round) -> bool:
        """Whether it took another order of time than was predicted."""
        if not round.proposed:
            return self.plain is not None and not _is_near(round.seconds, self.plain.seconds(0, round.rows))
        if self.draft_token is None or self.forward is None or self.overhead is None:
            return False
        fixed = max(self.overhead.level, 0.0) + self.forward.seconds(0, round.rows)
        guess = max(self.forward.per_token, 0.0)
        draft = 0.0 if _was_prepared(round) else self.draft_token.seconds(0, round.draft_rows)
        return not _is_near(round.seconds, fixed + guess * _guesses(round) + draft * round.proposed)


UNMEASURED: Final = Costs()


@lru_cache(maxsize=64)
def _model(costs: Costs, now: float, rows: int, draft_rows: float, head_start: HeadStart) -> Model | None:
    """Asked again by who explains a choice, or prices a guess."""
    draft, forward, plain = costs.draft_token, costs.forward, costs.plain
    if draft is None or forward is None or not (draft.fresh(now) and forward.fresh(now)):
        return None
    verify = forward.seconds(0, rows)
    fixed = (max(costs.overhead.level, 0.0) if costs.overhead else 0.0) + verify
    draft_token, verify_token = draft.seconds(0, draft_rows), max(forward.per_token, 0.0)
    if plain is None or not plain.fresh(now):
        return Model(fixed, draft_token, verify_token, None, head_start=head_start)
    plain_token = plain.seconds(0, rows)
    doubts = plain.doubt(plain_token, rows, now), forward.strangeness(verify, rows)
    return Model(fixed, draft_token, verify_token, plain_token, *doubts, head_start)


def _drafting_learned(plane: Plane | None, seconds: float, rows: int, now: float) -> Plane:
    if plane is None:
        return begun(seconds, 0, rows, now, row_share=ROW_SHARE)
    return learned(plane, seconds, 0, rows, now)


def _is_near(seconds: float, usual: float) -> bool:
    return usual / OUTLIER_FACTOR <= seconds <= usual * OUTLIER_FACTOR


def _guesses(round: Round) -> float:
    """The mean of the step that judged it."""
    return (round.judged + round.beside) / round.rows


def _was_prepared(round: Round) -> bool:
    """Whether its proposal was drafted while the round before was verified: it tells nothing of drafting on demand."""
    return round.ahead is not None and round.ahead.hit
