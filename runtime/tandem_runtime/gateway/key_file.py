"""Knows which API keys are in force while their file changes under a running gateway: those of its last good content.

Refuses to know what a line means (`keys`), and what becomes of the work of tenants that have no key left.

The file is read once a second, on a thread of its own, and contents are told apart by a digest. So it does not matter
how it changes: a mounted Secret, which the kubelet swaps by turning a link, a rename, an editor. A content counts once
two looks in a row found it: who writes in place is seen half-way, and half a file would revoke the tenants of the other
half. One that is gone, empty or wrong changes nothing, since it says nothing about any key.
"""

import asyncio
import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tandem_runtime.domain.errors import SettingRefused, origin
from tandem_runtime.gateway.keys import ApiKeys, Tenant, read_content

LOOK_SECONDS = 1.0
"""A change is in force after two of these at most."""

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told what new keys mean."""

    def keys_changed(self, *, gone: frozenset[str], known: frozenset[str]) -> None:
        """Tenants `gone` have no key any more, and those `known` have one."""
        ...


class KeyFile:
    """A `keys.Doorkeeper` by the file at `path`. Raises SettingRefused where it is wrong at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark, content = _read(path)
        self._seen = self._mark
        self._keys = _keys_of(content, path)
        self._is_refused = False
        self._has_failed = False
        self._thread = ThreadPoolExecutor(1, "api-keys")
        """Of its own: the threads that all share read prompts, and a leaked key could keep them busy for minutes."""

    @property
    def is_stale(self) -> bool:
        """Whether the file is of no use now or cannot be followed, and what it said before is in force."""
        return self._is_refused or self._has_failed

    def tenant(self, authorization: str | None) -> Tenant:
        return self._keys.tenant(authorization)

    async def follow(self, listener: Listener) -> None:
        """Keep the keys equal to the file's, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look(listener)
                self._has_failed = False
            except Exception as error:  # a fault of ours must not end the following: nobody could be revoked any more
                self._has_failed = True
                log.error("API keys were not read error=%s", origin(error))

    async def look(self, listener: Listener) -> None:
        """One look; what the one before found too, and is news, is taken."""
        mark, content = await asyncio.get_running_loop().run_in_executor(self._thread, _read, self._path)
        is_news = mark == self._seen and mark != self._mark
        self._seen = mark
        if is_news:
            await self._take(mark, content, listener)

    async def _take(self, mark: bytes, content: bytes | SettingRefused, listener: Listener) -> None:
        """The content counts as taken only here, so that one at which we failed is tried again."""
        try:
            keys = await asyncio.get_running_loop().run_in_executor(self._thread, _keys_of, content, self._path)
        except SettingRefused as refused:
            self._mark, self._is_refused = mark, True
            log.error("API keys stay as they were, as their file is of no use: %s", refused)
            return
        gone = self._keys.tenants - keys.tenants
        self._mark, self._keys, self._is_refused = mark, keys, False
        log.info("API keys read anew tenants=%d revoked=%d", len(keys.tenants), len(gone))
        listener.keys_changed(gone=gone, known=keys.tenants)


def _read(path: Path) -> tuple[bytes, bytes | SettingRefused]:
    """What stands there, or why nothing can be read, and a mark by which two looks are compared: no key is kept."""
    try:
        content = read_content(path)
    except SettingRefused as refused:
        return str(refused).encode(), refused
    return hashlib.sha256(content).digest(), content


def _keys_of(content: bytes | SettingRefused, path: Path) -> ApiKeys:
    if isinstance(content, SettingRefused):
        raise content
    return ApiKeys.from_bytes(content, path=path)
