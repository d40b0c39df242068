"""Pods on the dev cluster behave as pods do anywhere: what they see, when they are ready, how they end."""

import json
import textwrap
from typing import Any

import httpx
import pytest

from tandem_devcluster.testing import Cluster

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

SERVER = ["python3", "-u", "-m", "http.server", "8000", "--bind", "$(POD_IP)"]
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def build_pod(name: str, *command: str, container: Object | None = None, **spec: Any) -> Object:
    """A pod with one container `main`; restarts never and ends fast unless the row says otherwise."""
    main = {"name": "main", "image": "unused", "command": list(command), **(container or {})}
    defaults = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**defaults, "containers": [main], **spec},
    }


def python(program: str) -> tuple[str, ...]:
    return "python3", "-u", "-c", textwrap.dedent(program)


def ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def first(pod: Object) -> Object:
    """The only container's status, or nothing yet."""
    found: list[Object] = pod["status"].get("containerStatuses", [{}])
    return found[0]


def state(pod: Object) -> Object:
    found: Object = first(pod).get("state", {})
    return found


def test_a_deployment_serves_behind_its_service_and_its_logs_can_be_read(cluster: Cluster, namespace: str) -> None:
    main = {
        "name": "main",
        "image": "unused",
        "command": SERVER,
        "workingDir": "/site",
        "env": [POD_IP],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/page", "port": "http"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "site", "mountPath": "/site"}],
    }
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [main],
            "volumes": [{"name": "site", "configMap": {"name": "site"}}],
        },
    }
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site"}, "data": {"page": "hello"}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": "http"}]},
        },
        namespace=namespace,
    )
    cluster.kubectl("rollout", "status", "-n", namespace, "deployment/web", "--timeout=30s")
    with cluster.forward("svc/web", 80, namespace=namespace) as url:
        page = cluster.inside("curl", "-s", "-m", "5", f"http://{pod_addresses(cluster, namespace)[0]}:8000/page")
        assert page == "hello"
        assert fetch(f"{url}/page") == "hello"
    assert "GET /page" in cluster.kubectl("logs", "-n", namespace, "deployment/web", "--tail=5")


def pod_addresses(cluster: Cluster, namespace: str) -> list[str]:
    return [pod["status"]["podIP"] for pod in cluster.get("pods", namespace=namespace)["items"]]


def fetch(url: str) -> str:
    return httpx.get(url, timeout=5).text


