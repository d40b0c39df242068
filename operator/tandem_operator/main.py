"""Knows how the operator is put together: it builds the adapters, hands them to each other, and holds the clock.

Refuses to know any rule. Nothing imports it.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import kopf
from aiohttp import web
from prometheus_client import CollectorRegistry

from tandem_operator.alerts import AlertSink, Endpoint, HttpThread, build_app
from tandem_operator.domain.errors import ClusterError
from tandem_operator.domain.record import RecordError
from tandem_operator.events import EventRecorder
from tandem_operator.handlers import Calls, keep_watching
from tandem_operator.kube import connect, read_access
from tandem_operator.lease import Fenced, Leadership, LeaseTerms
from tandem_operator.logs import set_up_logging
from tandem_operator.metrics import LookMetrics, ObjectFigures
from tandem_operator.observe import Sources
from tandem_operator.ports import Change, Cluster, Key, Kind
from tandem_operator.probes import Health
from tandem_operator.prometheus import Prometheus
from tandem_operator.reconcile import Observers, reconcile
from tandem_operator.recorder import Recorder, tell_replay
from tandem_operator.rights import LEASE_NAME, find_lacking
from tandem_operator.settings import Settings, SettingsError, read_settings
from tandem_operator.telemetry import PodTelemetry, pod_session
from tandem_operator.watches import watch_children
from tandem_operator.worklist import Worklist

RIGHTS_AGAIN_SECONDS = 10.0
"""Between two questions for rights, while some are missing."""
SERVED_AGAIN_SECONDS = 1.0
"""A definition that was just installed is served a moment later, and a first rollout need not wait longer."""

log = logging.getLogger("tandem_operator")


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status. Without a word it is the operator's process."""
    asked = _build_parser().parse_args(arguments)
    return _serve() if asked.word is None else _replay(asked.file)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tandem-operator", description="Serve SpeculativeDeployments.")
    words = parser.add_subparsers(dest="word", metavar="WORD", help="without one: run the operator")
    again = words.add_parser("replay", help="decide a recorded look anew; status 1 where the decision is another one")
    again.add_argument("file", type=Path, metavar="FILE")
    return parser


