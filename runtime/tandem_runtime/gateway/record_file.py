"""Knows where records of finished choices are written: a file that grows, or standard output, one line of JSON each.

Refuses to know what is in one. A line is written while the gateway waits, some microseconds for a file on a disk of
its own; what cannot be written is lost, which the log says, and no answer suffers for it.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic_core import to_json

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.gateway.choices import Record

STANDARD_OUTPUT = Path("-")

log = logging.getLogger(__name__)


class RecordFile:
    """An open file. What others write or cut off behind us, as rotating does, is taken as it is: we append."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._failing = self._torn = False

    def add(self, record: Record) -> None:
        """Behind a line that could not be written to its end a new one begins, so that it spoils no other."""
        line = whole = b"\n" * self._torn + to_json(record) + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            self._torn = self._torn or line != whole
            self._tell(error)
        else:
            self._failing = self._torn = False

    def _tell(self, error: OSError) -> None:
        """Once, until writing succeeds again: there may be hundreds a second."""
        if not self._failing:
            log.error("records of finished choices are lost, they cannot be written: %s", error.strerror)
        self._failing = True


@contextmanager
def opened(path: Path) -> Iterator[RecordFile]:
    """While the block lasts. Raises SettingRefused where nothing can be written."""
    if path == STANDARD_OUTPUT:
        yield RecordFile(1)
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingRefused(
            f"--records {path}: {error.strerror}; name a file that this process may write in a folder that exists, or -"
            " for standard output"
        ) from error
    try:
        yield RecordFile(descriptor)
    finally:
        os.close(descriptor)
