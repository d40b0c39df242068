"""Whole reconciles over the in-memory cluster: what is written, in which order, and what a failure leaves behind.

Sources of the numbered cases: kopf #686 and its old tracker's #129 (C38), dask-kubernetes #654 (C44).
"""

import copy
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest
from tests.scenarios.operator_stage import ADDRESS, CHILDREN, KEY, V2, Stage, family, final, nth

from tandem_operator.domain.errors import ClusterError, Conflict, Forbidden, Refused, SpecError, Unavailable
from tandem_operator.domain.webhook import ANNOTATION_PREFIX, Firing, annotation
from tandem_operator.ports import Kind
from tandem_operator.reconcile import StoppedShort

READS = ("get", "list")

# From nothing to serving


async def test_a_fresh_object_gets_its_children_in_order_and_then_its_status() -> None:
    stage = Stage()
    await stage.look()
    writes = [
        (verb, kind, name) for verb, kind, name in stage.cluster.writes if kind is not Kind.SPECULATIVE_DEPLOYMENT
    ]
    assert [family(kind, name) for _, kind, name in writes] == CHILDREN
    assert {verb for verb, _, _ in writes} == {"apply"}
    verbs = [verb for verb, kind, _ in stage.cluster.writes if kind is Kind.SPECULATIVE_DEPLOYMENT]
    assert verbs == ["replace_status", "replace_status"]
    assert stage.cluster.writes[0] == ("replace_status", *ADDRESS[::2])  # progress before its effects
    assert stage.cluster.writes[-1] == ("replace_status", *ADDRESS[::2])
    assert stage.condition("Ready") == ("False", "NotServingYet")


async def test_a_fresh_object_serves_and_says_so_once() -> None:
    stage = await Stage().settle()
    assert stage.condition("Ready") == ("True", "Serving")
    assert stage.told.reasons == ["Installed"]
    assert stage.status["gateway"] == {"replicas": 2, "ready": 2, "policy": 1, "policyObservedBy": 2}


async def test_a_steady_object_causes_no_write_c38() -> None:
    stage = await Stage().settle()
    before = len(stage.cluster.writes)
    for _ in range(40):
        await stage.look()
    assert stage.cluster.writes[before:] == []


async def test_a_changed_status_is_seen_by_the_count_of_writes_c38() -> None:
    stage = await Stage().settle()
    before = len(stage.cluster.writes)
    body = stage.cluster.objects[ADDRESS]
    body["status"]["phase"] = "Confused"
    await stage.look()
    assert stage.cluster.writes[before:] == [("replace_status", *ADDRESS[::2])]
    assert stage.status["phase"] == "Serving"


async def test_a_deleted_or_edited_child_is_put_right() -> None:
    stage = await Stage().settle()
    policy = copy.deepcopy(stage.cluster.objects[Kind.CONFIG_MAP, "llm", "chat-policy"]["data"])
    expected = final(stage)
    del stage.cluster.objects[Kind.SERVICE, "llm", "chat"]
    stage.cluster.objects[Kind.CONFIG_MAP, "llm", "chat-policy"]["data"]["policy.json"] = "{"
    (target,) = [name for name in stage.children(Kind.DEPLOYMENT) if "-target-" in name]
    stage.cluster.objects[Kind.DEPLOYMENT, "llm", target]["spec"]["replicas"] = 7
    del stage.cluster.objects[Kind.DEPLOYMENT, "llm", target]["metadata"]["labels"]
    await stage.settle()
    assert final(stage) == expected
    assert stage.cluster.objects[Kind.CONFIG_MAP, "llm", "chat-policy"]["data"] == policy


