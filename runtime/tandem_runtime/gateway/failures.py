"""Knows how every failure looks to an OpenAI client: status, type, code, headers, and the JSON body.

Refuses to know where failures come from.

This is the one table from our error tree to HTTP. A failure that is in no row is ours: 500, and its message stays in
the log, since it may name things that a caller has no business with.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from tandem_runtime.domain.errors import (
    BadRequest,
    Cancelled,
    NotANumber,
    NotLoaded,
    NotSupported,
    Overloaded,
    TandemError,
    TargetLost,
)

CLIENT_CLOSED = 499
"""What proxies log for a caller that went away; nobody reads the answer."""
RETRY_LOST_SECONDS = 2
"""A lost target is replaced or found again by discovery within about this long."""
LONGEST_MESSAGE = 500
"""Characters. A name or a value that was sent may be megabytes long, and nobody reads it back."""
LONGEST_PARAMETER = 100


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it is sent: `code` is stable for programs, `message` says what to do."""

    status: int
    type: str
    message: str
    parameter: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> str:
        """OpenAI's error object, also the data of an error event within a stream. What it quotes is cut."""
        parameter = None if self.parameter is None else _cut(self.parameter, LONGEST_PARAMETER)
        message = _cut(self.message, LONGEST_MESSAGE)
        fields = {"message": message, "type": self.type, "param": parameter, "code": self.code}
        return json.dumps({"error": fields})

    @property
    def is_ours(self) -> bool:
        """Whether the evidence counts it as an error: never the caller's fault, never a full house."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class Unauthorized(TandemError):
    """No key, or one that is not ours."""


class QuotaUsedUp(Overloaded):
    """The tenant has what its quota allows."""


class ModelNotServed(TandemError):
    """The request names a model that this gateway does not serve."""


class BodyTooLarge(TandemError):
    """The request's body is longer than the gateway reads."""


INVALID_REQUEST = "invalid_request_error"
_ROWS: tuple[tuple[type[TandemError], int, str, str], ...] = (
    (NotLoaded, 404, INVALID_REQUEST, "model_not_found"),
    (NotSupported, 400, INVALID_REQUEST, "unsupported_parameter"),
    (BadRequest, 400, INVALID_REQUEST, "invalid_value"),
    (Unauthorized, 401, "authentication_error", "invalid_api_key"),
    (ModelNotServed, 404, INVALID_REQUEST, "model_not_found"),
    (BodyTooLarge, 413, INVALID_REQUEST, "body_too_large"),
    (QuotaUsedUp, 429, "rate_limit_error", "quota_used_up"),
    (Overloaded, 429, "rate_limit_error", "overloaded"),
    (Cancelled, CLIENT_CLOSED, "cancelled", "cancelled"),
    (NotANumber, 500, "server_error", "not_a_number"),
    (TargetLost, 503, "service_unavailable", "target_unavailable"),
)
"""Error, status, OpenAI's type, code; the first row that fits."""


def describe_failure(error: BaseException) -> Failure:
    """What a caller is told of `error`."""
    if isinstance(error, ValidationError):
        return _describe_validation(error)
    if isinstance(error, HTTPException):
        return _describe_http(error)
    for kind, status, name, code in _ROWS:
        if isinstance(error, kind):
            return Failure(status, name, str(error), _parameter_of(error), code, _headers_of(error))
    return Failure(500, "server_error", "the gateway failed; its log has the details", None, "internal")


def _parameter_of(error: BaseException) -> str | None:
    if isinstance(error, BadRequest):
        return error.parameter
    return "model" if isinstance(error, ModelNotServed) else None


def _headers_of(error: BaseException) -> Mapping[str, str]:
    match error:
        case Overloaded(retry_after_seconds=seconds):
            return {"Retry-After": str(seconds)}
        case TargetLost():
            return {"Retry-After": str(RETRY_LOST_SECONDS)}
        case Unauthorized():
            return {"WWW-Authenticate": "Bearer"}
        case _:
            return {}


_HTTP_MESSAGES: Mapping[int, tuple[str, str]] = {
    404: ("not_found", "there is no such path; GET /v1/models names what is served"),
    405: ("method_not_allowed", "this path does not take that method"),
}


def _describe_http(error: HTTPException) -> Failure:
    code, message = _HTTP_MESSAGES.get(error.status_code, ("http_error", str(error.detail)))
    kind = INVALID_REQUEST if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    return Failure(error.status_code, kind, message, None, code, dict(error.headers or {}))


def _describe_validation(error: ValidationError) -> Failure:
    """The first fault only, by the caller's own name of the field and with the value that was sent."""
    fault = error.errors(include_url=False)[0]
    parameter = _parameter_name(fault["loc"]) or _named_in_context(fault)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = "this server does not know or does not honour the parameter; leave it out"
    elif fault["type"] != "missing" and parameter is not None:
        message = f"{message}; got {_shorten(fault['input'])}"
    code = "missing_required_parameter" if fault["type"] == "missing" else "invalid_value"
    return Failure(400, INVALID_REQUEST, f"{parameter or 'body'}: {message}", parameter, code)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _parameter_name(location: tuple[int | str, ...]) -> str | None:
    """('messages', 0, 'role') as `messages[0].role`."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return name.removeprefix(".") or None


def _named_in_context(fault: Mapping[str, object]) -> str | None:
    """A rule between two fields has no location of its own; its message begins with the field it is about."""
    message = str(fault["msg"]).removeprefix("Value error, ")
    first = message.split(" ", 1)[0]
    value = fault.get("input")
    return first if isinstance(value, Mapping) and first in value else None


def _shorten(value: object) -> str:
    """Numbers and short texts as sent; nothing long is repeated, which would put prompts into replies and logs."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{type(value).__name__} of {len(text)} characters"
