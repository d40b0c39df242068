"""Which rights are missing, from the API server's own list of rules, and what readiness and gauges say."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem_operator.metrics import LookMetrics
from tandem_operator.ports import Json, Key, Kind
from tandem_operator.probes import SILENCE_SECONDS, Health
from tandem_operator.rights import AT_HOME, IN_WATCHED, OVER_ALL, Lacking, Right, find_lacking
from tandem_operator.testing import FixedClock
from tandem_operator.worklist import Worklist


def rule(right: Right) -> dict[str, Any]:
    found = {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
    return {**found, "resourceNames": [right.name]} if right.name else found


class Authoriser:
    """Answers a review with the rules of its namespace."""

    def __init__(self, rules: dict[str, list[dict[str, Any]]], *, incomplete: bool = False) -> None:
        self.rules, self.incomplete = rules, incomplete

    async def create(self, kind: Kind, body: Json) -> Json:
        assert kind is Kind.RULES_REVIEW
        spec = body["spec"]
        assert isinstance(spec, dict)
        return {"status": {"incomplete": self.incomplete, "resourceRules": self.rules.get(spec["namespace"], [])}}


NEEDED = (*AT_HOME, *OVER_ALL, *IN_WATCHED)
ALL = [rule(right) for right in NEEDED]
ANYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


@pytest.mark.parametrize("rules", [ALL, [ANYTHING], [{**ANYTHING, "resourceNames": []}]])
async def test_whoever_has_everything_lacks_nothing(rules: list[dict[str, Any]]) -> None:
    assert await find_lacking(Authoriser({"home": rules}), "home", ()) == Lacking()


@pytest.mark.parametrize("missing", NEEDED, ids=str)
async def test_each_missing_verb_is_named_and_only_nodes_and_events_can_be_done_without(missing: Right) -> None:
    rules = [rule(right) for right in NEEDED if right != missing]
    found = await find_lacking(Authoriser({"home": rules}), "home", ())
    words = (f"{missing} in home",)
    dispensable = missing.resource in ("nodes", "events")
    assert found == (Lacking((), words) if dispensable else Lacking(words, ()))


async def test_a_right_on_another_object_is_not_ours() -> None:
    other = [{**rule(right), "resourceNames": ["another"]} if right.name else rule(right) for right in AT_HOME]
    found = await find_lacking(Authoriser({"home": [*other, *map(rule, (*OVER_ALL, *IN_WATCHED))]}), "home", ())
    assert found.needed == tuple(
        f"{verb} leases.coordination.k8s.io tandem-operator in home" for verb in ("get", "update")
    )


async def test_each_watched_namespace_needs_its_own_rights() -> None:
    rules = {"home": [rule(right) for right in AT_HOME], "a": ALL}
    found = await find_lacking(Authoriser(rules), "home", ("a", "b"))
    assert found.needed == tuple(f"{right} in b" for right in IN_WATCHED if right.resource != "events")
    assert found.dispensable == ("create events.events.k8s.io in b",)


async def test_an_authoriser_that_cannot_list_its_rules_is_believed() -> None:
    assert await find_lacking(Authoriser({}, incomplete=True), "home", ()) == Lacking()


def test_readiness_names_what_is_missing() -> None:
    health = Health(FixedClock())
    assert health.ready() == "the API server has not said yet which rights we have"
    health.lacking = Lacking(("update a in home", "list b in home"), ("list nodes in home",))
    assert health.ready() == "rights are missing: update a in home, list b in home"
    health.lacking = Lacking((), ("list nodes in home",))
    assert health.ready() is None


async def test_an_operator_with_nothing_to_look_at_is_alive_and_one_that_hangs_is_not() -> None:
    clock = FixedClock()

    async def look(_: Key) -> None:
        raise AssertionError("nobody runs the worklist here")

    worklist: Worklist[Key] = Worklist(look, clock=clock)
    health = Health(clock, worklist=worklist)
    clock.advance(SILENCE_SECONDS * 10)
    assert health.alive() is None
    await worklist.add(Key("llm", "chat"))
    clock.advance(SILENCE_SECONDS - 1)
    assert health.alive() is None
    clock.advance(1)
    assert health.alive() == "no look has finished for 180 s"


async def test_gauges_and_looks_are_in_the_registry() -> None:
    clock, registry = FixedClock(), CollectorRegistry()

    async def look(key: Key) -> float | None:
        clock.advance(2.0)
        if key.name == "bad":
            raise RuntimeError("planted")
        return None if key.name == "gone" else 1.0

    timed = LookMetrics(registry, clock).timed(look)
    worklist: Worklist[Key] = Worklist(timed, clock=clock)
    health = Health(clock, leading=True, worklist=worklist)
    health.expose(registry)
    await worklist.add(Key("llm", "chat"))
    assert [await timed(Key("llm", name)) for name in ("chat", "gone")] == [1.0, None]
    with pytest.raises(RuntimeError, match="planted"):
        await timed(Key("llm", "bad"))
    sums = {
        outcome: registry.get_sample_value("tandem_operator_reconcile_seconds_sum", {"outcome": outcome})
        for outcome in ("Done", "Gone", "RuntimeError")
    }
    assert sums == {"Done": 2.0, "Gone": 2.0, "RuntimeError": 2.0}
    gauges = ("leading", "lease_seconds_left", "queue_depth", "watch_age_seconds", "queue_overdue_seconds")
    values = [registry.get_sample_value(f"tandem_operator_{name}") for name in (*gauges, "steady_objects")]
    assert values == [1.0, 0.0, 1.0, 6.0, 0.0, 0.0]
    health.heard()
    assert registry.get_sample_value("tandem_operator_watch_age_seconds") == 0.0
