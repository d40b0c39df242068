"""The working set: read from the kernel's own files, real and written."""

from pathlib import Path

from tandem_runtime.memory import working_set_bytes


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