PROMISED = [
    POD_IP,
    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
    {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
    {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": True}}},
    {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    {"name": "TOGETHER", "value": "$(COLOUR)-$(TEAM)-$(UNKNOWN)"},
]
"""Every kind of variable that a container may ask for."""

TELL = python(
    """
    import json, os, pathlib, sys
    token = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
    names = ("NODE", "TEAM", "SECRET", "COLOUR", "MEMORY", "TOGETHER", "PREFIX_colour")
    print(json.dumps({
        "environment": {name: os.environ[name] for name in names},
        "absent": "ABSENT" in os.environ,
        "arguments": sys.argv[1:3],
        "pid": os.getpid(),
        "host name": os.uname().nodename,
        "files": {path: pathlib.Path(path).read_text() for path in sys.argv[3:]},
        "token parts": (token / "token").read_text().count("."),
        "namespace": (token / "namespace").read_text(),
        "cwd": os.getcwd(),
    }))
    """
)
"""Prints what a container finds around it."""


def build_seer() -> Object:
    """A pod that asks for all that a specification can promise, and tells what it got."""
    pod = build_pod(
        "seer",
        *TELL,
        container={
            "args": ["$(COLOUR)", "$$(COLOUR)", "/keys/password", "/settings/c", "/shared/init"],
            "workingDir": "/shared",
            "env": PROMISED,
            "envFrom": [{"prefix": "PREFIX_", "configMapRef": {"name": "settings"}}],
            "resources": {"limits": {"memory": "128Mi"}},
            "volumeMounts": [
                {"name": "keys", "mountPath": "/keys"},
                {"name": "settings", "mountPath": "/settings"},
                {"name": "shared", "mountPath": "/shared"},
            ],
        },
        initContainers=[
            {
                "name": "first",
                "image": "unused",
                "command": ["sh", "-c", "echo -n written > /shared/init"],
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
            }
        ],
        volumes=[
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "settings", "configMap": {"name": "settings", "items": [{"key": "colour", "path": "c"}]}},
            {"name": "shared", "emptyDir": {}},
        ],
    )
    pod["metadata"]["labels"] = {"team": "blue"}
    return pod


def test_a_container_finds_what_its_specification_promises(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "red"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"password": "sesame"}},
        build_seer(),
        namespace=namespace,
    )
    done = cluster.wait("pod", "seer", namespace=namespace, until=ended)
    seen = json.loads(cluster.kubectl("logs", "-n", namespace, "seer"))
    assert seen == {
        "environment": {
            "NODE": done["spec"]["nodeName"],
            "TEAM": "blue",
            "SECRET": "sesame",
            "COLOUR": "red",
            "MEMORY": "128",
            "TOGETHER": "red-blue-$(UNKNOWN)",
            "PREFIX_colour": "red",
        },
        "absent": False,
        "arguments": ["red", "$(COLOUR)"],
        "pid": 1,
        "host name": "seer",
        "files": {"/keys/password": "sesame", "/settings/c": "red", "/shared/init": "written"},
        "token parts": 2,
        "namespace": namespace,
        "cwd": "/shared",
    }


def test_a_pod_may_do_what_its_role_grants_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    program = python(
        """
        import os, pathlib, ssl, urllib.error, urllib.request
        folder = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
        tls = ssl.create_default_context(cafile=folder / "ca.crt")
        base = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
        for kind in ("configmaps", "secrets"):
            url = f"{base}/api/v1/namespaces/{(folder / 'namespace').read_text()}/{kind}"
            call = urllib.request.Request(url, headers={"Authorization": f"Bearer {(folder / 'token').read_text()}"})
            try:
                print(kind, urllib.request.urlopen(call, context=tls).status)
            except urllib.error.HTTPError as error:
                print(kind, error.code)
        """
    )
    cluster.kubectl("create", "-n", namespace, "role", "reader", "--verb=list", "--resource=configmaps")
    account = f"--serviceaccount={namespace}:default"
    cluster.kubectl("create", "-n", namespace, "rolebinding", "reader", "--role=reader", account)
    cluster.apply(build_pod("caller", *program), namespace=namespace)
    cluster.wait("pod", "caller", namespace=namespace, until=ended)
    assert cluster.kubectl("logs", "-n", namespace, "caller").split("\n")[:2] == ["configmaps 200", "secrets 403"]


def test_a_crashing_container_is_restarted_with_growing_delays_and_keeps_its_last_log(
    cluster: Cluster, namespace: str
) -> None:
    pod = build_pod(
        "crasher",
        "sh",
        "-c",
        "echo said; echo why > /dev/termination-log; exit 3",
        restartPolicy="Always",
    )
    cluster.apply(pod, namespace=namespace)

    def backs_off(pod: Object) -> bool:
        reason = state(pod).get("waiting", {}).get("reason")
        return bool(reason == "CrashLoopBackOff" and first(pod)["restartCount"] >= 2)

    found = cluster.wait("pod", "crasher", namespace=namespace, until=backs_off)
    last = first(found)["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"], last["message"]) == (3, "Error", "why\n")
    assert "back-off 2s" in state(found)["waiting"]["message"]
    assert found["status"]["phase"] == "Running"
    assert cluster.kubectl("logs", "-n", namespace, "crasher", "--previous") == "said\n"


def test_a_program_that_is_not_there_is_a_start_error(cluster: Cluster, namespace: str) -> None:
    cluster.apply(build_pod("ghost", "no-such-program"), namespace=namespace)
    found = cluster.wait("pod", "ghost", namespace=namespace, until=ended)
    assert state(found)["terminated"]["reason"] == "StartError"
    assert "No such file" in state(found)["terminated"]["message"]


