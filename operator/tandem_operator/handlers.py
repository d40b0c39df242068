"""Knows which Kubernetes events mean "look again at this object". kopf is the trigger and nothing more.

Refuses to know what looking does, and the children (`watches`). Only `on.event` handlers are used: they keep no state
on objects, write no annotation and set no finalizer, so a missed or failed one costs a resync, never an object. Change
handlers, timers and daemons are left alone on purpose: one refused status patch can end a timer for good and can lose
a status.

kopf takes a refused token, or an error event in a watch, for the end of everything, and then does not always end: tasks
of its that wait for a new log-in are never woken. So it has a thread and a loop of its own, which may be left behind,
and another one begins; looks go on meanwhile, and every object that the next one lists is looked at.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import kopf

from tandem_operator.domain.nested import text
from tandem_operator.ports import Change, Key, Kind

REQUEST_SECONDS = 30.0
CHUNK = 50
"""Objects of a list that are asked for at once: a thousand of them, decoded, take a hundred megabytes."""
AGAIN_SECONDS = 2.0
"""Between watches that failed and the next ones."""
ENDING_SECONDS = 10.0
"""For kopf to end in, once it has begun to; it gives its own tasks six."""

log = logging.getLogger(__name__)

Wake = Callable[[Change], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Calls:
    """What the handlers call: `log_in` gives the API's address and our identity, `wake` takes what changed."""

    log_in: Callable[[], Awaitable[kopf.ConnectionInfo]]
    wake: Wake


def register(registry: kopf.OperatorRegistry, calls: Calls) -> None:
    """Hang the handlers into `registry`: how to log in, and the object itself."""

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await calls.log_in()

    @kopf.on.event("tandem.dev", "v1alpha1", "speculativedeployments", registry=registry)
    async def object_changed(
        namespace: str | None, name: str, type: str | None, body: Mapping[str, Any], **_: Any
    ) -> None:
        version = "" if type == "DELETED" else text(body, "metadata", "resourceVersion")
        await calls.wake(Change(Key(str(namespace), name), Kind.SPECULATIVE_DEPLOYMENT, name, version))


def narrow_watches(settings: kopf.OperatorSettings, namespaces: tuple[str, ...]) -> None:
    """Nothing but our writes reaches the API.

    With `namespaces` nothing is asked of the whole cluster: looking for namespaces and kinds that come and go would be
    refused, and kopf would first ask nine times.
    """
    settings.scanning.disabled = bool(namespaces)
    settings.watching.chunk_size = CHUNK
    settings.posting.enabled = False
    settings.networking.request_timeout = REQUEST_SECONDS


async def keep_watching(calls: Calls, namespaces: tuple[str, ...], stop: asyncio.Event) -> None:
    """Watch until `stop` is set; whatever ends the watches before is a line in the log, and they begin anew."""
    looks = asyncio.get_running_loop()

    async def wake(change: Change) -> None:
        await calls.wake(change)

    async def wake_from_there(change: Change) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(wake(change), looks))

    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            watches = Watches(replace(calls, wake=wake_from_there), namespaces)
            over = asyncio.wrap_future(watches.over)
            ends: set[asyncio.Future[Any]] = {over, stopping}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watches.leave()
            if stop.is_set():
                await asyncio.wait({over}, timeout=ENDING_SECONDS)
                over.cancel()
                return
            error = over.exception()
            log.warning("watches ended, and begin anew error=%s: %s", type(error).__name__, error)
            await asyncio.wait({stopping}, timeout=AGAIN_SECONDS)
    finally:
        stopping.cancel()


class WatchesEnded(Exception):
    """kopf has ended by itself, or began to and did not come to an end."""


class Watches:
    """One kopf, its own posting, peering and persistence switched off; it runs at once. `over` gets what ended it."""

    def __init__(self, calls: Calls, namespaces: tuple[str, ...]) -> None:
        self.over: Future[None] = Future()
        self._calls = calls
        self._namespaces = namespaces
        self._loop = asyncio.new_event_loop()
        self._leaving, self._ending = asyncio.Event(), asyncio.Event()
        threading.Thread(target=self._main, name="watches", daemon=True).start()

    def leave(self) -> None:
        """From any thread; `over` tells when it has been done."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to leave
            self._loop.call_soon_threadsafe(self._leaving.set)

    def _main(self) -> None:
        """Whatever ends it is told: watches that ended unseen would never begin anew."""
        self.over.set_running_or_notify_cancel()  # nobody who stops to wait for it takes the place of its end
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._watch())
            except asyncio.CancelledError:
                self.over.set_exception(WatchesEnded("kopf was cancelled"))
            except BaseException as error:  # a thread has nobody above it that it could reach
                self.over.set_exception(error)
            else:
                self.over.set_result(None)

    async def _watch(self) -> None:
        """Raises what kopf failed with, and WatchesEnded."""
        self._loop.set_exception_handler(_tell_in_one_line)
        ending = asyncio.create_task(self._ending.wait())
        running = asyncio.create_task(self._run_kopf())
        await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({running}, timeout=ENDING_SECONDS)
        if not running.done():
            raise WatchesEnded("kopf failed, and its tasks do not end")
        await running
        if not self._leaving.is_set():
            raise WatchesEnded("kopf ended by itself")

    async def _run_kopf(self) -> None:
        registry, options = kopf.OperatorRegistry(), kopf.OperatorSettings()
        register(registry, self._calls)
        narrow_watches(options, self._namespaces)

        @kopf.on.cleanup(registry=registry)
        async def clean_up(**_: Any) -> None:
            self._ending.set()

        await kopf.operator(
            registry=registry,
            settings=options,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._leaving,
        )


def _tell_in_one_line(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Without the error's repr, which in aiohttp's case holds the headers that were sent, and the token with them."""
    error = context.get("exception")
    log.warning("kopf: %s error=%s: %s", context["message"], type(error).__name__, error)
