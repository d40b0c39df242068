"""The picture and the tables in the docs are what the code does."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tandem_operator.domain.breaker import CAUSES, TRANSITIONS, Facts, turn
from tandem_operator.domain.diagram import draw
from tandem_operator.domain.progress import Breaker, SpeculationReason, SpeculationState
from tandem_operator.domain.spec import AutoDisable, SpeculationMode

PAGE = (Path(__file__).parents[2] / "docs" / "breaker.md").read_text()
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
FOUND = Breaker(revision="r", since=NOW, draft_seen=True, next_try_at=NOW + timedelta(hours=1))
BEFORE = {
    "Active": FOUND,
    "Disabled": replace(FOUND, state=SpeculationState.DISABLED, reason=SpeculationReason.ACCEPTANCE_LOW),
    "Probing": replace(FOUND, state=SpeculationState.PROBING, reason=SpeculationReason.TRYING_AGAIN),
    "Off by command": replace(
        FOUND, state=SpeculationState.OFF, reason=SpeculationReason.COMMANDED, commanded_off=True
    ),
    "Off by flips": replace(FOUND, state=SpeculationState.OFF, reason=SpeculationReason.TOO_MANY_FLIPS),
}
COMMANDS = {"none": None, "off": False, "on": True}


def test_the_breaker_diagram_is_drawn_from_its_table() -> None:
    assert f"```mermaid\n{draw(TRANSITIONS, start=SpeculationState.ACTIVE)}\n```" in PAGE


def test_the_page_names_every_state_and_as_many_causes_as_there_are() -> None:
    for state in SpeculationState:
        assert f"| {state} |" in PAGE
    assert sum(line.startswith("| `") for line in PAGE.splitlines()) == len(CAUSES)


def rows() -> Iterator[str]:
    """Mode by mode and command by command, where each state leads while nothing else speaks for or against it."""
    yield f"| mode | command | {' | '.join(BEFORE)} |"
    yield "| --- | --- |" + " --- |" * len(BEFORE)
    for mode in SpeculationMode:
        for command, switch in COMMANDS.items():
            facts = Facts(now=NOW, marks=AutoDisable(), revision="r", next_policy=2, mode=mode, switch=switch)
            after = (turn(before, facts).state for before in BEFORE.values())
            yield f"| {mode} | {command} | {' | '.join(after)} |"


def test_the_table_of_modes_states_and_commands_is_what_the_breaker_does() -> None:
    assert "\n".join(rows()) in PAGE
