"""The operator as a process of its own that a test starts, kills and stops, as a kubelet would run its container.

It knows nothing of what the operator does. Processes are forked from one that has loaded the operator already: loading
takes longer than most of what is tested.
"""

import asyncio
import multiprocessing
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.operator_child import become_operator

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tandem_operator.main"])

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) \S+ .")
"""Every line of a log begins so; a traceback's do not."""
RESTART_SECONDS = 0.2


class OperatorProcess:
    """Started again whenever it ends, until it is stopped; `exits` are the statuses with which it ended."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.exits: list[int] = []
        self._environment = dict(environment)
        self._log = log
        self._wanted = False
        self._ended = asyncio.Event()
        self._process: multiprocessing.process.BaseProcess | None = None

    def changed(self, **environment: str) -> "OperatorProcess":
        """Another one, with other values in its environment; not started."""
        return OperatorProcess({**self._environment, **environment}, self._log)

    def start(self) -> None:
        self._wanted = True
        self._begin()

    def kill(self) -> None:
        """At once, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()

    async def stop(self, sign: int = signal.SIGTERM) -> int:
        """Ends it for good; its exit status."""
        self._wanted = False
        if self._process is not None and self._process.pid is not None and not self._ended.is_set():
            os.kill(self._process.pid, sign)
        if self._process is not None:
            await self._ended.wait()
        return self.exits[-1] if self.exits else 0

    def log(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def strange_lines(self) -> list[str]:
        """What it wrote that is no line of a log."""
        return [line for line in self.log() if not LINE.match(line)]

    def _begin(self) -> None:
        self._process = FORKS.Process(target=become_operator, args=(self._environment, str(self._log)), daemon=True)
        self._process.start()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._over)

    def _over(self) -> None:
        process, loop = self._process, asyncio.get_running_loop()
        assert process is not None
        loop.remove_reader(process.sentinel)
        process.join()
        self.exits.append(process.exitcode or 0)
        process.close()
        if self._wanted:
            loop.call_later(RESTART_SECONDS, self._again)
        else:
            self._ended.set()

    def _again(self) -> None:
        if self._wanted:
            self._begin()
        else:
            self._ended.set()
