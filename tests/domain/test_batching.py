"""Who gives way to whom when KV memory is short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.batching import Holder, gives_way

PATIENCE = 1.0


def at_work(number: int) -> Holder:
    return Holder(number, None)


CASES = {
    "nobody is there": ([], None),
    "an earlier one at work stays": ([at_work(1)], None),
    "a later one at work goes": ([at_work(1), at_work(3)], 3),
    "the latest of those at work goes first": ([at_work(4), at_work(6), at_work(5)], 6),
    "an earlier one that has just been parked stays": ([Holder(1, 0.5)], None),
    "an earlier one that is parked for long goes": ([Holder(1, 1.0)], 1),
    "a later one that has just been parked goes": ([Holder(3, 0.0)], 3),
    "the parked go before those at work": ([at_work(6), Holder(3, 0.1)], 3),
    "who is parked longest goes first": ([Holder(3, 0.1), Holder(4, 0.3), Holder(1, 2.0), Holder(5, 0.2)], 1),
}


@pytest.mark.parametrize(("others", "expected"), CASES.values(), ids=CASES)
def test_memory_is_taken_from(others: list[Holder], expected: int | None) -> None:
    assert gives_way(2, others, patience_seconds=PATIENCE) == expected


HOLDERS = st.lists(
    st.builds(Holder, st.integers(2, 9), st.none() | st.floats(0, 3)),
    max_size=6,
    unique_by=lambda holder: holder.number,
)


@given(HOLDERS)
def test_the_earliest_at_work_gets_everything_once_patience_has_run_out(others: list[Holder]) -> None:
    left = [Holder(other.number, None if other.parked_seconds is None else PATIENCE) for other in others]
    while left:
        number = gives_way(1, left, patience_seconds=PATIENCE)
        assert number in {other.number for other in left}
        left = [other for other in left if other.number != number]


@given(HOLDERS, st.integers(0, 9))
def test_of_two_at_work_the_earlier_never_gives_way_to_the_later(others: list[Holder], asker: int) -> None:
    number = gives_way(asker, others, patience_seconds=PATIENCE)
    assert all(other.parked_seconds is not None or other.number > asker for other in others if other.number == number)
