"""Hashes against weights, units, and the least busy pod."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.policy import Assignment, PairRevision, Policy, RevisionName, RoleHash
from tandem_runtime.domain.routing import bucket_of, choose_revision, hash64, least_busy, unit_of


def policy_of(*weights: int) -> Policy:
    revisions = tuple(
        PairRevision(RevisionName(f"r{index}"), RoleHash("t"), None, weight) for index, weight in enumerate(weights)
    )
    return Policy(number=1, served_model_name="chat", salt="salt", revisions=revisions)


def test_hashes_are_the_first_eight_bytes_of_sha_256() -> None:
    # printf '' | sha256sum, printf abc | sha256sum
    assert hash64("") == 0xE3B0C44298FC1C14
    assert hash64("abc") == 0xBA7816BF8F01CFEA
    assert bucket_of("abc") == 0xEA % 128


def test_the_split_is_exactly_the_hash_against_the_weights() -> None:
    policy = policy_of(90, 10)
    for index in range(2000):
        share = hash64(f"{index}|salt") / 2**64
        assert choose_revision(policy, str(index)).name == ("r0" if share < 0.9 else "r1")


def test_weights_are_met_within_four_standard_errors() -> None:
    seen = Counter(choose_revision(policy_of(75, 20, 0, 5), str(index)).name for index in range(20_000))
    assert seen[RevisionName("r2")] == 0
    for name, share in (("r0", 0.75), ("r1", 0.2), ("r3", 0.05)):
        assert abs(seen[RevisionName(name)] / 20_000 - share) < 4 * (share * (1 - share) / 20_000) ** 0.5


@given(st.text(), st.integers(0, 99), st.integers(1, 100))
def test_a_growing_weight_keeps_the_units_it_has(unit: str, before: int, growth: int) -> None:
    after = min(100, before + growth)
    if choose_revision(policy_of(100 - before, before), unit).name == "r1":
        assert choose_revision(policy_of(100 - after, after), unit).name == "r1"


def test_buckets_are_independent_of_the_revision_chosen() -> None:
    policy = policy_of(50, 50)
    buckets = {bucket_of(str(index)) for index in range(4000) if choose_revision(policy, str(index)).name == "r1"}
    assert buckets == set(range(128))


@pytest.mark.parametrize(
    ("assignment", "session", "unit"),
    [
        (Assignment.REQUEST, "s", "request"),
        (Assignment.REQUEST, None, "request"),
        (Assignment.SESSION, "s", "s"),
        (Assignment.SESSION, None, "request"),
    ],
)
def test_the_unit_is_what_is_assigned(assignment: Assignment, session: str | None, unit: str) -> None:
    policy = replace(policy_of(100), assignment=assignment)
    assert unit_of(policy, request="request", session=session) == unit


@pytest.mark.parametrize(
    ("sessions", "barred", "chosen"),
    [
        ({}, (), None),
        ({"a": 3, "b": 1, "c": 2}, (), "b"),
        ({"b": 1, "a": 1}, (), "a"),
        ({"a": 0, "b": 5}, ("a",), "b"),
        ({"a": 0}, ("a", "z"), None),
    ],
)
def test_the_least_busy_pod_is_chosen(sessions: dict[str, int], barred: tuple[str, ...], chosen: str | None) -> None:
    assert least_busy(sessions, barred=barred) == chosen
