"""Knows how a C source of ours becomes a library for this very processor.

Refuses to know what the functions in it compute, and what is done where there is none.

A source is compiled by the machine's own compiler when it is first asked for, and kept in the user's cache folder under
a digest of source, headers of ours, compiler, flags and processor. Nothing is ever guessed: where it cannot be had,
`NotBuilt` says why.

Each release and each compiler leaves libraries that nothing asks for any more. A library's time of change is when it
was asked for last, and whoever builds one takes away those that nobody asked for in a fortnight. A lock on the folder
keeps the two apart: what is found is marked before it can be taken away. Who has loaded a library keeps it anyway.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["NotBuilt", "built", "cache_folder", "loaded"]

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
"""Where a product and a sum round once instead of twice is for a source to say: a compiler would decide it anew for
each copy of a loop that it makes, and with it the bits of a row by its company."""
BUILD_SECONDS = 120
KEPT_SECONDS = 14 * 86_400.0
OURS = re.compile(r"[a-z_]+-[0-9a-f]{16}\.so")
INCLUDED = re.compile(r'^#include "(.+)"$', re.MULTILINE)


class NotBuilt(Exception):
    """A library cannot be had here; the text says why, in one line."""


def cache_folder() -> Path:
    """Raises NotBuilt for a user without a home."""
    try:
        return Path.home() / ".cache" / "tandem"
    except RuntimeError as error:
        raise NotBuilt(_line(error)) from error


def built(source: Path, folder: Path, *, flags: Sequence[str] = (), compilers: Sequence[str] = COMPILERS) -> Path:
    """The library of `source` for this processor, from `folder` or newly built into it. Raises NotBuilt."""
    reason = NotBuilt(f"there is no C compiler ({', '.join(compilers)}) on the path")
    for compiler in filter(None, map(shutil.which, compilers)):  # not every one knows what the sources ask for
        try:
            return _built_by(compiler, source, folder, flags)
        except NotBuilt as error:
            reason = error
    raise reason


def _built_by(compiler: str, source: Path, folder: Path, flags: Sequence[str]) -> Path:
    command = (compiler, *FLAGS, *flags)
    library = folder / f"{source.stem}-{_digest(source, command)}.so"
    try:
        if not _is_found(library):
            _build(command, source, library)
            _tidy_up(library)
    except subprocess.CalledProcessError as error:
        raise NotBuilt(_line(f"{compiler} said: {error.stderr}")) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(_line(error)) from error
    return library


def loaded(library: Path, *, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Raises NotBuilt where `library` does not load. Calls of a `ctypes.PyDLL` let no other thread run: half of what
    such a call costs, and all of it counts where the function is done before one could begin."""
    try:
        return kind(str(library))
    except OSError as error:
        raise NotBuilt(_line(error)) from error


def _build(command: Sequence[str], source: Path, library: Path) -> None:
    """Beside its place first, and on the disk: whoever starts at the same moment, or after the power failed, sees a
    whole library or none. One that is cut short ends the process that loads it."""
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as beside:
        new = Path(beside) / library.name
        whole = [*command, str(source), "-o", str(new)]
        subprocess.run(whole, check=True, capture_output=True, text=True, errors="replace", timeout=BUILD_SECONDS)  # noqa: S603  # ours
        with new.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(new, library)


def _is_found(library: Path) -> bool:
    """And if so, it stays: it is marked as used, unless nothing can be written there, and so nothing taken away."""
    with suppress(OSError), _locked(library.parent, fcntl.LOCK_SH):
        os.utime(library)
    return library.exists()


def _tidy_up(library: Path) -> None:
    """Take away what was not asked for in a fortnight before `library` was built; what cannot be stays."""
    with suppress(OSError), _locked(library.parent, fcntl.LOCK_EX):
        oldest = library.stat().st_mtime - KEPT_SECONDS
        for other in filter(_is_ours, library.parent.iterdir()):
            if other.stat().st_mtime < oldest:
                other.unlink()


def _is_ours(path: Path) -> bool:
    return OURS.fullmatch(path.name) is not None


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    """Whoever dies lets go of it."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, kind)
        yield
    finally:
        os.close(held)


def _digest(source: Path, command: Sequence[str]) -> str:
    parts = (*_texts(source), " ".join(command), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _texts(source: Path) -> Iterator[str]:
    """Of a source and of what it includes from beside it."""
    text = source.read_text()
    yield text
    for name in INCLUDED.findall(text):
        yield from _texts(source.with_name(name))


def _processor() -> str:
    """What `-march=native` goes by: the model and the flags of the first processor, or else the machine's name."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(line for line in first if line.partition(":")[0].strip() in told)


def _line(error: object) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])
