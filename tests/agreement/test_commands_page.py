"""The page on canaries lists every command that there is, and no other."""

import re
from pathlib import Path

from tandem_operator.domain.commands import CommandKind

PAGE = Path(__file__).parents[2] / "docs" / "canary.md"


def test_the_table_of_commands_has_a_row_for_each() -> None:
    listed = re.findall(r"^\| `tandem\.dev/([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(CommandKind)
