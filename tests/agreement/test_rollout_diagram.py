"""The picture in the docs is the table in the code."""

from pathlib import Path

from tandem_operator.domain.diagram import draw
from tandem_operator.domain.health import CHECKS
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.rollout import TRANSITIONS
from tandem_operator.domain.spec import SurgeMode

PAGE = (Path(__file__).parents[2] / "docs" / "canary.md").read_text()


def test_the_rollout_diagram_is_drawn_from_its_table() -> None:
    assert f"```mermaid\n{draw(TRANSITIONS, start=Stage.INSTALLING)}\n```" in PAGE


def test_the_page_says_what_every_surge_does() -> None:
    (head,) = [line for line in PAGE.splitlines() if line.startswith("| what changes |")]
    assert head.split("`")[1::2] == list(SurgeMode)


def test_the_page_names_every_check() -> None:
    rows = [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `") and "tandem.dev" not in line]
    assert rows == [check.name for check in CHECKS]
