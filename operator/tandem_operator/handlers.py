"""Knows which Kubernetes events mean "look again at this object". kopf is the trigger and nothing more.

Refuses to know what looking does. Only `on.event` handlers are used: they keep no state on objects, write no annotation
and set no finalizer, so a missed or failed one costs a resync, never an object. Change handlers, timers and daemons are
left alone on purpose: one refused status patch can end a timer for good and can lose a status.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import kopf

from tandem_operator.domain.observed import LABEL_DEPLOYMENT
from tandem_operator.ports import Key

REQUEST_SECONDS = 30.0
CHILD_KINDS = (
    ("apps", "v1", "deployments"),
    ("apps", "v1", "controllerrevisions"),
    ("", "v1", "pods"),
    ("", "v1", "configmaps"),
    ("", "v1", "services"),
)


Wake = Callable[[Key], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Calls:
    """What the handlers call: `log_in` gives the API's address and our identity, `wake` takes a key."""

    log_in: Callable[[], Awaitable[kopf.ConnectionInfo]]
    wake: Wake


def register(registry: kopf.OperatorRegistry, calls: Calls) -> None:
    """Hang the handlers into `registry`: how to log in, the object itself, and every child by its label."""

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await calls.log_in()

    @kopf.on.event("tandem.dev", "v1alpha1", "speculativedeployments", registry=registry)
    async def object_changed(namespace: str | None, name: str, **_: Any) -> None:
        await calls.wake(Key(str(namespace), name))

    for group, version, plural in CHILD_KINDS:

        @kopf.on.event(group, version, plural, labels={LABEL_DEPLOYMENT: kopf.PRESENT}, registry=registry)
        async def child_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
            await calls.wake(Key(str(namespace), labels[LABEL_DEPLOYMENT]))


def narrow_watches(settings: kopf.OperatorSettings, namespaces: tuple[str, ...]) -> None:
    """Only our own children cross the wire, and nothing but our writes reaches the API.

    With `namespaces` nothing is asked of the whole cluster: looking for namespaces and kinds that come and go would be
    refused, and kopf would first ask nine times.
    """
    settings.scanning.disabled = bool(namespaces)
    for group, version, plural in CHILD_KINDS:
        settings.watching.label_selectors[group, version, plural] = LABEL_DEPLOYMENT
    settings.posting.enabled = False
    settings.networking.request_timeout = REQUEST_SECONDS
