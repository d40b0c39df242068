"""Knows how the gateway describes itself to programs: the OpenAPI document, made of the shapes that it really reads.

Refuses to know how requests are served. What a person wants to know of a parameter stands in docs/api.md.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from tandem_runtime.gateway.replies import ChatCompletion, ErrorReply, ModelCard, ModelList, TextCompletion
from tandem_runtime.gateway.schema import ChatRequest, CompletionRequest

PATH: Final = "/openapi.json"
_COMPONENTS: Final = "#/components/schemas/{model}"
_SHAPES: Final[Mapping[str, Any]] = {
    "ChatRequest": ChatRequest,
    "CompletionRequest": CompletionRequest,
    "ChatCompletion": ChatCompletion,
    "TextCompletion": TextCompletion,
    "ModelCard": ModelCard,
    "ModelList": ModelList,
    "Error": ErrorReply,
}
_EVENT: Final = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request is wrong: `param` names the field.",
    401: "No API key, or one that is not known here.",
    404: "No such model.",
    413: "The body is too long.",
    429: "No room, or a quota is used up: Retry-After says when to come back.",
    500: "A fault of the server or of the model.",
    503: "Nobody can serve this now: Retry-After says when to come back.",
}


@cache
def describe_api() -> Mapping[str, Any]:
    """The document, OpenAPI 3.1."""
    references, schemas = _schemas()
    for_tenants: dict[str, Any] = {"security": [{}, {"key": []}]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tandem gateway", "version": "1", "description": "OpenAI's API; see docs/api.md."},
        "paths": {
            "/v1/chat/completions": {
                "post": for_tenants | _completes(references, "ChatRequest", "ChatCompletion"),
            },
            "/v1/completions": {
                "post": for_tenants | _completes(references, "CompletionRequest", "TextCompletion"),
            },
            "/v1/models": {"get": for_tenants | _tells("What can be asked for.", references["ModelList"], 401)},
            "/v1/models/{name}": {
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
                "get": for_tenants | _tells("One of them.", references["ModelCard"], 401, 404),
            },
            "/v1/speculation": {
                "get": for_tenants | _tells("What is on, for whom, and why.", {"type": "object"}, 401),
            },
            "/health": {"get": _tells("The process lives.", {"type": "object"})},
            "/ready": {"get": _tells("Requests are served.", {"type": "object"}, 503)},
        },
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """Where each shape stands, and all of them."""
    adapters = [(name, "validation", TypeAdapter(shape)) for name, shape in _SHAPES.items()]
    told, rest = TypeAdapter.json_schemas(adapters, ref_template=_COMPONENTS)  # type: ignore[arg-type]  # a literal mode
    return {name: schema for (name, _), schema in told.items()}, rest.get("$defs", {})


def _completes(references: Mapping[str, Any], asked: str, told: str) -> dict[str, Any]:
    described = _tells("The answer, whole or in events.", references[told], *_REFUSALS)
    described["requestBody"] = {"required": True, "content": {"application/json": {"schema": references[asked]}}}
    described["responses"]["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
    return described


def _tells(what: str, schema: Mapping[str, Any], *refusals: int) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _COMPONENTS.format(model="ErrorReply")}}}
    return {
        "responses": {
            "200": {"description": what, "content": {"application/json": {"schema": schema}}},
            **{str(status): {"description": _REFUSALS[status], "content": error} for status in refusals},
        }
    }
