"""Whose turn it is in a step, and who gives way to whom when KV memory is short."""

from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.batching import Claim, Holder, Rank, Shares, gives_way, ranks
from tandem_runtime.domain.tokens import Priority

PATIENCE = 1.0
INTERACTIVE, BATCH, BACKGROUND = Priority

# Memory ---------------------------------------------------------------------------------------------------------------


def rank(number: int, priority: Priority = INTERACTIVE) -> Rank:
    return priority, 1.0, number


def at_work(number: int, priority: Priority = INTERACTIVE) -> Holder:
    return Holder(number, rank(number, priority), None)


def parked(number: int, seconds: float, priority: Priority = INTERACTIVE) -> Holder:
    return Holder(number, rank(number, priority), seconds)


CASES = {
    "nobody is there": ([], None),
    "an earlier one at work stays": ([at_work(1)], None),
    "a later one at work goes": ([at_work(1), at_work(3)], 3),
    "the latest of those at work goes first": ([at_work(4), at_work(6), at_work(5)], 6),
    "an earlier one that has just been parked stays": ([parked(1, 0.5)], None),
    "an earlier one that is parked for long goes": ([parked(1, 1.0)], 1),
    "a later one that has just been parked goes": ([parked(3, 0.0)], 3),
    "the parked go before those at work": ([at_work(6), parked(3, 0.1)], 3),
    "who is parked longest goes first": ([parked(3, 0.1), parked(4, 0.3), parked(1, 2.0), parked(5, 0.2)], 1),
    "a less urgent one goes, however early": ([at_work(1, BATCH)], 1),
    "a less urgent one at work goes before a parked one": ([parked(3, 9.0), at_work(1, BATCH)], 1),
    "the least urgent goes first": ([at_work(9, BATCH), at_work(1, BACKGROUND)], 1),
}


@pytest.mark.parametrize(("others", "expected"), CASES.values(), ids=CASES)
def test_memory_is_taken_from(others: list[Holder], expected: int | None) -> None:
    assert gives_way(rank(2), others, patience_seconds=PATIENCE) == expected


def test_what_is_less_urgent_takes_no_memory_of_what_is_more_urgent_and_at_work() -> None:
    others = [at_work(5), parked(6, 0.5), at_work(7, BATCH)]
    assert gives_way(rank(2, BACKGROUND), others, patience_seconds=PATIENCE) is None


def test_first_sessions_of_all_tenants_come_before_all_second_ones() -> None:
    claims = {1: Claim("a"), 2: Claim("a"), 3: Claim("a"), 4: Claim("b"), 5: Claim("a", priority=BATCH), 6: Claim()}
    ranked = ranks(claims)
    assert sorted(ranked, key=ranked.__getitem__) == [1, 4, 6, 2, 3, 5]


def test_a_tenant_that_weighs_twice_as_much_has_two_sessions_before_anothers_second() -> None:
    claims = {1: Claim("a"), 2: Claim("a"), 3: Claim("b", 2.0), 4: Claim("b", 2.0), 5: Claim("b", 2.0)}
    ranked = ranks(claims)
    assert sorted(ranked, key=ranked.__getitem__) == [3, 1, 4, 5, 2]


TENANTS = st.sampled_from(["a", "b", "c", None])
CLAIMS = st.builds(Claim, TENANTS, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from(Priority))


@st.composite
def holders(draw: st.DrawFn) -> list[Holder]:
    claims = draw(st.dictionaries(st.integers(1, 9), CLAIMS, min_size=1))
    ranked = ranks(claims)
    return [Holder(number, ranked[number], draw(st.none() | st.floats(0, 3))) for number in claims]


@given(holders())
def test_the_first_at_work_gets_everything_once_patience_has_run_out(all_of_them: list[Holder]) -> None:
    first, *others = sorted(all_of_them, key=lambda holder: holder.rank)
    left = [Holder(other.number, other.rank, None if other.parked_seconds is None else PATIENCE) for other in others]
    while left:
        number = gives_way(first.rank, left, patience_seconds=PATIENCE)
        assert number in {other.number for other in left}
        left = [other for other in left if other.number != number]


@given(holders())
def test_of_two_at_work_the_first_never_gives_way_to_the_other(all_of_them: list[Holder]) -> None:
    asker, *others = all_of_them
    number = gives_way(asker.rank, others, patience_seconds=PATIENCE)
    taken = [other for other in others if other.number == number]
    assert all(other.parked_seconds is not None or other.rank > asker.rank for other in taken)


@given(st.dictionaries(st.integers(1, 9), CLAIMS, min_size=2), st.data())
def test_a_session_that_is_opened_moves_no_two_others(claims: dict[int, Claim], data: st.DataObject) -> None:
    before = ranks(claims)
    after = ranks(claims | {10: data.draw(CLAIMS)})
    del after[10]
    assert after == before


# Turns ----------------------------------------------------------------------------------------------------------------

Piece = tuple[str, int]
"""The tenant, and the rows."""


def step(shares: Shares, waiting: Sequence[Piece], claims: dict[str, Claim], *, room: int) -> list[Piece]:
    """The pieces that fit, in turn."""
    served = []
    for tenant, rows in shares.turns((piece[0], piece) for piece in waiting):
        if rows <= room:
            room -= rows
            shares.charge(claims[tenant], rows)
            served.append((tenant, rows))
    return served


