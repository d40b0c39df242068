"""The operator is killed after any of its writes, and another process goes on from what is in the cluster."""

import json
from typing import Any

from tests.scenarios.operator_stage import (
    CHILDREN,
    ONCE_STABLE,
    V2,
    KilledError,
    Stage,
    command,
    final,
    look_until,
    nth,
)

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
        assert len(applied) == len(CHILDREN) + len(ONCE_STABLE), number


async def walk(stage: Stage) -> Stage:
    """A canary comes up, is given up by command, may be tried again by command, and is given up again."""
    await stage.settle()
    stage.edit(draft__model__revision=V2)
    await look_until(stage, lambda: stage.status.get("canary", {}).get("percent") == 10)
    refused = stage.status["canaryRevision"]
    command(stage, "abort", f"@{refused}#1")
    await look_until(stage, lambda: "refusedRevision" in stage.status)
    await stage.settle()
    command(stage, "retry", f"@{refused}#1")
    await look_until(stage, lambda: stage.status.get("canary", {}).get("percent") == 10)
    command(stage, "abort", f"@{refused}#2")
    await look_until(stage, lambda: "refusedRevision" in stage.status)
    return await stage.settle()


async def swap(stage: Stage) -> Stage:
    """A draft takes the place of stable's, at once since nothing proposes, and is given up by command."""
    await stage.settle()
    stage.edit(speculation__mode="Off", canary__surge="InPlaceDraft", draft__model__revision=V2)
    await look_until(stage, lambda: stage.status.get("canary", {}).get("percent") == 90)
    command(stage, "abort", f"@{stage.status['canaryRevision']}#1")
    await look_until(stage, lambda: "refusedRevision" in stage.status)
    return await stage.settle()


async def test_a_kill_at_any_write_of_an_aborted_canary_ends_in_the_same_state_and_loses_no_record() -> None:
    whole = await walk(Stage())
    expected, count = final(whole), len(whole.cluster.writes)
    installed = len((await Stage().settle()).cluster.writes)
    assert whole.told.reasons[:2] == ["Installed", "CanaryStarted"]
    refused = expected[f"ControllerRevision chat-{whole.status['refusedRevision']}"]["metadata"]["annotations"]
    assert refused["tandem.dev/record"]["reason"] == refused["tandem.dev/reason"] == "Aborted"
    for number in range(installed, count):
        stage = Stage()
        stage.cluster.lost = nth(number, KilledError)
        await walk(stage)
        assert _unnumbered(final(stage)) == _unnumbered(expected), number
        assert len(stage.children(Kind.CONTROLLER_REVISION)) == 2
        assert stage.status["gateway"]["policy"] <= whole.status["gateway"]["policy"], number


async def test_a_kill_at_any_write_of_a_swap_brings_stables_draft_back_and_target_pods_are_never_touched() -> None:
    whole = await swap(Stage())
    expected, count = final(whole), len(whole.cluster.writes)
    installed = len((await Stage().settle()).cluster.writes)
    for number in range(installed, count):
        stage = Stage()
        stage.cluster.lost = nth(number, KilledError)
        await swap(stage)
        assert _unnumbered(final(stage)) == _unnumbered(expected), number
        targets = [name for _, kind, name in stage.cluster.writes if kind is Kind.DEPLOYMENT and "-target-" in name]
        assert len(targets) == 1, number


def _unnumbered(found: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on how often was looked: pods that came up meanwhile spare a policy, evidence is saved or
    not."""
    policy = dict(json.loads(found["ConfigMap chat-policy"]["data"]["policy.json"]), number=0)
    resource = found["SpeculativeDeployment chat"]
    gateway = {**resource["status"]["gateway"], "policy": 0}
    status = {**resource["status"], "gateway": gateway}
    kept = {name: held for name, held in found.items() if name != "ConfigMap chat-evidence"}
    return {
        **kept,
        "ConfigMap chat-policy": policy,
        "SpeculativeDeployment chat": {**resource, "status": status},
    }
