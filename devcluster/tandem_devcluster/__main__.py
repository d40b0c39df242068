"""The command line: `python -m tandem_devcluster up|down|status|env|node|logs|forward|build`.

It knows the words and prints; other modules do the work. Errors are one line on stderr and exit status 1.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp

from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.build import ensure_built
from tandem_devcluster.errors import DevClusterError, StateError
from tandem_devcluster.forward import forward, parse_destination
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.lifecycle import Plan, start, stop
from tandem_devcluster.machine import DEFAULT_MACHINES, Machine, parse_machine
from tandem_devcluster.state import StateFolder
from tandem_devcluster.supervisor import ready_nodes

_CHECKOUT = Path(__file__).resolve().parents[2]
_NODE_SECONDS = 60.0
_FIRST_MACHINE_NUMBER = 1


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.state = StateFolder(given.state.resolve())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated `up` cleans up as an interrupted one does
    try:
        outcome = given.work(given)
    except (DevClusterError, aiohttp.ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130
    return int(outcome or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tandem_devcluster", description="A Kubernetes without containers.")
    folder = Path(os.environ.get("TANDEM_DEVCLUSTER_STATE", _CHECKOUT / ".devcluster"))
    parser.add_argument("--state", type=Path, default=folder, help=f"state folder (default: {folder})")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _verb(verbs, "build", _build, "build the control plane into the cache")
    up = _verb(verbs, "up", _up, "start the cluster")
    up.add_argument("--port", type=int, default=0, help="the API server's port on 127.0.0.1 (default: any free one)")
    up.add_argument(
        "--node", action="append", help="NAME[,gpu=PRODUCT,count=N][,cpu=N][,memory=SIZE]; instead of the default ones"
    )
    up.add_argument(
        "--backoff-base", type=float, default=10.0, help="seconds before a crashed container's second restart"
    )
    _verb(verbs, "down", _down, "stop the cluster and everything it started")
    _verb(verbs, "status", _status, "show nodes and addresses")
    _verb(verbs, "env", _env, "print shell lines that select the cluster")
    _add_node_verbs(verbs)
    logs = _verb(verbs, "logs", _logs, "show a pod's log; options are those of kubectl logs")
    logs.add_argument("rest", nargs=argparse.REMAINDER)
    ahead = _verb(verbs, "forward", _forward, "offer a Service or pod on 127.0.0.1")
    ahead.add_argument("destination", help="svc/NAME or pod/NAME")
    ahead.add_argument("port", help="the Service's port, by number or name; a pod's port by number")
    ahead.add_argument("--local-port", type=int, default=0)
    ahead.add_argument("--namespace", "-n", default="default")
    return parser


def _verb(verbs, name, work, text):  # type: ignore[no-untyped-def]
    verb = verbs.add_parser(name, help=text)
    verb.set_defaults(work=work)
    return verb


def _add_node_verbs(verbs) -> None:  # type: ignore[no-untyped-def]
    node = verbs.add_parser("node", help="add, remove, fail or restore a node").add_subparsers(required=True)
    _verb(node, "add", _add_node, "add a node").add_argument("node", help="NAME[,gpu=PRODUCT,count=N]")
    for name, work, text in (
        ("remove", _remove_node, "remove a node and its pods"),
        ("fail", _fail_node, "switch a node off; its Node object stays and becomes NotReady"),
        ("restore", _restore_node, "switch a failed node on again"),
    ):
        _verb(node, name, work, text).add_argument("node")


def _build(_: argparse.Namespace) -> None:
    print(asyncio.run(ensure_built()))


def _up(given: argparse.Namespace) -> None:
    program = asyncio.run(ensure_built())
    machines = DEFAULT_MACHINES
    if given.node:
        machines = tuple(parse_machine(text, number) for number, text in enumerate(given.node, _FIRST_MACHINE_NUMBER))
    start(given.state, program, Plan(machines, given.port, given.backoff_base))
    print(f"==> ready: {', '.join(machine.name for machine in machines)}")
    print(f'export KUBECONFIG="{given.state.kubeconfig}" PATH="{given.state.bin}:$PATH"')
    print(
        "next: kubectl get nodes; helm install ...; python -m tandem_devcluster forward svc/NAME PORT; make cluster-down"
    )


def _down(given: argparse.Namespace) -> None:
    print("stopped" if stop(given.state) else f"no dev cluster runs in {given.state.root}")


def _env(given: argparse.Namespace) -> None:
    given.state.require_running()
    print(f'export KUBECONFIG="{given.state.kubeconfig}" PATH="{given.state.bin}:$PATH"')


def _status(given: argparse.Namespace) -> None:
    running = given.state.require_running()
    print(f"API server  https://127.0.0.1:{running.api_port}")
    print(f"kubeconfig  {given.state.kubeconfig}")
    print(f"supervisor  process {running.pid}, log {given.state.supervisor_log}")
    nodes, ready, pods = asyncio.run(_survey(given.state))
    for node in nodes:
        name = node["metadata"]["name"]
        gpu = node["metadata"]["labels"].get("nvidia.com/gpu.product", "no GPU")
        count = sum(1 for pod in pods if pod["spec"].get("nodeName") == name)
        print(f"node        {name}: {'Ready' if name in ready else 'NotReady'}, {gpu}, {count} pods")


async def _survey(state: StateFolder) -> tuple[list[Object], frozenset[str], list[Object]]:
    async with Api(read_access(state.kubeconfig)) as api:
        nodes = (await api.get(build_path("nodes")))["items"]
        return nodes, await ready_nodes(api), (await api.get(build_path("pods")))["items"]


def _add_node(given: argparse.Namespace) -> None:
    machines = given.state.machines()
    used = {machine.number for machine in machines}
    number = next(number for number in range(_FIRST_MACHINE_NUMBER, 255) if number not in used)
    machine = parse_machine(given.node, number)
    if any(other.name == machine.name for other in machines):
        raise StateError(f"node {machine.name} exists already")
    _change_machines(given.state, (*machines, machine))
    asyncio.run(_wait_for(given.state, machine.name, ready=True))


def _remove_node(given: argparse.Namespace) -> None:
    machine = _machine(given.state, given.node)
    _change_machines(given.state, tuple(other for other in given.state.machines() if other != machine))
    asyncio.run(_wait_for(given.state, machine.name, ready=False))


def _fail_node(given: argparse.Namespace) -> None:
    _switch(given.state, given.node, failed=True)


def _restore_node(given: argparse.Namespace) -> None:
    _switch(given.state, given.node, failed=False)
    asyncio.run(_wait_for(given.state, given.node, ready=True))


def _switch(state: StateFolder, name: str, *, failed: bool) -> None:
    machine = _machine(state, name)
    machines = tuple(replace(other, failed=failed) if other == machine else other for other in state.machines())
    _change_machines(state, machines)


def _machine(state: StateFolder, name: str) -> Machine:
    for machine in state.machines():
        if machine.name == name:
            return machine
    known = ", ".join(machine.name for machine in state.machines())
    raise StateError(f"there is no node {name!r}; there are {known}")


def _change_machines(state: StateFolder, machines: tuple[Machine, ...]) -> None:
    running = state.require_running()
    state.set_machines(machines)
    os.kill(running.pid, signal.SIGHUP)


async def _wait_for(state: StateFolder, name: str, *, ready: bool) -> None:
    """Wait until the node is Ready, or is gone."""
    async with Api(read_access(state.kubeconfig)) as api:
        try:
            async with asyncio.timeout(_NODE_SECONDS):
                while (name in await _nodes(api, only_ready=ready)) != ready:
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise StateError(
                f"node {name} did not {'become Ready' if ready else 'go'} in {_NODE_SECONDS:.0f} s"
            ) from error


async def _nodes(api: Api, *, only_ready: bool) -> frozenset[str]:
    if only_ready:
        return await ready_nodes(api)
    return frozenset(node["metadata"]["name"] for node in (await api.get(build_path("nodes")))["items"])


def _logs(given: argparse.Namespace) -> int:
    given.state.require_running()
    kubectl = str(given.state.bin / "kubectl")
    os.execv(kubectl, [kubectl, "logs", *given.rest])  # noqa: S606 - replaces this program


def _forward(given: argparse.Namespace) -> None:
    destination = parse_destination(given.destination, namespace=given.namespace, port=given.port)
    asyncio.run(forward(given.state, destination, given.local_port))


if __name__ == "__main__":
    sys.exit(main())
