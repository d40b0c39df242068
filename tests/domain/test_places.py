"""The last places are kept: what an adversary with long answers can hold, and what others find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.places import is_owed, is_welcome, kept, most_of

Holdings = dict[str | None, tuple[int, float]]

weights = st.floats(0.1, 100.0)
places = st.integers(1, 300)


@pytest.mark.parametrize(("count", "last"), [(1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (64, 8), (256, 32)])
def test_an_eighth_of_the_places_is_kept(count: int, last: int) -> None:
    assert kept(count) == last


@pytest.mark.parametrize(
    ("tenant", "weight", "count", "most"),
    [("a", 1.0, 64, 56), ("a", 100.0, 64, 63), ("a", 1.0, 3, 3), ("", 1.0, 64, 64), (None, 1.0, 64, 64)],
)
def test_a_tenant_that_is_alone_never_has_the_kept_ones(
    tenant: str | None, weight: float, count: int, most: int
) -> None:
    assert most_of(tenant, weight, count) == most
    held: Holdings = {}
    while is_welcome(tenant, weight, 1, held=held, places=count):
        held[tenant] = held.get(tenant, (0, weight))[0] + 1, weight
    assert held[tenant][0] == most


def taken(held: Holdings, tenant: str, weight: float, counts: list[int], *, of: int) -> None:
    """The tenant asks for each of `counts` in turn, and keeps what it gets."""
    for count in counts:
        if is_welcome(tenant, weight, count, held=held, places=of):
            held[tenant] = held.get(tenant, (0, weight))[0] + count, weight


@given(of=places, weight=weights, counts=st.lists(st.integers(1, 300), max_size=400), mine=weights)
def test_whatever_an_adversary_asks_for_another_finds_the_kept_places(
    of: int, weight: float, counts: list[int], mine: float
) -> None:
    held: Holdings = {}
    taken(held, "adversary", weight, counts + [1] * of, of=of)
    assert held["adversary"][0] <= most_of("adversary", weight, of)
    if kept(of):
        assert is_welcome("other", mine, 1, held=held, places=of)


@given(asked=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40)), max_size=200), of=places)
def test_in_the_last_places_nobody_is_above_its_share(asked: list[tuple[str, int]], of: int) -> None:
    weighs = {name: 1.0 + index for index, name in enumerate("abcdef")}
    held: Holdings = {}
    for name, count in asked:
        before = sum(number for number, _ in held.values())
        taken(held, name, weighs[name], [count], of=of)
        after = sum(number for number, _ in held.values())
        assert after <= of
        if after > max(before, of - kept(of)):
            share = of * weighs[name] / (sum(weight for _, weight in held.values()) + 1)
            assert held[name][0] <= max(share, 1)


def test_where_nobody_has_a_name_no_place_is_kept() -> None:
    assert is_welcome("", 1.0, 1, held={"": (63, 1.0)}, places=64)
    assert is_welcome(None, 1.0, 1, held={"": (3, 1.0)}, places=4)
    assert not is_welcome(None, 1.0, 1, held={"": (4, 1.0)}, places=4)
    assert not is_welcome("", 1.0, 1, held={"": (40, 1.0), "a": (16, 1.0)}, places=64)


@pytest.mark.parametrize(
    ("tenant", "count", "places", "owed"),
    [("a", 21, 64, True), ("a", 22, 64, False), ("a", 2, 2, True), ("", 64, 64, True)],
)
def test_places_are_saved_for_what_takes_nobody_above_its_share(
    tenant: str, count: int, places: int, owed: bool
) -> None:
    assert is_owed(tenant, 1.0, count, held={"b": (40, 1.0)}, places=places) is owed