def _replay(path: Path) -> int:
    try:
        told, same = tell_replay(path)
    except OSError as error:
        print(f"tandem-operator: {path} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    except RecordError as error:
        print(f"tandem-operator: {path} is no recorded look of this version: {error}", file=sys.stderr)
        return 2
    print(told)
    return 0 if same else 1


def _serve() -> int:
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(f"tandem-operator: {error}", file=sys.stderr)
        return 2
    set_up_logging(settings.log_format)
    try:
        asyncio.run(run(settings))
    except (CannotServe, ClusterError) as error:
        print(f"tandem-operator: {error}", file=sys.stderr)
        return 1
    return 0


class CannotServe(Exception):
    """Nothing can listen at the endpoint of the settings."""


async def run(settings: Settings) -> None:
    """Serve alerts at once; lead when the Lease is ours; leave cleanly on SIGTERM. Raises CannotServe, ClusterError."""
    clock, registry = SystemClock(), CollectorRegistry()
    health = Health(clock)
    health.expose(registry)
    http = HttpThread(Endpoint(settings.host, settings.port), lambda: _build_http(settings, health, registry))
    try:
        http.start()
    except OSError as error:
        raise CannotServe(f"cannot serve on {settings.host}:{settings.port}: {error}") from error
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    minding = asyncio.create_task(_mind_rights(settings, health))
    try:
        async with _leading(settings, health, stop) as cluster:
            if cluster is not None:
                health.leading = True
                await _lead(settings, cluster, health, registry, stop)
    finally:
        await _ended(minding)
        http.stop()


async def _ended(task: "asyncio.Task[None]") -> None:
    """Ends a task and waits until it has ended; raises what it failed with."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _mind_rights(settings: Settings, health: Health) -> None:
    """Name what is missing, and ask again until nothing that is needed is."""
    async with connect() as cluster:
        while health.lacking is None or health.lacking.needed:
            try:
                lacking = await find_lacking(cluster, settings.namespace, settings.watch_namespaces)
            except ClusterError as error:
                log.warning("rights not known error=%s", error)
            else:
                if lacking != health.lacking and (lacking.needed or lacking.dispensable):
                    words = ", ".join(lacking.needed), ", ".join(lacking.dispensable)
                    log.warning("rights are missing needed=[%s] dispensable=[%s]", *words)
                health.lacking = lacking
            await asyncio.sleep(RIGHTS_AGAIN_SECONDS)


async def _build_http(settings: Settings, health: Health, registry: CollectorRegistry) -> web.Application:
    """In the HTTP thread's own loop, with a connection of its own."""
    stack = AsyncExitStack()
    cluster = await stack.enter_async_context(connect())
    sink = AlertSink(cluster, settings.alert_token, registry, watched=settings.watch_namespaces)
    app = build_app(sink, alive=health.alive, ready=health.ready, registry=registry)

    async def close(_: web.Application) -> None:
        await stack.aclose()

    app.on_cleanup.append(close)
    return app


@asynccontextmanager
async def _leading(settings: Settings, health: Health, stop: asyncio.Event) -> AsyncIterator[Cluster | None]:
    """The cluster behind the fence, once the Lease is ours; None when asked to stop before that."""
    terms = LeaseTerms(settings.namespace, LEASE_NAME, settings.identity)
    async with connect() as cluster:
        leadership = health.leadership = Leadership(cluster, health.clock, terms)
        if not await _unless_stopped(leadership.acquire(), stop):
            yield None
            return
        # Without the Lease nothing here may go on, not even a clean-up: the next leader may have begun.
        keeping = asyncio.create_task(leadership.keep(lambda: os._exit(1)))
        try:
            yield Fenced(cluster, leadership)
        finally:
            await _ended(keeping)
            await leadership.release()


async def _unless_stopped(work: "asyncio._CoroutineLike[None]", stop: asyncio.Event) -> bool:
    """True: done; False: asked to stop first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finished = working.done()
    for task in (working, stopping):
        task.cancel()
    if finished:
        working.result()
    return finished


async def _lead(
    settings: Settings, cluster: Cluster, health: Health, registry: CollectorRegistry, stop: asyncio.Event
) -> None:
    """Watch and reconcile until asked to stop."""
    recorder = EventRecorder(cluster, instance=settings.identity, registry=registry)
    async with pod_session() as session:
        sources = Sources(cluster, PodTelemetry(session), health.clock, settings.terms)
        sources = replace(sources, metrics=_prometheus(settings, session))
        if settings.record_folder is not None:
            sources = replace(sources, keep=Recorder(settings.record_folder).keep)

        figures = ObjectFigures(registry, health.clock)

        async def look(key: Key) -> float | None:
            wish = await reconcile(key, sources, Observers((recorder, figures)))
            if wish is None:
                figures.forget(key)
            return wish

        if not await _unless_stopped(_until_served(settings, cluster), stop):
            return
        worklist: Worklist[Key] = Worklist(LookMetrics(registry, health.clock).timed(look), clock=health.clock)
        health.worklist, health.steady = worklist, sources.steady

        async def wake(change: Change) -> None:
            health.heard()
            if sources.steady.is_news(change):
                await worklist.add(change.key)

        async with connect() as changes:
            following = watch_children(changes, settings.watch_namespaces, wake)
            comparing = sources.definition.follow(changes)
            tasks = [asyncio.create_task(work) for work in (worklist.run(), following, comparing)]
            for task in tasks:
                task.add_done_callback(lambda _: stop.set())
            try:
                await keep_watching(Calls(_log_in, wake), settings.watch_namespaces, stop)
            finally:
                for task in tasks:
                    await _ended(task)


def _prometheus(settings: Settings, session: aiohttp.ClientSession) -> Prometheus | None:
    access = settings.prometheus
    return None if access is None else Prometheus(session, access.url, access.token_file)


async def _until_served(settings: Settings, cluster: Cluster) -> None:
    """Wait for the resource's definition: in named namespaces kopf looks for kinds only once."""
    namespace = next(iter(settings.watch_namespaces), None)
    while True:
        try:
            await cluster.list(Kind.SPECULATIVE_DEPLOYMENT, namespace, labels={})
        except ClusterError as error:
            log.warning("objects cannot be listed yet error=%s", error)
            await asyncio.sleep(SERVED_AGAIN_SECONDS)
        else:
            return


async def _log_in() -> kopf.ConnectionInfo:
    """kopf speaks to the same API as the same account; its own way in would need cluster DNS."""
    access = await read_access()
    return kopf.ConnectionInfo(
        server=access.server,
        ca_path=access.ca_path,
        scheme="Bearer" if access.token else None,
        token=access.token,
        certificate_path=access.certificate_path,
        private_key_path=access.key_path,
    )


if __name__ == "__main__":
    sys.exit(main())
