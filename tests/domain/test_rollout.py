"""Stages as a table: what moves a rollout, and what each stage wants."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain.decision import PodsWanted, Share
from tandem_operator.domain.progress import Rollout, Stage, Surge
from tandem_operator.domain.revision import Edition, Revision, Role, RoleHash
from tandem_operator.domain.rollout import (
    TRANSITIONS,
    Entry,
    Need,
    Signal,
    advance,
    canary_replicas,
    is_last,
    on_trial,
    pods,
    shares,
    step_of,
    surge_of,
)
from tandem_operator.domain.spec import Canary, CanaryStep, Draft, DraftMethod, Model, Spec, SurgeMode, Target

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
STEPS = (
    CanaryStep(percent=0, shadow=True, hold_seconds=120),
    CanaryStep(percent=10, hold_seconds=300),
    CanaryStep(percent=50, hold_seconds=600),
)
SPEC = Spec(
    target=Target(model=Model(uri="file:///t")), draft=Draft(method=DraftMethod.NONE), canary=Canary(steps=STEPS)
)
ENTRY = Entry(now=NOW, spec=SPEC, revision="v2", first_policy=4)
LATER = replace(ENTRY, now=NOW + timedelta(seconds=500))
TRIAL = Rollout(
    stage=Stage.STEPPING,
    revision="v2",
    step=1,
    started_at=NOW,
    step_started_at=NOW,
    deadline_at=NOW + timedelta(seconds=14400),
    first_policy=4,
)


def revision(target: str, draft: str | None) -> Revision:
    return Revision(target=RoleHash(target), draft=None if draft is None else RoleHash(draft))


@pytest.mark.parametrize(("stage", "signal"), sorted(set(product(Stage, Signal)) - TRANSITIONS.keys()))
def test_a_signal_that_is_not_in_the_table_changes_nothing(stage: Stage, signal: Signal) -> None:
    held = replace(TRIAL, stage=stage)
    assert advance(held, signal, LATER) == held


@pytest.mark.parametrize(("stage", "signal"), sorted(TRANSITIONS))
def test_a_signal_in_the_table_leads_where_the_table_says(stage: Stage, signal: Signal) -> None:
    assert advance(replace(TRIAL, stage=stage), signal, LATER).stage is TRANSITIONS[(stage, signal)]


def test_every_stage_is_reached_and_left_and_every_signal_is_used() -> None:
    assert set(TRANSITIONS.values()) == set(Stage)
    assert {stage for stage, _ in TRANSITIONS} == set(Stage)
    assert {signal for _, signal in TRANSITIONS} == set(Signal)


def test_a_new_canary_starts_with_nothing() -> None:
    expected = Rollout(
        stage=Stage.PREPARING,
        revision="v2",
        started_at=NOW,
        deadline_at=NOW + timedelta(seconds=14400),
        first_policy=4,
    )
    assert advance(Rollout(stage=Stage.STABLE), Signal.NEW, ENTRY) == expected
    assert advance(replace(TRIAL, revision="v1"), Signal.NEW, ENTRY) == expected


def test_a_first_rollout_has_its_own_deadline() -> None:
    assert advance(Rollout(), Signal.FIRST, ENTRY).deadline_at == NOW + timedelta(seconds=7200)


def test_a_passed_step_goes_on_with_the_next_one_under_the_same_deadline() -> None:
    after = advance(TRIAL, Signal.PASSED, LATER)
    assert after == replace(TRIAL, stage=Stage.PREPARING, step=2, step_started_at=None)
    ready = advance(after, Signal.READY, LATER)
    assert ready == replace(after, stage=Stage.STEPPING, step_started_at=LATER.now)


def test_waiting_for_a_human_does_not_use_up_the_deadline() -> None:
    paused = advance(TRIAL, Signal.PASSED_AND_WAITS, ENTRY)
    after = advance(paused, Signal.PROMOTED, LATER)
    assert TRIAL.deadline_at is not None
    assert (after.step, after.deadline_at) == (2, TRIAL.deadline_at + timedelta(seconds=500))


def test_the_end_of_a_canary_leaves_nothing_behind() -> None:
    assert advance(TRIAL, Signal.ENDED, LATER) == Rollout(stage=Stage.STABLE)


def halves(stable: int, canary: int) -> list[Share]:
    return [Share(revision="v1", weight=stable), Share(revision="v2", weight=canary)]


WEIGHTS = [
    (Rollout(stage=Stage.INSTALLING, revision="v1"), [Share(revision="v1", weight=100)]),
    (Rollout(stage=Stage.STABLE), [Share(revision="v1", weight=100)]),
    (replace(TRIAL, stage=Stage.PREPARING, step=0), halves(100, 0)),
    (replace(TRIAL, step=0), [Share(revision="v1", weight=100), Share(revision="v2", weight=0, shadow=True)]),
    (replace(TRIAL, stage=Stage.PREPARING, step=2), halves(90, 10)),
    (TRIAL, halves(90, 10)),
    (replace(TRIAL, stage=Stage.PAUSED), halves(90, 10)),
    (
        replace(TRIAL, stage=Stage.COMPLETING, step=2),
        halves(50, 50),
    ),
    (
        replace(TRIAL, step=7),
        halves(50, 50),
    ),  # steps were edited away
]


@pytest.mark.parametrize(("rollout", "expected"), WEIGHTS)
def test_a_stage_has_its_weights(rollout: Rollout, expected: list[Share]) -> None:
    assert list(shares(rollout, "v1", SPEC.canary, warm=True)) == expected


def test_a_rollback_moves_the_weight_when_the_old_target_is_warm_and_takes_speculation_away_at_once() -> None:
    back = Rollout(stage=Stage.RETURNING, revision="v0")
    gone = Share(revision="v1", weight=0, speculate=False)
    assert shares(back, "v1", SPEC.canary, warm=True) == (gone, Share(revision="v0", weight=100))
    assert shares(back, "v1", SPEC.canary, warm=False) == (replace(gone, weight=100), Share(revision="v0", weight=0))


@given(st.sampled_from(Stage), st.integers(0, 5), st.booleans())
def test_weights_always_add_up_to_a_hundred(stage: Stage, step: int, warm: bool) -> None:
    found = shares(replace(TRIAL, stage=stage, step=step), "v1", SPEC.canary, warm=warm)
    assert sum(share.weight for share in found) == 100


@pytest.mark.parametrize(
    ("step", "stage", "full", "expected"),
    [
        (0, Stage.STEPPING, 4, 1),
        (1, Stage.STEPPING, 4, 1),
        (1, Stage.STEPPING, 21, 3),
        (2, Stage.PREPARING, 5, 3),
        (2, Stage.COMPLETING, 5, 5),
        (1, Stage.STEPPING, 0, 0),
    ],
)
def test_a_step_needs_its_part_of_the_pods_and_full_size_before_everything(
    step: int, stage: Stage, full: int, expected: int
) -> None:
    assert canary_replicas(replace(TRIAL, step=step, stage=stage), SPEC.canary, full) == expected


V1, ANOTHER_DRAFT, ANOTHER_TARGET = revision("t", "d1"), revision("t", "d2"), revision("t2", "d1")


@pytest.mark.parametrize(
    ("canary", "asked", "expected"),
    [
        (ANOTHER_DRAFT, SurgeMode.AUTO, Surge.SHARED_TARGET),
        (ANOTHER_DRAFT, SurgeMode.SIDE_BY_SIDE, Surge.SHARED_TARGET),
        (ANOTHER_DRAFT, SurgeMode.IN_PLACE_DRAFT, Surge.IN_PLACE_DRAFT),
        (revision("t", None), SurgeMode.IN_PLACE_DRAFT, Surge.SHARED_TARGET),
        (ANOTHER_TARGET, SurgeMode.AUTO, Surge.SIDE_BY_SIDE),
        (ANOTHER_TARGET, SurgeMode.IN_PLACE_DRAFT, Surge.SIDE_BY_SIDE),
        (ANOTHER_TARGET, SurgeMode.RECREATE, Surge.RECREATE),
        (ANOTHER_DRAFT, SurgeMode.RECREATE, Surge.IN_PLACE_DRAFT),
        (revision("t", None), SurgeMode.RECREATE, Surge.SHARED_TARGET),
        (replace(V1, edition=Edition(gateway=2)), SurgeMode.IN_PLACE_DRAFT, Surge.SHARED_TARGET),
    ],
)
def test_a_draft_alone_shares_the_target_or_takes_the_place_of_stables(
    canary: Revision, asked: SurgeMode, expected: Surge
) -> None:
    assert surge_of(V1, canary, asked) is expected


IN_PLACE = replace(TRIAL, stage=Stage.PREPARING, surge=Surge.IN_PLACE_DRAFT, step=0)


def test_a_canary_in_place_begins_anew_and_remembers_under_which_policy_stable_gave_way() -> None:
    crowded = replace(TRIAL, stage=Stage.PREPARING, step_started_at=None, unschedulable_since=NOW, room_made_at=NOW)
    assert advance(crowded, Signal.IN_PLACE, replace(LATER, surge=Surge.RECREATE)).surge is Surge.RECREATE
    gathering = advance(crowded, Signal.IN_PLACE, LATER)
    expected = replace(crowded, stage=Stage.GATHERING, surge=Surge.IN_PLACE_DRAFT, step=0, unschedulable_since=None)
    assert gathering == expected
    clearing = advance(gathering, Signal.RECORDED, replace(LATER, first_policy=9))
    assert clearing == replace(expected, stage=Stage.CLEARING, gave_way=9)
    assert advance(clearing, Signal.CLEARED, LATER) == replace(clearing, stage=Stage.PREPARING)


def test_a_canary_in_place_has_one_step_and_its_pods_only_after_stables_went() -> None:
    assert step_of(IN_PLACE, SPEC.canary) == CanaryStep(percent=90, hold_seconds=600)
    assert step_of(replace(IN_PLACE, surge=Surge.RECREATE), SPEC.canary).percent == 100
    assert is_last(IN_PLACE, SPEC.canary)
    counts = [canary_replicas(replace(IN_PLACE, stage=stage), SPEC.canary, 3) for stage in _IN_ORDER]
    assert counts == [0, 0, 3, 3, 3]


def test_stable_speculates_until_it_has_given_way() -> None:
    held = [replace(IN_PLACE, stage=stage, gave_way=9) for stage in _IN_ORDER]
    found = [shares(now, "v1", SPEC.canary, warm=True) for now in (replace(held[0], gave_way=None), *held[1:])]
    told = [(stable.weight, stable.speculate, canary.weight) for stable, canary in found]
    assert told == [(100, True, 0), (100, False, 0), (100, False, 0), (10, False, 90), (10, False, 90)]


_IN_ORDER = (Stage.GATHERING, Stage.CLEARING, Stage.PREPARING, Stage.STEPPING, Stage.COMPLETING)


def test_pods_are_wanted_per_role_hash_and_the_most_that_anyone_asks_for() -> None:
    stable, canary = Need("v1", revision("t", "d1"), 4, 2), Need("v2", revision("t", "d2"), 1, 1)
    assert pods([stable, canary]) == (
        PodsWanted(role=Role.TARGET, role_hash=RoleHash("t"), replicas=4, revision="v1"),
        PodsWanted(role=Role.DRAFT, role_hash=RoleHash("d1"), replicas=2, revision="v1"),
        PodsWanted(role=Role.DRAFT, role_hash=RoleHash("d2"), replicas=1, revision="v2"),
    )
    assert [
        wanted.replicas
        for wanted in pods([Need("v1", revision("t", None), 0, 9), Need("v0", revision("t", None), 3, 9)])
    ] == [3]


def test_steps_that_were_edited_away_leave_the_last_one() -> None:
    assert step_of(replace(TRIAL, step=9), SPEC.canary) == STEPS[-1]
    assert on_trial(TRIAL)
    assert not on_trial(Rollout(stage=Stage.RETURNING))