@pytest.mark.parametrize(
    ("kind", "field", "name", "value"),
    [
        (Kind.DEPLOYMENT, "labels", "tandem.dev/role", "nonsense"),
        (Kind.DEPLOYMENT, "labels", "tandem.dev/role", None),
        (Kind.CONTROLLER_REVISION, "annotations", "tandem.dev/verdict", "Splendid"),
        (Kind.CONTROLLER_REVISION, "annotations", "tandem.dev/record", "{"),
    ],
)
async def test_a_mark_that_somebody_damaged_is_no_endless_crash(
    kind: Kind, field: str, name: str, value: str | None
) -> None:
    stage = await Stage().settle()
    for child in stage.children(kind):
        marks = stage.cluster.objects[kind, "llm", child]["metadata"][field]
        marks.pop(name, None)
        if value is not None:
            marks[name] = value
    await stage.settle()
    assert stage.condition("Ready") == ("True", "Serving")


async def test_what_others_add_to_a_child_is_named_and_left_alone() -> None:
    stage = await Stage().settle()
    deployment = stage.cluster.objects[Kind.DEPLOYMENT, "llm", "chat-gateway"]
    deployment["spec"]["template"]["spec"]["containers"].append({"name": "proxy", "image": "proxy:1"})
    await stage.look()
    assert stage.condition("ChildrenModified") == ("True", "ForeignAdditions")
    assert "containers[proxy]" in stage.message("ChildrenModified")
    assert len(deployment["spec"]["template"]["spec"]["containers"]) == 2


async def test_an_object_that_is_gone_wants_no_more_looks() -> None:
    stage = await Stage().settle()
    del stage.cluster.objects[ADDRESS]
    assert await stage.look() is None


async def test_an_object_that_waits_for_a_finalizer_is_left_to_the_garbage_collector() -> None:
    stage = await Stage().settle()
    stage.cluster.objects[ADDRESS]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await stage.cluster.delete(Kind.DEPLOYMENT, "llm", "chat-gateway")
    before = len(stage.cluster.writes)
    assert await stage.look() is None
    assert len(stage.cluster.writes) == before


# Wrong specs


async def test_an_unknown_accelerator_is_refused_by_its_field_and_what_served_goes_on() -> None:
    stage = await Stage().settle()
    children = {key: value for key, value in final(stage).items() if not key.startswith("Speculative")}
    stage.edit(target__placement__accelerator="L5")
    for _ in range(5):
        await stage.look()
    assert stage.condition("Accepted") == ("False", "InvalidSpec")
    assert "spec.target.placement.accelerator is 'L5'" in stage.message("Accepted")
    assert stage.condition("Ready") == ("True", "Serving")
    assert {key: value for key, value in final(stage).items() if not key.startswith("Speculative")} == children


async def test_a_spec_that_cannot_be_rendered_is_refused_and_never_an_endless_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await Stage().settle()
    told, before = list(stage.told.reasons), stage.status["progress"]

    def refuse(*_: object) -> None:
        raise SpecError("spec.target.image", "x:y:z", "must be an image")

    monkeypatch.setattr("tandem_operator.reconcile.plan", refuse)
    stage.edit(draft__model__revision=V2)
    for _ in range(3):
        await stage.look()
    assert stage.condition("Accepted") == ("False", "InvalidSpec")
    assert "spec.target.image is 'x:y:z': must be an image" in stage.message("Accepted")
    assert (stage.told.reasons, stage.status["progress"]) == (told, before)


# Failures


async def test_a_creation_that_fails_once_converges_to_one_of_each_child_c44() -> None:
    expected = final(await Stage().settle())
    for number in range(len(CHILDREN)):
        stage, calls = Stage(), itertools.count()

        def fail_once(
            verb: str, kind: Kind, name: str, number: int = number, calls: Any = calls
        ) -> ClusterError | None:
            return Unavailable("apply", "planted") if verb == "apply" and next(calls) == number else None

        with stage.cluster.failing(fail_once):
            with pytest.raises(StoppedShort, match="planted"):
                await stage.look()
            assert stage.condition("Reconciling")[0] == "True"
            await stage.settle()
        assert final(stage) == expected


