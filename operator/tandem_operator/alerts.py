"""Knows the operator's HTTP side: Alertmanager's webhook, health and metrics.

Refuses to know what an alert leads to. It writes the alert onto the object it names and answers 2xx only then: what was
acknowledged cannot be lost, and the leader acts from the object, whichever replica heard the alert.

It runs in a thread and event loop of its own: kopf cancels the tasks of its loop when it ends, and a slow reconcile
must not delay an alert.
"""

import asyncio
import hmac
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest

from tandem_operator.domain.errors import ClusterError, SpecError, Unavailable
from tandem_operator.domain.nested import text, texts
from tandem_operator.domain.webhook import ANNOTATION_PREFIX, Firing, annotation, read_webhook
from tandem_operator.ports import Cluster, Key, Kind

BODY_BYTES = 1 << 20
"""Alertmanager's largest sensible group is far below this; more is refused with 413."""
MOST_PENDING = 20
"""Annotations waiting on one object; beyond that the sender is asked to come again (503)."""

log = logging.getLogger(__name__)

Probe = Callable[[], str | None]
"""None: fine; else what is wrong, in one line."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen."""

    host: str
    port: int


class AlertSink:
    """The routes over one Cluster connection; objects in other than the `watched` namespaces are unknown, where any are
    named."""

    def __init__(
        self, cluster: Cluster, token: str, registry: CollectorRegistry, *, watched: tuple[str, ...] = ()
    ) -> None:
        self._cluster = cluster
        self._token = token.encode()
        self._watched = watched
        self._intents = Counter(
            "tandem_operator_alerts", "Alerts received, by what became of them.", ["result"], registry=registry
        )

    async def post(self, request: web.Request) -> web.Response:
        """202: every alert is recorded or needs no record. 400, 401, 413: wrong for good. 503: send it again.

        Each alert for itself: one that cannot be read or recorded keeps none of the others from being recorded.
        """
        if not self._authorised(request):
            self._intents.labels("unauthorised").inc()
            return problem(401, "Authorization must be 'Bearer <token>', with the token of the chart's secret")
        try:
            hook = read_webhook(json.loads(await request.read()))
        except (ValueError, RecursionError, SpecError) as error:
            self._intents.labels("malformed").inc()
            return problem(400, str(error))
        self._intents.labels("ignored").inc(hook.ignored)
        self._intents.labels("malformed").inc(len(hook.malformed))
        results: list[str] = []
        failures: list[ClusterError] = []
        for key, alerts in hook.by_object().items():
            try:
                results += await self._record(Key(*key), alerts)
            except ClusterError as error:
                log.warning("alerts not recorded key=%s error=%s", Key(*key), error)
                failures.append(error)
        for result in results:
            self._intents.labels(result).inc()
        self._intents.labels("failed").inc(len(failures))
        if failures:
            return problem(503, f"not recorded, send again: {failures[0]}")
        if hook.malformed:
            return problem(400, "; ".join(map(str, hook.malformed[:3])))
        return web.json_response({"results": results, "ignored": hook.ignored}, status=202)

    def _authorised(self, request: web.Request) -> bool:
        # Bytes that are no UTF-8 reach us as surrogates.
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return hmac.compare_digest(given, b"Bearer " + self._token)

    async def _record(self, key: Key, alerts: Sequence[Firing]) -> list[str]:
        """What became of the alerts about one object: one read and one write, however many they are."""
        unknown = self._watched and key.namespace not in self._watched
        found = None if unknown else await self._cluster.get(Kind.SPECULATIVE_DEPLOYMENT, key.namespace, key.name)
        if found is None:
            return ["unknown"] * len(alerts)
        uid = text(found, "metadata", "uid")
        present = [name for name in texts(found, "metadata", "annotations") if name.startswith(ANNOTATION_PREFIX)]
        wanted = dict(annotation(alert, uid=uid) for alert in alerts)
        new = {name: value for name, value in wanted.items() if name not in present}
        room = dict(list(new.items())[: max(0, MOST_PENDING - len(present))])
        if room:
            await self._cluster.annotate(Kind.SPECULATIVE_DEPLOYMENT, key, room)
            log.info("alerts recorded key=%s count=%d", key, len(room))
        if len(room) < len(new):
            raise Unavailable(f"annotate {key}", f"{len(present) + len(room)} alerts wait to be handled")
        return ["recorded"] * len(new) + ["repeated"] * (len(alerts) - len(new))


def problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def probe_route(probe: Probe) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        trouble = probe()
        return web.Response(text="ok\n") if trouble is None else web.Response(text=trouble + "\n", status=503)

    return answer


def build_app(sink: AlertSink, *, alive: Probe, ready: Probe, registry: CollectorRegistry) -> web.Application:
    """Every path the operator serves; nothing else answers."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(client_max_size=BODY_BYTES)
    app.router.add_post("/v1/alerts", sink.post)
    app.router.add_get("/healthz", probe_route(alive))
    app.router.add_get("/readyz", probe_route(ready))
    app.router.add_get("/metrics", metrics)
    return app


class HttpThread:
    """Serves one application from a thread and loop of its own, until `stop`."""

    def __init__(self, endpoint: Endpoint, build: Callable[[], Awaitable[web.Application]]) -> None:
        self._endpoint = endpoint
        self._build = build
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="http", daemon=True)

    def start(self) -> None:
        """Returns when the socket listens; raises what kept it from listening."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        runner = web.AppRunner(await self._build(), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._endpoint.host, self._endpoint.port).start()
            self._started.set()
            await self._stop.wait()
        finally:
            await runner.cleanup()
