"""Measures what one look of the operator costs on the CPU: `make bench NAME=operator_look`.

Refuses to know networks: the answers of the API server and of the gateways lie ready as bytes, are decoded anew at
each look as the adapters do, and writes change nothing. The object is in the middle of a canary, with two gateways
whose documents hold two revisions under seven policies with all of their buckets, and 200 slots. Every look adds to the
evidence and saves it, which is the dearest kind. A sample is the CPU time of one look in this process.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.record import record
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.samples import BUCKETS
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.observe import ScrapeHistory, Sources
from tandem_operator.ports import Json, Key, Kind
from tandem_operator.reconcile import reconcile
from tandem_operator.testing import Controllers, FixedClock, MemoryCluster, ScriptedTelemetry

SEED, LOOKS, WARM_UP_LOOKS, POLICIES, SLOTS = 11, 40, 3, 7, 200
KEY = Key("llm", "chat")
TERMS = OperatorTerms(runtime_image="tandem-runtime:0.1.0", accelerators={})
ANALYSIS = {"minRequests": 10**6, "intervalSeconds": 10, "acceptance": {"minBasisPoints": 6000}}
SPEC: Json = {
    "target": {"model": {"uri": "hf://acme/target", "revision": "1" * 40}, "replicas": 2},
    "draft": {"model": {"uri": "hf://acme/draft", "revision": "1" * 40}},
    "gateway": {"replicas": 2},
    "canary": {"steps": [{"percent": 50, "holdSeconds": 60}], "analysis": ANALYSIS, "progressDeadlineSeconds": 80000},
}


class Quiet:
    """An observer that nobody asks."""

    async def decided(self, key: Key, uid: str, decision: Decision) -> None:
        pass


class WrittenCluster(MemoryCluster):
    """What another cluster held, as the API server's bytes; a write is answered and forgotten."""

    def __init__(self, source: MemoryCluster) -> None:
        super().__init__()
        self._bodies = {address: json.dumps(body).encode() for address, body in source.objects.items()}
        self._kinds = {
            kind: json.dumps([body for (held, _, _), body in source.objects.items() if held is kind]).encode()
            for kind in Kind
        }

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        body = self._bodies.get((kind, namespace, name))
        return None if body is None else json.loads(body)

    async def list(self, kind: Kind, namespace: str | None, *, labels: Mapping[str, str]) -> tuple[Json, ...]:
        return tuple(json.loads(self._kinds[kind]))

    async def apply(self, kind: Kind, body: Json) -> Json:
        answer: Json = json.loads(json.dumps(body))
        return answer

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        return await self.apply(kind, body)


class WrittenTelemetry(ScriptedTelemetry):
    """Every gateway answers the same bytes but for its boot, which is its address."""

    def __init__(self, document: Json) -> None:
        super().__init__()
        self.answer = json.dumps(document)

    async def evidence(self, address: str) -> bytes | None:
        return self.answer.replace("BOOT", address).encode()


def row(chance: random.Random, most: int) -> list[int]:
    return [chance.randrange(most // 2, most) for _ in range(BUCKETS)]


def build_document(revisions: tuple[str, str], policy: int, now: float) -> dict[str, Any]:
    """A gateway's answer after an hour of traffic under POLICIES policies from `policy` on."""
    chance = random.Random(SEED)
    sums = {"requests": 5000, "errors": 3, "rounds": 90000, "speculating": 80000, "proposed": 300000, "emitted": 290000}
    strata = [
        {
            "policy": policy + number,
            "revision": revision,
            **sums,
            "acceptance": {"accepted": row(chance, 500), "examined": row(chance, 2000), "requests": row(chance, 50)},
            "shadow": {"matched": row(chance, 500), "examined": row(chance, 2000)},
        }
        for number in range(POLICIES)
        for revision in revisions
    ]
    for stratum in strata:
        for part, whole in (("acceptance", "accepted"), ("shadow", "matched")):
            sums_of: Any = stratum[part]
            sums_of["examined"] = [a + b for a, b in zip(sums_of[whole], sums_of["examined"], strict=True)]
    slots = [
        {
            "pod": f"uid-{index % 2}",
            "target": "91ab02c4",
            "slot": int(now) // 20 - index // 2,
            "arm": chance.choice(("on", "off")),
            "policy": policy + index % POLICIES,
            "revision": chance.choice(revisions),
            "tokens": chance.randrange(500, 1000),
            "milliseconds": chance.randrange(5000, 10000),
        }
        for index in range(SLOTS)
    ]
    return {"boot": "BOOT", "policy": policy + POLICIES, "serving": True, "strata": strata, "slots": slots}


async def canary_under_way(clock: FixedClock) -> tuple[MemoryCluster, tuple[str, str], int]:
    """A cluster whose object judges a new draft, its revisions, and the number of the canary's first policy."""
    cluster, telemetry = MemoryCluster(), ScriptedTelemetry()
    sources, world = Sources(cluster, telemetry, clock, TERMS), Controllers(cluster, telemetry)
    metadata = {"namespace": KEY.namespace, "name": KEY.name, "uid": "uid-chat"}
    cluster.put(Kind.SPECULATIVE_DEPLOYMENT, {"metadata": metadata, "spec": SPEC})
    status: Any = {}
    while status.get("progress", {}).get("rollout", {}).get("stage") != "Stepping":
        await reconcile(KEY, sources, Quiet())
        world.step()
        clock.advance(5)
        body: Any = await cluster.get(Kind.SPECULATIVE_DEPLOYMENT, KEY.namespace, KEY.name)
        status = body.get("status", {})
        if status.get("stableRevision"):
            body["spec"]["draft"]["model"]["revision"] = "2" * 40
            cluster.put(Kind.SPECULATIVE_DEPLOYMENT, body)
    rollout = status["progress"]["rollout"]
    return cluster, (rollout["revision"], status["stableRevision"]), rollout["firstPolicy"]


async def measure() -> list[float]:
    """CPU seconds of LOOKS looks."""
    clock = FixedClock()
    cluster, revisions, policy = await canary_under_way(clock)
    document = build_document(revisions, policy, clock.time.timestamp())
    history = ScrapeHistory()
    # One look for real: its evidence is saved, and its scrape is the baseline of the breaker's window.
    await reconcile(KEY, Sources(cluster, WrittenTelemetry(document), clock, TERMS, history), Quiet())
    clock.advance(301)
    for stratum in document["strata"]:
        stratum["requests"] += 1
    sources = Sources(WrittenCluster(cluster), WrittenTelemetry(document), clock, TERMS, history)
    samples = []
    for _ in range(WARM_UP_LOOKS + LOOKS):
        began = time.process_time()
        await reconcile(KEY, sources, Quiet())
        samples.append(time.process_time() - began)
    return samples[WARM_UP_LOOKS:]


def main() -> None:
    samples = [seconds * 1e3 for seconds in asyncio.run(measure())]
    low, middle, high = statistics.quantiles(samples, n=4)
    print(f"one look: median {middle:.2f} ms of CPU, quartiles {low:.2f} {high:.2f}, n {len(samples)}")
    rounded = [round(sample, 3) for sample in samples]
    figures = {"median_ms": round(middle, 3)}
    print(record("operator_look", seed=SEED, figures=figures, samples={"cpu_milliseconds": rounded}))


if __name__ == "__main__":
    main()
