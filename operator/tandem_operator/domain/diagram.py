"""Knows how a transition table reads as a picture: a Mermaid state diagram, the same text for the same table.

Refuses to know what the states mean.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

State = TypeVar("State", bound=StrEnum)
Signal = TypeVar("Signal", bound=StrEnum)


def draw(table: Mapping[tuple[State, Signal], State], *, start: State) -> str:
    """The table as Mermaid, one line per pair of states, signals joined; in the table's own order."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (before, signal), after in table.items():
        arrows.setdefault((before, after), []).append(signal.value)
    lines = [f"    {before} --> {after}: {' / '.join(signals)}" for (before, after), signals in arrows.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {start}", *lines])
