"""Measures the operator with a thousand objects that have traffic: `make bench NAME=operator_scale`, or
`python -m benchmarks.operator_scale --objects 300`.

Refuses to know how the operator does it. Real are the API server and its store, the definition of the resource, the
chart's rights, and the operator: a process of its own with its own account. Stood in for, in one process
(`scale_world`), are the controllers of Deployments, scheduler, kubelets, gateways and engines: three thousand pods with
engines do not fit a machine, and the real controllers, which make twenty requests a second, would take a quarter of an
hour, in which nothing of the operator would be seen. Everything shares this machine's processors, so a busy machine
makes the figures worse. Each object is a pair with one target, one draft and one gateway, fifty in a namespace.

In this order:

1. all objects are created, IN_FLIGHT at once, and wait until they are settled (`install_s`);
2. with everything at rest and the breaker's window full, `--steady` seconds pass: writes other than of Leases
   (`steady_writes`), requests to the API server, processor time, memory (`rss_mb`; `peak_mb` is since the start);
3. one object in a second is edited, EDITS in all, by turns a policy (settings of speculation) and a size (target
   replicas), each timed from the edit's answer until its child says so (`apply_p99_s`: of a hundred, the second
   longest);
4. the operator is asked to end and another process begins (`restart_s`: until every object has been looked at and is
   at rest). A killed one leaves a Lease that lasts 15 s, which would come on top.

`autoDisable.windowSeconds` is 60 in place of 300, so that step 2 need not wait for five minutes; with 300 each of a
thousand objects keeps ten scrapes more of its gateway, some 2 kB each, so the operator takes 20 MB more.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.record import record
from benchmarks.scale_world import stand_in
from tandem_devcluster import linux
from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.build import ensure_built
from tandem_devcluster.errors import ApiError
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.lifecycle import Plan, start, stop
from tandem_devcluster.state import StateFolder

ROOT = Path(__file__).parents[1]
CHART, DEFINITION = ROOT / "charts" / "tandem", ROOT / "crds" / "speculativedeployments.yaml"
SEED, OBJECTS, PER_NAMESPACE = 0, 1000, 50
IN_FLIGHT, EDITS, EDIT_SECONDS, STEADY_SECONDS = 40, 100, 1.0, 120.0
PATIENCE_SECONDS, LOOK_SECONDS, POLL_SECONDS = 1800.0, 0.5, 0.01
WINDOW_SECONDS = 60
SYSTEM, ACCOUNT, GROUP = "tandem-system", "tandem-operator", "tandem.dev/v1alpha1"
ADDRESS, PORT = "10.244.0.9", 9090
SPEC: Object = {
    "target": {"model": {"uri": "file:///m/target"}, "resources": {"limits": {"memory": "8Gi"}}},
    "draft": {"model": {"uri": "file:///m/draft"}},
    "gateway": {"replicas": 1},
    "autoDisable": {"windowSeconds": WINDOW_SECONDS},
}


# The operator's process


@dataclass(slots=True)
class Operator:
    """A process of the product, as its Deployment would run it; `/proc` tells what it takes."""

    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, name: str) -> None:
        environment = {**os.environ, **self.environment, "POD_NAME": name}
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tandem_operator.main"]
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=linux.die_with_parent,  # noqa: PLW1509 - one call into the kernel, whatever threads there are
            )

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def cpu_seconds(self) -> float:
        fields = self._read("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self, what: str) -> float:
        """`VmRSS` or `VmHWM`."""
        (kilobytes,) = re.findall(rf"{what}:\s+(\d+) kB", self._read("status"))
        return int(kilobytes) / 1024

    def _read(self, name: str) -> str:
        assert self.process is not None
        assert self.process.poll() is None, f"the operator has ended: see {self.log}"
        return Path(f"/proc/{self.process.pid}/{name}").read_text()


@dataclass(slots=True)
class Audit:
    """The API server's audit log, read on from where one was; `account` is whose requests are told."""

    path: Path
    account: str
    place: int = 0

    def skip(self) -> None:
        self.place = self.path.stat().st_size

    def read(self) -> Iterator[tuple[str, str]]:
        """Verb and path of each request since."""
        with self.path.open("rb") as log:
            log.seek(self.place)
            for line in log:
                if line.endswith(b"\n") and self.account.encode() in line:
                    entry = json.loads(line)
                    if entry["user"].get("username") == self.account:
                        yield entry["verb"], entry["requestURI"].partition("?")[0]


