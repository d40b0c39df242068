"""Carrying out plans over the in-memory cluster: in order, up to the first failure, and only on what is ours."""

from typing import Any

import pytest

from tandem_operator.apply import Target, apply, is_outdated, progress_is_kept, write_status
from tandem_operator.domain.actions import Action, Outcome, Plan, Verb
from tandem_operator.domain.errors import ClusterError, Conflict, Forbidden, Refused, Unavailable
from tandem_operator.ports import Kind
from tandem_operator.testing import MemoryCluster

ADDRESS = (Kind.SPECULATIVE_DEPLOYMENT, "llm", "chat")
OWNER = {"kind": "SpeculativeDeployment", "name": "chat", "uid": "uid-chat"}


def body(kind: Kind, name: str, *, owners: tuple[dict[str, str], ...] = (OWNER,), **more: Any) -> dict[str, Any]:
    return {"kind": kind.value, "metadata": {"namespace": "llm", "name": name, "ownerReferences": [*owners]}, **more}


def applied(name: str, **more: Any) -> Action:
    return Action(Verb.APPLY, "Service", name, "a test", body(Kind.SERVICE, name, **more))


PERSIST = Action(Verb.PERSIST, "SpeculativeDeployment", "chat", "a test", {"progress": {"step": 1}})


def started() -> tuple[MemoryCluster, Target]:
    cluster = MemoryCluster()
    metadata = {"namespace": "llm", "name": "chat", "uid": "uid-chat", "annotations": {"alert": "x", "keep": "y"}}
    return cluster, Target(cluster.put(ADDRESS[0], {"metadata": metadata, "spec": {}}))


async def test_actions_are_done_in_order_and_the_outcome_holds_the_plan() -> None:
    cluster, target = started()
    plan = Plan((applied("a"), PERSIST, applied("b")), modified=("Deployment x: y",))
    assert await apply(plan, target, cluster) == Outcome(plan.actions, None, plan)
    assert [(verb, name) for verb, _, name in cluster.writes] == [
        ("apply", "a"),
        ("replace_status", "chat"),
        ("apply", "b"),
    ]


@pytest.mark.parametrize("error", [Unavailable, Forbidden, Refused, Conflict])
async def test_the_first_failure_ends_the_plan_and_is_told(error: type[ClusterError]) -> None:
    cluster, target = started()
    plan = Plan((applied("a"), applied("b"), applied("c")))
    with cluster.failing(lambda verb, kind, name: error("apply", "planted") if name == "b" else None):
        outcome = await apply(plan, target, cluster)
    assert outcome.done == plan.actions[:1]
    assert outcome.failed is not None
    assert (outcome.failed.action, outcome.failed.reason) == (plan.actions[1], error.__name__)
    assert "planted" in outcome.failed.message
    assert is_outdated(outcome) is (error is Conflict)
    assert (Kind.SERVICE, "llm", "c") not in cluster.objects


async def test_progress_is_kept_once_its_action_is_done_or_there_is_none() -> None:
    cluster, target = started()
    fail = cluster.failing(lambda verb, kind, name: Unavailable("write", "planted") if name == "a" else None)
    with fail:
        assert not progress_is_kept(await apply(Plan((applied("a"), PERSIST)), target, cluster))
        assert progress_is_kept(await apply(Plan((PERSIST, applied("a"))), target, cluster))
        assert progress_is_kept(await apply(Plan((applied("a"),)), target, cluster))


@pytest.mark.parametrize(
    ("owners", "labels", "named"),
    [
        ((), {}, "somebody else"),
        ((), {"app.kubernetes.io/managed-by": "Helm"}, "Helm"),
        (
            ({"kind": "SpeculativeDeployment", "name": "chat", "uid": "earlier"},),
            {},
            "SpeculativeDeployment chat",
        ),
        (({"kind": "Widget", "name": "w", "uid": "w"},), {}, "Widget w"),
    ],
)
@pytest.mark.parametrize("verb", [Verb.CREATE, Verb.APPLY])
async def test_a_foreign_object_of_the_name_is_left_alone_and_named(
    verb: Verb, owners: tuple[dict[str, str], ...], labels: dict[str, str], named: str
) -> None:
    cluster, target = started()
    theirs = body(Kind.SERVICE, "a", owners=owners, spec={"theirs": True})
    theirs["metadata"]["labels"] = labels
    before = cluster.put(Kind.SERVICE, theirs)
    outcome = await apply(Plan((Action(verb, "Service", "a", "a test", body(Kind.SERVICE, "a")),)), target, cluster)
    assert outcome.failed is not None
    assert outcome.failed.reason == "ForeignObject"
    assert outcome.failed.message.startswith(f"Service a belongs to {named} and is left alone")
    assert (cluster.objects[Kind.SERVICE, "llm", "a"], cluster.writes) == (before, [])


async def test_a_status_after_a_persist_and_after_an_annotation_meets_the_newest_version() -> None:
    cluster, target = started()
    forget = Action(Verb.ANNOTATE, ADDRESS[0], "chat", "echoed", {"metadata": {"annotations": {"alert": None}}})
    outcome = await apply(Plan((PERSIST, forget, PERSIST)), target, cluster)
    await write_status({"phase": "Serving"}, target, cluster)
    live = cluster.objects[ADDRESS]
    assert (outcome.failed, live["status"], live["metadata"]["annotations"]) == (
        None,
        {"phase": "Serving"},
        {"keep": "y"},
    )


async def test_a_status_under_an_old_version_is_a_conflict() -> None:
    cluster, target = started()
    cluster.put(ADDRESS[0], {**cluster.objects[ADDRESS], "spec": {"edited": True}})
    with pytest.raises(Conflict):
        await write_status({}, target, cluster)


async def test_another_object_of_the_name_survives_a_delete() -> None:
    cluster, target = started()
    uid = cluster.put(Kind.SERVICE, body(Kind.SERVICE, "a"))["metadata"]["uid"]  # type: ignore[index]  # JSON

    def delete(uid: object) -> Plan:
        return Plan((Action(Verb.DELETE, "Service", "a", "a test", {"metadata": {"uid": uid}}),))

    assert (await apply(delete("another"), target, cluster)).failed is None
    assert (Kind.SERVICE, "llm", "a") in cluster.objects
    for _ in range(2):
        assert (await apply(delete(uid), target, cluster)).failed is None
    assert (Kind.SERVICE, "llm", "a") not in cluster.objects
