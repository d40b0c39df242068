"""One rollout from nothing to a promoted second revision, with the operator as a process behind a fault proxy.

It knows how to play it, once per namespace and many beside each other, and what stands at the end; which faults it
meets is the test's. The API server, its controllers, the rights of the chart and the operator are real; pods are idle
(`idle_pods`), so that a rollout takes seconds.
"""

import asyncio
import json
import re
import secrets
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.definition import CHART, install_definition
from tests.cluster.fault_proxy import Asked, Entry, Fault, FaultProxy, Script, fault_proxy, nothing
from tests.cluster.idle_pods import NOBODY, IdlePods, idle_pods
from tests.cluster.operator_process import OperatorProcess

from tandem_devcluster.api import Api, build_path
from tandem_devcluster.errors import ApiError
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.testing import Cluster, Object
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse

CRD_GROUP, NAME, ACCOUNT = "tandem.dev/v1alpha1", "chat", "tandem-operator"
ANYWHERE = "test-namespace"
"""Stands for the namespace where the chart is rendered once for all of them."""
IDLE = {"spec": {"schedulerName": NOBODY}}
PATIENCE_SECONDS = 150.0
ALERT_TOKEN = "alerts"
OURS = "somebody.example/note"


def spec(model: str) -> dict[str, Any]:
    """A target alone: its canary stands beside stable, is judged by its errors, and nothing of it waits for a clock."""
    return {
        "target": {"model": {"uri": model}, "podTemplate": IDLE},
        "draft": {"method": "None"},
        "gateway": {"replicas": 1, "podTemplate": IDLE},
        "canary": {
            "steps": [{"percent": 50, "holdSeconds": 0}],
            "analysis": {"intervalSeconds": 1, "minRequests": 100},
            "rollbackWindowSeconds": 0,
        },
        "rollback": {"windowSeconds": 0},
    }


FIRST, SECOND = spec("file:///m/first"), spec("file:///m/second")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to the operator: a script from its start, and one from the edit, when open watches are cut too,
    each for so many seconds; watches of which nothing arrives from the edit on; a kill after the n-th write that was
    done."""

    installing: Script = nothing
    moving: Script = nothing
    seconds: float = 3.0
    frozen: bool = False
    kill_after: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What stood at the end, and what it took; `told` are the events' reasons, `account` is who the operator was,
    `looks` are the files of its recorded looks."""

    account: str
    state: dict[str, Any]
    record: tuple[Entry, ...]
    strange_lines: list[str]
    exits: list[int]
    seconds: float
    generation: int
    note: str
    told: list[str]
    looks: list[Path]

    def writes(self) -> list[Entry]:
        return [entry for entry in self.record if is_of_the_story(entry)]

    def families(self) -> list[str]:
        """The writes in order, without hashes."""
        return [family(entry) for entry in self.writes()]

    def made_twice(self) -> list[str]:
        """Objects that the API server made more than once."""
        made = [entry.asked.path for entry in self.writes() if entry.status == 201 and entry.asked.method == "PATCH"]
        return sorted({path for path in made if made.count(path) > 1})


def looks(record: Iterable[Entry]) -> list[list[Entry]]:
    """The requests of each look, which begins by reading the object; the Lease, rights, and watches with the lists that
    they begin with belong to none."""
    found: list[list[Entry]] = []
    for entry in record:
        asked = entry.asked
        if asked.watches or asked.pages or re.search(r"/leases|/selfsubjectrulesreviews", asked.path):
            continue
        if asked.method == "GET" and asked.path.endswith(f"/speculativedeployments/{NAME}"):
            found.append([])
        if found:
            found[-1].append(entry)
    return found


def is_of_the_story(entry: Entry) -> bool:
    """A write that was done: neither of the Lease nor a question."""
    return entry.done and not re.search(r"/leases|/selfsubjectrulesreviews", entry.asked.path)