# Objects


@dataclass(slots=True)
class Objects:
    """All objects, by namespace and name; `settled` holds those that say that nothing is left to do."""

    api: Api
    count: int
    settled: set[tuple[str, str]] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(f"scale-{number // PER_NAMESPACE}", f"pair-{number}") for number in range(self.count)]

    async def follow(self) -> None:
        async for kind, body in self.api.follow(build_path("speculativedeployments", group=GROUP)):
            for each in body["items"] if kind == "LISTED" else [body]:
                key = (each["metadata"]["namespace"], each["metadata"]["name"])
                (self.settled.add if is_settled(each) else self.settled.discard)(key)
            self.changed.set()

    async def create_all(self) -> None:
        """So that never more than IN_FLIGHT are on their way."""
        for namespace in dict.fromkeys(namespace for namespace, _ in self.keys):
            await self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            await self.api.create(build_path("serviceaccounts", namespace=namespace), {"metadata": {"name": "default"}})
        for made, (namespace, name) in enumerate(self.keys):
            await self._until(made - IN_FLIGHT + 1)
            body = {"apiVersion": GROUP, "kind": "SpeculativeDeployment", "metadata": {"name": name}, "spec": SPEC}
            await self.api.create(path_of((namespace, name)).rpartition("/")[0], body)
        await self._until(self.count)

    async def _until(self, settled: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.settled) < settled:
                self.changed.clear()
                await self.changed.wait()

    async def edit(self, number: int) -> tuple[str, float]:
        """What kind of an edit it was, and seconds from its answer until the child says so."""
        namespace, name = key = self.keys[number * 7919 % self.count]
        found = await self.api.get(path_of(key))
        sized = bool(number % 2)
        if sized:
            wanted = 3 - found["spec"]["target"]["replicas"]
            found["spec"]["target"]["replicas"] = wanted
            (target,) = (held["target"] for held in found["status"]["revisions"])
            child = build_path("deployments", namespace=namespace, group="apps/v1", name=f"{name}-target-{target}")
        else:
            wanted = found["status"]["gateway"]["policy"] + 1
            found["spec"]["speculation"]["minGainBasisPoints"] = 200 + number
            child = build_path("configmaps", namespace=namespace, name=f"{name}-policy")
        await self.api.replace(path_of(key), found)
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while said(await self.api.get(child)) != wanted:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(POLL_SECONDS)
        return "size" if sized else "policy", time.monotonic() - began

    async def edit_many(self) -> list[tuple[str, float]]:
        """One in a second, whether those before have been followed or not."""
        edits = []
        async with asyncio.TaskGroup() as group:
            for number in range(min(EDITS, self.count)):
                edits.append(group.create_task(self.edit(number)))
                await asyncio.sleep(EDIT_SECONDS)
        return [edit.result() for edit in edits]


def path_of(key: tuple[str, str]) -> str:
    return build_path("speculativedeployments", namespace=key[0], group=GROUP, name=key[1])


def said(child: Object) -> int:
    """The number of a policy, or the size of a Deployment."""
    if "data" in child:
        return int(json.loads(child["data"]["policy.json"])["number"])
    return int(child["spec"]["replicas"])


def is_settled(body: Object) -> bool:
    conditions = {held["type"]: held for held in body.get("status", {}).get("conditions", [])}
    held = conditions.get("Reconciling", {})
    return (held.get("reason"), held.get("observedGeneration")) == ("Settled", body["metadata"]["generation"])


# Inside the cluster's network