def test_a_container_waits_for_the_secret_that_it_names(cluster: Cluster, namespace: str) -> None:
    reference = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}
    cluster.apply(build_pod("patient", "printenv", "KEY", container={"env": [reference]}), namespace=namespace)
    waiting = cluster.wait("pod", "patient", namespace=namespace, until=lambda pod: "late" in json.dumps(pod["status"]))
    assert state(waiting)["waiting"]["reason"] == "CreateContainerConfigError"
    cluster.kubectl("create", "-n", namespace, "secret", "generic", "late", "--from-literal=k=v")
    cluster.wait("pod", "patient", namespace=namespace, until=ended)
    assert cluster.kubectl("logs", "-n", namespace, "patient") == "v\n"


def test_a_container_over_its_memory_limit_is_killed_for_it(cluster: Cluster, namespace: str) -> None:
    program = python("import time; held = bytearray(200_000_000); time.sleep(60)")
    container = {"resources": {"limits": {"memory": "64Mi"}}}
    cluster.apply(build_pod("glutton", *program, container=container), namespace=namespace)
    found = cluster.wait("pod", "glutton", namespace=namespace, until=ended)
    end = state(found)["terminated"]
    assert (end["exitCode"], end["reason"], found["status"]["phase"]) == (137, "OOMKilled", "Failed")


def test_a_deleted_pod_runs_its_hook_then_gets_sigterm_and_time_to_finish(cluster: Cluster, namespace: str) -> None:
    program = python(
        """
        import pathlib, signal, time
        def finish(*_):
            time.sleep(0.5)
            pathlib.Path("/record/order").open("a").write("finished")
            raise SystemExit
        signal.signal(signal.SIGTERM, finish)
        print("ready")
        while True:
            time.sleep(1)
        """
    )
    record = {"name": "record", "hostPath": {"path": str(cluster.state.root / f"record-{namespace}")}}
    (cluster.state.root / f"record-{namespace}").mkdir()
    container = {
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /record/order"]}}},
        "volumeMounts": [{"name": "record", "mountPath": "/record"}],
    }
    cluster.apply(build_pod("worker", *program, container=container, volumes=[record]), namespace=namespace)
    cluster.wait("pod", "worker", namespace=namespace, until=lambda pod: "running" in state(pod))
    cluster.kubectl("logs", "-n", namespace, "worker", "-f", "--limit-bytes=5")
    cluster.kubectl("delete", "pod", "-n", namespace, "worker", "--timeout=20s")
    assert (cluster.state.root / f"record-{namespace}" / "order").read_text() == "hook\nfinished"


def test_a_pod_that_ignores_sigterm_is_killed_when_its_grace_is_over(cluster: Cluster, namespace: str) -> None:
    cluster.apply(build_pod("stubborn", "sleep", "1000", terminationGracePeriodSeconds=1), namespace=namespace)
    cluster.wait("pod", "stubborn", namespace=namespace, until=lambda pod: "running" in state(pod))
    cluster.kubectl("delete", "pod", "-n", namespace, "stubborn", "--timeout=20s")
    assert cluster.get("pods", namespace=namespace)["items"] == []


