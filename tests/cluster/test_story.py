"""The demo's story, asserted; then the same texts with speculation on and off, for each draft.

Sampled texts are compared in coupled verification, where a draft may change speed and never text.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from examples.demo.narrator import Narrator
from examples.demo.stage import PAIRS, SYSTEM_NAMESPACE, Stage
from examples.demo.story import NAME, NAMESPACE, PROMPTS, Story

from tandem_devcluster.testing import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

CONTINUED = 50
TOKENS = 32
CLIENTS = 12


@dataclass(frozen=True, slots=True)
class Told:
    """The stage after the last chapter, and the figures that the chapters left."""

    stage: Stage
    figures: Mapping[str, Any]


@pytest.fixture(scope="module")
def told(without_crd: None, cluster: Cluster) -> Iterator[Told]:
    stage = Stage(cluster)
    try:
        with stage.relays:
            yield Told(stage, Story(stage, Narrator(out=sys.stderr)).tell())
    finally:
        cluster.helm("uninstall", "tandem", "-n", SYSTEM_NAMESPACE)
        cluster.kubectl("delete", "namespace", NAMESPACE, SYSTEM_NAMESPACE, "--wait=false")


def test_speculation_pays_on_traffic_that_the_draft_knows(told: Told) -> None:
    assert told.figures["acceptance"] > 0.6
    assert told.figures["paced_speedup"] > 1.0


def test_the_canary_refuses_the_poor_draft_by_its_acceptance_and_touches_neither_stable_nor_the_target(
    told: Told,
) -> None:
    assert told.figures["refused_reason"] == "AcceptanceFailed"
    assert told.figures["stable_untouched"]
    assert told.figures["target_pods_untouched"]


def test_the_good_draft_is_promoted(told: Told) -> None:
    assert told.figures["promoted"]


def test_speculation_leaves_by_itself_when_the_draft_cannot_predict_and_comes_back(told: Told) -> None:
    assert told.figures["disabled_reason"] in ("AcceptanceLow", "RuntimeAtZero")
    assert told.figures["returned_seconds"] > 0


def test_an_alert_rolls_back_to_the_previous_revision_within_seconds(told: Told) -> None:
    assert told.figures["rolled_back_to_previous"]
    assert told.figures["rolled_back_seconds"] < 15


@pytest.mark.parametrize("draft", ["draft-good", "draft-poor"])
def test_fifty_texts_are_the_same_with_speculation_on_and_off(told: Told, draft: str) -> None:
    """Greedy and sampled, in fp32, through gateway, draft and target of the cluster."""
    told.stage.kubectl("delete", "specdep", "--all", "-n", NAMESPACE, "--wait")
    told.stage.kubectl("apply", "-f", "-", stdin=json.dumps(exact_object(draft)))
    told.stage.kubectl("wait", "specdep", NAME, "-n", NAMESPACE, "--for=condition=DraftReady", "--timeout=120s")
    told.stage.kubectl("wait", "specdep", NAME, "-n", NAMESPACE, "--for=condition=Ready", "--timeout=120s")
    url = told.stage.forward(NAMESPACE, NAME, 8000)
    bodies = [body(index, temperature) for temperature in (0.0, 1.0) for index in range(CONTINUED)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        on = list(clients.map(lambda sent: complete(url, sent), bodies))
        off = list(clients.map(lambda sent: complete(url, sent | {"speculation": {"off": True}}), bodies))
    assert [reply["choices"][0]["text"] for reply in on] == [reply["choices"][0]["text"] for reply in off]
    assert sum(reply["speculation"]["proposed"] for reply in on) > 1000
    assert sum(reply["speculation"]["proposed"] for reply in off) == 0


def exact_object(draft: str) -> dict[str, Any]:
    """Speculation always, so that every text meets proposals; no pace."""
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "SpeculativeDeployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "target": {"model": {"uri": f"file://{PAIRS}/target"}, "engineArgs": {"dtype": "fp32"}},
            "draft": {"model": {"uri": f"file://{PAIRS}/{draft}"}, "engineArgs": {"dtype": "fp32"}},
            "gateway": {"replicas": 1},
            "speculation": {"mode": "Always", "control": {"percent": 0}},
        },
    }


def body(index: int, temperature: float) -> dict[str, Any]:
    prompts = json.loads(PROMPTS.read_text())["prose"]
    return {
        "model": NAME,
        "prompt": prompts[index],
        "max_tokens": TOKENS,
        "temperature": temperature,
        "seed": 1000 + index,
    }


def complete(url: str, sent: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json=sent, timeout=120, trust_env=False)
    answer.raise_for_status()
    reply: dict[str, Any] = answer.json()
    return reply
