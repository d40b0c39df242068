"""The examples of docs/verification.md give what the page says, and its table names every mode."""

import doctest
from pathlib import Path

import pytest

from tandem_runtime.domain.tokens import Verification

PAGE = Path(__file__).parents[2] / "docs" / "verification.md"


def test_every_example_of_the_page_gives_what_it_says() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, tried > 20) == (0, True)


@pytest.mark.parametrize("mode", list(Verification))
def test_the_page_has_a_row_for_every_mode(mode: Verification) -> None:
    assert f"\n| `{mode}` |" in PAGE.read_text()
