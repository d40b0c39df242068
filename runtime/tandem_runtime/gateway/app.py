"""Knows the gateway's HTTP: an allow-list of paths, how a body is read, and who may ask.

Refuses to know engines, how replies are written, and which failure has which status.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tandem_runtime.domain.errors import BadRequest, Cancelled, TandemError
from tandem_runtime.gateway import description
from tandem_runtime.gateway.delivery import Call, StreamedReply, failure_reply, plain_reply, report_failure
from tandem_runtime.gateway.failures import BodyTooLarge
from tandem_runtime.gateway.intake import Ask, read_chat, read_completion
from tandem_runtime.gateway.keys import Doorkeeper, Tenant
from tandem_runtime.gateway.present import ChatPresenter, Echo, Head, Presenter, TextPresenter
from tandem_runtime.gateway.present_calls import CallPresenter
from tandem_runtime.gateway.replies import ModelCard
from tandem_runtime.gateway.schema import ChatRequest, CompletionRequest
from tandem_runtime.gateway.serving import Gateway
from tandem_runtime.gateway.status import describe_speculation

SESSION_HEADER = "x-tandem-session"
TRACE_HEADERS = ("traceparent", "tracestate")
CHANCE_BITS = 64
TEXTS_KEPT = 1 << 16
"""Texts of single tokens: what a prompt's logprobs name by the ten thousand comes from there but once."""

Parsed = TypeVar("Parsed", bound=BaseModel)


class Api:
    """The routes over one gateway. `keys` absent: everyone may ask."""

    def __init__(self, gateway: Gateway, *, keys: Doorkeeper | None = None) -> None:
        self._gateway = gateway
        self._keys = keys
        self._token_text = lru_cache(TEXTS_KEPT)(lambda token: gateway.tokenizer.decode((token,)))

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/v1/speculation", self._speculation, methods=["GET"]),
            Route(description.PATH, self._description, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
        ]
        handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = dict.fromkeys(
            (HTTPException, TandemError, Exception), _failed
        )
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # an allow-list: `/v1/models/` is another path
        return app

    async def _chat(self, request: Request) -> Response:
        return await self._serve(request, self._read_chat)

    async def _completion(self, request: Request) -> Response:
        return await self._serve(request, self._read_completion)

    async def _models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self._gateway.models()]})

    async def _model(self, request: Request) -> Response:
        self._authorize(request)
        name = request.path_params["name"]
        if not name:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        if name not in self._gateway.models():
            raise self._gateway.not_served(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> ModelCard:
        return {"id": name, "object": "model", "created": self._now(), "owned_by": "tandem"}

    async def _speculation(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse(describe_speculation(self._gateway))

    async def _description(self, _: Request) -> Response:
        return JSONResponse(description.describe_api())

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        ready = self._gateway.ready
        return JSONResponse({"ready": ready}, status_code=200 if ready else 503)

    async def _serve(self, request: Request, read: Callable[[Request], Awaitable[Call]]) -> Response:
        try:
            call = await read(request)
        except Exception as error:
            failure = report_failure(error)
            self._gateway.books.metrics.add_request(failure.status)
            return failure_reply(failure)
        if call.stream:
            return StreamedReply(self._gateway, call)
        return await plain_reply(self._gateway, call, request.receive)

    async def _read_chat(self, request: Request) -> Call:
        parsed, ask = await self._read(request, ChatRequest, read_chat)
        head, text = self._head("chatcmpl-", parsed), self._token_text
        calls = None if ask.tool_use is None else CallPresenter(head, text, ask.tool_use)
        return self._call(request, parsed, ask, calls or ChatPresenter(head, text))

    async def _read_completion(self, request: Request) -> Call:
        parsed, ask = await self._read(request, CompletionRequest, read_completion)
        head, text = self._head("cmpl-", parsed), self._token_text

        def echo(index: int) -> Echo:
            """The choice's prompt as it was sent; token ids as the text they stand for."""
            number = index // parsed.choices
            prompt, ids = parsed.prompt[number], ask.prompts[number]
            return Echo(prompt if isinstance(prompt, str) else self._gateway.tokenizer.decode(ids), ids)

        presenter = TextPresenter(head, text, echo) if parsed.echo else TextPresenter(head, text)
        return self._call(request, parsed, ask, presenter)

    async def _read(self, request: Request, shape: type[Parsed], read: Callable[..., Ask]) -> tuple[Parsed, Ask]:
        """The body as `shape`, and what it asks. On a thread: a long text keeps the tokenizer busy for seconds, in
        which every other request would stand still."""
        tenant = self._authorize(request)
        body = await self._read_body(request)

        def work() -> tuple[Parsed, Ask]:
            parsed = shape.model_validate(_read_json(body))
            ask = read(parsed, self._gateway.tokenizer, chance=secrets.randbits(CHANCE_BITS))
            return parsed, replace(ask, tenant=tenant.name, weight=tenant.weight, quota=tenant.quota)

        return await asyncio.to_thread(work)

    async def _read_body(self, request: Request) -> bytes:
        most = self._gateway.limits.body_bytes
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise BodyTooLarge(f"the body is longer than {most} bytes; send less text at once")
        except ClientDisconnect as left:
            raise Cancelled("the caller left before the body was whole") from left
        return bytes(body)

    def _head(self, prefix: str, parsed: ChatRequest | CompletionRequest) -> Head:
        return Head(
            id=prefix + secrets.token_hex(12),
            created=self._now(),
            model=parsed.model,
            usage_asked=bool(parsed.stream) and parsed.wants_usage,
            logprobs_asked=parsed.logprobs is not None and parsed.logprobs is not False,
        )

    def _call(self, request: Request, parsed: ChatRequest | CompletionRequest, ask: Ask, presenter: Presenter) -> Call:
        return Call(
            id=presenter.head.id,
            ask=ask,
            presenter=presenter,
            stream=bool(parsed.stream),
            wants_usage=parsed.wants_usage,
            session_key=request.headers.get(SESSION_HEADER),
            caller={name: request.headers[name] for name in TRACE_HEADERS if name in request.headers},
        )

    def _authorize(self, request: Request) -> Tenant:
        """The tenant; one without a name where keys are not asked for."""
        return Tenant() if self._keys is None else self._keys.tenant(request.headers.get("authorization"))

    def _now(self) -> int:
        return int(self._gateway.clock.wall())


async def _failed(_: Request, error: Exception) -> Response:
    return failure_reply(report_failure(error))


def _read_json(body: bytes) -> object:
    """Raises BadRequest. This reader is stricter than Python's own, which takes NaN, halves of surrogate pairs (no text
    that could be encoded) and other encodings than UTF-8, and runs out of stack on deep nesting."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
