"""Knows the exact JSON form of frozen values: `dump` and `load` are each other's inverse.

Refuses to know what the values mean. A field that is absent (None) is left out, names become camelCase, moments become
RFC 3339 in UTC, tuples become lists. Loading is strict where dumping was exact: a value of the wrong type raises
`RecordError` with the path, so that an old or damaged recording is never half read. Unknown fields are ignored, so that
a newer writer can be read.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar

Value = TypeVar("Value")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RecordError(ValueError):
    """A recorded value cannot be read; `path` names where, as in `$.pods[2].ready`."""

    def __init__(self, path: str, found: object, wanted: str) -> None:
        super().__init__(f"{path}: found {found!r}, wanted {wanted}; record it again with this version")
        self.path = path


def dump(value: object) -> Any:
    """The JSON form of a value made of dataclasses, tuples, mappings, enums, moments and plain JSON.

    Any, since the shape of what comes out follows the value at run time.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {_camel(name): dump(held) for name, held in fields if held is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return dump_moment(value)
    if isinstance(value, Mapping):
        return {key: dump(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [dump(held) for held in value]
    return value


def load(kind: type[Value], found: object, path: str = "$") -> Value:
    """The value of type `kind` that dumps to `found`; raises `RecordError`."""
    return typing.cast("Value", _read(kind, found, path))


def dump_moment(moment: datetime) -> str:
    """2026-03-01T12:00:00Z; fractions of seconds are kept where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def load_moment(text: str) -> datetime:
    """The moment in UTC that an RFC 3339 text names; raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.astimezone(UTC)


def _read(kind: Any, found: object, path: str) -> object:
    if isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    if kind is object:
        return found
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_optional(kind, found, path)
    if origin is not None:
        return _CONTAINERS[origin](kind, found, path)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast("type", kind), found, path)
    return _read_plain(kind, found, path)


def _read_optional(kind: Any, found: object, path: str) -> object:
    if found is None:
        return None
    (inner,) = (member for member in typing.get_args(kind) if member is not type(None))
    return _read(inner, found, path)


def _read_tuple(kind: Any, found: object, path: str) -> object:
    if not isinstance(found, list):
        raise RecordError(path, found, "a list")
    inner = typing.get_args(kind)[0]
    if inner is int and all(type(held) is int for held in found):
        return tuple(found)  # rows of sums are most of what is read
    return tuple(_read(inner, held, f"{path}[{index}]") for index, held in enumerate(found))


def _read_mapping(kind: Any, found: object, path: str) -> object:
    if not isinstance(found, dict):
        raise RecordError(path, found, "an object")
    inner = typing.get_args(kind)[1]
    return {key: _read(inner, held, f"{path}.{key}") for key, held in found.items()}


_CONTAINERS: dict[Any, Callable[[Any, object, str], object]] = {
    tuple: _read_tuple,
    dict: _read_mapping,
    Mapping: _read_mapping,
}


def _read_dataclass(kind: type, found: object, path: str) -> object:
    if not isinstance(found, dict):
        raise RecordError(path, found, f"an object that describes {kind.__name__}")
    given = {}
    for field in dataclasses.fields(kind):
        name = _camel(field.name)
        if name in found:
            given[field.name] = _read(_hints(kind)[field.name], found[name], f"{path}.{name}")
        elif _optional(_hints(kind)[field.name]):
            given[field.name] = None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{path}.{name}", None, "a value")
    return kind(**given)


def _read_plain(kind: type, found: object, path: str) -> object:
    try:
        if issubclass(kind, Enum):
            return kind(found)
        if kind is datetime and isinstance(found, str):
            return load_moment(found)
    except ValueError as refused:
        raise RecordError(path, found, f"a {kind.__name__}") from refused
    if kind is float and type(found) is int:
        return float(found)
    if type(found) is not kind:
        raise RecordError(path, found, f"a {kind.__name__}")
    return found


def _optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