def test_probes_gate_readiness_and_restart_what_they_find_dead(cluster: Cluster, namespace: str) -> None:
    present = {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1}
    alive = {"exec": {"command": ["test", "!", "-e", "/shared/dead"]}, "periodSeconds": 1, "failureThreshold": 1}
    program = python(
        """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        again = pathlib.Path("/shared/dead").exists()
        pathlib.Path("/shared/dead").unlink(missing_ok=True)
        time.sleep(1)
        pathlib.Path("/shared/ready").touch()
        if not again:
            time.sleep(1)
            pathlib.Path("/shared/dead").touch()
        time.sleep(1000)
        """
    )
    container = {
        "readinessProbe": present,
        "livenessProbe": alive,
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    volumes = [{"name": "shared", "emptyDir": {}}]
    pod = build_pod("probed", *program, container=container, volumes=volumes, restartPolicy="Always")
    cluster.apply(pod, namespace=namespace)
    unready = cluster.wait("pod", "probed", namespace=namespace, until=lambda pod: "running" in state(pod))
    assert first(unready)["ready"] is False
    cluster.wait("pod", "probed", namespace=namespace, until=lambda pod: first(pod)["ready"])
    again = cluster.wait("pod", "probed", namespace=namespace, until=lambda pod: first(pod)["restartCount"] == 1)
    events = cluster.kubectl("get", "events", "-n", namespace)
    assert first(again)["lastState"]["terminated"]["exitCode"] == 0
    assert "failed its liveness probe" in events


def test_a_container_writes_to_nothing_but_its_volumes(cluster: Cluster, namespace: str) -> None:
    mark = cluster.state.root.parent / f"mark-{namespace}"
    cluster.apply(build_pod("writer", "sh", "-c", f"echo x > {mark} && cat {mark}"), namespace=namespace)
    found = cluster.wait("pod", "writer", namespace=namespace, until=ended)
    assert found["status"]["phase"] == "Succeeded"
    assert not mark.exists()


def test_a_job_runs_to_completion(cluster: Cluster, namespace: str) -> None:
    template = build_pod("unused", "true")["spec"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": {"spec": template}},
    }
    cluster.apply(job, namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=complete", "job/once", "--timeout=30s")


@pytest.mark.parametrize(("accelerator", "node"), [("NVIDIA-L4", "l4-0"), ("NVIDIA-H100-80GB-HBM3", "h100-0")])
def test_a_gpu_pod_lands_on_the_node_with_its_label(
    cluster: Cluster, namespace: str, accelerator: str, node: str
) -> None:
    cluster.apply(build_gpu_pod("gpu", accelerator, count=1), namespace=namespace)
    found = cluster.wait("pod", "gpu", namespace=namespace, until=ended)
    assert found["spec"]["nodeName"] == node


def test_a_pod_that_fits_nowhere_says_why(cluster: Cluster, namespace: str) -> None:
    cluster.apply(build_gpu_pod("big", "NVIDIA-L4", count=100), namespace=namespace)

    def refused(pod: Object) -> bool:
        return "Insufficient nvidia.com/gpu" in json.dumps(pod["status"])

    found = cluster.wait("pod", "big", namespace=namespace, until=refused)
    assert found["status"]["phase"] == "Pending"


def test_a_pod_without_toleration_stays_off_gpu_nodes(cluster: Cluster, namespace: str) -> None:
    pod = build_pod("plain", "true", nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"})
    cluster.apply(pod, namespace=namespace)
    cluster.wait(
        "pod", "plain", namespace=namespace, until=lambda pod: "untolerated taint" in json.dumps(pod["status"])
    )


def build_gpu_pod(name: str, accelerator: str, *, count: int) -> Object:
    return build_pod(
        name,
        "true",
        container={"resources": {"limits": {"nvidia.com/gpu": str(count)}}},
        nodeSelector={"nvidia.com/gpu.product": accelerator},
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
    )


def test_an_owned_object_goes_with_its_owner(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "-n", namespace, "configmap", "owner")
    owner = cluster.get("configmap", "owner", namespace=namespace)["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    pod = build_pod("owned", "sleep", "1000", terminationGracePeriodSeconds=1)
    pod["metadata"]["ownerReferences"] = [reference]
    cluster.apply(pod, namespace=namespace)
    cluster.wait("pod", "owned", namespace=namespace, until=lambda pod: "running" in state(pod))
    cluster.kubectl("delete", "configmap", "-n", namespace, "owner")
    cluster.kubectl("wait", "-n", namespace, "--for=delete", "pod/owned", "--timeout=30s")