async def measure(state: StateFolder, rights: str, count: int, calm: float) -> Object:
    """Figures and samples."""
    async with Api(read_access(state.inner_kubeconfig), request_seconds=60) as api:
        operator = Operator(await install(api, state, rights), state.root / "operator.log")
        objects, samples = Objects(api, count), dict[str, Any]()
        audit = Audit(state.audit_log, f"system:serviceaccount:{SYSTEM}:{ACCOUNT}")
        async with standing_in(state), asyncio.TaskGroup() as group:
            following = group.create_task(objects.follow())
            operator.start("operator-0")
            began = time.monotonic()
            await objects.create_all()
            samples["install_s"] = time.monotonic() - began
            tell(f"{count} objects are settled after {samples['install_s']:.0f} s")
            await asyncio.sleep(WINDOW_SECONDS + 30)
            await until_at_rest(count)
            samples |= await steady(operator, audit, calm)
            samples["edits"] = await objects.edit_many()
            tell(f"{len(samples['edits'])} edits, the longest {max(seconds for _, seconds in samples['edits']):.2f} s")
            await until_at_rest(count)
            samples |= await restart(operator, count)
            operator.stop()
            following.cancel()
    return samples


async def steady(operator: Operator, audit: Audit, calm: float) -> dict[str, Any]:
    """What a while at rest takes."""
    audit.skip()
    began, spent = time.monotonic(), operator.cpu_seconds()
    await asyncio.sleep(calm)
    seconds = time.monotonic() - began
    asked = Counter(verb for verb, path in audit.read() if "/leases" not in path)
    writes = {verb: times for verb, times in asked.items() if verb not in ("get", "list", "watch")}
    found = {
        "steady_s": seconds,
        "steady_requests": dict(asked),
        "steady_writes": sum(writes.values()),
        "steady_cpu_s": operator.cpu_seconds() - spent,
        "rss_mb": operator.megabytes("VmRSS"),
        "peak_mb": operator.megabytes("VmHWM"),
    }
    tell(f"at rest: {found}")
    return found


async def restart(operator: Operator, count: int) -> dict[str, float]:
    """From the beginning of another process until every object is at rest again."""
    await asyncio.to_thread(operator.stop)
    began = time.monotonic()
    operator.start("operator-1")
    await until_at_rest(count)
    seconds = time.monotonic() - began
    return {"restart_s": seconds, "restart_cpu_s": operator.cpu_seconds(), "restart_mb": operator.megabytes("VmHWM")}


async def until_at_rest(count: int) -> None:
    """Until the operator says of that many objects that it left them with nothing to do."""
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
        while await objects_at_rest(session) != count:  # noqa: ASYNC110 - another process comes to rest
            await asyncio.sleep(LOOK_SECONDS)


async def objects_at_rest(session: aiohttp.ClientSession) -> int:
    try:
        async with session.get(f"http://{ADDRESS}:{PORT}/metrics") as answer:
            found = re.search(r"^tandem_operator_steady_objects (\S+)$", await answer.text(), re.MULTILINE)
    except aiohttp.ClientError:
        return 0  # it is being started
    return int(float(found[1])) if found else 0


async def install(api: Api, state: StateFolder, rights: str) -> dict[str, str]:
    """The definition and the operator's account; its environment."""
    await api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(DEFINITION.read_text()))
    await until_served(api)
    await api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    for body in yaml.safe_load_all(rights):
        await api.create(collection(body), body)
    path = build_path("serviceaccounts", namespace=SYSTEM, name=ACCOUNT, subresource="token")
    token = (await api.create(path, {"spec": {"expirationSeconds": 7200}}))["status"]["token"]
    kubeconfig, alerts = state.root / "operator.kubeconfig", state.root / "alerts"
    access = json.loads(state.inner_kubeconfig.read_text())
    access["users"][0]["user"] = {"token": token}
    kubeconfig.write_text(json.dumps(access))
    alerts.write_text("alerts")
    return {
        "KUBECONFIG": str(kubeconfig),
        "POD_NAMESPACE": SYSTEM,
        "POD_IP": ADDRESS,
        "TANDEM_PORT": str(PORT),
        "TANDEM_ALERT_TOKEN_FILE": str(alerts),
        "TANDEM_RUNTIME_IMAGE": "tandem-runtime:0.1.0",
    }


