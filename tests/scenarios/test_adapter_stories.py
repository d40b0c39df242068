"""Adapters of a resource in the hands of the operator: they come into pods that stay, by revision, and go again."""

import asyncio
import copy
import json
from typing import Any

import pytest
from tests.domain.simulated_specs import BASE, changed
from tests.scenarios.operator_stage import ADDRESS, Stage, command, look_until

from tandem_operator.domain.errors import ClusterError
from tandem_operator.domain.nested import text
from tandem_operator.ports import Kind
from tandem_operator.reconcile import StoppedShort

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")
SPEC = changed(
    BASE,
    target__adaptersFolder="/srv",
    canary__steps=[{"percent": 10, "holdSeconds": 600}, {"percent": 50, "holdSeconds": 600}],
)


def adapter(name: str, folder: str, **model: str) -> dict[str, Any]:
    return {"name": name, "model": {"uri": f"file:///srv/{folder}", **model}}


class AdapterStage(Stage):
    def __init__(self, *adapters: dict[str, Any], **paths: Any) -> None:
        super().__init__(changed(SPEC, adapters=list(adapters), **paths))
        self.telemetry.folders = {"file:///srv/one": ONE, "file:///srv/two": TWO, "file:///srv/three": THREE}

    def pods(self) -> dict[str, str]:
        """Addresses of target pods, with their uids."""
        found = {}
        for (kind, _, name), body in self.cluster.objects.items():
            if kind is Kind.POD and "-target-" in name:
                found[text(body, "status", "podIP")] = text(body, "metadata", "uid")
        return found

    def held(self) -> list[set[str]]:
        """What each target pod holds."""
        return [set(self.telemetry.loaded.get(address, {}).values()) for address in sorted(self.pods())]

    def shares(self) -> dict[str, Any]:
        """What gateways are told of each revision's adapters, with its weight."""
        policy = json.loads(self.cluster.objects[Kind.CONFIG_MAP, "llm", "chat-policy"]["data"]["policy.json"])
        return {share["name"]: (share["weight"], share.get("adapters")) for share in policy["revisions"]}

    @property
    def stable(self) -> str:
        return str(self.status.get("stableRevision", ""))

    @property
    def canary(self) -> str:
        return str(self.status.get("canaryRevision", ""))

    def lose(self, address: str) -> None:
        """The container of a pod began anew: it holds nothing."""
        self.telemetry.loaded.pop(address, None)


def meant(name: str, digest: str) -> list[dict[str, str]]:
    return [{"name": name, "digest": digest}]


async def test_the_first_revision_serves_once_its_adapters_are_in_every_target_pod() -> None:
    stage = AdapterStage(adapter("legal", "one"))
    await stage.settle()
    assert stage.held() == [{ONE}, {ONE}]
    assert stage.shares() == {stage.stable: (100, meant("legal", ONE))}
    assert stage.condition("AdaptersLoaded") == ("True", "AllLoaded")
    assert f"legal {ONE}" in stage.message("AdaptersLoaded")
    (revision,) = stage.status["revisions"]
    assert revision["adapters"] != "00000000"


async def test_a_child_that_is_refused_keeps_no_adapter_out_of_a_pod_that_began_anew() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    del stage.cluster.objects[Kind.POD_DISRUPTION_BUDGET, "llm", "chat-gateway"]

    def refused(verb: str, kind: Kind, _: str) -> ClusterError | None:
        return (
            ClusterError("apply", "a webhook says no")
            if (verb, kind) == ("apply", Kind.POD_DISRUPTION_BUDGET)
            else None
        )

    with stage.cluster.failing(refused):
        stage.lose(sorted(stage.pods())[0])
        for _ in range(3):
            with pytest.raises(StoppedShort):
                await stage.look()
            stage.pass_time(1.0)
            await asyncio.sleep(0)
    assert stage.held() == [{ONE}, {ONE}]


async def test_an_object_without_adapters_asks_no_pod_and_says_nothing_of_them_to_gateways() -> None:
    stage = AdapterStage()
    await stage.settle()
    assert stage.condition("AdaptersLoaded") == ("True", "NotUsed")
    assert stage.shares() == {stage.stable: (100, None)}


async def test_a_canary_of_adapters_alone_has_the_pods_of_stable_and_its_own_weights_under_the_same_name() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    pods, first = stage.pods(), stage.stable
    stage.edit(adapters=[adapter("legal", "two")])
    await look_until(stage, lambda: stage.shares().get(stage.canary, (0, None))[0] == 10)
    assert stage.pods() == pods
    assert len([name for name in stage.children(Kind.DEPLOYMENT) if "gateway" not in name]) == 2
    assert stage.held() == [{ONE, TWO}, {ONE, TWO}]
    assert stage.shares() == {first: (90, meant("legal", ONE)), stage.canary: (10, meant("legal", TWO))}
    assert stage.status["canary"]["surge"] == "SharedTarget"