def family(entry: Entry) -> str:
    """`PATCH deployments/chat-target-*`."""
    path = entry.asked.path.partition("/namespaces/")[2].partition("/")[2]
    without_hashes = re.sub(r"-[0-9a-f]{8}\b", "-*", path)
    return f"{entry.asked.method} {without_hashes}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One object in a namespace of its own, and the operator that serves it behind a proxy; `path` is the object's."""

    api: Api
    namespace: str
    proxy: FaultProxy
    operator: OperatorProcess
    path: str

    async def create(self, wanted: dict[str, Any]) -> None:
        body = {"apiVersion": CRD_GROUP, "kind": "SpeculativeDeployment", "metadata": {"name": NAME}, "spec": wanted}
        await self.api.create(self.path.rpartition("/")[0], body)

    async def edit(self, wanted: dict[str, Any] | None = None, *, annotations: Mapping[str, str] | None = None) -> None:
        """What a person does: another spec, commands, under the version that they have read."""
        while True:
            found = await self.api.get(self.path)
            found["metadata"].setdefault("annotations", {}).update(annotations or {})
            try:
                await self.api.replace(self.path, {**found, "spec": wanted or found["spec"]})
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return

    async def until(self, reached: Callable[[Object], bool], *, within: float = PATIENCE_SECONDS) -> Object:
        """The object once it is as wanted; a TimeoutError tells how it was."""
        found: Object = {}
        try:
            async with asyncio.timeout(within):
                while not (found.get("status") and reached(found)):
                    await asyncio.sleep(0.2)
                    found = await self.api.get(self.path)
        except TimeoutError as late:
            late.add_note(json.dumps(found.get("status"), indent=1))
            raise
        return found

    async def serves(self, wanted: dict[str, Any]) -> Object:
        """The object once this spec's revision serves and nothing is left to do."""
        name = revision_of(parse(wanted)).name
        return await self.until(lambda found: settled(found) and found["status"].get("stableRevision") == name)

    async def told(self) -> list[str]:
        """The reasons of the events about the object."""
        events = await self.api.get(build_path("events", namespace=self.namespace, group="events.k8s.io/v1"))
        return sorted(
            event["reason"] for event in events["items"] if event["regarding"]["kind"] == "SpeculativeDeployment"
        )

    async def children(self, kind: str) -> list[Object]:
        """The object's children of a kind, by name."""
        (group,) = [held for held, known in KINDS if known == kind]
        body = {"apiVersion": group, "kind": kind, "metadata": {"namespace": self.namespace}}
        listed = await self.api.get(collection(body), labelSelector=f"tandem.dev/deployment={NAME}")
        found: list[Object] = listed["items"]
        return found

    async def state(self, found: Object) -> dict[str, Any]:
        """Everything that stands, without moments and counts, and of children without what their controllers say."""
        kinds = [kind for _, kind in KINDS]
        listed = zip(kinds, await asyncio.gather(*map(self.children, kinds)), strict=True)
        children = {
            f"{kind} {body['metadata']['name']}": {name: held for name, held in body.items() if name != "status"}
            for kind, bodies in listed
            for body in bodies
        }
        text = json.dumps({**children, "SpeculativeDeployment": found})
        everything = json.loads(text.replace(self.namespace, "NAMESPACE").replace(found["metadata"]["uid"], "UID"))
        return {name: timeless(body) for name, body in sorted(everything.items()) if not name.endswith("-evidence")}


