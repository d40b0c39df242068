"""What the operator tells of its objects, and that the docs name each figure."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.domain.simulated_world import World

from tandem_operator.alerts import AlertSink
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.progress import Breaker, Rollout, SpeculationState, Stage
from tandem_operator.events import EventRecorder
from tandem_operator.lease import Leadership, LeaseTerms
from tandem_operator.metrics import LookMetrics, ObjectFigures
from tandem_operator.ports import Key
from tandem_operator.probes import Health
from tandem_operator.testing import FixedClock, MemoryCluster

CONTRACTS = Path(__file__).parents[2] / "docs" / "contracts.md"


def decision(rollout: Rollout, state: SpeculationState = SpeculationState.ACTIVE) -> Decision:
    decided = World().look()
    return replace(decided, progress=replace(decided.progress, rollout=rollout, breaker=Breaker(state=state)))


async def test_objects_are_counted_by_where_they_stand_until_they_are_gone() -> None:
    clock, registry = FixedClock(), CollectorRegistry()
    figures = ObjectFigures(registry, clock)

    def told(stage: Stage, state: SpeculationState) -> float | None:
        return registry.get_sample_value("tandem_operator_objects", {"stage": stage, "speculation": state})

    long_ago, lately = (clock.now() - timedelta(seconds=seconds) for seconds in (7200, 60))
    stepping, done = Rollout(stage=Stage.STEPPING, started_at=long_ago), Rollout(stage=Stage.STABLE)
    await figures.decided(Key("llm", "a"), "u", decision(stepping))
    await figures.decided(Key("llm", "b"), "u", decision(replace(stepping, started_at=lately)))
    await figures.decided(Key("llm", "c"), "u", decision(done, SpeculationState.DISABLED))
    assert told(Stage.STEPPING, SpeculationState.ACTIVE) == 2
    assert told(Stage.STABLE, SpeculationState.DISABLED) == 1
    assert registry.get_sample_value("tandem_operator_oldest_rollout_seconds") == 7200
    await figures.decided(Key("llm", "a"), "u", decision(done))
    figures.forget(Key("llm", "c"))
    assert told(Stage.STEPPING, SpeculationState.ACTIVE) == 1
    assert told(Stage.STABLE, SpeculationState.DISABLED) is None
    assert registry.get_sample_value("tandem_operator_oldest_rollout_seconds") == 60


async def test_the_lease_is_told_by_the_time_that_it_leaves() -> None:
    clock, registry = FixedClock(), CollectorRegistry()
    health = Health(clock, leadership=Leadership(MemoryCluster(), clock, LeaseTerms("llm", "operator", "one")))
    health.expose(registry)
    assert health.leadership is not None
    await health.leadership.acquire()
    clock.advance(3)
    assert registry.get_sample_value("tandem_operator_lease_seconds_left") == pytest.approx(7)


def test_the_docs_name_each_figure_of_the_operator_and_no_other() -> None:
    clock, cluster, registry = FixedClock(), MemoryCluster(), CollectorRegistry()
    Health(clock).expose(registry)
    LookMetrics(registry, clock)
    ObjectFigures(registry, clock)
    EventRecorder(cluster, instance="operator-1", registry=registry)
    AlertSink(cluster, "secret", registry)
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()}
    assert names == set(re.findall(r"`(tandem_operator_[a-z_]+)", CONTRACTS.read_text()))
