"""Knows what the safetensors files of a folder say they hold, and takes single tensors out of them.

Refuses to know models: which tensors are wanted, in which shape, is its caller's.

A safetensors file is eight bytes with the length of a header, the header (JSON: name -> type, shape, begin and end),
and the numbers. All headers are read and checked before a number is looked at: a header can ask for any amount of
memory, say that two tensors lie on each other, or that one ends where the file does not. What is refused here says
which file, which tensor, what was found, what was wanted, and what to do. The numbers are then mapped by the
safetensors library, so that taking one tensor takes the memory of that one.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.model_folder import read_object

__all__ = ["READ_TYPES", "Stored", "read_header", "read_headers", "tensors"]

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 16 << 20
"""A model of 10,000 layers has a header of this size; the library would read one of 100 MB."""

MOST_DIMENSIONS = 8
"""Without a limit, a product of a million sizes takes minutes."""

TYPE_BYTES: Mapping[str, int] = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F64": 8,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
}
"""Types whose sizes are checked."""

READ_TYPES = frozenset({"F32", "F16", "BF16"})
"""Types that are read. Others may lie about, as old buffers do."""

AGAIN = "fetch it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One tensor as a header describes it; `begin` and `end` are bytes after the header."""

    name: str
    file: Path
    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_headers(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder by its name: of all files that the index names, or of the one file.

    Reads headers only, and of all files, before anything can be taken out of one. Raises ModelRefused.
    """
    index = folder / WEIGHTS_INDEX
    if not index.exists():
        return read_header(folder / WEIGHTS)
    places = _placed(index)
    files = sorted(set(places.values()))
    if gone := [file for file in files if not (folder / file).is_file()]:
        raise ModelRefused(f"{index} names {', '.join(gone)}, which this folder lacks; fetch what is missing")
    held = {file: read_header(folder / file) for file in files}
    for name, file in places.items():
        if name not in held[file]:
            raise ModelRefused(f"{folder / file}: {name} is not in this file, where {index.name} places it; {AGAIN}")
    return {name: held[file][name] for name, file in places.items()}


def read_header(path: Path) -> dict[str, Stored]:
    """Every tensor of one file by its name, as its checked header has it. Raises ModelRefused."""
    return {stored.name: stored for stored in _header(path)}


def tensors(wanted: Iterable[Stored]) -> Iterator[tuple[Stored, Tensor]]:
    """One after the other in the order in which they lie. Each is a view of its file: who keeps it copies it."""
    for path, group in groupby(sorted(wanted, key=lambda each: (each.file, each.begin)), key=lambda each: each.file):
        try:
            with safe_open(path, framework="pt") as file:
                for stored in group:
                    yield stored, file.get_tensor(stored.name)
        except (SafetensorError, OSError) as broken:
            raise ModelRefused(f"{path}: no readable safetensors file: {broken}; {AGAIN}") from broken


def _placed(index: Path) -> dict[str, str]:
    """The index's map of tensor names to files beside it."""
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelRefused(f"{index}: weight_map = {places!r}: give a map of tensor names to files")
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelRefused(f"{index}: weight_map.{name} = {file!r}: give the name of a file in the same folder")
    return places


def _header(path: Path) -> list[Stored]:
    """The checked header of one file."""
    text, size = _header_text(path)
    try:
        written = json.loads(text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{path}: the header is no readable JSON ({error}); {AGAIN}") from error
    if not isinstance(written, dict):
        raise ModelRefused(f"{path}: the header holds {type(written).__name__}, not an object; {AGAIN}")
    held = [_stored(path, name, entry) for name, entry in written.items() if name != "__metadata__"]
    _check_places(path, held, size - LENGTH_BYTES - len(text))
    return held


def _header_text(path: Path) -> tuple[bytes, int]:
    """The header's bytes and the size of the whole file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
                raise ModelRefused(
                    f"{path}: no safetensors file: its header would have {length} bytes, but the file has {size}"
                    f" and a header {MOST_HEADER_BYTES} at most; {AGAIN}"
                )
            return file.read(length), size
    except FileNotFoundError as missing:
        raise ModelRefused(f"{path}: this file is missing; weights are read from safetensors files only") from missing
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror}") from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands twice")
    return dict(pairs)


def _stored(path: Path, name: str, entry: object) -> Stored:
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if _are_sizes(shape):
            stored = Stored(name=name, file=path, type=kind, shape=tuple(shape), begin=begin, end=end)
        case _:
            raise ModelRefused(f"{path}: {name} = {entry!r}: its header needs dtype, shape and data_offsets; {AGAIN}")
    wanted = math.prod(shape) * TYPE_BYTES[kind] if kind in TYPE_BYTES else end - begin
    if not 0 <= begin <= end or end - begin != wanted:
        raise ModelRefused(
            f"{path}: {name} lies at bytes {begin} to {end}, but {kind} {list(shape)} takes {wanted}; {AGAIN}"
        )
    return stored


def _are_sizes(shape: list[Any]) -> bool:
    return len(shape) <= MOST_DIMENSIONS and all(type(size) is int and size >= 0 for size in shape)


def _check_places(path: Path, held: Iterable[Stored], room: int) -> None:
    """Tensors follow each other without a gap, from the header to the end of the file."""
    ordered = sorted(held, key=lambda stored: (stored.begin, stored.end))
    for before, after in pairwise(ordered):
        if before.end != after.begin:
            what = "on" if after.begin < before.end else "apart from"
            raise ModelRefused(
                f"{path}: {after.name} begins at byte {after.begin}, {what} {before.name}, which ends at {before.end};"
                f" {AGAIN}"
            )
    begin, end = (ordered[0].begin, ordered[-1].end) if ordered else (0, 0)
    if (begin, end) != (0, room):
        raise ModelRefused(
            f"{path}: the header speaks of bytes {begin} to {end}, but {room} bytes follow it;"
            f" the file is {'cut short' if end > room else 'not what it says'}: {AGAIN}"
        )
