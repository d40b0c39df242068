"""Knows how to read what lies at a path of nested JSON objects, as the API server writes them.

Refuses to know what any path means. What is absent and what is of another type are the same: a body that somebody
damaged is read like one that says nothing.
"""

from collections.abc import Mapping


def held(body: object, *path: str) -> object:
    """What lies at the path; None where any part of it is missing."""
    for name in path:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def text(body: object, *path: str) -> str:
    """The text at a path; "" where there is none."""
    found = held(body, *path)
    return found if isinstance(found, str) else ""


def number(body: object, *path: str, default: int = 0) -> int:
    """The whole number at a path, or `default`."""
    found = held(body, *path)
    return found if isinstance(found, int) else default


def mapping(body: object, *path: str) -> Mapping[str, object]:
    """The object at a path; empty where there is none."""
    found = held(body, *path)
    return found if isinstance(found, Mapping) else {}


def texts(body: object, *path: str) -> Mapping[str, str]:
    """The object at a path as names and texts, as labels, annotations and ConfigMap data are."""
    return {key: value for key, value in mapping(body, *path).items() if isinstance(value, str)}


def items(body: object, *path: str) -> tuple[Mapping[str, object], ...]:
    """The objects in the list at a path; empty where there is none."""
    found = held(body, *path)
    return tuple(item for item in found if isinstance(item, Mapping)) if isinstance(found, list) else ()
