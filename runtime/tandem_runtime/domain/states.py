"""Knows the states of a request, and which event leads from one to another: the table, and the picture drawn from it.

Refuses to know what a session does on its way.
"""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    OPENING = "opening"
    CHOOSING = "choosing"
    OPENING_DRAFT = "opening_draft"
    PROPOSING = "proposing"
    VERIFYING = "verifying"
    RUNNING = "running"
    ENDING = "ending"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Signal(StrEnum):
    OPENED = "opened"
    WILL_RUN = "K = 0"
    WILL_OPEN_DRAFT = "K > 0, draft unknown"
    WILL_PROPOSE = "K > 0"
    DRAFT_OPENED = "draft opened"
    PROPOSED = "proposed"
    NOTHING_PROPOSED = "nothing proposed"
    VERIFIED = "verified"
    RUN_OVER = "run over"
    ENDED = "verified, with an ending"
    TOLD = "told"
    DRAFT_LOST = "draft lost"
    TARGET_LOST = "target lost"


TRANSITIONS: Mapping[tuple[State, Signal], State] = {
    (State.OPENING, Signal.OPENED): State.CHOOSING,
    (State.OPENING, Signal.TARGET_LOST): State.OPENING,
    (State.CHOOSING, Signal.WILL_RUN): State.RUNNING,
    (State.CHOOSING, Signal.WILL_OPEN_DRAFT): State.OPENING_DRAFT,
    (State.CHOOSING, Signal.WILL_PROPOSE): State.PROPOSING,
    (State.OPENING_DRAFT, Signal.DRAFT_OPENED): State.PROPOSING,
    (State.OPENING_DRAFT, Signal.DRAFT_LOST): State.RUNNING,
    (State.PROPOSING, Signal.PROPOSED): State.VERIFYING,
    (State.PROPOSING, Signal.NOTHING_PROPOSED): State.RUNNING,
    (State.PROPOSING, Signal.DRAFT_LOST): State.RUNNING,
    (State.VERIFYING, Signal.VERIFIED): State.CHOOSING,
    (State.VERIFYING, Signal.ENDED): State.ENDING,
    (State.VERIFYING, Signal.TARGET_LOST): State.OPENING,
    (State.RUNNING, Signal.VERIFIED): State.RUNNING,
    (State.RUNNING, Signal.RUN_OVER): State.CHOOSING,
    (State.RUNNING, Signal.ENDED): State.ENDING,
    (State.RUNNING, Signal.TARGET_LOST): State.OPENING,
    (State.ENDING, Signal.TOLD): State.FINISHED,
}
"""All that can happen, but for `cancelled`, which leads from every state that is not final to CANCELLED."""

FINAL = frozenset({State.FINISHED, State.CANCELLED})


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    rows = [f"    {start} --> {end}: {signal}" for (start, signal), end in TRANSITIONS.items()]
    ends = [f"    {state} --> [*]" for state in sorted(FINAL)]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.OPENING}", *rows, *ends]) + "\n"
