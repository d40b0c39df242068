"""Knows how a value of an annotated type is read from JSON: the names, the types, what counts as absent.

Refuses to know which fields there are (`spec`). Reading is tolerant: unknown fields are passed over (an older operator
meets a newer CRD), missing ones get their default (a newer operator meets an older CRD), and an empty string in an
optional field means absent, since that is what templating tools write for "nothing".
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.quantity import Quantity, quantity


def field_name(name: str) -> str:
    """The name in the resource of an attribute: `min_basis_points` is `minBasisPoints`."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def read(kind: Any, raw: object, path: str) -> Any:
    """A value of the annotated type `kind` from JSON; raises SpecError with the field's path."""
    if kind is Quantity:
        return _read_quantity(raw, path)
    if isinstance(kind, UnionType):
        return _read_optional(kind, raw, path)
    if get_origin(kind) is tuple:
        return _read_list(get_args(kind)[0], raw, path)
    if get_origin(kind) is Mapping:
        return _read_map(get_args(kind)[1], raw, path)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, raw, path)
    if issubclass(kind, StrEnum):
        return _read_choice(kind, raw, path)
    return _read_scalar(kind, raw, path)


def _read_optional(kind: UnionType, raw: object, path: str) -> Any:
    (inner,) = (part for part in get_args(kind) if part is not NoneType)
    return None if raw in _NOTHING else read(inner, raw, path)


def _read_list(item: Any, raw: object, path: str) -> tuple[Any, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise SpecError(path, raw, "must be a list")
    return tuple(read(item, value, f"{path}[{index}]") for index, value in enumerate(raw))


def _read_map(item: Any, raw: object, path: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise SpecError(path, raw, "must be a map")
    return {str(key): value if item is object else read(item, value, f"{path}.{key}") for key, value in raw.items()}


def _read_fields(kind: Any, raw: object, path: str) -> Any:
    if not isinstance(raw, Mapping):
        raise SpecError(path, raw, "must be a map of fields")
    values: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        name = field_name(each.name)
        value = raw.get(name)
        if value is not None:
            values[each.name] = read(_hints(kind)[each.name], value, f"{path}.{name}")
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise SpecError(f"{path}.{name}", None, "give it a value")
    return kind(**values)


def _read_choice(kind: type[StrEnum], raw: object, path: str) -> StrEnum:
    try:
        return kind(str(raw))
    except ValueError:
        raise SpecError(path, raw, f"must be one of {', '.join(kind)}") from None


def _read_scalar(kind: Any, raw: object, path: str) -> Any:
    if not isinstance(raw, kind) or (kind is int and isinstance(raw, bool)):
        raise SpecError(path, raw, f"must be {_SCALARS[kind]}")
    return raw


def _read_quantity(raw: object, path: str) -> Quantity:
    try:
        return quantity(str(raw))
    except ValueError:
        raise SpecError(path, raw, "must be a quantity such as 500m, 2 or 16Gi") from None


_NOTHING = ("", {"name": ""})
"""What templating tools write for nothing, and for a reference to nothing."""
_SCALARS: Mapping[Any, str] = {int: "a whole number", str: "text (put it in quotes)", bool: "true or false"}
