"""For whom a step waits, and for how long."""

from collections.abc import Callable, Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_runtime.domain.budget import StepSeconds
from tandem_runtime.domain.gathering import KEPT, LATE, LONGEST_SHARE, MARGIN, Gathering, Ready

FLAT = StepSeconds(0.018, 0.0)
SLOPED = StepSeconds(0.010, 0.0005)
ROW_BY_ROW = StepSeconds(0.001, 0.003)
SHORT = 0.002


def taught(*laws: Sequence[float], until: float = 100.0) -> Gathering:
    """Sessions 0, 1, ... that were away for what their laws say, again and again, and are answered at `until`."""
    gathering = Gathering()
    for number, law in enumerate(laws):
        for at in range(KEPT):
            gathering.left(number, 0.0)
            gathering.returned(number, law[at % len(law)])
    for number in range(len(laws)):
        gathering.left(number, until)
    return gathering


CASES = {
    "nobody is away": ((), 1, FLAT, 0.0),
    "one comes soon": ([[SHORT]], 1, FLAT, SHORT),
    "all of them come soon, one behind the other": ([[0.001], [0.002], [0.003]], 1, FLAT, 0.003),
    "one comes in half a step, and both stay together": ([[0.009]], 1, FLAT, 0.009),
    "one drafts nearly as long as a step": ([[0.016]], 1, FLAT, 0.0),
    "one drafts longer than a step": ([[0.020]], 1, FLAT, 0.0),
    "one comes soon, the other late": ([[SHORT], [0.017]], 1, FLAT, SHORT),
    "it comes at once or late, and half of the time is worth it": ([[0.001, 0.017]], 1, FLAT, 0.001),
    "it comes at once or late, and hardly ever at once": ([[0.004] + [0.017] * 7], 1, FLAT, 0.0),
    "a step's cost is all in its rows": ([[SHORT]], 1, ROW_BY_ROW, 0.0),
    "nobody is ready": ([[SHORT]], 0, FLAT, 0.0),
}


@pytest.mark.parametrize(("laws", "ready", "seconds", "waits"), CASES.values(), ids=CASES)
def test_a_step_waits_for_those_who_gain_more_than_the_others_lose(
    laws: Sequence[Sequence[float]], ready: int, seconds: StepSeconds, waits: float
) -> None:
    assert taught(*laws).wait(Ready(ready, 3 * ready, seconds), 100.0) == pytest.approx((1 + LATE) * waits)


def test_who_is_not_known_yet_is_not_waited_for() -> None:
    gathering = Gathering()
    for _ in range(KEPT - 1):
        gathering.left("new", 0.0)
        gathering.returned("new", SHORT)
    gathering.left("new", 100.0)
    assert not gathering.expects


def test_a_new_session_is_expected_when_the_others_came() -> None:
    gathering = taught([SHORT])
    gathering.returned(0, 100.0 + SHORT)
    gathering.left("new", 200.0)
    assert gathering.wait(Ready(1, 3, FLAT), 200.0) == pytest.approx((1 + LATE) * SHORT)


def test_who_is_away_for_longer_than_ever_is_not_waited_for() -> None:
    assert taught([SHORT]).wait(Ready(1, 3, FLAT), 100.0 + 2 * SHORT) == 0


@pytest.mark.parametrize("leave", [Gathering.forget, lambda gathering, session: gathering.returned(session, 100.0)])
def test_who_is_closed_or_back_is_not_waited_for(leave: Callable[[Gathering, Hashable], None]) -> None:
    gathering = taught([SHORT])
    leave(gathering, 0)
    assert not gathering.expects
    assert gathering.wait(Ready(1, 3, FLAT), 100.0) == 0


@pytest.mark.parametrize(("theirs", "ours", "waits"), [(0, 0, True), (0, 1, True), (1, 1, True), (1, 0, False)])
def test_who_is_less_urgent_than_the_most_urgent_of_the_ready_is_not_waited_for(
    theirs: int, ours: int, waits: bool
) -> None:
    gathering = taught([SHORT])
    gathering.left(0, 100.0, theirs)
    assert (gathering.wait(Ready(2, 6, FLAT, ours), 100.0) > 0) is waits


def test_whoever_comes_meanwhile_no_step_waits_longer_than_its_share() -> None:
    """Those who come later would be worth it by then."""
    gathering = taught(*[[0.004]] * 4, *[[0.014]] * 8)
    assert gathering.wait(Ready(1, 3, FLAT), 100.0) == pytest.approx((1 + LATE) * 0.004)
    for number in range(4):
        gathering.returned(number, 100.004)
    assert gathering.wait(Ready(5, 15, FLAT), 100.004) == 0
    gathering.began()
    assert gathering.wait(Ready(5, 15, FLAT), 100.004) == pytest.approx((1 + LATE) * 0.014 - 0.004)


# A plain reading of the docstring -------------------------------------------------------------------------------------

Laws = list[list[float]]


def worth(laws: Laws, ready: Ready, wait: float) -> float:
    """g(d) and what is counted for the round after, term by term."""
    fixed, step = ready.seconds.fixed, ready.seconds.of(ready.rows)
    each = [[1 / (len(law) + 1) for away in law if away <= wait] for law in laws]
    during = [[1 / (len(law) + 1) for away in law if away <= step] for law in laws]
    joined, at_hand = sum(map(sum, each)), sum(map(sum, during))
    once = joined * (fixed - ready.seconds.per_row * ready.rows) - (1 + MARGIN) * wait * (ready.sessions + at_hand)
    share = joined / len(laws)
    return once + (ready.sessions + joined) * max(0.0, 2 * fixed - (2 - share) * (fixed + wait))


away = st.integers(1, 400).map(lambda ticks: ticks / 10_000)
laws = st.lists(st.lists(away, min_size=KEPT, max_size=KEPT), min_size=1, max_size=6)


@settings(max_examples=50)
@given(laws=laws, sessions=st.integers(1, 8), seconds=st.sampled_from([FLAT, SLOPED, ROW_BY_ROW]))
def test_the_wait_is_worth_more_than_any_other(laws: Laws, sessions: int, seconds: StepSeconds) -> None:
    ready = Ready(sessions, 3 * sessions, seconds)
    waits = taught(*laws, until=0.0).wait(ready, 0.0)
    longest = min(LONGEST_SHARE * seconds.fixed, seconds.of(ready.rows))
    late = [[(1 + LATE) * each for each in law] for law in laws]
    others = [worth(late, ready, each) for law in late for each in law if each <= longest]
    assert 0 <= waits <= longest
    assert (worth(late, ready, waits) if waits else 0.0) == pytest.approx(max([0.0, *others]), abs=1e-9)


@settings(max_examples=30)
@given(st.lists(st.floats(0.0005, 0.5), min_size=1, max_size=30), st.integers(1, 64))
def test_nobody_waits_for_those_who_come_by_chance(gaps: list[float], ready: int) -> None:
    """As often now as later: laws without a hump, whose mean is a step's seconds or more."""
    law = [0.018 * at / 4 for at in range(1, KEPT + 1)]
    gathering = taught(*([law] * len(gaps)))
    assert gathering.wait(Ready(ready, 3 * ready, FLAT), 100.0) == 0
