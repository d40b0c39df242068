"""Knows how an engine under measurement is talked to: a process of its own, one JSON object a line, in and out.

Refuses to know any engine, and to import anything but the standard library: it also runs in the peers' environments.

    argument    {"folder": ..., "dtype": "bf16", "threads": 2, "way": "plain", "streams": 16, "length": 1024}
    it says     {"ready": {"versions": {...}, "about": "..."}}        or {"absent": "why"}, and ends
    asked       {"way": "plain", "tokens": 128, "prompts": [[1, 2, ...], ...]}
    it says     {"streams": [{"ids": [...], "events": [[seconds, tokens], ...]}, ...]}      or {"failed": "why"}

All prompts of a question are decoded together, greedily, `tokens` tokens each, whatever an end token says. An event is
the moment, in seconds since the question was read, at which so many tokens came out. Libraries write on the standard
output as they like: it becomes the standard error, and a copy of it is ours.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Protocol


class Absent(Exception):
    """This engine cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How an engine is started. `folder`: the model; a GGUF file's path for an engine that reads those."""

    folder: str
    dtype: str
    threads: int
    way: str
    streams: int
    length: int


@dataclass(slots=True)
class Stream:
    """What came out for one prompt. `ids` stays empty where an engine gives text only."""

    ids: list[int] = field(default_factory=list)
    events: list[tuple[float, int]] = field(default_factory=list)

    def emit(self, began: float, ids: Sequence[int]) -> None:
        if ids:
            self.ids += ids
            self.events.append((time.perf_counter() - began, len(ids)))


class Engine(Protocol):
    @property
    def about(self) -> str: ...

    def generate(self, prompts: list[list[int]], *, tokens: int, way: str) -> list[Stream]: ...


def serve(start: Callable[[Setting], Engine], *, packages: Sequence[str]) -> None:
    """Answer questions until there are no more."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        engine = start(Setting(**json.loads(sys.argv[1])))
    except (Absent, ImportError) as reason:
        print(json.dumps({"absent": str(reason)}), file=ours)
        return
    about = {"versions": {name: version(name) for name in packages}, "about": engine.about}
    print(json.dumps({"ready": about}), file=ours)
    for line in sys.stdin:
        print(json.dumps(_answer(engine, json.loads(line))), file=ours)


def _answer(engine: Engine, asked: dict[str, object]) -> dict[str, object]:
    prompts, tokens, way = asked["prompts"], asked["tokens"], asked["way"]
    assert isinstance(prompts, list)
    assert isinstance(tokens, int)
    try:
        return {"streams": [asdict(stream) for stream in engine.generate(prompts, tokens=tokens, way=str(way))]}
    except Exception as fault:  # whatever a peer raises is its result, and the comparison goes on without it
        return {"failed": f"{type(fault).__name__}: {fault}"}
