"""Knows the exact JSON form of frozen values: `dump` and `load` are each other's inverse.

Refuses to know what the values mean. A field that is absent (None) is left out, names become camelCase, moments become
RFC 3339 in UTC, tuples become lists. Loading is strict where dumping was exact: a value of the wrong type raises
`RecordError` with the path, so that an old or damaged recording is never half read. Unknown fields are ignored, so that
a newer writer can be read.

The work is pydantic's, one compiled adapter per dataclass. Text is read as it came, without plain dicts in between:
evidence is most of what the operator reads.
"""

import reprlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, PlainSerializer, PlainValidator, TypeAdapter, ValidationError, with_config
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError, to_json

Value = TypeVar("Value")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORM = ConfigDict(alias_generator=to_camel, strict=True, allow_inf_nan=False)


class RecordError(ValueError):
    """A recorded value cannot be read; `path` names where, as in `$.pods[2].ready`."""

    def __init__(self, path: str, found: object, wanted: str) -> None:
        # An answer may be megabytes of nonsense, and an error is one line.
        super().__init__(f"{path}: found {reprlib.repr(found)}; {wanted}; write it again with this version")
        self.path = path


def dump(value: object) -> Any:
    """The JSON form of a value made of dataclasses, tuples, mappings, enums, moments and plain JSON.

    Any, since the shape of what comes out follows the value at run time.
    """
    return _adapter(type(value)).dump_python(value, mode="json", by_alias=True, exclude_none=True)


def size(value: object) -> int:
    """Bytes of the JSON text of what `dump` gives."""
    return len(_adapter(type(value)).dump_json(value, by_alias=True, exclude_none=True))


def load(kind: type[Value], found: object) -> Value:
    """The value of type `kind` that dumps to `found`; raises `RecordError`."""
    try:
        return read(kind, to_json(found))
    except PydanticSerializationError as refused:
        raise RecordError("$", found, "it is no JSON") from refused


def read(kind: type[Value], text: str | bytes) -> Value:
    """The value of type `kind` in a JSON text; raises `RecordError`."""
    try:
        value: Value = _adapter(kind).validate_json(text)
    except ValidationError as refused:
        first = refused.errors(include_url=False, include_context=False)[0]
        absent = first["type"] == "missing"
        raise RecordError(_path(first["loc"]), None if absent else first["input"], first["msg"]) from refused
    return value


def dump_moment(moment: datetime) -> str:
    """2026-03-01T12:00:00Z; fractions of seconds are kept where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def load_moment(text: object) -> datetime:
    """The moment in UTC that an RFC 3339 text names; raises ValueError."""
    if not isinstance(text, str):
        raise ValueError("wanted a moment as text")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it names no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as beyond:
        raise ValueError("it lies beyond the calendar") from beyond


Moment = Annotated[datetime, PlainValidator(load_moment), PlainSerializer(dump_moment)]
"""How a recorded dataclass declares its moments: pydantic's own would take `17` for one, and keep any zone."""

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(lambda kind: TypeAdapter(with_config(FORM)(kind)))


def _path(steps: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
