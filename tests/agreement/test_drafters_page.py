"""The page about drafters says what the command line and the code say."""

import re
from pathlib import Path

from tandem_runtime import main
from tandem_runtime.domain.suffix import NGRAMS
from tandem_runtime.domain.tokens import Drafter
from tandem_runtime.drafters import EARLIER_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "drafters.md").read_text()


def test_every_drafter_has_a_row() -> None:
    rows = re.findall(r"^\| `(?:--draft DIR )?--drafter (\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE)
    named = {name: tuple(Drafter(value) for value in re.findall(r"`(\w+)`", told)) for name, told in rows}
    with_a_model = {"model", "auto"}
    assert named == {
        name: (*([Drafter.MODEL] if name in with_a_model else []), *lookups) for name, lookups in main.DRAFTERS.items()
    }
    assert {drafter for drafters in named.values() for drafter in drafters} == set(Drafter) - {Drafter.PREDICTION}


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert NGRAMS == (3, 2)
    assert f"`--drafter-bytes` ({EARLIER_BYTES >> 20} MiB)" in PAGE
    assert main._parser().parse_args(["serve", "--target", "t"]).drafter_bytes == EARLIER_BYTES
    assert f"`--max-draft-tokens` is {main.MOST_LOOKUP_TOKENS} by default" in PAGE
