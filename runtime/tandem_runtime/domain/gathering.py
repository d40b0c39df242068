"""Knows whether a step had better wait a moment for sessions that are about to come back with their next round.

Refuses to know threads, rows and what a step computes: moments, counts and seconds are arguments.

A server that takes all who wait in one step, of a cost that hardly grows with them, may do well to stay idle for a
while: a bulk queue's best policy is a limit of control (Deb and Serfozo 1973, "Optimal control of batch service
queues"). With proposals it does: two sessions get their verdicts from one step and come back a moment apart. If the
first begins a step of t seconds alone, the other waits for all of it, comes back a step later than the first from then
on, and they alternate: a round of either costs two steps, 2 t, where together it is t and what they take to come back.

**What it is worth.** A sessions are ready, with n rows; T(n) = a + b n seconds (`domain.budget`). Let the step wait
for d seconds. Whoever comes within d rides along, and is done a - d seconds sooner than in a step after this one; the A
are kept for d, and the step is longer by the rows r = n / A of each who joined; who comes later, but before this
step would have ended, is done d later. With M(d) for how many are expected within d, W = M(t), that is together

    g(d) = M(d) (a - A b r) - d (A + W)

Each who makes it saves a step, and each moment costs all. Under Poisson arrivals g is never above 0: who comes at any
time is not worth a wait. Where the cost of steps is all in their rows, a = 0, neither.

Who has joined stays in step. If a share F of those who are away comes within d of a common step, a round is a + d for
them and twice that for the others, (2 - F) (a + d) on average; alternating, it is 2 a. That difference, where it is a
gain, is counted for all of them for one round more, with F = M(d) / all who are expected:

    g(d) + (A + M(d)) max(0, 2 a - (2 - F) (a + d))

Without it two who are half a step away or more would alternate for ever, as neither is worth that long a wait once. If
drafting takes as long as a step or longer, two groups that alternate lose nothing, and nobody is waited for.

**When they come** is what they did before: of a session's last `KEPT` times away, filled up with the loop's latest,
those that are longer than it has been away by now are equally likely, as is that it does not come at all. That is its
law, whatever its shape (drafting ahead has two humps: at once after a hit, later after a miss), each time a share
`LATE` longer, so that who comes just when he did before is not missed; and who has been away for longer than ever of
late, as when his reader holds him, is expected no more. d is the moment, among those times, at
which g is highest; it must win `MARGIN` more than it loses, as the best of many estimates is one that flatters.

**Who is not kept.** With a session that decodes plainly among the ready no step waits: that one would lose a part of
every step, for what others gain, and what plain decoding costs, which off slots measure, would be what company makes of
it. Nobody is waited for who is less urgent than the most urgent of the ready, nor is work that nobody waits for. No
step waits before its cost is known, nor for longer than `LONGEST_SHARE` of a in all, whoever comes meanwhile.

**What was drawn** has no part in it, but for the moments at which sessions came: rows are those that were asked for, as
in `domain.budget`, since whom a step waits for may decide how much of a proposal it judges.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem_runtime.domain.budget import StepSeconds

__all__ = ["Gathering", "Ready"]

KEPT = 16
LATE = 0.05
MARGIN = 0.25
LONGEST_SHARE = 0.8

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ready:
    """Who could step now: so many `sessions`, with so many `rows` together, and what steps cost. `urgency` is that of
    the most urgent, the least number."""

    sessions: int
    rows: int
    seconds: StepSeconds
    urgency: int = 0


class Gathering:
    """What one loop knows of its sessions' times away, and since when a step waits."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._expected: dict[Hashable, Floats] = {}
        """The moments at which each may be back, of those who are away."""
        self._urgencies: dict[Hashable, int] = {}
        self._own: dict[Hashable, deque[float]] = {}
        self._latest: deque[float] = deque(maxlen=KEPT)
        self._waits_since: float | None = None

    def left(self, session: Hashable, now: float, urgency: int = 0) -> None:
        """It was answered, and will ask again."""
        own = self._own.setdefault(session, deque(maxlen=KEPT))
        self._since[session], self._urgencies[session] = now, urgency
        if len(self._latest) == KEPT:
            self._expected[session] = now + (1 + LATE) * np.array([*own, *self._latest][:KEPT])

    def returned(self, session: Hashable, now: float) -> None:
        """It asks again, or something else is asked of it."""
        self._expected.pop(session, None)
        since = self._since.pop(session, None)
        if since is not None:
            away = max(now - since, 0.0)
            self._own[session].appendleft(away)
            self._latest.appendleft(away)

    def forget(self, session: Hashable) -> None:
        """It is closed. Idempotent."""
        for known in (self._since, self._expected, self._urgencies, self._own):
            known.pop(session, None)

    def began(self) -> None:
        """A step did: the next one has not waited yet."""
        self._waits_since = None

    @property
    def expects(self) -> bool:
        """Whether anybody is away whose ways are known."""
        return bool(self._expected)

    def wait(self, ready: Ready, now: float) -> float:
        """For how many seconds the step should wait, unless somebody comes before; 0: it begins."""
        awaited = [moments for session, moments in self._expected.items() if self._urgencies[session] <= ready.urgency]
        if not awaited or not ready.sessions:
            return 0.0
        since = now if self._waits_since is None else self._waits_since
        longest = LONGEST_SHARE * ready.seconds.fixed - (now - since)
        seconds = _best(np.array(awaited) - now, ready, longest)
        if seconds > 0:
            self._waits_since = since
        return seconds


def _best(times: Floats, ready: Ready, longest: float) -> float:
    """The d of the highest g(d), at most `longest`. `times` [sessions, KEPT]: in how many seconds each may be back; of
    what is past nothing will happen."""
    chances = 1.0 / (np.count_nonzero(times > 0, axis=1) + 1)
    order = np.argsort(times, axis=None)
    waits = times.ravel()[order]
    first, last = np.searchsorted(waits, (0.0, ready.seconds.of(ready.rows)), side="right")
    if first == last or waits[first] > longest:
        return 0.0
    come = np.cumsum(np.repeat(chances, KEPT)[order][first:last])
    waits = waits[first:last]
    gains = _gains(waits, come, ready, float(np.count_nonzero(chances < 1)))
    gains = gains[waits <= longest]
    best = int(gains.argmax())
    return float(waits[best]) if gains[best] > 0 else 0.0


def _gains(waits: Floats, come: Floats, ready: Ready, expected: float) -> Floats:
    """g of each of `waits`, by which so many as `come` says are back, of all that are `expected`."""
    fixed, longer = ready.seconds.fixed, ready.seconds.per_row * ready.rows
    once = come * (fixed - longer) - (1 + MARGIN) * waits * (ready.sessions + come[-1])
    rounds = 2 * fixed - (2 - come / expected) * (fixed + waits)
    again = (ready.sessions + come) * np.maximum(rounds, 0.0)
    return np.asarray(once + again)
