"""Which nodes there are and should be: read from the API server, changed through the machines file.

It starts no node: the supervisor does, when SIGHUP tells it that the file has changed.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace

from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.errors import StateError
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.machine import Machine, parse_machine
from tandem_devcluster.state import StateFolder

FIRST_NUMBER = 1  # 10.244.0.0/24 belongs to the control plane
_LAST_NUMBER = 254
_PERIOD_SECONDS = 0.1
_WAIT_SECONDS = 60.0

Nodes = list[Object]


async def fetch_nodes(api: Api) -> Nodes:
    nodes: Nodes = (await api.get(build_path("nodes")))["items"]
    return nodes


def name_of(node: Object) -> str:
    name: str = node["metadata"]["name"]
    return name


def is_ready(node: Object) -> bool:
    """Ready, and already free of the taint that keeps pods off a node that is not."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return ready and not any("not-ready" in taint["key"] for taint in node["spec"].get("taints", ()))


async def wait_for_nodes(api: Api, settled: Callable[[Nodes], bool], *, deadline_seconds: float) -> None:
    """Return once the nodes are as `settled` wants them; `TimeoutError` when that takes too long."""
    async with asyncio.timeout(deadline_seconds):
        while not settled(await fetch_nodes(api)):  # noqa: ASYNC110 - another process makes the change
            await asyncio.sleep(_PERIOD_SECONDS)


def add_node(state: StateFolder, text: str) -> None:
    """Add a machine as `parse_machine` reads it and wait until it is Ready.

    Raises:
        StateError: there is one of that name already.
    """
    machines = state.machines()
    used = {machine.number for machine in machines}
    number = next(number for number in range(FIRST_NUMBER, _LAST_NUMBER + 1) if number not in used)
    machine = parse_machine(text, number)
    if any(other.name == machine.name for other in machines):
        raise StateError(f"node {machine.name} exists already")
    _change(state, (*machines, machine))
    _wait(state, f"node {machine.name} did not become Ready", _has_ready(machine.name))


def remove_node(state: StateFolder, name: str) -> None:
    """End a node and its pods, delete its Node object, and wait until that is gone."""
    machine = _find(state, name)
    _change(state, tuple(other for other in state.machines() if other != machine))
    _wait(state, f"node {name} did not go", lambda nodes: name not in map(name_of, nodes))


def fail_node(state: StateFolder, name: str) -> None:
    """Switch a node off as a power cut does: its processes end, its Node object stays and becomes NotReady."""
    _switch(state, name, failed=True)


def restore_node(state: StateFolder, name: str) -> None:
    """Switch a failed node on again and wait until it is Ready."""
    _switch(state, name, failed=False)
    _wait(state, f"node {name} did not become Ready", _has_ready(name))


def _has_ready(name: str) -> Callable[[Nodes], bool]:
    return lambda nodes: any(name_of(node) == name and is_ready(node) for node in nodes)


def _switch(state: StateFolder, name: str, *, failed: bool) -> None:
    machine = _find(state, name)
    switched = replace(machine, failed=failed)
    _change(state, tuple(switched if other == machine else other for other in state.machines()))


def _find(state: StateFolder, name: str) -> Machine:
    for machine in state.machines():
        if machine.name == name:
            return machine
    known = ", ".join(machine.name for machine in state.machines())
    raise StateError(f"there is no node {name!r}; there are {known}")


def _change(state: StateFolder, machines: tuple[Machine, ...]) -> None:
    running = state.require_running()
    state.set_machines(machines)
    os.kill(running.pid, signal.SIGHUP)


def _wait(state: StateFolder, failure: str, settled: Callable[[Nodes], bool]) -> None:
    async def wait() -> None:
        async with Api(read_access(state.kubeconfig)) as api:
            await wait_for_nodes(api, settled, deadline_seconds=_WAIT_SECONDS)

    try:
        asyncio.run(wait())
    except TimeoutError as error:
        raise StateError(f"{failure} in {_WAIT_SECONDS:.0f} s; its log is in {state.root}/nodes") from error
