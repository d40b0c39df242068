"""One long-running program: started, and started again whenever it ends, until it is dismissed.

It knows no Kubernetes. Whoever makes it hears of every end, with the last line of the program's log.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_RESTART_PAUSE_SECONDS = 1.0
_STOP_SECONDS = 5.0


class Child:
    """A program with its log. `ended` is called with a sentence about each end."""

    def __init__(self, name: str, command: Sequence[str], log: Path, ended: Callable[[str], None]) -> None:
        self._name = name
        self._command = command
        self._log_file = log
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep_running(), name=name)

    async def dismiss(self, number: signal.Signals) -> None:
        """End it for good: with SIGTERM it has some seconds to finish."""
        self._task.cancel()
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()

    async def _keep_running(self) -> None:
        while True:
            with self._log_file.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
                )
            code = await self._process.wait()
            sentence = f"{self._name} ended with {code} ({self._last_line()}); its log is {self._log_file}"
            _log.warning("%s", sentence)
            self._ended(sentence)
            await asyncio.sleep(_RESTART_PAUSE_SECONDS)

    def _last_line(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
