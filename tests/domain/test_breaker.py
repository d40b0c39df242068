"""The breaker as tables: what trips it, what brings it back, what nothing moves."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain.breaker import TRANSITIONS, Facts, Turn, released, turn
from tandem_operator.domain.intervals import Estimate, ratio
from tandem_operator.domain.progress import Breaker, SpeculationReason, SpeculationState
from tandem_operator.domain.spec import AutoDisable, SpeculationMode

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
MARKS = AutoDisable()
QUIET = Facts(now=NOW, marks=MARKS, revision="r", next_policy=9)
LONG_AGO = NOW - timedelta(hours=2)
ACTIVE = Breaker(revision="r", since=LONG_AGO, draft_seen=True, draft_ready_since=LONG_AGO)
DISABLED = replace(
    ACTIVE,
    state=SpeculationState.DISABLED,
    reason=SpeculationReason.ACCEPTANCE_LOW,
    since=NOW - timedelta(seconds=700),
    next_try_at=NOW - timedelta(seconds=100),
)
PROBING = replace(ACTIVE, state=SpeculationState.PROBING, reason=SpeculationReason.TRYING_AGAIN)


def at(value: float, error: float = 0.005) -> Estimate:
    return Estimate(value, error**2, 100)


def speed(value: float) -> Estimate:
    return at(math.log(value), 0.002)


TRIPS = [
    ({"acceptance": at(0.28), "requests": 50}, "AcceptanceLow"),
    ({"acceptance": at(0.28), "requests": 49}, None),  # too few requests
    ({"acceptance": at(0.29), "requests": 500}, None),  # not below 0.30 by three standard errors
    ({"acceptance": at(0.28, 0.01), "requests": 500}, None),
    ({"speedup": speed(0.98)}, "SpeedupLow"),
    ({"speedup": speed(0.985)}, None),
    ({"memory_basis_points": 9201}, "MemoryPressure"),
    ({"memory_basis_points": 9200}, None),
    ({"kv_basis_points": 9900, "preempting": False}, None),  # a full KV cache alone is a busy server
    ({"kv_basis_points": 9900, "preempting": True}, "MemoryPressure"),
    ({"served": 50, "rounds": 1000, "speculating": 99}, "RuntimeAtZero"),
    ({"served": 50, "rounds": 1000, "speculating": 100}, None),
    ({"served": 49, "rounds": 1000, "speculating": 0}, None),
    ({"served": 50, "rounds": 0, "speculating": 0}, None),  # nothing decoded is no evidence
    ({}, None),
]


def test_a_runtime_without_a_draft_has_not_chosen_k_zero() -> None:
    """It came up, or came back, within the window: what it shows is of a time in which nothing could be proposed."""
    idle = replace(QUIET, served=500, rounds=9000, speculating=0)
    for back in (ACTIVE, PROBING):
        absent = replace(back, draft_ready_since=None)
        assert turn(absent, idle) == replace(back, draft_ready_since=NOW)
        assert turn(replace(absent, draft_seen=False), replace(idle, draft_ready=False)).state is back.state
        lately = replace(back, draft_ready_since=NOW - timedelta(seconds=MARKS.window_seconds - 1))
        assert turn(lately, idle) == lately


def test_a_probe_ends_where_the_runtime_sees_no_gain_however_well_its_few_proposals_do() -> None:
    idle = replace(QUIET, served=500, rounds=1000, speculating=20, acceptance=at(0.9), requests=60)
    after = turn(PROBING, idle)
    assert (after.state, after.reason) == (SpeculationState.DISABLED, SpeculationReason.RUNTIME_AT_ZERO)
    assert after.note == "the runtime chose K = 0 in 98% of 1000 rounds that might have speculated"
    assert after.failed_returns == PROBING.failed_returns + 1
    assert turn(PROBING, replace(idle, speculating=900)).state is SpeculationState.ACTIVE
    assert turn(PROBING, replace(idle, mode=SpeculationMode.ALWAYS)).state is SpeculationState.ACTIVE


def test_c21_an_adapter_that_no_guess_of_the_draft_suits_does_not_switch_it_off_for_all() -> None:
    """vLLM PR 11966: ten rounds each, of 40 requests with 4 tokens accepted, of 20 with one rejection."""
    requests = [(40, 40), (0, 10), (40, 40)] * 20
    pooled = ratio([accepted for accepted, _ in requests], [examined for _, examined in requests])
    assert pooled is not None
    assert pooled.value == pytest.approx(1600 / 1800)
    assert turn(ACTIVE, replace(QUIET, acceptance=pooled, requests=60)) == ACTIVE


@pytest.mark.parametrize(("facts", "reason"), TRIPS)
def test_only_clear_evidence_trips(facts: dict[str, object], reason: str | None) -> None:
    after = turn(ACTIVE, replace(QUIET, **facts))  # type: ignore[arg-type] # fields by name
    if reason is None:
        assert after == ACTIVE
    else:
        assert (after.state, after.reason, after.since) == (SpeculationState.DISABLED, reason, NOW)
        assert after.next_try_at == NOW + timedelta(seconds=600)
        assert after.flips == (NOW,)
        assert any(character.isdigit() for character in after.note)


def test_a_draft_that_is_gone_trips_after_a_while_and_one_that_starts_does_not() -> None:
    gone = replace(QUIET, draft_ready=False)
    watched = turn(ACTIVE, gone)
    assert (watched.state, watched.draft_missing_since) == (SpeculationState.ACTIVE, NOW)
    later = replace(gone, now=NOW + timedelta(seconds=15))
    assert turn(watched, later).reason is SpeculationReason.DRAFT_UNAVAILABLE
    starting = replace(ACTIVE, draft_seen=False)
    assert turn(turn(starting, gone), later).state is SpeculationState.ACTIVE


def test_a_draft_that_gave_way_is_not_missing_and_starts_again_when_it_comes_back() -> None:
    away = replace(QUIET, draft_ready=False, draft_away=True)
    watched = turn(ACTIVE, away)
    assert turn(watched, replace(away, now=NOW + timedelta(hours=1))) == watched
    assert (watched.state, watched.draft_seen, watched.draft_missing_since) == (SpeculationState.ACTIVE, False, None)
    assert turn(watched, replace(QUIET, draft_ready=False)).draft_missing_since is None
    assert turn(DISABLED, away).state is SpeculationState.DISABLED  # a probe would find nothing to try


def test_always_heeds_what_breaks_serving_and_nothing_else() -> None:
    always = replace(QUIET, mode=SpeculationMode.ALWAYS, requests=100)
    assert turn(ACTIVE, replace(always, acceptance=at(0.1))).state is SpeculationState.ACTIVE
    assert turn(ACTIVE, replace(always, memory_basis_points=9900)).state is SpeculationState.DISABLED


RETURNS = [
    (DISABLED, {}, "Probing"),
    (DISABLED, {"shadow": at(0.41)}, "Probing"),
    (DISABLED, {"shadow": at(0.35)}, "Disabled"),  # between the marks nothing changes
    (replace(DISABLED, next_try_at=NOW + timedelta(seconds=1)), {"shadow": at(0.9)}, "Disabled"),
    (replace(DISABLED, reason=SpeculationReason.MEMORY_PRESSURE), {"memory_basis_points": 8500}, "Disabled"),
    (replace(DISABLED, reason=SpeculationReason.MEMORY_PRESSURE), {"memory_basis_points": 7900}, "Probing"),
    (replace(DISABLED, reason=SpeculationReason.DRAFT_UNAVAILABLE), {"draft_ready": False}, "Disabled"),
    (replace(DISABLED, reason=SpeculationReason.DRAFT_UNAVAILABLE), {"draft_ready": True}, "Probing"),
    (PROBING, {}, "Probing"),
    (PROBING, {"acceptance": at(0.45, 0.02), "requests": 49}, "Probing"),
    (PROBING, {"acceptance": at(0.45, 0.02), "requests": 50}, "Active"),
    (PROBING, {"acceptance": at(0.39, 0.02), "requests": 50}, "Disabled"),
    (PROBING, {"acceptance": at(0.75, 0.04), "requests": 20}, "Active"),  # clear by three standard errors
    (PROBING, {"acceptance": at(0.15, 0.04), "requests": 20}, "Disabled"),
    (PROBING, {"acceptance": Estimate(0.75, 0.0016, 15), "requests": 20}, "Probing"),  # of too few buckets to be sure
    (PROBING, {"acceptance": at(0.45), "requests": 50, "speedup": speed(1.0)}, "Disabled"),
    (PROBING, {"acceptance": at(0.45), "requests": 50, "speedup": speed(1.2)}, "Active"),
    (PROBING, {"memory_basis_points": 9500}, "Disabled"),
]


@pytest.mark.parametrize(("before", "facts", "state"), RETURNS)
def test_it_comes_back_when_that_would_pay(before: Breaker, facts: dict[str, object], state: str) -> None:
    assert turn(before, replace(QUIET, **facts)).state == state  # type: ignore[arg-type] # fields by name


def test_each_failed_return_doubles_the_cool_down_up_to_eight_times() -> None:
    waits = []
    held = PROBING
    for _ in range(5):
        held = turn(replace(held, state=SpeculationState.PROBING), replace(QUIET, acceptance=at(0.1), requests=99))
        assert held.next_try_at is not None
        waits.append((held.next_try_at - NOW).total_seconds() / MARKS.cooldown_seconds)
    assert waits == [2, 4, 8, 8, 8]
    assert (
        turn(
            replace(held, state=SpeculationState.PROBING), replace(QUIET, acceptance=at(0.9), requests=99)
        ).failed_returns
        == 0
    )


def test_too_many_flips_within_a_day_are_the_last() -> None:
    flips = tuple(NOW - timedelta(hours=hours) for hours in (6, 5, 4, 3, 2, 1))
    low = replace(QUIET, acceptance=at(0.1), requests=99)
    after = turn(replace(ACTIVE, flips=flips), low)
    assert (after.state, after.reason) == (SpeculationState.OFF, SpeculationReason.TOO_MANY_FLIPS)
    old = (NOW - timedelta(hours=25), *flips[1:])
    assert turn(replace(ACTIVE, flips=old), low).state is SpeculationState.DISABLED
    assert turn(after, replace(QUIET, now=NOW + timedelta(days=3))) == after
    assert turn(after, replace(QUIET, switch=True)).state is SpeculationState.ACTIVE
    assert turn(after, replace(QUIET, revision="r2")).state is SpeculationState.ACTIVE


BARRED = [
    ({"switch": False}, "Commanded"),
    ({"mode": SpeculationMode.OFF}, "ModeOff"),
    ({"draft_ready": None}, "NoDraft"),
    ({"compatible": False}, "ModelsIncompatible"),
]


@pytest.mark.parametrize(("facts", "reason"), BARRED)
@pytest.mark.parametrize("before", [ACTIVE, DISABLED, PROBING])
def test_what_bars_speculation_wins_everywhere_and_lifts_at_once(
    before: Breaker, facts: dict[str, object], reason: str
) -> None:
    after = turn(before, replace(QUIET, **facts))  # type: ignore[arg-type] # fields by name
    assert (after.state, after.reason) == (SpeculationState.OFF, reason)
    lifted = turn(after, replace(QUIET, switch=True if reason == "Commanded" else None))
    assert lifted.state is SpeculationState.ACTIVE


def test_off_by_command_outlives_a_new_revision() -> None:
    off = turn(ACTIVE, replace(QUIET, switch=False))
    assert turn(off, replace(QUIET, revision="r2")).reason is SpeculationReason.COMMANDED


def test_a_new_revision_is_judged_afresh() -> None:
    after = turn(DISABLED, replace(QUIET, revision="r2"))
    assert after == Breaker(revision="r2", since=NOW, first_policy=9, draft_seen=True, draft_ready_since=NOW)


def test_drafts_are_released_after_a_long_pause_and_get_a_cool_down_of_their_own() -> None:
    since = NOW - timedelta(seconds=3600)
    held = replace(DISABLED, since=since, next_try_at=since + timedelta(seconds=600))
    assert released(held, MARKS, NOW)
    assert not released(held, MARKS, NOW - timedelta(seconds=1))
    assert not released(held, replace(MARKS, release_draft_after_seconds=0), NOW)
    assert not released(replace(held, state=SpeculationState.PROBING), MARKS, NOW)
    away = replace(QUIET, draft_ready=False)
    assert turn(held, away).state is SpeculationState.DISABLED
    back = turn(held, replace(away, now=NOW + timedelta(seconds=600)))
    assert (back.state, back.draft_missing_since) == (SpeculationState.PROBING, None)
    assert turn(back, replace(away, now=NOW + timedelta(seconds=900))).state is SpeculationState.PROBING


facts_of = st.builds(
    Facts,
    now=st.just(NOW),
    marks=st.just(MARKS),
    revision=st.sampled_from(["r", "r2"]),
    next_policy=st.just(9),
    mode=st.sampled_from(list(SpeculationMode)),
    compatible=st.booleans(),
    draft_ready=st.sampled_from([True, False, None]),
    acceptance=st.none() | st.floats(0, 1).map(at),
    requests=st.integers(0, 200),
    served=st.integers(0, 200),
    shadow=st.none() | st.floats(0, 1).map(at),
    speedup=st.none() | st.floats(0.5, 2).map(speed),
    rounds=st.just(1000),
    speculating=st.integers(0, 1000),
    memory_basis_points=st.none() | st.integers(0, 10000),
    switch=st.sampled_from([True, False, None]),
)


@given(st.sampled_from([ACTIVE, DISABLED, PROBING]), facts_of)
def test_every_turn_is_in_the_table_and_the_same_look_turns_once(before: Breaker, facts: Facts) -> None:
    after = turn(before, facts)
    steps = {(state, following) for (state, _), following in TRANSITIONS.items()}
    start = before.state if before.revision == facts.revision else SpeculationState.ACTIVE
    assert start is after.state or (start, after.state) in steps
    assert turn(after, replace(facts, switch=None)).commanded_off is after.commanded_off


def test_every_state_can_be_left_and_every_turn_is_used() -> None:
    assert {state for state, _ in TRANSITIONS} == set(SpeculationState)
    assert {signal for _, signal in TRANSITIONS} == set(Turn)
