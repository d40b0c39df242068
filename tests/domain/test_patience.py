"""How long a drafter is waited for, whose trouble a failure is, and how it rests after failures."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.errors import (
    BadRequest,
    Cancelled,
    DraftForgot,
    DraftLate,
    DraftLost,
    NotANumber,
    NothingAdmitted,
    OutOfOrder,
    Overloaded,
    SessionLost,
    StaleOffset,
    TandemError,
    TargetLost,
)
from tandem_runtime.domain.patience import (
    FIRST_REST_SECONDS,
    FORGIVEN_AFTER,
    LONGEST_REST_SECONDS,
    LONGEST_WAIT_SECONDS,
    SHORTEST_WAIT_SECONDS,
    Patience,
    Record,
    Trouble,
    Whose,
    answered,
    asked,
    failed,
    rests,
    trouble_of,
    wait_seconds,
)


@pytest.mark.parametrize(
    ("token_seconds", "k", "reads", "seconds"),
    [
        (None, 4, False, LONGEST_WAIT_SECONDS),
        (0.004, 5, False, 0.2),
        (0.004, 5, True, LONGEST_WAIT_SECONDS),
        (0.0001, 5, False, SHORTEST_WAIT_SECONDS),
        (0.0, 5, False, SHORTEST_WAIT_SECONDS),
        (9.0, 5, False, LONGEST_WAIT_SECONDS),
    ],
)
def test_the_wait_is_ten_times_the_usual_within_bounds(
    token_seconds: float | None, k: int, reads: bool, seconds: float
) -> None:
    assert wait_seconds(Record(token_seconds), k, reads=reads) == pytest.approx(seconds)


def test_what_had_to_be_read_first_teaches_no_duration() -> None:
    record = answered(Record(), 1.0, seconds=3.0, tokens=4, read=True)
    assert record.token_seconds is None
    record = answered(record, 2.0, seconds=0.02, tokens=4, read=False)
    assert record.token_seconds == pytest.approx(0.005)
    assert answered(record, 3.0, seconds=0.0, tokens=0, read=False).token_seconds == record.token_seconds


def test_each_failure_doubles_the_rest_up_to_a_minute() -> None:
    record, now, rested = Record(), 100.0, []
    for _ in range(8):
        record = failed(record, now, asked_at=now)
        rested.append(record.rests_until - now)
        now = record.rests_until
    assert rested == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (rested[0], rested[-1]) == (FIRST_REST_SECONDS, LONGEST_REST_SECONDS)


def test_all_who_had_asked_before_a_failure_fail_once() -> None:
    patience = Patience()
    for asked_at in (99.8, 99.9, 100.0):
        patience.failed(100.0 + asked_at / 1000, asked_at=asked_at)
    assert patience.record.failures == 1


def test_after_a_rest_one_asks_alone_until_it_has_the_answer() -> None:
    patience = Patience()
    patience.failed(100.0, asked_at=100.0)
    assert patience.rests(100.9)
    assert not patience.rests(101.0)
    patience.ask(101.0, 4, reads=True)
    assert patience.rests(101.0)
    patience.answered(101.5, seconds=0.5, tokens=4, read=True)
    assert not patience.rests(101.5)


def test_failures_are_forgotten_after_many_good_answers_in_a_row() -> None:
    record = failed(failed(Record(), 1.0, asked_at=1.0), 3.0, asked_at=3.0)
    for _ in range(FORGIVEN_AFTER - 1):
        record = answered(record, 10.0, seconds=0.01, tokens=2, read=False)
    assert record.failures == 2
    assert answered(record, 10.0, seconds=0.01, tokens=2, read=False).failures == 0


@given(good=st.lists(st.integers(0, FORGIVEN_AFTER - 1), min_size=20, max_size=20))
def test_a_drafter_that_fails_ever_again_ends_up_resting_for_a_minute(good: list[int]) -> None:
    record, now = Record(), 0.0
    for count in good:
        for _ in range(count):
            record = answered(record, now, seconds=0.004, tokens=1, read=False)
        now = max(now, record.rests_until) + 0.1
        record = failed(record, now, asked_at=now)
    assert record.rests_until == now + LONGEST_REST_SECONDS
    assert rests(record, now)


@pytest.mark.parametrize(
    ("error", "burdened", "trouble"),
    [
        (DraftLost("gone"), False, Trouble(Whose.DRAFTER, 1.0)),
        (DraftLost("gone"), True, Trouble(Whose.DRAFTER, 1.0)),
        (TargetLost("the link broke"), True, Trouble(Whose.DRAFTER, 1.0)),
        (OutOfOrder("a bug"), True, Trouble(Whose.DRAFTER, 1.0)),
        (DraftLate("4 s"), False, Trouble(Whose.DRAFTER, 1.0)),
        (DraftLate("4 s"), True, Trouble(Whose.SESSION, 1.0)),
        (DraftForgot("open it again"), False, Trouble(Whose.SESSION, 0.0)),
        (SessionLost("open it again"), False, Trouble(Whose.SESSION, 0.0)),
        (StaleOffset("3 is not 5"), False, Trouble(Whose.SESSION, 0.0)),
        (Overloaded("full", retry_after_seconds=7), False, Trouble(Whose.SESSION, 7.0)),
        (NotANumber("row 1"), False, Trouble(Whose.SESSION, 1.0)),
        (Cancelled("left"), False, Trouble(Whose.SESSION, 1.0)),
        (BadRequest("no"), False, Trouble(Whose.SESSION, inf)),
        (NothingAdmitted("no token is left"), False, Trouble(Whose.SESSION, inf)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else str(each),
)
def test_a_failure_is_the_drafters_or_one_sessions(error: TandemError, burdened: bool, trouble: Trouble) -> None:
    assert trouble_of(error, burdened=burdened) == trouble


@pytest.mark.parametrize(
    ("least", "rested"),
    [
        (0.0, [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        (7.0, [7.0, 7.0, 7.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        (90.0, [90.0] * 8),
    ],
)
def test_a_rest_is_no_shorter_than_what_the_failure_asks_for(least: float, rested: list[float]) -> None:
    record, now, found = Record(), 100.0, []
    for _ in range(8):
        record = failed(record, now, asked_at=now, least_seconds=least)
        found.append(record.rests_until - now)
        now = max(record.rests_until, now + 0.1)
    assert found == pytest.approx(rested)


def test_who_asked_alone_and_has_no_answer_for_a_reason_of_its_own_lets_the_next_one_ask() -> None:
    patience = Patience()
    patience.failed(100.0, asked_at=100.0)
    patience.ask(101.0, 4, reads=True)
    patience.gave_up(101.5, asked_at=99.0)  # one that had asked before the failure
    assert patience.rests(101.5)
    patience.gave_up(101.5, asked_at=101.0)
    assert not patience.rests(101.5)
    assert patience.record.failures == 1


def test_who_gives_up_where_all_may_ask_changes_nothing() -> None:
    patience = Patience()
    patience.ask(100.0, 4, reads=True)
    patience.gave_up(101.0, asked_at=100.0)
    assert patience.record == Record()


def test_who_tries_a_target_is_alone_until_it_is_known_whether_that_lets_it_begin() -> None:
    alone = asked(failed(Record(), 10.0, asked_at=9.0), 11.0, within_seconds=70.0)
    assert (rests(alone, 80.0), rests(alone, 81.0)) == (True, False)
    assert not rests(answered(alone, 12.0, seconds=0.0, tokens=0, read=True), 12.0)
    patience = Patience(failed(Record(), 10.0, asked_at=9.0))
    patience.begin(11.0, within_seconds=70.0)
    assert patience.record == alone
