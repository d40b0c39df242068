"""A folder of files that change as a kubelet changes those of a mounted Secret: all at once, by turning one link."""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path


class MountedSecret:
    """Files of `folder` are links through `..data`, which leads to the version in force."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        folder.mkdir()
        self.put(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def put(self, files: Mapping[str, str]) -> None:
        """A new version of all files; the last one is gone afterwards."""
        link, version = self.folder / "..data", self.folder / f"..version-{next(self._numbers)}"
        last = link.resolve() if link.is_symlink() else None
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(text)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.rename(link)
        if last is not None:
            shutil.rmtree(last)
