"""Canaries that do well on the whole and badly for some; and speculation that is off for some by the resource."""

import json
from typing import Any

import pytest
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import Behaviour, World, installed, push
from tests.scenarios.story_views import checks, served

from tandem_operator.domain import evidence

GREEDY = {"name": "greedy", "temperature": "Greedy"}
BATCH = {"name": "batch", "tenants": ["nightly", "reports"]}
ANALYSIS: dict[str, Any] = QUICK["canary"]["analysis"]
WATCHED = changed(QUICK, canary__analysis={**ANALYSIS, "segments": [GREEDY, BATCH]})


def watched(shares: dict[str, float], *, rate: float = 20) -> World:
    world = installed(WATCHED, rate=rate)
    world.segments = shares
    return world


def test_a_canary_that_is_fine_on_the_whole_and_bad_in_one_segment_is_refused_and_the_segment_named() -> None:
    world = watched({"greedy": 0.3, "batch": 0.15})
    v1 = world.stable
    v2 = push(world, V2, Behaviour(acceptance=0.9, speedup=1.9, within={"batch": 0.5}))
    world.run_until(lambda seen: seen.progress.refused == v2)
    assert (world.stable, served(world), world.verdicts()[v2]) == (v1, {v1: 100}, "Bad")
    assert world.condition("RolledBack") == ("True", "SegmentsFailed")
    assert "segments (batch) -0." in world.message("RolledBack")


def test_the_same_canary_is_promoted_where_nobody_asks_about_segments() -> None:
    world = installed(QUICK, rate=20)
    world.segments = {"greedy": 0.3, "batch": 0.15}
    v2 = push(world, V2, Behaviour(acceptance=0.9, speedup=1.9, within={"batch": 0.5}))
    world.run_until(lambda seen: seen.stable == v2)


def test_a_canary_that_is_as_good_in_every_segment_is_promoted_and_status_names_the_worst() -> None:
    world = watched({"greedy": 0.4, "batch": 0.3})
    v2 = push(world, V2, Behaviour(acceptance=0.82, speedup=1.7))
    world.run_until(lambda seen: "segments" in checks(seen) and checks(seen)["segments"]["verdict"] == "Pass")
    assert checks(world)["segments"]["segment"] in ("greedy", "batch")
    world.run_until(lambda seen: seen.stable == v2)


def test_a_segment_with_hardly_any_traffic_holds_nobody_up() -> None:
    world = watched({"greedy": 0.4, "batch": 0.001})
    v2 = push(world, V2, Behaviour(acceptance=0.82, speedup=1.7))
    world.run_until(lambda seen: seen.stable == v2)


def test_a_canary_whose_evidence_outgrows_what_can_be_saved_ends_with_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "MOST_BYTES", 12_000)
    world = watched({"greedy": 0.4, "batch": 0.3})
    v1 = world.stable
    v2 = push(world, V2, Behaviour(acceptance=0.82, speedup=1.7))
    world.run_until(lambda seen: seen.progress.refused == v2, within=600)
    assert (served(world), world.verdicts()[v2]) == ({v1: 100}, "Unknown")
    assert world.condition("RolledBack") == ("True", "EvidenceTooLarge")
    assert "name fewer segments" in world.message("RolledBack")
    written = [json.dumps(action.body) for action in world.writes if action.name.endswith("-evidence")]
    assert written
    assert all(len(body) < 20_000 for body in written)


def test_segments_are_no_matter_beside_a_stable_that_does_not_speculate() -> None:
    world = watched({"greedy": 0.4, "batch": 0.3})
    world.behaviour[world.stable] = Behaviour(acceptance=0.05, speedup=0.8)
    world.run_until(lambda seen: seen.condition("SpeculationActive")[0] == "False")
    v2 = push(world, V2, Behaviour(acceptance=0.82, speedup=1.7))
    world.run_until(lambda seen: "segments" in checks(seen))
    assert checks(world)["segments"]["verdict"] == "NotCompared"
    world.run_until(lambda seen: seen.stable == v2)


def test_gateways_are_told_which_segments_are_counted_and_which_decode_plainly() -> None:
    world = installed(changed(WATCHED, speculation__plainSegments=[{"temperature": "Hot"}, {"tenants": ["audit"]}]))
    policy = world.policy()
    assert policy is not None
    assert policy["segments"] == [GREEDY, BATCH]
    assert policy["speculation"]["plainSegments"] == [{"temperature": "Hot"}, {"tenants": ["audit"]}]
    before = policy["number"]
    world.edit(speculation__plainSegments=[])
    world.run(20)
    policy = world.policy()
    assert policy is not None
    assert (policy["number"], "plainSegments" in policy["speculation"]) == (before + 1, False)
