"""A C source becomes a library once; why it does not is told in one line, and nothing half-built is left behind."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem_runtime import native
from tandem_runtime.native import COMPILERS, NotBuilt, built, loaded


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "seven.c"
    path.write_text("int seven(void) { return 7; }\n")
    return path


@pytest.fixture
def library(source: Path, tmp_path: Path) -> Path:
    try:
        return built(source, tmp_path / "cache")
    except NotBuilt as reason:
        pytest.skip(f"this machine cannot build C: {reason}")


def test_it_is_built_once_and_found_again(source: Path, library: Path, tmp_path: Path) -> None:
    made = library.stat()
    again = built(source, tmp_path / "cache")
    assert (again, again.stat().st_ino, again.stat().st_size) == (library, made.st_ino, made.st_size)
    assert list(library.parent.iterdir()) == [library]
    assert loaded(library).seven() == 7


def test_it_has_its_name_once_it_is_on_the_disk(
    source: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a machine whose power fails may come back with the name and half of it, which ends who loads it."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.fstat(file).st_ino))
    assert built(source, tmp_path / "other").stat().st_ino in synced


DAY = 86_400


def aged(path: Path, *, days: float) -> Path:
    """Not used for so long."""
    moment = path.stat().st_mtime - days * DAY
    os.utime(path, (moment, moment))
    return path


def test_a_build_takes_away_what_was_not_asked_for_in_a_fortnight_and_nothing_else(
    source: Path, library: Path, tmp_path: Path
) -> None:
    held = loaded(library)
    cache, strange = library.parent, ["notes.txt", "kube.so", "seven-0123.so", f"seven-{'g' * 16}.so"]
    for name in strange:
        (cache / name).write_text("not ours")
        aged(cache / name, days=400)
    asked_for = aged(built(source, cache, flags=["-DASKED"]), days=15)
    lately = aged(built(source, cache, flags=["-DLATELY"]), days=13)
    aged(library, days=15)
    assert built(source, cache, flags=["-DASKED"]) == asked_for  # marked as used, so that nobody takes it away
    newest = built(source, cache, flags=["-DNEW"])
    assert {path.name for path in cache.iterdir()} == {asked_for.name, lately.name, newest.name, *strange}
    assert held.seven() == 7  # who has loaded it keeps it
    assert loaded(built(source, cache)).seven() == 7


@pytest.mark.parametrize("call", ["os.utime", "fcntl.flock"])
def test_where_nothing_can_be_marked_libraries_are_found_as_ever(
    source: Path, library: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A folder that cannot be written, or one that knows no locks; there nothing is taken away."""
    aged(library, days=20)

    def refuse(*_: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(call, refuse)
    assert built(source, library.parent) == library
    if call == "fcntl.flock":
        built(source, library.parent, flags=["-DNEW"])
        assert library.exists()


def test_what_is_found_is_not_taken_away_before_it_is_loaded(source: Path, library: Path) -> None:
    """Many processes that start, each with a library of its own beside one that was long unused."""
    cache = library.parent
    for number in range(4):
        aged(library, days=20)
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(built, source, cache, flags=[f"-DN={number}{each}"]) for each in range(3)]
            found = pool.submit(lambda: loaded(built(source, cache)).seven())
            assert found.result() == 7
            assert all(other.result().exists() for other in others)


def test_other_sources_and_flags_are_other_libraries(source: Path, library: Path, tmp_path: Path) -> None:
    flagged = built(source, tmp_path / "cache", flags=["-DEIGHT"])
    source.write_text("int seven(void) { return 8; }\n")
    assert len({library, flagged, built(source, tmp_path / "cache")}) == 3


def test_another_header_beside_a_source_is_another_library(source: Path, tmp_path: Path) -> None:
    header, deeper = source.with_name("seven.h"), source.with_name("number.h")
    source.write_text('#include "seven.h"\nint seven(void) { return SEVEN; }\n')
    header.write_text('#include "number.h"\n')
    found = []
    for number in (7, 8):
        deeper.write_text(f"#define SEVEN {number}\n")
        try:
            found.append(loaded(built(source, tmp_path / "cache")).seven())
        except NotBuilt as reason:
            pytest.skip(f"this machine cannot build C: {reason}")
    assert found == [7, 8]


def test_the_cache_is_the_users_own(library: Path) -> None:
    assert stat.S_IMODE(os.stat(library.parent).st_mode) == 0o700


def compiler(folder: Path, script: str) -> str:
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'seven.c: In function x' >&2; echo 'seven.c:1: error: no such flag' >&2; exit 1", "no such flag"),
        ("exit 1", "cc said"),
        ("exit 0", "No such file"),
    ],
)
def test_a_compiler_that_fails_is_told_in_one_line(script: str, told: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotBuilt, match=told) as failure:
        built(source, tmp_path / "cache", compilers=[compiler(tmp_path, script)])
    assert "\n" not in str(failure.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_compiler_that_cannot_is_no_matter_where_the_next_one_can(source: Path, tmp_path: Path) -> None:
    failing = compiler(tmp_path, "echo 'cc: error: no such builtin' >&2; exit 1")
    assert built(source, tmp_path / "cache", compilers=[failing, *COMPILERS]).exists()


def test_without_a_compiler_a_folder_or_a_home_the_reason_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotBuilt, match="no C compiler"):
        built(source, tmp_path, compilers=["no-such-compiler"])
    (tmp_path / "file").write_text("")
    with pytest.raises(NotBuilt, match="file"):
        built(source, tmp_path / "file" / "cache", compilers=[compiler(tmp_path, "exit 0")])

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(NotBuilt, match="home directory"):
        native.cache_folder()


def test_a_library_that_does_not_load_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(NotBuilt, match=r"broken\.so"):
        loaded(tmp_path / "broken.so")