@dataclass(frozen=True, slots=True)
class Theatre:
    """Where stories are played: one API server with the resource's definition, and the chart's rights as text."""

    cluster: Cluster
    api: Api
    pods: IdlePods
    rights: str
    folder: Path

    @asynccontextmanager
    async def stage(self) -> AsyncIterator[Stage]:
        """An empty stage, with an operator that has not been started; both go with the block."""
        namespace = f"story-{secrets.token_hex(4)}"
        server = read_access(self.cluster.kubeconfig).server
        path = build_path("speculativedeployments", namespace=namespace, group=CRD_GROUP, name=NAME)
        async with fault_proxy(server, tls=authority(self.cluster.kubeconfig)) as proxy:
            await self._prepare(namespace)
            operator = OperatorProcess(await self._environment(namespace, proxy.url), self.folder / namespace / "log")
            try:
                yield Stage(self.api, namespace, proxy, operator, path)
            finally:
                await operator.stop()
                await self._clear(namespace)

    async def rival(self, stage: Stage, home: Stage) -> OperatorProcess:
        """A second operator for the object of `stage`, not started; its Lease lies in the namespace of `home`."""
        rbac = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "rival", "namespace": stage.namespace},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": home.namespace}],
        }
        await self.api.create(collection(binding), binding)
        return home.operator.changed(TANDEM_WATCH_NAMESPACES=stage.namespace)

    async def play(self, trouble: Trouble) -> Outcome:
        async with self.stage() as stage:
            count_kills(stage.proxy, trouble.kill_after, stage.operator.kill)
            began = time.monotonic()
            await stage.create(FIRST)
            stage.operator.start()
            async with during(stage.proxy, trouble.installing, trouble.seconds):
                await stage.serves(FIRST)
            stage.proxy.frozen = trouble.frozen
            async with during(stage.proxy, trouble.moving, trouble.seconds):
                stage.proxy.cut_watches()
                await stage.edit(SECOND, annotations={OURS: "kept"})
                found = await stage.serves(SECOND)
            return Outcome(
                account=f"system:serviceaccount:{stage.namespace}:{ACCOUNT}",
                seconds=time.monotonic() - began,
                state=await stage.state(found),
                told=await stage.told(),
                looks=sorted((self.folder / stage.namespace / "looks").glob("*.json")),
                record=tuple(stage.proxy.record),
                strange_lines=stage.operator.strange_lines(),
                exits=list(stage.operator.exits),
                generation=found["metadata"]["generation"],
                note=found["metadata"]["annotations"][OURS],
            )

    async def _prepare(self, namespace: str) -> None:
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        for body in yaml.safe_load_all(self.rights.replace(ANYWHERE, namespace)):
            await self.api.create(collection(body), body)

    async def _clear(self, namespace: str) -> None:
        for body in yaml.safe_load_all(self.rights.replace(ANYWHERE, namespace)):
            if body["kind"].startswith("Cluster"):
                await self.api.delete(f"{collection(body)}/{body['metadata']['name']}")
        await self.api.delete(f"/api/v1/namespaces/{namespace}")

    async def _environment(self, namespace: str, server: str) -> dict[str, str]:
        folder = self.folder / namespace
        folder.mkdir()
        (folder / "token").write_text(ALERT_TOKEN)
        path = build_path("serviceaccounts", namespace=namespace, name=ACCOUNT, subresource="token")
        issued = await self.api.create(path, {"spec": {"expirationSeconds": 3600}})
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig(server, issued["status"]["token"])))
        return {
            "KUBECONFIG": str(folder / "kubeconfig"),
            "POD_NAMESPACE": namespace,
            "POD_NAME": "operator-0",
            "POD_IP": address_of(namespace),
            "TANDEM_ALERT_TOKEN_FILE": str(folder / "token"),
            "TANDEM_RUNTIME_IMAGE": "tandem-runtime:0.1.0",
            "TANDEM_WATCH_NAMESPACES": namespace,
            "TANDEM_RECORD_FOLDER": str(folder / "looks"),
        }


@asynccontextmanager
async def theatre(cluster: Cluster, folder: Path) -> AsyncIterator[Theatre]:
    """Installs the definition of the resource, and keeps idle pods running for as long as the block runs."""
    shown = ("--show-only", "templates/rights.yaml", "--show-only", "templates/account.yaml")
    watched = ("--namespace", ANYWHERE, "--set", f"watch.namespaces={{{ANYWHERE}}}")
    rights = cluster.helm("template", "tandem", str(CHART), *shown, *watched)
    install_definition(cluster)
    access = read_access(cluster.kubeconfig)
    async with Api(access, request_seconds=PATIENCE_SECONDS) as api, idle_pods(api) as pods:
        yield Theatre(cluster, api, pods, rights, folder)


