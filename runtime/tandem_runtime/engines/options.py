"""Knows what can be asked of an engine when it is started.

Refuses to know how it is asked: the command line is `main`'s, the fields of a resource are the operator's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tandem_runtime.domain.adapters import MOST_ADAPTERS

__all__ = ["AS_IS", "STEP_DEADLINE_SECONDS", "STEP_ROWS", "WEIGHTS", "AdapterOptions", "Download", "EngineOptions"]

AS_IS = "as-is"
WEIGHTS = (AS_IS, "int8", "int4")
"""Computed with as the folder has them, or rounded to so many bits when they are loaded."""

STEP_ROWS = 512
"""Rows of those who ride along, per step: 64 sessions that guess 7 tokens each. Whoever has many sessions that guess
more does not set everybody's pace by it."""
STEP_DEADLINE_SECONDS = 300
"""After which a step is given up, and with it the process: ten times what makes an engine unready, so that whatever
ends at all has ended."""

Download: TypeAlias = Callable[[str, str | None, Path], None]
"""Put an adapter's files of a repository (owner/name), at that revision, into a folder. Blocks. Raises ModelRefused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """`named` are loaded at the start; further ones come from below `folder`, and from the hub by `download`, or None:
    never. `most` at a time."""

    named: Mapping[str, Path] = field(default_factory=dict)
    folder: Path | None = None
    download: Download | None = None
    most: int = MOST_ADAPTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`model` is a folder, or `scripted:module:function`, of which only lengths, memory and pace can be asked.

    `weights` is one of `WEIGHTS`. `device` "auto": the first CUDA device if there is one, else `threads` cores of the
    CPU. `max_length` None: what the model was made for. `kv_bytes` None: what all sessions need at full
    length, but half of what is free at most. `step_rows`: see `engines.planning`. `outputs`: rows of a session
    whose logits one step may want, for a target one more than it is given to judge.
    """

    model: str
    device: str = "auto"
    dtype: str = "fp32"
    weights: str = AS_IS
    threads: int = 1
    max_sessions: int = 64
    max_length: int | None = None
    kv_bytes: int | None = None
    step_rows: int = STEP_ROWS
    outputs: int = 1
    pace: str | None = None
    adapters: AdapterOptions = field(default_factory=AdapterOptions)