async def until_served(api: Api) -> None:
    """Until there are such objects: some time after their definition was made."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await api.get(build_path("speculativedeployments", group=GROUP))
            except ApiError:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return


def collection(body: Object) -> str:
    """Where objects of this kind and namespace lie."""
    group = "" if body["apiVersion"] == "v1" else body["apiVersion"]
    return build_path(f"{body['kind'].lower()}s", namespace=body["metadata"].get("namespace", ""), group=group)


@asynccontextmanager
async def standing_in(state: StateFolder) -> AsyncIterator[None]:
    """The process of `scale_world`; that it ended early is an error."""
    command = [sys.executable, "-m", "benchmarks.operator_scale", "--stand-in", str(state.inner_kubeconfig)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        yield
        assert process.returncode is None, "what stands in for pods has ended"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def tell(line: str) -> None:
    print(f"==> {line}", flush=True)


# Outside


def on_a_cluster(module: str, *orders: str) -> Object:
    """The samples of a benchmark that runs itself inside a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="operator-scale-") as folder:
        state = StateFolder(Path(folder) / "state")
        start(state, asyncio.run(ensure_built()), Plan((), bare=True, bound=True))
        try:
            rights, samples = Path(folder) / "rights.yaml", Path(folder) / "samples.json"
            rights.write_text(rendered_rights(state))
            inside = [sys.executable, "-m", "tandem_devcluster", "--state", str(state.root), "inside"]
            files = ["--inside", str(state.root), "--rights", str(rights), "--samples", str(samples)]
            command = [*inside, sys.executable, "-m", module, *files, *orders]
            done = subprocess.run(command, cwd=ROOT, check=False)
            if done.returncode:
                log = state.root / "operator.log"
                print(log.read_text()[-4000:] if log.exists() else "the operator was not started", file=sys.stderr)
                sys.exit(done.returncode)
            found: Object = json.loads(samples.read_text())
            return found
        finally:
            stop(state)


def rendered_rights(state: StateFolder) -> str:
    shown = ("--show-only", "templates/rights.yaml", "--show-only", "templates/account.yaml")
    command = (str(state.bin / "helm"), "template", "tandem", str(CHART), "--namespace", SYSTEM, *shown)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def figures(samples: Mapping[str, Any], count: int) -> dict[str, float]:
    seconds = sorted(seconds for _, seconds in samples["edits"])
    return {
        "objects": count,
        "apply_p99_s": round(seconds[-len(seconds) // 100 - 1], 3),
        "apply_p50_s": round(statistics.median(seconds), 3),
        "steady_writes": samples["steady_writes"],
        "steady_reads_per_s": round(sum(samples["steady_requests"].values()) / samples["steady_s"], 1),
        "steady_cores": round(samples["steady_cpu_s"] / samples["steady_s"], 3),
        "rss_mb": round(samples["rss_mb"]),
        "peak_mb": round(samples["peak_mb"]),
        "restart_s": round(samples["restart_s"], 1),
        "install_s": round(samples["install_s"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_scale", description="The operator at scale.")
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--steady", type=float, default=STEADY_SECONDS, help="seconds at rest (default %(default)s)")
    for hidden in ("--inside", "--rights", "--samples", "--stand-in"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stand_in or given.inside:
        linux.die_with_parent()  # which may have been killed, and these are not in the cluster's process namespace
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as by a key: the cluster ends with this process
    if given.stand_in:
        asyncio.run(stand_in(given.stand_in))
    elif given.inside:
        found = asyncio.run(measure(StateFolder(given.inside), given.rights.read_text(), given.objects, given.steady))
        given.samples.write_text(json.dumps(found))
    else:
        orders = ("--objects", str(given.objects), "--steady", str(given.steady))
        samples = on_a_cluster("benchmarks.operator_scale", *orders)
        told = figures(samples, given.objects)
        for name, value in told.items():
            print(f"{name:20} {value}")
        name = "operator_scale" if given.objects == OBJECTS else f"operator_scale_{given.objects}"
        print(record(name, seed=SEED, figures=told, samples=samples))


if __name__ == "__main__":
    main()
