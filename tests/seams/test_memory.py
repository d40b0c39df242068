"""The working set, and what is left to take: read from the kernel's own files, real and written."""

from pathlib import Path

import pytest

from tandem_runtime.memory import available_bytes, working_set_bytes


def test_in_a_container_clean_file_pages_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("5000000\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\nfile 4000000\ninactive_file 3500000\nactive_file 500000\n")
    assert working_set_bytes(process=1, cgroup=tmp_path) == 1500000


def test_one_process_of_many_is_not_told_what_all_hold(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("5000000\n")
    (tmp_path / "status").write_text("RssAnon:\t  1000 kB\nRssShmem:\t     3 kB\n")
    assert working_set_bytes(process=4711, cgroup=tmp_path, status=tmp_path / "status") == 1003 * 1024


def test_without_accounting_the_pages_of_this_process_that_no_file_backs_count(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Name:\tpython\nVmRSS:\t  9000 kB\nRssAnon:\t  1000 kB\nRssFile:\t  8000 kB\nRssShmem:\t     3 kB\n"
    )
    assert working_set_bytes(process=1, cgroup=tmp_path, status=status) == 1003 * 1024


def test_memory_that_this_process_takes_is_seen(tmp_path: Path) -> None:
    before = working_set_bytes(process=1, cgroup=tmp_path)
    taken = bytearray(b"x" * (64 << 20))
    assert working_set_bytes(process=1, cgroup=tmp_path) - before > 60 << 20
    assert len(taken) == 64 << 20


def made_container(folder: Path, limit: str, *, holds: int, of_files: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{holds}\n")
    (folder / "memory.stat").write_text(
        f"anon {holds - of_files}\ninactive_file {of_files // 2}\nactive_file {of_files // 2}\n"
    )


@pytest.mark.parametrize(
    ("membership", "left"),
    [
        ("0::/\n", 5_000_000),
        ("0::/pod/engine\n", 1_500_000),
        ("0::/pod/other\n", 2_000_000),
        ("9:name=systemd:/\n0::/pod/engine\n", 1_500_000),
        ("0::/../elsewhere\n", 5_000_000),
        ("4:memory:/pod/engine\n", 5_000_000),
    ],
    ids=repr,
)
def test_the_tightest_container_around_us_says_what_is_left(membership: str, left: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16000 kB\nMemAvailable:    7812 kB\n")
    (tmp_path / "membership").write_text(membership)
    root = tmp_path / "cgroup"
    made_container(root, "6000000", holds=1_000_000)
    made_container(root / "pod", "4000000", holds=3_000_000, of_files=1_000_000)
    made_container(root / "pod" / "engine", "2000000", holds=500_000)
    made_container(root / "pod" / "other", "max", holds=1_000_000)
    found = available_bytes(machine=tmp_path / "meminfo", membership=tmp_path / "membership", cgroup=root)
    assert found == left


def test_the_machine_says_what_is_left_where_no_container_is_tighter(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16000 kB\nMemAvailable:    3000 kB\n")
    (tmp_path / "membership").write_text("0::/\n")
    made_container(tmp_path / "cgroup", "9000000", holds=0)
    found = available_bytes(
        machine=tmp_path / "meminfo", membership=tmp_path / "membership", cgroup=tmp_path / "cgroup"
    )
    assert found == 3_072_000


def test_this_machine_has_something_left() -> None:
    assert available_bytes() > 1 << 20