def kubeconfig(server: str, token: str) -> Object:
    named = {"name": "story"}
    return {
        "current-context": "story",
        "clusters": [{**named, "cluster": {"server": server}}],
        "users": [{**named, "user": {"token": token}}],
        "contexts": [{**named, "context": {"cluster": "story", "user": "story"}}],
    }


def chosen(names: Iterable[str], always: Iterable[str]) -> list[Any]:
    """The names as parameters of a test; those that are not `always` played bear the marker `faults`."""
    kept = set(always)
    return [pytest.param(name, marks=() if name in kept else pytest.mark.faults, id=name) for name in names]


def asked_for(request: pytest.FixtureRequest, parameter: str) -> set[str]:
    """The values of a parameter over all tests of the module that this run is going to play."""
    module = request.node.path
    played = (item for item in request.session.items if item.path == module)
    given = (item.callspec.params for item in played if isinstance(item, pytest.Function) and hasattr(item, "callspec"))
    return {str(params[parameter]) for params in given if parameter in params}


def address_of(namespace: str) -> str:
    """An address of 127/8 for the operator's own HTTP side."""
    digits = namespace.rpartition("-")[2]
    return f"127.99.{int(digits[:2], 16)}.{max(1, min(254, int(digits[2:4], 16)))}"


def count_kills(proxy: FaultProxy, number: int, kill: Callable[[], None]) -> None:
    """Kills after the n-th write of the story, before its answer passes on."""
    done = 0

    def after(entry: Entry) -> None:
        nonlocal done
        done += is_of_the_story(entry)
        if done == number and is_of_the_story(entry):
            kill()

    proxy.after = after


@asynccontextmanager
async def during(proxy: FaultProxy, script: Script, seconds: float) -> AsyncIterator[None]:
    """The script holds for as long as the block runs, and for so many seconds at most from its first fault on."""
    loop, ends = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

    def stop() -> None:
        proxy.script = nothing

    def timed(asked: Asked) -> Fault | None:
        fault = script(asked)
        if fault is not None and not ends:
            ends.append(loop.call_later(seconds, stop))
        return fault

    proxy.script = timed
    try:
        yield
    finally:
        for end in ends:
            end.cancel()
        stop()


def settled(found: Object) -> bool:
    conditions = {held["type"]: held for held in found.get("status", {}).get("conditions", [])}
    reconciling = conditions.get("Reconciling", {})
    current = reconciling.get("observedGeneration") == found["metadata"]["generation"]
    return current and (reconciling["status"], reconciling["reason"]) == ("False", "Settled")


KINDS = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "ControllerRevision"),
    ("policy/v1", "PodDisruptionBudget"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("v1", "ConfigMap"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
)


def collection(body: Object) -> str:
    """Where objects of this kind and namespace lie."""
    group = "" if body["apiVersion"] == "v1" else body["apiVersion"]
    return build_path(f"{body['kind'].lower()}s", namespace=body["metadata"].get("namespace", ""), group=group)


def authority(kubeconfig: Path) -> ssl.SSLContext:
    """Knows the API server's certificate, and carries none of our own."""
    held = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    return ssl.create_default_context(cadata=b64decode(held).decode())


OF_THE_MOMENT = re.compile(
    r"(uid|resourceVersion|generation|managedFields|creationTimestamp|observedGeneration|clusterIPs?|number|"
    r"policy|firstPolicy|history.json|at|since|.*At|.*Since|.*Time|tandem.dev/(changed-at|stable-since|applied)|"
    r"deployment.kubernetes.io/revision)"
)
"""Keys whose values tell when and how often, not what."""


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(read(held)) for name, held in value.items() if not OF_THE_MOMENT.fullmatch(name)}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def read(value: Any) -> Any:
    """JSON within a text is compared as what it says."""
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
