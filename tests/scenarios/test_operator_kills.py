"""The operator is killed after any of its writes, and another process goes on from what is in the cluster."""

import copy
import json
from collections.abc import Callable
from typing import Any

from tests.scenarios.operator_stage import ADDRESS, CHILDREN, V2, KilledError, Stage, final, nth

from tandem_operator.ports import Kind


async def test_a_kill_at_any_write_of_an_installation_ends_in_the_same_state_without_a_repeated_effect() -> None:
    whole = await Stage().settle()
    expected, count = final(whole), len(whole.cluster.writes)
    for number in range(count):
        stage = Stage()
        stage.cluster.lost = nth(number, KilledError)
        await stage.settle()
        assert final(stage) == expected, number
        applied = [(kind, name) for verb, kind, name in stage.cluster.writes if verb == "apply"]
        assert len(applied) == len(CHILDREN), number


async def walk(stage: Stage) -> Stage:
    """A canary comes up and is then given up by command."""
    await stage.settle()
    stage.edit(draft__model__revision=V2)
    await look_until(stage, lambda: stage.status.get("canary", {}).get("percent") == 10)
    stage.cluster.put(ADDRESS[0], _annotated(stage, "tandem.dev/abort", f"@{stage.status['canaryRevision']}#1"))
    await look_until(stage, lambda: "refusedRevision" in stage.status)
    return await stage.settle()


async def look_until(stage: Stage, reached: Callable[[], bool]) -> None:
    for _ in range(40):
        try:
            await stage.look()
        except KilledError:
            stage.restart()
            stage.pass_time(1.0)
        if reached():
            return
    raise AssertionError(f"not reached: {stage.status}")


def _annotated(stage: Stage, name: str, value: str) -> dict[str, Any]:
    body = copy.deepcopy(stage.cluster.objects[ADDRESS])
    body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), name: value}
    return body


async def test_a_kill_at_any_write_of_an_aborted_canary_ends_in_the_same_state() -> None:
    whole = await walk(Stage())
    expected, count = final(whole), len(whole.cluster.writes)
    installed = len((await Stage().settle()).cluster.writes)
    assert whole.told.reasons[:2] == ["Installed", "CanaryStarted"]
    for number in range(installed, count):
        stage = Stage()
        stage.cluster.lost = nth(number, KilledError)
        await walk(stage)
        assert _unnumbered(final(stage)) == _unnumbered(expected), number
        assert len(stage.children(Kind.CONTROLLER_REVISION)) == 2
        assert stage.status["gateway"]["policy"] <= whole.status["gateway"]["policy"], number


def _unnumbered(found: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on how often was looked: pods that came up meanwhile spare a policy, evidence is saved or
    not; and without the words of the decision record, which a kill right before it loses. Progress keeps them."""
    policy = dict(json.loads(found["ConfigMap chat-policy"]["data"]["policy.json"]), number=0)
    resource = found["SpeculativeDeployment chat"]
    revisions = [{**revision, "reason": ""} for revision in resource["status"]["revisions"]]
    gateway = {**resource["status"]["gateway"], "policy": 0}
    status = {**resource["status"], "gateway": gateway, "revisions": revisions}
    kept = {name: held for name, held in found.items() if name != "ConfigMap chat-evidence"}
    plain = {name: _unmarked(held) for name, held in kept.items() if name.startswith("ControllerRevision")}
    return {
        **kept,
        **plain,
        "ConfigMap chat-policy": policy,
        "SpeculativeDeployment chat": {**resource, "status": status},
    }


def _unmarked(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "annotations": {}}}
