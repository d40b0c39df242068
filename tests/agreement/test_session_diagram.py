"""The session's diagram in the docs is the one that its table draws, and its numbers are those of the code."""

from pathlib import Path

from tandem_runtime.domain import session, states

PAGE = (Path(__file__).parents[2] / "docs" / "session.md").read_text()


def test_the_diagram_is_drawn_from_the_table() -> None:
    drawn = PAGE.split("```mermaid\n")[1].split("```")[0]
    assert drawn == states.diagram(), "paste the output of diagram() into docs/session.md"


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    waits = [session.DRAFT_RETRY_TOKENS << loss for loss in range(session.DRAFT_LOSSES - 1)]
    assert (waits, session.DRAFT_LOSSES, session.TARGET_LOSSES) == ([64, 128, 256], 4, 3)
    assert session.RUN_TOKENS == 16
