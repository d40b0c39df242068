"""Knows how adapters of a running target are listed, loaded and unloaded over HTTP, on the admin side.

Refuses to know models, and which folders may be read: the desk does.

    GET    /adapters        {"adapters": [{"name": ..., "digest": "sha256:...", "rank": 16, "bytes": 1843200}]}
    PUT    /adapters/NAME   {"uri": "file:///..."} -> the loaded one, as above; the name leads to it from now on;
                            "revision" and "digest" beside the uri where they are known
    DELETE /adapters/NAME   new sessions are refused; those that have it go on to their ends

The admin side asks nobody for a key; what may be loaded from where, `engines.adapters` says.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tandem_runtime.domain.adapters import AdapterSource
from tandem_runtime.domain.errors import BadRequest, ModelRefused, NotLoaded, Overloaded, TandemError
from tandem_runtime.ports import AdapterDesk

__all__ = ["adapter_routes"]

MOST_BODY_BYTES = 64 << 10

_STATUSES: tuple[tuple[type[TandemError], int], ...] = (
    (NotLoaded, 404),
    (BadRequest, 400),
    (ModelRefused, 422),
    (Overloaded, 409),
)
"""The first row that fits; anything else is ours."""


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    uri: str
    revision: str | None = None
    digest: str | None = None

    @property
    def source(self) -> AdapterSource:
        return AdapterSource(self.uri, self.revision or None, self.digest or None)


def adapter_routes(desk: Callable[[], AdapterDesk | None]) -> list[Route]:
    """`desk` gives None while the model loads, and where it takes no adapters."""

    async def listed(_: Request, desk: AdapterDesk) -> Response:
        return JSONResponse({"adapters": [asdict(facts) for facts in desk.loaded]})

    async def put(request: Request, desk: AdapterDesk) -> Response:
        facts = await desk.load(request.path_params["name"], await _source(request))
        return JSONResponse(asdict(facts))

    async def delete(request: Request, desk: AdapterDesk) -> Response:
        await desk.unload(request.path_params["name"])
        return Response(status_code=204)

    def answered(handle: Callable[[Request, AdapterDesk], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            there = desk()
            if there is None:
                return _told(503, "this engine takes no adapters, or its model is loading still: see /readyz")
            try:
                return await handle(request, there)
            except TandemError as error:
                return _told(next((status for kind, status in _STATUSES if isinstance(error, kind)), 500), str(error))

        return answer

    return [
        Route("/adapters", answered(listed), methods=["GET"]),
        Route("/adapters/{name}", answered(put), methods=["PUT"]),
        Route("/adapters/{name}", answered(delete), methods=["DELETE"]),
    ]


async def _source(request: Request) -> AdapterSource:
    """Raises BadRequest."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise BadRequest(f"the body is longer than {MOST_BODY_BYTES} bytes", parameter="body")
    try:
        return _Order.model_validate_json(bytes(body)).source
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "body"
        raise BadRequest(f'{where}: {fault["msg"]}; send {{"uri": "file:///..."}}', parameter=where) from error


def _told(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)
