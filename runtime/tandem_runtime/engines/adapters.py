"""Knows how adapters come into a running engine and leave it: read beside the steps, put in and taken out between them.

Refuses to know what an adapter is made of, and how one is asked for.

Whoever may load one by its place could have any folder of the machine read, and is told what is wrong with it. So
folders named at run time must lie below one, chosen at the start; without it none is read. What a repository on the hub
holds is no secret of the machine's: where its two files can be downloaded, they are, into a folder that goes once they
are read. Where neither is so, nothing comes or goes.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import SplitResult, unquote, urlsplit

from tandem_runtime.domain.adapters import (
    MOST_ADAPTERS,
    AdapterBook,
    AdapterDigest,
    AdapterFacts,
    AdapterSource,
    refuse_bad_name,
)
from tandem_runtime.domain.errors import BadRequest, ModelRefused
from tandem_runtime.engines.options import Download
from tandem_runtime.engines.step_loop import StepLoop
from tandem_runtime.model_folder import ADAPTER_FILES
from tandem_runtime.ports import AdaptableModel, ReadAdapter

__all__ = ["Adapters", "LoopDesk"]


class Adapters:
    """The adapters of one model. Touched on the model's thread only, but for `loaded` and `read`."""

    def __init__(
        self,
        model: AdaptableModel,
        *,
        most: int = MOST_ADAPTERS,
        folder: Path | None = None,
        download: Download | None = None,
    ) -> None:
        self._model = model
        self._book = AdapterBook(most=most)
        self._folder = folder
        self._download = download

    @property
    def loaded(self) -> tuple[AdapterFacts, ...]:
        return self._book.loaded

    def find(self, asked: str) -> AdapterDigest:
        """Raises NotLoaded."""
        return self._book.find(asked)

    def read(self, name: str, folder: Path) -> ReadAdapter:
        """Blocks, on any thread. Raises BadRequest, and ModelRefused."""
        refuse_bad_name(name)
        return self._model.read_adapter(folder)

    def read_at(self, name: str, source: AdapterSource) -> ReadAdapter:
        """Likewise, from where its uri points to, if that is allowed. Raises ModelRefused for another digest too."""
        refuse_bad_name(name)
        with self._found(source) as folder:
            read = self.read(name, folder)
        if source.digest not in (None, read.digest):
            raise ModelRefused(
                f"digest of {source.uri} is {read.digest}, not {source.digest} as asked; correct the digest, or find "
                "out who changed the files"
            )
        return read

    @contextmanager
    def _found(self, source: AdapterSource) -> Iterator[Path]:
        """The folder for as long as it is read."""
        parts, _ = _place(source.uri)
        if parts.scheme != "hf" or self._download is None:
            if parts.scheme == "file" and source.revision is not None:
                raise BadRequest(f"revision = {source.revision!r}: {source.uri} has none", parameter="revision")
            yield _folder_at(source.uri, _refuse_change(self._folder))
            return
        with TemporaryDirectory(prefix="adapter-") as folder:
            self._download(f"{parts.netloc}{parts.path}".strip("/"), source.revision, Path(folder))
            try:
                yield Path(folder)
            except ModelRefused as refused:
                # Whose name is another one each time: who repeats the order would be told something new each time.
                raise ModelRefused(str(refused).replace(folder, source.uri)) from refused

    def put_in(self, name: str, read: ReadAdapter, *, in_use: Collection[AdapterDigest | None] = ()) -> AdapterFacts:
        """Lead `name` to what was read; `in_use` are the adapters of open sessions. Raises Overloaded."""
        facts = AdapterFacts(name, read.digest, read.rank, read.bytes)
        self._book.add(facts)
        read.install()
        self.sweep(in_use)
        return facts

    def take_out(self, name: str, *, in_use: Collection[AdapterDigest | None]) -> None:
        """Raises NotLoaded, and BadRequest where nothing may change."""
        if self._download is None:
            _refuse_change(self._folder)
        self._book.remove(name)
        self.sweep(in_use)

    def sweep(self, in_use: Collection[AdapterDigest | None]) -> None:
        """Free what nobody can ask for and no session has."""
        for digest in self._book.take_over(in_use):
            self._model.drop_adapter(digest)


class LoopDesk:
    """`ports.AdapterDesk` of an engine whose steps run in `loop`. One load at a time."""

    def __init__(self, adapters: Adapters, loop: StepLoop) -> None:
        self._adapters = adapters
        self._loop = loop
        self._loading = asyncio.Lock()

    @property
    def loaded(self) -> tuple[AdapterFacts, ...]:
        return self._adapters.loaded

    async def load(self, name: str, source: AdapterSource) -> AdapterFacts:
        async with self._loading:
            read = await asyncio.to_thread(self._adapters.read_at, name, source)
            return await self._loop.call(lambda: self._adapters.put_in(name, read, in_use=self._loop.lines.adapters))

    async def unload(self, name: str) -> None:
        await self._loop.call(lambda: self._adapters.take_out(name, in_use=self._loop.lines.adapters))


def _refuse_change(allowed: Path | None) -> Path:
    if allowed is None:
        raise BadRequest("adapters come and go from below --adapters-dir, and this server was started without it")
    return allowed


def _folder_at(uri: str, allowed: Path) -> Path:
    """Raises BadRequest, and before the folder is looked at; then where a file of it is a link that leads out."""
    parts, folder = _place(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise BadRequest(f"uri = {uri!r}: give file:///PATH of a folder on this machine", parameter="uri")
    for place in (folder, *(folder / name for name in ADAPTER_FILES)):
        if not _resolved(place, uri).is_relative_to(allowed.resolve()):
            what = f"uri = {uri!r}: {place.name or place} does not lie below {allowed}, which is --adapters-dir here"
            raise BadRequest(what, parameter="uri")
    return folder


def _place(uri: str) -> tuple[SplitResult, Path]:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise BadRequest(f"uri = {uri!r} is no URI: {error}", parameter="uri") from error
    return parts, _resolved(Path(unquote(parts.path)), uri)


def _resolved(place: Path, uri: str) -> Path:
    try:
        return place.resolve()
    except (ValueError, OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise BadRequest(f"uri = {uri!r} names no folder: {error}", parameter="uri") from error
