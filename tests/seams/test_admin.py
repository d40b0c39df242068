"""The admin side over a real socket."""

import errno

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tandem_runtime.admin import admin_app, http_server


async def test_ready_follows_the_trouble_and_healthy_does_not() -> None:
    trouble: str | None = "the model is loading"
    app = admin_app(trouble=lambda: trouble, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port, httpx.AsyncClient() as client:
        before = await client.get(f"http://127.0.0.1:{port}/readyz")
        alive = await client.get(f"http://127.0.0.1:{port}/healthz")
        trouble = None
        after = await client.get(f"http://127.0.0.1:{port}/readyz")
    assert (before.status_code, before.text) == (503, "the model is loading\n")
    assert (alive.status_code, after.status_code) == (200, 200)


async def test_metrics_are_those_of_the_registry_and_routes_of_the_role_are_served_beside() -> None:
    registry = CollectorRegistry()
    Counter("tandem_tests", "Counted here.", registry=registry).inc()

    async def evidence(_: Request) -> Response:
        return PlainTextResponse("evidence")

    app = admin_app(trouble=lambda: None, registry=registry, routes=[Route("/internal/evidence", evidence)])
    async with http_server(app, host="127.0.0.1", port=0) as port, httpx.AsyncClient() as client:
        metrics = await client.get(f"http://127.0.0.1:{port}/metrics")
        beside = await client.get(f"http://127.0.0.1:{port}/internal/evidence")
        unknown = await client.get(f"http://127.0.0.1:{port}/internal")
    assert "tandem_tests_total 1.0" in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain")
    assert (beside.text, unknown.status_code) == ("evidence", 404)


async def test_a_port_in_use_is_one_line_that_names_it() -> None:
    app = admin_app(trouble=lambda: None, registry=CollectorRegistry())
    async with http_server(app, host="127.0.0.1", port=0) as port:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use$") as caught:
            await http_server(app, host="127.0.0.1", port=port).__aenter__()
    assert getattr(caught.value.__cause__, "errno", None) == errno.EADDRINUSE
