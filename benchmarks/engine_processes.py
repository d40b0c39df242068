"""Knows how engines under measurement are started, asked and ended: each a process that speaks `peers.lines`.

Refuses to know what their answers mean.

Engines stay loaded and wait, without a thread that turns, while another is asked; so they can take turns. What other
processes took of the machine meanwhile is told with every answer.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.lines import Absent, Setting, Stream

ROOT = Path(__file__).parents[1]
CALM_SECONDS = 0.4
"""Before every question: threads of the peer that answered last turn idly for a fifth of a second (OpenMP's custom)."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """The engine answered with an error, too late, or not at all."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How processes of an engine are made. `of_one_way`: a process knows but the way that it was started with."""

    module: str
    python: Path
    model: Path
    environment: Mapping[str, str]
    of_one_way: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Streams in the order of the prompts; `others_share`: of the machine's time, that other processes had."""

    streams: list[Stream]
    others_share: float


class EngineProcess:
    """One running engine."""

    def __init__(self, kind: Kind, setting: Setting, log: IO[bytes], *, limit_seconds: float) -> None:
        """Raises Absent, and Failed where it is not ready in time."""
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [str(kind.python), "-m", kind.module, json.dumps(asdict(setting))],
            cwd=ROOT,
            env=_environment(kind, setting),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            told = self._hear(limit_seconds)
        except Failed:
            self.end()
            raise
        if "absent" in told:
            self.end()
            raise Absent(told["absent"])
        self.startup_seconds = round(time.perf_counter() - began, 2)
        self.about: dict[str, Any] = told["ready"]

    def ask(self, prompts: Sequence[Sequence[int]], *, tokens: int, way: str, limit_seconds: float) -> Answer:
        """Raises Failed; an engine that was too late is ended."""
        time.sleep(CALM_SECONDS)
        assert self._process.stdin is not None
        if not self.is_running:
            raise Failed("the process ended; its log says why")
        busy, own = _busy_ticks(), _ticks_of(self._process.pid)
        began = time.perf_counter()
        with suppress(BrokenPipeError):
            asked = {"way": way, "tokens": tokens, "prompts": [list(prompt) for prompt in prompts]}
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        told = self._hear(limit_seconds)
        seconds = time.perf_counter() - began
        others = (_busy_ticks() - busy) - (_ticks_of(self._process.pid) - own)
        if "failed" in told:
            raise Failed(told["failed"])
        streams = [Stream(ids=each["ids"], events=[(at, n) for at, n in each["events"]]) for each in told["streams"]]
        return Answer(streams, _share(others, seconds))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """All that it started ends with it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _hear(self, limit_seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit_seconds)
        except queue.Empty:
            self.end()
            raise Failed(f"no answer within {limit_seconds:.0f} s") from None
        if not line:
            raise Failed("the process ended; its log says why")
        told: dict[str, Any] = json.loads(line)
        return told

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")


def _environment(kind: Kind, setting: Setting) -> dict[str, str]:
    """As a user's, but for threads: a library that counts them from here gets what was asked for."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads), "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONPATH", None)
    return {**environment, **kind.environment}


def _busy_ticks() -> int:
    """Of all processors since the start: user, nice, system, interrupts and what a host took."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = numbers[3], numbers[4]
    return sum(numbers) - idle - waiting


def _ticks_of(process: int) -> int:
    """User and system time of a process and its children that ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return sum(int(field) for field in fields[11:15])


def busy_share(seconds: float = 2.0) -> float:
    """Of the machine's time, that is taken while we wait."""
    before = _busy_ticks()
    time.sleep(seconds)
    return _share(_busy_ticks() - before, seconds)


def _share(ticks: int, seconds: float) -> float:
    """Of all processors; a tick more or less is the counter's."""
    share = ticks / (seconds * TICKS_PER_SECOND * (os.cpu_count() or 1))
    return round(min(max(share, 0.0), 1.0), 4)
