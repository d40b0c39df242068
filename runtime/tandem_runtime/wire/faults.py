"""Knows which branch of the error tree is which failure on the wire: the one table for both directions.

Refuses to know who failed and what a caller does about it.
"""

from tandem_runtime.domain.errors import (
    BadRequest,
    Cancelled,
    DraftForgot,
    DraftLost,
    ModelRefused,
    NotANumber,
    NotLoaded,
    NotSupported,
    Overloaded,
    SessionLost,
    StaleOffset,
    TandemError,
    TargetLost,
)
from tandem_runtime.wire import verify_pb2 as pb

_KINDS: dict[type[TandemError], pb.ErrorKind] = {
    BadRequest: pb.ERROR_KIND_BAD_REQUEST,
    NotLoaded: pb.ERROR_KIND_NOT_LOADED,
    NotSupported: pb.ERROR_KIND_NOT_SUPPORTED,
    ModelRefused: pb.ERROR_KIND_BAD_REQUEST,
    Overloaded: pb.ERROR_KIND_OVERLOADED,
    SessionLost: pb.ERROR_KIND_SESSION_LOST,
    DraftForgot: pb.ERROR_KIND_SESSION_LOST,
    DraftLost: pb.ERROR_KIND_INTERNAL,
    StaleOffset: pb.ERROR_KIND_STALE_OFFSET,
    NotANumber: pb.ERROR_KIND_NOT_A_NUMBER,
    Cancelled: pb.ERROR_KIND_CANCELLED,
    TargetLost: pb.ERROR_KIND_INTERNAL,
    TandemError: pb.ERROR_KIND_INTERNAL,
}

# Failures without details of their own; those that have some are read below.
_PLAIN: dict[int, type[TandemError]] = {
    pb.ERROR_KIND_SESSION_LOST: SessionLost,
    pb.ERROR_KIND_STALE_OFFSET: StaleOffset,
    pb.ERROR_KIND_NOT_A_NUMBER: NotANumber,
    pb.ERROR_KIND_CANCELLED: Cancelled,
    pb.ERROR_KIND_INTERNAL: TargetLost,
}


def failure_message(error: TandemError) -> pb.Failure:
    kind = next(_KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in _KINDS)
    message = pb.Failure(kind=kind, message=_carried(str(error)))
    if isinstance(error, BadRequest) and error.parameter is not None:
        message.parameter = _carried(error.parameter)
    if isinstance(error, Overloaded):
        message.retry_after_seconds = max(error.retry_after_seconds, 0)
    return message


def _carried(text: str) -> str:
    """An error may quote text that is no valid Unicode, and must not itself fail for it."""
    return text.encode("utf-8", "replace").decode()


def error_value(message: pb.Failure) -> TandemError:
    """The error that a failure stands for. Raises BadRequest for a kind that this release does not know."""
    if message.kind == pb.ERROR_KIND_BAD_REQUEST:
        return BadRequest(message.message, parameter=message.parameter or None)
    if message.kind == pb.ERROR_KIND_NOT_LOADED:
        return NotLoaded(message.message, parameter=message.parameter or None)
    if message.kind == pb.ERROR_KIND_NOT_SUPPORTED:
        return NotSupported(message.message, parameter=message.parameter or None)
    if message.kind == pb.ERROR_KIND_OVERLOADED:
        return Overloaded(message.message, retry_after_seconds=message.retry_after_seconds)
    if message.kind in _PLAIN:
        return _PLAIN[message.kind](message.message)
    raise BadRequest(f"failure.kind: {message.kind} is not one that this release knows", parameter="failure.kind")
