"""Knows what a caller may hear while everything breaks: the right text, or a failure that says which one it is.

Refuses to know how it came about.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.soak.asking import Said, events_of, read_plain, read_stream
from tests.soak.exchange import Heard, Manner

TYPED = {"target_unavailable": 503, "overloaded": 429}
"""Failures that say that it was the system, and that asking again helps, with their statuses."""
END = b"data: [DONE]\n\n"
FINE = 200


class Outcome(StrEnum):
    RIGHT = "right"
    """The whole text, as it is said when nothing breaks."""
    REFUSED = "refused"
    """A failure with its type."""
    LEFT = "left"
    """The caller left, and what it heard by then was right."""
    UNTAKEN = "untaken"
    """No gateway took the request: nothing was begun."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Judged:
    outcome: Outcome
    why: str = ""


def judge(heard: Heard, expected: Said, manner: Manner, *, stream: bool) -> Judged:
    left = manner in (Manner.LEAVING, Manner.HALF_CLOSED)
    if heard.status is None:
        return Judged(Outcome.LEFT if left else Outcome.UNTAKEN)
    if heard.status != FINE:
        return _judge_refusal(heard, left=left)
    if stream:
        return _judge_stream(heard, expected, left=left)
    if not heard.whole:
        return Judged(Outcome.LEFT) if left else _wrong("a plain answer was cut off", heard)
    said = read_plain(heard.content)
    return Judged(Outcome.RIGHT) if said == expected else _wrong(f"it said {said}", heard)


def _judge_refusal(heard: Heard, *, left: bool) -> Judged:
    if not heard.whole:
        return Judged(Outcome.LEFT) if left else _wrong("a refusal was cut off", heard)
    code = _code_of(heard.content)
    if TYPED.get(code) == heard.status:
        return Judged(Outcome.REFUSED, code)
    return _wrong(f"it was refused: {code}", heard)


def _code_of(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return f"{content[:200]!r}"


def _judge_stream(heard: Heard, expected: Said, *, left: bool) -> Judged:
    said, error = read_stream(heard.content), _error_in(heard.content)
    if not said.begins(expected):
        return _wrong(f"it said {said}", heard)
    if error is not None:
        code = error["code"]
        return Judged(Outcome.REFUSED, code) if code in TYPED else _wrong(f"it failed with {code}", heard)
    if heard.content.endswith(END):
        return Judged(Outcome.RIGHT) if said == expected else _wrong(f"it ended with {said}", heard)
    return Judged(Outcome.LEFT) if left else _wrong("it was cut off without a word", heard)


def _error_in(content: bytes) -> dict[str, Any] | None:
    last: dict[str, Any] = {}
    for event in events_of(content):
        last = event
    return last.get("error")


def _wrong(what: str, heard: Heard) -> Judged:
    return Judged(Outcome.WRONG, f"{what}; status {heard.status}, {len(heard.content)} bytes, whole {heard.whole}")
