"""Hashes against weights, units, and which pod a session goes to."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.policy import Assignment, PairRevision, Policy, RevisionName, RoleHash
from tandem_runtime.domain.routing import (
    NEAR_SESSIONS,
    PREFIX_TOKENS,
    bucket_of,
    choose_pod,
    choose_revision,
    hash64,
    pin_of,
    unit_of,
)
from tandem_runtime.domain.tokens import TokenId


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
        ({"a": 6, "b": 3, "c": 7}, (), "b"),
        ({"a": 0, "b": 5}, ("a",), "b"),
        ({"a": 0}, ("a", "z"), None),
    ],
)
def test_a_pod_that_is_far_less_busy_is_chosen(
    sessions: dict[str, int], barred: tuple[str, ...], chosen: str | None
) -> None:
    assert choose_pod("any", sessions, barred=barred) == chosen


PODS = [f"pod-{number}" for number in range(4)]
PINS = [pin_of("acme", None, (number, 5, 6)) for number in range(400)]


def test_equal_pods_share_the_beginnings_evenly_and_each_keeps_its_own() -> None:
    chosen = [choose_pod(pin, dict.fromkeys(PODS, 0)) for pin in PINS]
    assert all(70 < chosen.count(pod) < 130 for pod in PODS)
    assert chosen == [choose_pod(pin, dict.fromkeys(reversed(PODS), 3)) for pin in PINS]


def test_a_pod_that_goes_moves_its_own_part_and_no_other() -> None:
    before = [choose_pod(pin, dict.fromkeys(PODS, 0)) for pin in PINS]
    after = [choose_pod(pin, dict.fromkeys(PODS[1:], 0)) for pin in PINS]
    assert all(then == now for then, now in zip(before, after, strict=True) if then != PODS[0])


def test_a_known_beginning_is_worth_two_sessions_and_no_third() -> None:
    home = choose_pod(PINS[0], dict.fromkeys(PODS, 0))
    busy = {pod: 1 + NEAR_SESSIONS if pod == home else 1 for pod in PODS}
    assert choose_pod(PINS[0], busy) == home
    assert choose_pod(PINS[0], {pod: count + (pod == home) for pod, count in busy.items()}) != home


def test_what_lies_behind_the_first_tokens_moves_nobody_and_all_before_does() -> None:
    prompt: tuple[TokenId, ...] = tuple(range(PREFIX_TOKENS))
    pin = pin_of("acme", None, prompt)
    assert pin == pin_of("acme", None, (*prompt, 7, 8))
    digest = AdapterDigest("sha256:1")
    others = [pin_of("acme", None, prompt[:-1]), pin_of("beta", None, prompt), pin_of("acme", digest, prompt)]
    assert len({pin, *others}) == 4
    assert pin_of("acme", None, (-1, 2**80))
