"""Knows how long a drafter is waited for, whose trouble a failure is, and how long a drafter is left alone for it.

Refuses to know what a drafter is and who asks: time and outcomes are arguments, seconds that never go back.

A proposal is worth a fraction of a plain step, so waiting seconds for one that usually takes 4 ms is dear. The wait is
a multiple of what the drafter took of late per token, within bounds: hiccups of a machine are shorter than the least,
and the most is for what nobody knows the duration of, a first answer or one that has to read a prompt.

A failure costs one wait. Then nobody asks for a while, doubled with each further failure, and the first who asks again
asks alone: until the answer is there, all others see the drafter rest on. One good answer lets everybody ask; the count
of failures is forgotten only after many in a row, so that a drafter that fails each third time rests longer and longer.

That is for failures which say something of the drafter: no answer in time, a lost connection, a fault within it, an
answer that is none. Others say something of one session: its prompt takes long to read, its grammar cannot be followed,
there is no room for it. Those a session remembers for itself, in a record like the one that all share, and who asked
alone lets the next one try. What a draft refuses once it refuses for good: a request stays what it is.

A target has the same record, of which its waits are no part: it is asked by sessions that begin on it, has answered
with the first token of one, or with a prompt that it read, and fails by what is lost, late, or no law. While it rests,
sessions begin elsewhere.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from tandem_runtime.domain.errors import (
    BadRequest,
    Cancelled,
    DraftForgot,
    DraftLate,
    NotANumber,
    Overloaded,
    SessionLost,
    StaleOffset,
    TandemError,
)
from tandem_runtime.domain.values import value

LONGEST_WAIT_SECONDS = 4.0
LONGEST_READ_SECONDS = 60.0
"""So long a drafter may read on while nobody waits: 100,000 tokens at 2,000 a second."""
SHORTEST_WAIT_SECONDS = 0.1
"""Longer than the pauses of a healthy process: its garbage, its neighbours, a packet that is sent again."""
TIMES_THE_USUAL = 10.0
KEPT = 0.9
"""Seconds per token are those of about the last ten answers."""
FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 60.0
FORGIVEN_AFTER = 64
"""Good answers in a row."""
LONG_READ_TOKENS = 1024
"""A draft that cannot read so many in the longest wait is of no use to anyone; being late with more is no fault."""


class Whose(StrEnum):
    DRAFTER = "drafter"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Whose a failure is, and how long it is not asked again at least: by nobody, or by that session."""

    whose: Whose
    least_seconds: float = FIRST_REST_SECONDS


def trouble_of(error: TandemError, *, burdened: bool) -> Trouble:
    """`burdened`: the session's own request gave it so much to do first that it may take any time."""
    match error:
        case DraftForgot() | SessionLost() | StaleOffset():
            return Trouble(Whose.SESSION, 0.0)  # opened again it goes on
        case Overloaded():
            return Trouble(Whose.SESSION, float(error.retry_after_seconds))
        case BadRequest():
            return Trouble(Whose.SESSION, inf)
        case NotANumber() | Cancelled():
            return Trouble(Whose.SESSION)
        case DraftLate() if burdened:
            return Trouble(Whose.SESSION)
        case _:
            return Trouble(Whose.DRAFTER)


@value(frozen=True, slots=True)
class Record:
    """What is remembered of a drafter. `token_seconds`: what it took per proposed token; None: it never answered."""

    token_seconds: float | None = None
    failures: int = 0
    """Since it was last forgiven."""
    good: int = 0
    """Answers since the last failure."""
    failed_at: float = 0.0
    rests_until: float = 0.0
    alone_since: float | None = None
    """When somebody asked who asks alone; None: nobody does."""


def rests(record: Record, now: float) -> bool:
    """Whether it is to be left alone."""
    return record.failures > 0 and now < record.rests_until


def wait_seconds(record: Record, k: int, *, reads: bool) -> float:
    """How long to wait for `k` tokens. `reads`: it has to read what it has not seen, which may take any time.

    At 4 ms per token 5 tokens are waited for .2 s.
    """
    if record.token_seconds is None or reads:
        return LONGEST_WAIT_SECONDS
    return min(max(TIMES_THE_USUAL * record.token_seconds * k, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)


def asked(record: Record, now: float, *, within_seconds: float = LONGEST_WAIT_SECONDS) -> Record:
    """Somebody asks. After a failure: alone, until the answer or another failure is told, which is known in time."""
    if record.failures == 0 or record.good > 0:
        return record
    return replace(record, rests_until=now + within_seconds, alone_since=now)


def gave_up(record: Record, now: float, *, asked_at: float) -> Record:
    """Who asked then has no answer, and that says nothing of the drafter: if it asked alone, the next one may."""
    return record if record.alone_since != asked_at else replace(record, rests_until=now, alone_since=None)


def answered(record: Record, now: float, *, seconds: float, tokens: int, read: bool) -> Record:
    """It gave a proposal in order, of `tokens` tokens; `read`: it had to read first, so the time says nothing."""
    token_seconds, tells = record.token_seconds, tokens > 0 and not read
    if not (record.failures or tells):
        return record  # nothing is forgiven, and nothing learnt
    good = record.good + 1
    failures = record.failures if good < FORGIVEN_AFTER else 0
    if tells:
        usual = seconds / tokens if token_seconds is None else token_seconds
        token_seconds = KEPT * usual + (1 - KEPT) * seconds / tokens
    return Record(token_seconds, failures, good, record.failed_at, rests_until=now)


def failed(record: Record, now: float, *, asked_at: float, least_seconds: float = FIRST_REST_SECONDS) -> Record:
    """It failed. Those who had asked before the failure that is known fail with it: that is one failure."""
    if record.failures and asked_at <= record.failed_at:
        return record
    failures = record.failures + 1
    doubled = min(FIRST_REST_SECONDS * 2 ** min(failures - 1, 16), LONGEST_REST_SECONDS) if failures > 1 else 0.0
    seconds = max(least_seconds, doubled)
    return replace(record, failures=failures, good=0, failed_at=now, rests_until=now + seconds, alone_since=None)


class Patience:
    """The cell that all who ask one drafter share, or that one session keeps: holds the record, adds no rule."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = record or Record()

    def rests(self, now: float) -> bool:
        return rests(self.record, now)

    def ask(self, now: float, k: int, *, reads: bool) -> float:
        """Note that somebody asks, and say how many seconds to wait."""
        self.record = asked(self.record, now)
        return wait_seconds(self.record, k, reads=reads)

    def begin(self, now: float, *, within_seconds: float) -> None:
        """Note that a session begins, of which is known within so long whether it can go on."""
        self.record = asked(self.record, now, within_seconds=within_seconds)

    def answered(self, now: float, *, seconds: float = 0.0, tokens: int = 0, read: bool = True) -> None:
        self.record = answered(self.record, now, seconds=seconds, tokens=tokens, read=read)

    def failed(self, now: float, *, asked_at: float, least_seconds: float = FIRST_REST_SECONDS) -> None:
        self.record = failed(self.record, now, asked_at=asked_at, least_seconds=least_seconds)

    def gave_up(self, now: float, *, asked_at: float) -> None:
        self.record = gave_up(self.record, now, asked_at=asked_at)