async def test_the_weights_of_an_aborted_canary_leave_the_pods_and_stables_stay() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    stage.edit(adapters=[adapter("legal", "two")])
    await look_until(stage, lambda: stage.shares().get(stage.canary, (0, None))[0] == 10)
    command(stage, "abort", f"@{stage.canary}#1")
    await look_until(stage, lambda: stage.held() == [{ONE}, {ONE}])
    assert stage.shares() == {stage.stable: (100, meant("legal", ONE))}


async def test_the_first_adapter_of_an_object_needs_no_new_pods_and_the_last_one_leaves_none_behind() -> None:
    stage = await AdapterStage().settle()
    pods = stage.pods()
    stage.edit(adapters=[adapter("legal", "one")])
    await look_until(stage, lambda: stage.shares().get(stage.canary, (0, None))[0] == 10)
    assert (stage.pods(), stage.held()) == (pods, [{ONE}, {ONE}])
    stage.edit(adapters=[])
    await look_until(stage, lambda: stage.held() == [set(), set()])
    assert stage.pods() == pods
    assert stage.shares() == {stage.stable: (100, None)}


async def test_nobody_is_sent_to_a_canary_whose_adapter_is_refused_and_the_condition_says_by_whom_and_why() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    stage.edit(adapters=[adapter("legal", "one"), adapter("tax", "absent")])
    for _ in range(20):
        await stage.look()
    assert stage.shares()[stage.canary][0] == 0
    assert stage.condition("AdaptersLoaded") == ("False", "LoadingFailed")
    assert "adapter tax of revision" in stage.message("AdaptersLoaded")
    assert f"pod {sorted(stage.pods())[0].removeprefix('pod-ip-of-')}: " in stage.message("AdaptersLoaded")
    assert "file:///srv/absent does not exist" in stage.message("AdaptersLoaded")
    assert stage.condition("Ready") == ("True", "Serving")
    stage.telemetry.folders["file:///srv/absent"] = THREE
    await look_until(stage, lambda: stage.shares()[stage.canary][0] == 10)


async def test_a_canary_whose_adapter_never_comes_ends_with_the_reason() -> None:
    stage = await AdapterStage(adapter("legal", "one"), canary__progressDeadlineSeconds=60).settle()
    stage.edit(adapters=[adapter("legal", "absent")])
    await look_until(stage, lambda: bool(stage.status.get("refusedRevision")))
    assert "its adapters were not loaded (legal is not loaded by pod" in stage.message("Stalled")
    assert "file:///srv/absent does not exist" in stage.message("Stalled")


async def test_a_pod_that_began_anew_is_told_again_of_an_object_at_rest() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    for _ in range(3):
        await stage.look()
    stage.lose(sorted(stage.pods())[1])
    await look_until(stage, lambda: stage.held() == [{ONE}, {ONE}])
    await stage.settle()
    assert stage.shares() == {stage.stable: (100, meant("legal", ONE))}


async def test_a_pod_that_finds_other_weights_under_the_uri_does_not_load_them() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    stage.telemetry.folders["file:///srv/one"] = TWO
    stage.restart()
    stage.lose(sorted(stage.pods())[1])
    for _ in range(8):
        await stage.look()
    assert stage.held() == [{ONE}, set()]
    assert stage.condition("AdaptersLoaded") == ("False", "LoadingFailed")
    assert f"is {TWO}, not {ONE} as asked" in stage.message("AdaptersLoaded")


async def test_a_digest_that_is_asked_for_is_what_pods_load() -> None:
    stage = AdapterStage(adapter("legal", "one", digest=TWO))
    for _ in range(8):
        await stage.look()
    assert stage.held() == [set(), set()]
    assert f"is {ONE}, not {TWO} as asked" in stage.message("AdaptersLoaded")
    assert stage.condition("Ready") == ("False", "NotServingYet")


async def test_nothing_is_written_at_rest_also_where_a_pod_does_not_answer_for_a_while() -> None:
    stage = await AdapterStage(adapter("legal", "one")).settle()
    for _ in range(5):
        await stage.look()
    written, body = list(stage.cluster.writes), copy.deepcopy(stage.cluster.objects[ADDRESS])
    for turn in range(15):
        stage.telemetry.deaf = {sorted(stage.pods())[0]} if 5 <= turn < 10 else set()
        await stage.look()
    assert stage.cluster.writes == written
    assert stage.cluster.objects[ADDRESS] == body
