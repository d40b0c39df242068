"""Offers a Service or a pod of the cluster on 127.0.0.1 outside.

It knows how a name becomes a pod's address, and asks anew for each connection, so it follows pods that come and go.
"""

import asyncio
import os
import random
from dataclasses import dataclass

from tandem_devcluster.api import Api, Object, build_path
from tandem_devcluster.errors import ApiError, StateError
from tandem_devcluster.kubeconfig import read_access
from tandem_devcluster.namespace import enter_network_of
from tandem_devcluster.relay import Target, listen_outside, relay
from tandem_devcluster.state import Running, StateFolder, start_ticks

_SLICES = "discovery.k8s.io/v1"
_ALIVE_PERIOD_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Destination:
    """`kind` is `svc` or `pod`; a Service's port is one of its own ports, by number or by name."""

    kind: str
    namespace: str
    name: str
    port: str


def parse_destination(text: str, *, namespace: str, port: str) -> Destination:
    """Read `NAME`, `svc/NAME` or `pod/NAME`; a bare name is a Service.

    Raises:
        StateError: another kind is named, or a pod's port is no number.
    """
    kind, _, name = text.rpartition("/")
    kind = {"": "svc", "service": "svc", "services": "svc", "pods": "pod"}.get(kind, kind)
    if kind not in ("svc", "pod"):
        raise StateError(f"{text!r} is neither svc/NAME nor pod/NAME")
    if kind == "pod" and not port.isdecimal():
        raise StateError(f"port {port!r} of a pod must be a number")
    return Destination(kind, namespace, name, port)


async def find_target(api: Api, destination: Destination) -> Target:
    """The address of a pod that serves the destination now.

    Raises:
        LookupError: no pod is ready, or there is no such port.
    """
    try:
        if destination.kind == "pod":
            return await _pod_target(api, destination)
        return await _service_target(api, destination)
    except ApiError as error:
        raise LookupError(str(error)) from error


async def _pod_target(api: Api, destination: Destination) -> Target:
    pod = await api.get(build_path("pods", namespace=destination.namespace, name=destination.name))
    address = pod["status"].get("podIP")
    if not address:
        raise LookupError(f"pod {destination.name} has no address yet")
    return address, int(destination.port)


async def _service_target(api: Api, destination: Destination) -> Target:
    where = {"namespace": destination.namespace}
    service = await api.get(build_path("services", name=destination.name, **where))
    name = _port_name(service, destination)
    chosen = {"labelSelector": f"kubernetes.io/service-name={destination.name}"}
    slices = (await api.get(build_path("endpointslices", group=_SLICES, **where), **chosen))["items"]
    targets = [target for entry in slices for target in _ready_targets(entry, name)]
    if not targets:
        raise LookupError(f"service {destination.name} has no ready pod")
    return random.choice(targets)  # noqa: S311 - spreads load, guards nothing


def _port_name(service: Object, destination: Destination) -> str:
    for port in service["spec"].get("ports", ()):
        if destination.port in (str(port["port"]), port.get("name")):
            return str(port.get("name", ""))
    known = ", ".join(str(port["port"]) for port in service["spec"].get("ports", ()))
    raise LookupError(f"service {destination.name} has no port {destination.port} (it has {known or 'none'})")


def _ready_targets(entry: Object, port_name: str) -> list[Target]:
    ports = [port["port"] for port in entry.get("ports") or () if (port.get("name") or "") == port_name]
    ready = [endpoint for endpoint in entry.get("endpoints") or () if endpoint.get("conditions", {}).get("ready")]
    return [(endpoint["addresses"][0], port) for endpoint in ready for port in ports]


async def forward(state: StateFolder, destination: Destination, local_port: int) -> None:
    """Serve until cancelled or until the cluster ends."""
    running = state.require_running()
    listener = listen_outside(local_port)
    enter_network_of(running.pid)
    async with Api(read_access(state.inner_kubeconfig)) as api:
        try:
            await find_target(api, destination)
        except LookupError as error:
            print(f"not reachable yet: {error}", flush=True)
        server = await relay(listener, lambda: find_target(api, destination))
        port = listener.getsockname()[1]
        print(f"http://127.0.0.1:{port} -> {destination.kind}/{destination.name}:{destination.port}", flush=True)
        async with server:
            await _while_running(running)


async def _while_running(running: Running) -> None:
    parent = os.getppid()
    while start_ticks(running.pid) == running.started_ticks and os.getppid() == parent:  # noqa: ASYNC110 - both foreign
        await asyncio.sleep(_ALIVE_PERIOD_SECONDS)
