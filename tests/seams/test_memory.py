"""The working set, from files such as the kernel writes."""

from pathlib import Path

import pytest

from tandem_runtime.memory import working_set_bytes


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 700000\ninactive_anon 5\ninactive_file 250000\nactive_file 50000\n")
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t    900 kB\nRssAnon:\t    600 kB\nRssFile:\t    300 kB\n")
    return tmp_path


def test_a_container_of_our_own_is_counted_by_the_kernel_less_what_it_can_drop(kernel: Path) -> None:
    assert working_set_bytes(process=1, control_group=kernel, status=kernel / "status") == 750_000


def test_a_process_among_others_counts_its_own_anonymous_pages(kernel: Path) -> None:
    assert working_set_bytes(process=4711, control_group=kernel, status=kernel / "status") == 600 * 1024


def test_a_first_process_without_a_control_group_counts_its_own_too(kernel: Path) -> None:
    assert working_set_bytes(process=1, control_group=kernel / "none", status=kernel / "status") == 600 * 1024
