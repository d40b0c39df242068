"""Knows how long a drafter is waited for, and how long it is left alone after it failed.

Refuses to know what a drafter is and what a failure was: time and outcomes are arguments, seconds that never go back.

A proposal is worth a fraction of a plain step, so waiting seconds for one that usually takes 4 ms is dear. The wait is
a multiple of what the drafter took of late per token, within bounds: hiccups of a machine are shorter than the least,
and the most is for what nobody knows the duration of, a first answer or one that has to read a prompt.

A failure costs one wait. Then nobody asks for a while, doubled with each further failure, and the first who asks again
asks alone: until the answer is there, all others see the drafter rest on. One good answer lets everybody ask; the count
of failures is forgotten only after many in a row, so that a drafter that fails each third time rests longer and longer.
"""

from dataclasses import dataclass, replace

LONGEST_WAIT_SECONDS = 4.0
SHORTEST_WAIT_SECONDS = 0.1
"""Longer than the pauses of a healthy process: its garbage, its neighbours, a packet that is sent again."""
TIMES_THE_USUAL = 10.0
KEPT = 0.9
"""Seconds per token are those of about the last ten answers."""
FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 60.0
FORGIVEN_AFTER = 64
"""Good answers in a row."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a drafter. `token_seconds`: what it took per proposed token; None: it never answered."""

    token_seconds: float | None = None
    failures: int = 0
    """Since it was last forgiven."""
    good: int = 0
    """Answers since the last failure."""
    failed_at: float = 0.0
    rests_until: float = 0.0


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


def asked(record: Record, now: float) -> Record:
    """Somebody asks. After a failure: alone, until the answer or another failure is told."""
    if record.failures == 0 or record.good > 0:
        return record
    return replace(record, rests_until=now + LONGEST_WAIT_SECONDS)


def answered(record: Record, now: float, *, seconds: float, tokens: int, read: bool) -> Record:
    """It gave a proposal in order, of `tokens` tokens; `read`: it had to read first, so the time says nothing."""
    good = record.good + 1
    failures = record.failures if good < FORGIVEN_AFTER else 0
    known = replace(record, good=good, failures=failures, rests_until=now)
    if read or not tokens:
        return known
    usual = seconds / tokens if record.token_seconds is None else record.token_seconds
    return replace(known, token_seconds=KEPT * usual + (1 - KEPT) * seconds / tokens)


def failed(record: Record, now: float, *, asked_at: float) -> Record:
    """It raised, was late, or said what nobody can have drawn. Those who had asked before the failure that is known
    fail with it: that is one failure."""
    if record.failures and asked_at <= record.failed_at:
        return record
    failures = record.failures + 1
    seconds = min(FIRST_REST_SECONDS * 2 ** min(failures - 1, 16), LONGEST_REST_SECONDS)
    return replace(record, failures=failures, good=0, failed_at=now, rests_until=now + seconds)


class Patience:
    """The cell that all who ask one drafter share: holds the record, adds no rule."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = record or Record()

    def rests(self, now: float) -> bool:
        return rests(self.record, now)

    def ask(self, now: float, k: int, *, reads: bool) -> float:
        """Note that somebody asks, and say how many seconds to wait."""
        self.record = asked(self.record, now)
        return wait_seconds(self.record, k, reads=reads)

    def answered(self, now: float, *, seconds: float, tokens: int, read: bool) -> None:
        self.record = answered(self.record, now, seconds=seconds, tokens=tokens, read=read)

    def failed(self, now: float, *, asked_at: float) -> None:
        self.record = failed(self.record, now, asked_at=asked_at)
