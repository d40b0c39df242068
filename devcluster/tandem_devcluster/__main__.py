"""The command line: `python -m tandem_devcluster build|up|down|status|env|node|logs|forward|inside`.

It knows the words and prints; other modules do the work. Errors are one line on stderr and exit status 1.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.build import ensure_built
from tandem_devcluster.errors import DevClusterError
from tandem_devcluster.forward import forward, parse_destination
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.lifecycle import Plan, start, stop
from tandem_devcluster.machine import DEFAULT_MACHINES, Machine, parse_machine
from tandem_devcluster.namespace import enter_network_of
from tandem_devcluster.nodes import (
    FIRST_NUMBER,
    add_node,
    fail_node,
    fetch_nodes,
    is_ready,
    name_of,
    remove_node,
    restore_node,
)
from tandem_devcluster.state import StateFolder

if TYPE_CHECKING:
    # The class exists in argparse's type stubs only under this private name.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

Work = Callable[[argparse.Namespace], int | None]

_CHECKOUT = Path(__file__).resolve().parents[2]
_NODE_FORM = "NAME[,gpu=PRODUCT,count=N][,cpu=N][,memory=SIZE]"
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.state = StateFolder(given.state.resolve())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated `up` cleans up as an interrupted one does
    try:
        return given.work(given) or 0
    except (DevClusterError, aiohttp.ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tandem_devcluster", description="A Kubernetes without containers.")
    folder = Path(os.environ.get("TANDEM_DEVCLUSTER_STATE", _CHECKOUT / ".devcluster"))
    parser.add_argument("--state", type=Path, default=folder, help=f"state folder (default: {folder})")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _verb(verbs, "build", _build, "build the control plane into the cache")
    _add_up(verbs)
    _verb(verbs, "down", _down, "stop the cluster and everything it started")
    _verb(verbs, "status", _status, "show nodes and addresses")
    _verb(verbs, "env", _env, "print shell lines that select the cluster")
    _add_node_verbs(verbs)
    logs = _verb(verbs, "logs", _logs, "show a pod's log")
    logs.add_argument("rest", nargs=argparse.REMAINDER, help="what kubectl logs takes")
    _add_forward(verbs)
    inside = _verb(verbs, "inside", _inside, "run a command in the cluster's network, where pods have addresses")
    inside.add_argument("rest", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser


def _verb(verbs: "Verbs", name: str, work: Work, text: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text)
    verb.set_defaults(work=work)
    return verb


def _add_up(verbs: "Verbs") -> None:
    up = _verb(verbs, "up", _up, "start the cluster")
    up.add_argument("--port", type=int, default=0, help="the API server's port on 127.0.0.1 (default: any free one)")
    up.add_argument("--node", action="append", metavar=_NODE_FORM, help="a node, instead of the default ones")
    up.add_argument(
        "--folder",
        action="append",
        default=[],
        metavar="INSIDE=OUTSIDE",
        type=_folder,
        help="show a folder of this machine to every container, read-only, as if its image held it",
    )
    up.add_argument("--backoff-base", type=float, default=10.0, help="seconds before a container's second restart")


def _add_node_verbs(verbs: "Verbs") -> None:
    node = verbs.add_parser("node", help="add, remove, fail or restore a node").add_subparsers(required=True)
    for name, change, text in (
        ("add", add_node, "add a node"),
        ("remove", remove_node, "remove a node and its pods"),
        ("fail", fail_node, "switch a node off; its Node object stays and becomes NotReady"),
        ("restore", restore_node, "switch a failed node on again"),
    ):
        verb = _verb(node, name, lambda given: given.change(given.state, given.node), text)
        verb.set_defaults(change=change)
        verb.add_argument("node", metavar=_NODE_FORM if name == "add" else "NAME")


def _add_forward(verbs: "Verbs") -> None:
    verb = _verb(verbs, "forward", _forward, "offer a Service or pod on 127.0.0.1")
    verb.add_argument("destination", help="svc/NAME or pod/NAME")
    verb.add_argument("port", help="a Service's port by number or name, a pod's port by number")
    verb.add_argument("--local-port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)")
    verb.add_argument("--namespace", "-n", default="default")


def _folder(text: str) -> tuple[str, str]:
    inside, _, outside = text.partition("=")
    if not inside.startswith("/") or not Path(outside).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not /path/inside=FOLDER with a folder that exists")
    return inside, str(Path(outside).resolve())


def _build(_: argparse.Namespace) -> None:
    print(asyncio.run(ensure_built()))


def _up(given: argparse.Namespace) -> None:
    program = asyncio.run(ensure_built())
    machines: tuple[Machine, ...] = DEFAULT_MACHINES
    if given.node:
        machines = tuple(parse_machine(text, number) for number, text in enumerate(given.node, FIRST_NUMBER))
    machines = tuple(replace(machine, folders=dict(given.folder)) for machine in machines)
    start(given.state, program, Plan(machines, given.port, given.backoff_base))
    print(f"==> ready: {', '.join(machine.name for machine in machines)}")
    _env(given)
    print(
        "# then: kubectl get nodes, helm install, python -m tandem_devcluster forward svc/NAME PORT, make cluster-down"
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
    nodes, pods = asyncio.run(_survey(given.state))
    for node in nodes:
        ready = "Ready" if is_ready(node) else "NotReady"
        gpu = node["metadata"]["labels"].get("nvidia.com/gpu.product", "no GPU")
        count = sum(1 for pod in pods if pod["spec"].get("nodeName") == name_of(node))
        print(f"node        {name_of(node)}: {ready}, {gpu}, {count} pods")


async def _survey(state: StateFolder) -> tuple[list[Object], list[Object]]:
    async with Api(read_access(state.kubeconfig)) as api:
        return await fetch_nodes(api), (await api.get(build_path("pods")))["items"]


def _logs(given: argparse.Namespace) -> None:
    given.state.require_running()
    kubectl = str(given.state.bin / "kubectl")
    os.execv(kubectl, [kubectl, "logs", *given.rest])  # noqa: S606 - kubectl takes this program's place


def _inside(given: argparse.Namespace) -> None:
    """The administrator's kubeconfig that works there comes along."""
    enter_network_of(given.state.require_running().pid)
    os.environ["KUBECONFIG"] = str(given.state.inner_kubeconfig)
    os.execvp(given.rest[0], given.rest)  # noqa: S606 - the command takes this program's place


def _forward(given: argparse.Namespace) -> None:
    destination = parse_destination(given.destination, namespace=given.namespace, port=given.port)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a relay leaves nothing behind, so it may end at once
    asyncio.run(forward(given.state, destination, given.local_port))


if __name__ == "__main__":
    sys.exit(main())
