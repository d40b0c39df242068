"""The switchback: which slots are off and which seconds count."""

import pytest

from tandem_runtime.domain.slots import counted_slot, is_off, slot_number, uncounted_seconds


@pytest.mark.parametrize(("now", "seconds", "expected"), [(0.0, 20, 0), (19.999, 20, 0), (20.0, 20, 1), (47.0, 20, 2)])
def test_slots_are_numbered_from_1970(now: float, seconds: float, expected: int) -> None:
    assert slot_number(now, seconds) == expected


def test_a_slot_is_off_by_the_hash_that_the_contract_states() -> None:
    # printf 'pod-a|0|salt' | sha256sum begins with 7a, below half of ff; slots 1 to 7: 7d 39 8e 62 f5 93 9d.
    assert [is_off("pod-a", slot, "salt", 50) for slot in range(8)] == [True, True, True, False, True] + [False] * 3


@pytest.mark.parametrize(
    ("percent", "low", "high"), [(0, 0, 0), (5, 400, 600), (80, 7840, 8160), (100, 10_000, 10_000)]
)
def test_the_share_of_off_slots_is_what_was_asked_for(percent: int, low: int, high: int) -> None:
    assert low <= sum(is_off("uid", slot, "salt", percent) for slot in range(10_000)) <= high


def test_an_off_slot_stays_off_when_the_share_grows() -> None:
    assert all(is_off("u", slot, "s", 40) for slot in range(500) if is_off("u", slot, "s", 10))


def test_pods_and_salts_take_turns() -> None:
    patterns = {
        tuple(is_off(*who, 50) for who in [(uid, slot, salt) for slot in range(64)]) for uid in "ab" for salt in "xy"
    }
    assert len(patterns) == 4


@pytest.mark.parametrize(("slot_seconds", "expected"), [(4, 0.6), (20, 3.0), (60, 3.0)])
def test_the_start_of_a_slot_is_not_counted(slot_seconds: float, expected: float) -> None:
    assert uncounted_seconds(slot_seconds) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("started", "ended", "expected"),
    [
        (22.9, 23.5, None),
        (23.0, 23.5, 1),
        (39.0, 40.0, 1),
        (39.0, 40.1, None),
        (23.0, 65.0, None),
    ],
)
def test_an_interval_counts_where_it_lies_wholly_in_the_counted_part(
    started: float, ended: float, expected: int | None
) -> None:
    assert counted_slot(started, ended, 20) == expected
