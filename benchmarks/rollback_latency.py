"""Measures how soon an alert takes a bad revision out of every gateway: `make bench NAME=rollback_latency`.

Refuses to know how the operator does it. Real are the API server and its store, the definition of the resource, the
chart's rights and the operator, a process of its own; everything between Deployments and traffic is stood in for, as in
`operator_scale`, and its gateways follow a policy by a watch, as the product's do. TRIALS objects, with two gateways
each, install a revision, and promote a second one once its canary has had a hundred requests, while the pods of the
first are kept warm. An alert counts once a day for an object, so each has one trial, one after the other:

    p99_s       from the POST of the alert until each gateway says that it follows a policy in which the second
                revision has no weight; of 30 trials, the longest
    p50_s       the median
    posted_s    until the POST was acknowledged, which is when the alert is on the object; the longest
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.operator_scale import (
    ADDRESS,
    GROUP,
    LOOK_SECONDS,
    PORT,
    Operator,
    install,
    is_settled,
    on_a_cluster,
    path_of,
    standing_in,
    tell,
)
from benchmarks.record import record
from benchmarks.scale_world import ADMIN_PORT
from tandem_devcluster import linux
from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.state import StateFolder

SEED, TRIALS, NAMESPACE = 0, 30, "rollbacks"
PATIENCE_SECONDS, LONGEST_SECONDS, POLL_SECONDS = 900.0, 60.0, 0.01


def spec(model: str) -> Object:
    """A target alone: its canary is judged by its errors, and waits for no slot."""
    return {
        "target": {"model": {"uri": model}, "resources": {"limits": {"memory": "8Gi"}}},
        "draft": {"method": "None"},
        "gateway": {"replicas": 2},
        "canary": {
            "steps": [{"percent": 50, "holdSeconds": 0}],
            "analysis": {
                "intervalSeconds": 5,
                "minRequests": 100,
                "timeToFirstToken": {"maxSlowShareIncreaseBasisPoints": 10_000},  # left out: it would wait for more
            },
            "rollbackWindowSeconds": 3600,
        },
        "rollback": {"windowSeconds": 3600, "keepWarm": {"seconds": 3600}},
    }


FIRST, SECOND = spec("file:///m/first"), spec("file:///m/second")


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds from the POST: until it was acknowledged, and until the revision was out of every gateway."""

    posted_s: float
    out_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """One object of the trials."""

    api: Api
    session: aiohttp.ClientSession
    name: str

    async def create(self) -> None:
        body = {"apiVersion": GROUP, "kind": "SpeculativeDeployment", "metadata": {"name": self.name}, "spec": FIRST}
        await self.api.create(self.path.rpartition("/")[0], body)

    @property
    def path(self) -> str:
        return path_of((NAMESPACE, self.name))

    async def edit(self, wanted: Object) -> None:
        found = await self.api.get(self.path)
        await self.api.replace(self.path, {**found, "spec": {**found["spec"], **wanted}})

    async def until(self, reached: Callable[[Object], bool]) -> Object:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reached(found := await self.api.get(self.path)):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(LOOK_SECONDS)
        return found

    async def promote(self) -> None:
        """Two revisions, of which the second serves."""
        await self.create()
        first = (await self.until(is_settled))["status"]["stableRevision"]
        await self.edit(SECOND)
        await self.until(lambda found: is_settled(found) and found["status"]["stableRevision"] != first)

    async def trial(self) -> Trial:
        found = await self.api.get(self.path)
        bad, gateways = found["status"]["stableRevision"], await self.gateways()
        began = time.monotonic()
        await self.post()
        posted = time.monotonic() - began
        async with asyncio.timeout(LONGEST_SECONDS):
            while not await self.is_out(bad, gateways):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(POLL_SECONDS)
        return Trial(posted, time.monotonic() - began)

    async def gateways(self) -> list[str]:
        """Their addresses."""
        chosen = f"tandem.dev/deployment={self.name},tandem.dev/role=gateway"
        listed = await self.api.get(build_path("pods", namespace=NAMESPACE), labelSelector=chosen)
        addresses = [pod["status"]["podIP"] for pod in listed["items"]]
        assert len(addresses) == FIRST["gateway"]["replicas"], addresses
        return addresses

    async def post(self) -> None:
        """What Alertmanager posts of an alert that starts now."""
        labels = {"alertname": "TandemHighErrorRate", "namespace": NAMESPACE, "specdep": self.name}
        alert = {"status": "firing", "labels": labels, "startsAt": datetime.now(UTC).isoformat(), "fingerprint": "a"}
        url, bearer = f"http://{ADDRESS}:{PORT}/v1/alerts", {"Authorization": "Bearer alerts"}
        async with self.session.post(url, json={"version": "4", "alerts": [alert]}, headers=bearer) as answer:
            assert answer.status == 202, await answer.text()

    async def is_out(self, bad: str, gateways: list[str]) -> bool:
        """Whether every gateway follows the newest policy or a later one, and that one gives `bad` nothing."""
        held = await self.api.get(build_path("configmaps", namespace=NAMESPACE, name=f"{self.name}-policy"))
        policy = json.loads(held["data"]["policy.json"])
        if any(served["name"] == bad and served["weight"] for served in policy["revisions"]):
            return False
        heard = await asyncio.gather(*map(self.heard, gateways))
        return min(heard) >= int(policy["number"])

    async def heard(self, gateway: str) -> int:
        async with self.session.get(f"http://{gateway}:{ADMIN_PORT}/internal/evidence") as answer:
            return int((await answer.json())["policy"])


async def measure(state: StateFolder, rights: str, count: int) -> Object:
    """The samples, from inside the cluster's network."""
    async with Api(read_access(state.inner_kubeconfig), request_seconds=60) as api, aiohttp.ClientSession() as session:
        operator = Operator(await install(api, state, rights), state.root / "operator.log")
        await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await api.create(build_path("serviceaccounts", namespace=NAMESPACE), {"metadata": {"name": "default"}})
        pairs = [Pair(api, session, f"pair-{number}") for number in range(count)]
        async with standing_in(state):
            operator.start("operator-0")
            await asyncio.gather(*(pair.promote() for pair in pairs))
            tell(f"{count} objects have promoted a second revision")
            trials = [await pair.trial() for pair in pairs]
            operator.stop()
    return {"trials": [asdict(trial) for trial in trials]}


def figures(samples: Mapping[str, Any]) -> dict[str, float]:
    out = sorted(trial["out_s"] for trial in samples["trials"])
    return {
        "trials": len(out),
        "p99_s": round(out[-(len(out) // 100) - 1], 3),
        "p50_s": round(statistics.median(out), 3),
        "posted_s": round(max(trial["posted_s"] for trial in samples["trials"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollback_latency", description="From alert to gateways."
    )
    parser.add_argument("--trials", type=int, default=TRIALS)
    for hidden in ("--inside", "--rights", "--samples"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        linux.die_with_parent()  # which may have been killed, and this is not in the cluster's process namespace
        found = asyncio.run(measure(StateFolder(given.inside), given.rights.read_text(), given.trials))
        given.samples.write_text(json.dumps(found))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as by a key: the cluster ends with this process
    samples = on_a_cluster("benchmarks.rollback_latency", "--trials", str(given.trials))
    told = figures(samples)
    for name, value in told.items():
        print(f"{name:12} {value}")
    if given.trials == TRIALS:
        print(record("rollback_latency", seed=SEED, figures=told, samples=samples))


if __name__ == "__main__":
    main()
