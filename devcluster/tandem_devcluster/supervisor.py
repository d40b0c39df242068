"""Starts the control plane and the process nodes, in order, and keeps them running.

It knows no pod. It runs inside the cluster's namespaces, so whatever ends it ends everything it started. Which nodes
there should be is a file in the state folder; SIGHUP says that it changed.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Container, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem_devcluster.api import Api, build_path, wait_until_ready
from tandem_devcluster.certificates import Authority, Identity
from tandem_devcluster.child import Child
from tandem_devcluster.components import (
    API_PORT,
    INNER_SERVER,
    Component,
    Credentials,
    build_api_server,
    build_controller_manager,
    build_etcd,
    build_scheduler,
    issue_credentials,
)
from tandem_devcluster.errors import ApiError, DevClusterError, StartError
from tandem_devcluster.kubeconfig import read_access, write_kubeconfig
from tandem_devcluster.machine import Machine
from tandem_devcluster.namespace import GATEWAY_ADDRESS, run_in_cluster_namespaces
from tandem_devcluster.nodes import fetch_nodes, is_ready, name_of, wait_for_nodes
from tandem_devcluster.relay import Target, relay
from tandem_devcluster.state import StateFolder

_log = logging.getLogger("tandem_devcluster.supervisor")

_READY_SECONDS = 90.0  # usual is 4; a machine busy with other work may take long


@dataclass(frozen=True, slots=True)
class Orders:
    """What `up` tells the supervisor; `listener` and `herald` are file descriptors that it inherits."""

    state: StateFolder
    program: Path
    listener: int
    herald: int
    api_port: int
    backoff_base_seconds: float
    bare: bool


class Supervisor:
    """The whole cluster, from inside."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._state = orders.state
        self._components: list[Child] = []
        self._nodes: dict[str, Child] = {}
        self._machines_changed = asyncio.Event()
        self._first_end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Bring everything up, say so, and stay until cancelled.

        Raises:
            StartError: a component ended or did not become ready.
        """
        credentials = issue_credentials(self._state, api_port=self._orders.api_port)
        server = await relay(socket.socket(fileno=self._orders.listener), _api_server)
        async with server, Api(read_access(self._state.inner_kubeconfig)) as api:
            await self._unless_something_ends(self._bring_up(api, credentials))
            self._announce("ready")
            os.close(self._orders.herald)
            await self._follow_machines(api, credentials.authority)

    def machines_changed(self) -> None:
        self._machines_changed.set()

    async def _bring_up(self, api: Api, credentials: Credentials) -> None:
        self._start(build_etcd(self._state))
        self._start(build_api_server(self._state, credentials))
        await self._wait_for_api(api)
        self._announce("API server ready")
        if self._orders.bare:
            return
        self._start(build_controller_manager(self._state, credentials))
        self._start(build_scheduler(self._state))
        await self._match_machines(api, credentials.authority)
        await self._wait_for_nodes(api)

    async def _unless_something_ends(self, work: Coroutine[None, None, None]) -> None:
        """Later a program that ends is started again; while the cluster comes up, its end is the answer."""
        task = asyncio.ensure_future(work)
        waited: tuple[asyncio.Future[Any], ...] = (task, self._first_end)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            raise StartError(self._first_end.result())
        await task

    def _something_ended(self, sentence: str) -> None:
        if not self._first_end.done():
            self._first_end.set_result(sentence)

    def _start(self, component: Component) -> None:
        command = (str(self._orders.program), component.name, *component.flags)
        log = self._state.logs / f"{component.name}.log"
        self._components.append(Child(component.name, command, log, self._something_ended))

    def _announce(self, text: str) -> None:
        """Tell the waiting `up`; when it is gone, the broken pipe ends this half-started cluster."""
        _log.info("%s", text)
        os.write(self._orders.herald, f"{text}\n".encode())

    async def _wait_for_api(self, api: Api) -> None:
        try:
            await wait_until_ready(api, deadline_seconds=_READY_SECONDS)
        except TimeoutError as error:
            log = self._state.logs / "kube-apiserver.log"
            raise StartError(f"the API server was not ready in {_READY_SECONDS:.0f} s; see {log}") from error

    async def _wait_for_nodes(self, api: Api) -> None:
        wanted = {machine.name for machine in self._state.machines() if not machine.failed}
        try:
            await wait_for_nodes(
                api,
                lambda nodes: wanted <= {name_of(node) for node in nodes if is_ready(node)},
                deadline_seconds=_READY_SECONDS,
            )
        except TimeoutError as error:
            log = self._state.root / "nodes"
            raise StartError(f"not every node was Ready in {_READY_SECONDS:.0f} s; see {log}/*/agent.log") from error

    async def _follow_machines(self, api: Api, authority: Authority) -> None:
        while True:
            await self._machines_changed.wait()
            self._machines_changed.clear()
            await self._match_machines(api, authority)

    async def _match_machines(self, api: Api, authority: Authority) -> None:
        """Make the running nodes those of the machines file."""
        wanted = {machine.name: machine for machine in self._state.machines()}
        on = {name for name, machine in wanted.items() if not machine.failed}
        for name in self._nodes.keys() - on:
            failed = name in wanted
            await self._nodes.pop(name).dismiss(signal.SIGKILL if failed else signal.SIGTERM)
        for name in on - self._nodes.keys():
            self._nodes[name] = self._start_node(wanted[name], authority)
        await _forget_nodes(api, wanted=wanted.keys())

    def _start_node(self, machine: Machine, authority: Authority) -> Child:
        identity = Identity(
            f"system:node:{machine.name}", ("system:nodes",), names=(machine.name,), addresses=(machine.address,)
        )
        folder = self._state.node(machine.name)
        folder.mkdir(parents=True, exist_ok=True)
        pair = authority.issue(f"node-{machine.name}", identity)
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(kubeconfig, server=INNER_SERVER, authority=authority.certificate, pair=pair)
        command = [sys.executable, "-m", "tandem_devcluster.node", "--state", str(self._state.root)]
        command += ["--machine", json.dumps(asdict(machine))]
        command += ["--backoff-base", str(self._orders.backoff_base_seconds)]
        return Child(machine.name, command, folder / "agent.log", self._something_ended)


async def _forget_nodes(api: Api, *, wanted: Container[str]) -> None:
    for name in map(name_of, await fetch_nodes(api)):
        if name not in wanted:
            with suppress(ApiError):  # somebody else has deleted it
                await api.delete(build_path("nodes", name=name))


async def _api_server() -> Target:
    return GATEWAY_ADDRESS, API_PORT


async def _supervise(orders: Orders) -> int:
    supervisor = Supervisor(orders)
    loop, work = asyncio.get_running_loop(), asyncio.current_task()
    assert work is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    loop.add_signal_handler(signal.SIGHUP, supervisor.machines_changed)
    try:
        await supervisor.run()
    except asyncio.CancelledError:
        return 0
    except DevClusterError as error:
        _log.error("%s", error)
        os.write(orders.herald, f"error: {error}\n".encode())
        return 1
    return 0


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(prog="tandem_devcluster.supervisor")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--herald", type=int, required=True)
    parser.add_argument("--api-port", type=int, required=True)
    parser.add_argument("--backoff-base", type=float, required=True)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--bound", action="store_true", help="end when the thread that started this process ends")
    given = parser.parse_args()
    orders = Orders(
        state=StateFolder(given.state),
        program=given.program,
        listener=given.listener,
        herald=given.herald,
        api_port=given.api_port,
        backoff_base_seconds=given.backoff_base,
        bare=given.bare,
    )
    try:
        sys.exit(run_in_cluster_namespaces(lambda: asyncio.run(_supervise(orders)), bound=given.bound))
    except DevClusterError as error:
        os.write(orders.herald, f"error: {error}\n".encode())
        sys.exit(1)


if __name__ == "__main__":
    main()
