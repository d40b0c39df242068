"""The picture in the docs is the table in the code."""

from pathlib import Path

from tandem_operator.domain.breaker import CAUSES, TRANSITIONS
from tandem_operator.domain.diagram import draw
from tandem_operator.domain.progress import SpeculationState

PAGE = (Path(__file__).parents[2] / "docs" / "breaker.md").read_text()


def test_the_breaker_diagram_is_drawn_from_its_table() -> None:
    assert f"```mermaid\n{draw(TRANSITIONS, start=SpeculationState.ACTIVE)}\n```" in PAGE


def test_the_page_names_every_state_and_as_many_causes_as_there_are() -> None:
    for state in SpeculationState:
        assert f"| {state} |" in PAGE
    assert sum(line.startswith("| `") for line in PAGE.splitlines()) == len(CAUSES)