async def test_a_creation_that_succeeds_but_times_out_converges_c44() -> None:
    expected = final(await Stage().settle())
    for number in range(len(CHILDREN) + 2):
        stage = Stage()
        stage.cluster.lost = nth(number, lambda: Unavailable("write", "the answer was lost"))
        await stage.settle()
        assert final(stage) == expected, number


async def test_whichever_write_fails_an_installation_is_told_once() -> None:
    """That the pointer moved is seen, never foretold: a mark that fails is made again, and then told."""
    for number in range(len((await Stage().settle()).cluster.writes)):
        stage, calls = Stage(), itertools.count()

        def fail_once(
            verb: str, kind: Kind, name: str, number: int = number, calls: Any = calls
        ) -> ClusterError | None:
            return Unavailable(verb, "planted") if verb not in READS and next(calls) == number else None

        with stage.cluster.failing(fail_once):
            await stage.settle()
        assert stage.told.reasons == ["Installed"], number


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.SERVICE, "chat"),
        (Kind.CONFIG_MAP, "chat-policy"),
        (Kind.DEPLOYMENT, "chat-gateway"),
        (Kind.ROLE, "chat-gateway"),
    ],
)
async def test_a_foreign_child_is_neither_adopted_nor_overwritten_and_is_named_c44(kind: Kind, name: str) -> None:
    stage = Stage()
    metadata = {"namespace": "llm", "name": name, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    stage.cluster.put(kind, {"metadata": metadata, "spec": {"theirs": True}})
    before = copy.deepcopy(stage.cluster.objects[kind, "llm", name])
    for _ in range(3):
        with pytest.raises(StoppedShort):
            await stage.look()
    assert stage.cluster.objects[kind, "llm", name] == before
    assert stage.condition("Stalled") == ("True", "ForeignObject")
    assert stage.message("Stalled").startswith(f"{kind} {name} belongs to Helm and is left alone")
    del stage.cluster.objects[kind, "llm", name]
    await stage.settle()
    assert stage.condition("Stalled") == ("False", "NotStalled")


async def test_a_foreign_child_with_our_label_is_not_taken_for_ours() -> None:
    stage = Stage()
    labels = {"tandem.dev/deployment": "chat", "tandem.dev/role": "gateway"}
    stage.cluster.put(
        Kind.SERVICE, {"kind": "Service", "metadata": {"namespace": "llm", "name": "chat", "labels": labels}}
    )
    with pytest.raises(StoppedShort, match="Service chat belongs to"):
        await stage.look()


async def test_a_child_that_the_api_refuses_is_named_until_the_spec_is_edited() -> None:
    stage = Stage()

    def refuse(verb: str, kind: Kind, name: str) -> ClusterError | None:
        refused = verb == "apply" and "-target-" in name and kind is Kind.DEPLOYMENT
        return Refused(f"apply {kind} {name}", "spec.template: Invalid value") if refused else None

    with stage.cluster.failing(refuse):
        for _ in range(2):
            with pytest.raises(StoppedShort):
                await stage.look()
    assert stage.condition("Accepted") == ("False", "ChildRefused")
    assert "spec.template: Invalid value" in stage.message("Accepted")
    await stage.settle()
    assert stage.condition("Accepted") == ("True", "Valid")


async def test_a_canary_that_the_api_refuses_does_not_keep_speculation_from_being_switched_off() -> None:
    stage = await Stage().settle()

    def refuse(verb: str, kind: Kind, name: str) -> ClusterError | None:
        refused = verb == "apply" and kind is Kind.DEPLOYMENT and name not in made
        return Refused(f"apply {kind} {name}", "spec.template: Invalid value") if refused else None

    made = stage.children(Kind.DEPLOYMENT)
    stage.edit(target__podTemplate={"spec": {"containers": "engine"}}, speculation__mode="Off")
    with stage.cluster.failing(refuse):
        for _ in range(3):
            with pytest.raises(StoppedShort):
                await stage.look()
            stage.pass_time(2.0)
    policy = json.loads(stage.cluster.objects[Kind.CONFIG_MAP, "llm", "chat-policy"]["data"]["policy.json"])
    assert (policy["speculation"]["state"], stage.condition("Accepted")) == ("Off", ("False", "ChildRefused"))


async def test_somebody_elses_write_in_between_means_another_look_and_no_stale_status() -> None:
    stage = await Stage().settle()
    stage.edit(target__replicas=3)

    def edited_meanwhile(verb: str, kind: Kind, name: str) -> None:
        if verb == "apply":
            stage.cluster.fault = lambda *_: None
            stage.edit(target__replicas=4)

    stage.cluster.fault = edited_meanwhile
    with pytest.raises(Conflict):
        await stage.look()
    await stage.settle()
    (target,) = [name for name in stage.children(Kind.DEPLOYMENT) if "-target-" in name]
    assert stage.cluster.objects[Kind.DEPLOYMENT, "llm", target]["spec"]["replicas"] == 4


async def test_a_conflict_within_the_plan_writes_no_status() -> None:
    stage = await Stage().settle()
    stage.edit(target__replicas=3)
    before = copy.deepcopy(stage.status)

    def conflict(verb: str, kind: Kind, name: str) -> ClusterError | None:
        return Conflict("apply", "planted") if verb == "apply" else None

    with stage.cluster.failing(conflict), pytest.raises(StoppedShort, match="planted"):
        await stage.look()
    assert stage.status == before
    await stage.settle()
    assert stage.message("TargetReady") == "3/3 pods are ready"


async def test_events_are_told_only_once_their_progress_is_kept() -> None:
    stage = await Stage().settle()
    told = len(stage.told.reasons)
    stage.edit(draft__model__revision=V2)

    def fail(verb: str, kind: Kind, name: str) -> ClusterError | None:
        return Unavailable("replace status", "planted") if verb == "replace_status" else None

    with stage.cluster.failing(fail):
        for _ in range(3):
            with pytest.raises(ClusterError):
                await stage.look()
    assert stage.told.reasons[told:] == []
    await stage.look()
    await stage.look()
    assert stage.told.reasons[told:] == ["CanaryStarted"]


# Alerts


async def test_the_annotation_of_an_alert_goes_once_the_status_echoes_it() -> None:
    stage = await Stage().settle()
    labels = {"alertname": "TandemHighErrorRate", "namespace": "llm", "specdep": "chat"}
    alert = Firing(
        name="TandemHighErrorRate",
        namespace="llm",
        deployment="chat",
        revision="",
        starts_at=stage.clock.now() - timedelta(seconds=5),
        fingerprint="8f0d2e1c",
        labels=tuple(labels.items()),
    )
    name, value = annotation(alert, uid="uid-chat")
    await stage.cluster.annotate(ADDRESS[0], KEY, {name: value})
    before = len(stage.cluster.writes)
    for _ in range(3):
        await stage.look()
    assert [held["key"] for held in stage.status["alerts"]] == [name.removeprefix(ANNOTATION_PREFIX)]
    assert name not in stage.cluster.objects[ADDRESS]["metadata"].get("annotations", {})
    verbs = [verb for verb, _, _ in stage.cluster.writes[before:]]
    assert verbs.index("replace_status") < verbs.index("annotate")
    await stage.settle()
    steady = len(stage.cluster.writes)
    await stage.look()
    assert stage.cluster.writes[steady:] == []


# Rights


async def test_without_the_right_to_list_nodes_everything_works() -> None:
    stage = Stage()
    with stage.cluster.failing(lambda verb, kind, name: Forbidden("list Node", "no") if kind is Kind.NODE else None):
        await stage.settle()
    assert stage.condition("Ready") == ("True", "Serving")
