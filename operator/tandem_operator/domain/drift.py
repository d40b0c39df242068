"""Knows whether an object of the API still says what we want, and what others wrote into it.

Refuses to know which objects those are and what is done about a difference.

The API server adds defaults and prints quantities in its own spelling, so a wanted object is compared as a part of the
live one: every wanted field must be there with the same value, where `1024Mi` equals `1Gi`, and an empty value equals
an absent one. Entries of lists with names (containers, variables, volumes, ports) are matched by name, so that another
owner's entry beside ours is no difference but an addition. What we no longer want cannot be seen this way; a hash of
the wanted object, kept in an annotation, changes with it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from tandem_operator.domain.observed import GROUP
from tandem_operator.domain.quantity import amount

ANNOTATION_APPLIED = f"{GROUP}/applied"
_KEYS = ("name", "mountPath", "uid")
_NAMED_LISTS = ("containers", "initContainers", "env", "volumes", "volumeMounts", "ports", "ownerReferences")
_WATCHED_ADDITIONS = ("containers", "initContainers", "env", "volumes", "volumeMounts")


def sealed(wanted: Mapping[str, object]) -> dict[str, object]:
    """The wanted object with the hash of itself among its annotations."""
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    seal = hashlib.sha256(text.encode()).hexdigest()[:16]
    metadata = wanted.get("metadata")
    known = dict(metadata) if isinstance(metadata, Mapping) else {}
    annotations = known.get("annotations")
    marks = dict(annotations) if isinstance(annotations, Mapping) else {}
    return {**wanted, "metadata": {**known, "annotations": {**marks, ANNOTATION_APPLIED: seal}}}


def first_difference(wanted: object, live: object, path: str = "") -> str | None:
    """Where the live object first says something else; None where it says all that is wanted."""
    if isinstance(wanted, dict):
        return _difference_in_mapping(wanted, live if isinstance(live, dict) else {}, path)
    if isinstance(wanted, list | tuple):
        return _difference_in_list(wanted, live, path)
    return None if _same(wanted, live, path) else path


def _difference_in_mapping(wanted: Mapping[str, object], live: Mapping[str, object], path: str) -> str | None:
    found = (first_difference(value, live.get(key), f"{path}.{key}".lstrip(".")) for key, value in wanted.items())
    return next((difference for difference in found if difference is not None), None)


def _difference_in_list(wanted: Sequence[object], live: object, path: str) -> str | None:
    others = live if isinstance(live, list | tuple) else ()
    if path.rpartition(".")[2] in _NAMED_LISTS:
        found = (first_difference(entry, _entry(others, _key(entry)), f"{path}[{_key(entry)}]") for entry in wanted)
        return next((difference for difference in found if difference is not None), None)
    if len(wanted) != len(others):
        return path
    pairs = enumerate(zip(wanted, others, strict=True))
    found_at = (first_difference(one, other, f"{path}[{index}]") for index, (one, other) in pairs)
    return next((difference for difference in found_at if difference is not None), None)


def _same(wanted: object, live: object, path: str) -> bool:
    if wanted == live or (wanted in ("", None) and live in ("", None)):
        return True
    return _is_amount(path) and _amount(wanted) == _amount(live)


def _is_amount(path: str) -> bool:
    return path.endswith(".sizeLimit") or ".requests." in path or ".limits." in path


def _amount(value: object) -> object:
    try:
        return amount(str(value))
    except ValueError:
        return value


def _key(entry: object) -> str:
    if not isinstance(entry, dict):
        return ""
    return next((str(entry[key]) for key in _KEYS if key in entry), "")


def _entry(entries: Sequence[object], key: str) -> object:
    return next((entry for entry in entries if _key(entry) == key), None)


def additions(wanted: object, live: object, path: str = "") -> Iterator[str]:
    """The entries that somebody else put beside ours in named lists, such as `spec.template.spec.containers[proxy]`."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from additions(value, live.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        yield from _additions_to_list(wanted, live, path)


def _additions_to_list(wanted: Sequence[object], live: Sequence[object], path: str) -> Iterator[str]:
    name = path.rpartition(".")[2]
    ours = {_key(entry) for entry in wanted}
    if name in _WATCHED_ADDITIONS:
        yield from (f"{path}[{_key(entry)}]" for entry in live if _key(entry) not in ours)
    if name in _NAMED_LISTS:
        for entry in wanted:
            yield from additions(entry, _entry(live, _key(entry)), f"{path}[{_key(entry)}]")