EQUAL = {name: Claim(name) for name in "abc"}


def test_the_turn_goes_to_whom_least_was_computed_for() -> None:
    shares = Shares()
    assert step(shares, [("a", 4), ("a", 4), ("a", 4), ("b", 3), ("b", 3)], EQUAL, room=14) == [
        ("a", 4),
        ("b", 3),
        ("b", 3),
        ("a", 4),
    ]


def test_what_does_not_fit_lets_a_smaller_one_pass_and_has_the_next_turn() -> None:
    shares = Shares()
    waiting = [("a", 9), ("b", 2), ("b", 2)]
    assert step(shares, waiting, EQUAL, room=5) == [("b", 2), ("b", 2)]
    assert step(shares, waiting, EQUAL, room=11) == [("a", 9), ("b", 2)]


def test_who_comes_from_idleness_has_saved_up_nothing() -> None:
    shares = Shares()
    for _ in range(100):
        step(shares, [("a", 5)], EQUAL, room=5)
    served = [step(shares, [("a", 5), ("b", 5)], EQUAL, room=5)[0][0] for _ in range(20)]
    assert Counter(served) == {"a": 10, "b": 10}


def test_who_leaves_for_a_moment_comes_back_with_the_debt_that_it_left() -> None:
    shares = Shares()
    step(shares, [("a", 20), ("b", 1)], EQUAL, room=21)
    step(shares, [("b", 1)], EQUAL, room=1)
    served = [step(shares, [("a", 5), ("b", 5)], EQUAL, room=5)[0][0] for _ in range(5)]
    assert served == ["b"] * 4 + ["a"]


def test_a_step_in_which_nobody_waits_forgives_no_debt() -> None:
    shares = Shares()
    step(shares, [("a", 20), ("b", 1)], EQUAL, room=21)
    step(shares, [], EQUAL, room=9)
    assert step(shares, [("a", 5), ("b", 5)], EQUAL, room=5) == [("b", 5)]


def test_a_tenant_that_is_gone_and_overtaken_is_forgotten() -> None:
    shares = Shares()
    for name in range(1000):
        step(shares, [(f"{name}", 1)], {f"{name}": Claim(f"{name}")}, room=1)
    assert len(shares._counters) <= 2


@st.composite
def crowds(draw: st.DrawFn) -> tuple[dict[str, Claim], dict[str, int], int, int]:
    """Tenants with weights, how many sessions each has, the largest piece, and the room of a step."""
    names = "abc"[: draw(st.integers(2, 3))]
    claims = {name: Claim(name, draw(st.sampled_from([0.5, 1.0, 2.0, 5.0]))) for name in names}
    largest, room = draw(st.integers(1, 32)), draw(st.integers(32, 64))
    sessions = {name: draw(st.integers(room, 2 * room)) for name in names}
    return claims, sessions, largest, room


@given(crowds(), st.randoms(use_true_random=False))
def test_between_tenants_whose_work_always_waits_the_difference_stays_bounded(
    crowd: tuple[dict[str, Claim], dict[str, int], int, int], chance: "object"
) -> None:
    claims, sessions, largest, room = crowd
    shares, computed, numbers = Shares(), Counter[str](), count()
    waiting = [(name, next(numbers)) for name, several in sessions.items() for _ in range(several)]
    sizes = {number: chance.randint(1, largest) for _, number in waiting}  # type: ignore[attr-defined]
    for _ in range(40):
        left, served = room, set()
        for name, number in shares.turns((name, (name, number)) for name, number in waiting):
            if sizes[number] <= left:
                left -= sizes[number]
                shares.charge(claims[name], sizes[number])
                computed[name] += sizes[number]
                served.add(number)
                sizes[number] = chance.randint(1, largest)  # type: ignore[attr-defined]
        waiting = [each for each in waiting if each[1] not in served] + [each for each in waiting if each[1] in served]
        assert left < largest, "there is room for another piece"
        for one in claims:
            for other in claims:
                v, w = claims[one].weight, claims[other].weight
                assert computed[one] / v - computed[other] / w <= 2 * largest * (1 / v + 1 / w)


@given(crowds())
def test_every_session_has_its_turn(crowd: tuple[dict[str, Claim], dict[str, int], int, int]) -> None:
    """However many sessions the others have: in as many steps as its tenant's sessions take alone, and the share's."""
    claims, sessions, largest, room = crowd
    shares, unserved = Shares(), {(name, at) for name in sessions for at in range(sessions[name])}
    waiting = [(name, (name, at)) for name, several in sessions.items() for at in range(several)]
    total = sum(claim.weight for claim in claims.values())
    most = max(several * total / claims[name].weight for name, several in sessions.items())
    for _ in range(int(most * largest / (room - largest + 1)) + 10):
        left, served = room, []
        for name, at in shares.turns(waiting):
            if largest <= left:
                left -= largest
                shares.charge(claims[name], largest)
                served.append((name, (name, at)))
        unserved -= {session for _, session in served}
        waiting = [each for each in waiting if each not in served] + served
    assert not unserved
