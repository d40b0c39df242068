"""Knows when a file's content has changed for good, however it is changed: an editor, a rename, a mounted volume.

Refuses to know what stands in it.

It is read once a second and told apart by a digest. A content counts once two looks in a row found it: who writes in
place is seen half-way. One that cannot be read is told once, like a content, and changes nothing by itself.
"""

import asyncio
import hashlib
from pathlib import Path

from tandem_runtime.domain.errors import SettingRefused

LOOK_SECONDS = 1.0
"""A change is found after two of these at most."""
LARGEST_FILE = 2**20
"""Bytes."""


class FollowedFile:
    """The file at `path`, which was named by `option`."""

    def __init__(self, path: Path, *, option: str) -> None:
        self.path = path
        self.named = f"{option} {path}"
        self._known = self._seen = b""

    def first(self) -> str:
        """Its content at the start. Raises SettingRefused where there is none to be read."""
        mark, content = self._read()
        self._known = self._seen = mark
        return _text(content)

    async def next(self) -> str:
        """Waits for another content. Raises SettingRefused where the file has become one that cannot be read."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            mark, content = await asyncio.to_thread(self._read)
            is_news = mark == self._seen and mark != self._known
            self._seen = mark
            if is_news:
                self._known = mark
                return _text(content)

    def _read(self) -> tuple[bytes, str | SettingRefused]:
        """What stands there, or why nothing can be read, and a mark by which two looks are compared."""
        try:
            with self.path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
            if len(content) > LARGEST_FILE:
                raise SettingRefused(f"{self.named} has more than {LARGEST_FILE} bytes")
            return hashlib.sha256(content).digest(), content.decode()
        except OSError as error:
            refused = SettingRefused(f"{self.named} cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            refused = SettingRefused(f"{self.named} is no UTF-8 at byte {error.start}")
        except SettingRefused as error:
            refused = error
        return str(refused).encode(), refused


def _text(content: str | SettingRefused) -> str:
    if isinstance(content, SettingRefused):
        raise content
    return content
