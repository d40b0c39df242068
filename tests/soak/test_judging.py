"""What the soak takes for right, for a failure with its type, and for wrong."""

import json
from typing import Any

import pytest
from tests.soak.asking import Part, Said
from tests.soak.exchange import Heard, Manner
from tests.soak.judging import END, Outcome, judge

WHOLE = Said({0: Part("rain and sun", reason="stop")}, tokens=4)
LOST = {"message": "lost", "type": "service_unavailable", "param": None, "code": "target_unavailable"}


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def piece(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": reason}])


USAGE = event(choices=[], usage={"completion_tokens": 4})
RAIN, SUN, ENDED = piece("rain and"), piece(" sun"), piece("", "stop")


@pytest.mark.parametrize(
    ("content", "manner", "expected"),
    [
        (RAIN + SUN + ENDED + USAGE + END, Manner.PATIENT, Outcome.RIGHT),
        (RAIN + SUN + ENDED + USAGE + END, Manner.LEAVING, Outcome.RIGHT),
        (RAIN + event(error=LOST), Manner.PATIENT, Outcome.REFUSED),
        (RAIN, Manner.LEAVING, Outcome.LEFT),
        (b"", Manner.HALF_CLOSED, Outcome.LEFT),
        (RAIN, Manner.PATIENT, Outcome.WRONG),
        (RAIN + SUN + ENDED, Manner.SLOW, Outcome.WRONG),
        (RAIN + SUN + ENDED + END, Manner.PATIENT, Outcome.WRONG),
        (RAIN + RAIN, Manner.LEAVING, Outcome.WRONG),
        (piece("snow") + event(error=LOST), Manner.PATIENT, Outcome.WRONG),
        (RAIN + event(error={**LOST, "code": "internal"}), Manner.PATIENT, Outcome.WRONG),
        (RAIN + ENDED + USAGE + END, Manner.PATIENT, Outcome.WRONG),
    ],
)
def test_a_stream_is_right_or_says_why_not_or_its_caller_left(
    content: bytes, manner: Manner, expected: Outcome
) -> None:
    heard = Heard(200, content, whole=content.endswith(END))
    assert judge(heard, WHOLE, manner, stream=True).outcome is expected


def plain(text: str, tokens: int = 4) -> bytes:
    choices = [{"index": 0, "text": text, "finish_reason": "stop"}]
    return json.dumps({"choices": choices, "usage": {"completion_tokens": tokens}}).encode()


@pytest.mark.parametrize(
    ("heard", "manner", "expected"),
    [
        (Heard(200, plain("rain and sun"), whole=True), Manner.PATIENT, Outcome.RIGHT),
        (Heard(200, plain("rain and snow"), whole=True), Manner.PATIENT, Outcome.WRONG),
        (Heard(200, plain("rain and sun", 5), whole=True), Manner.PATIENT, Outcome.WRONG),
        (Heard(200, plain("rain and sun")[:-9]), Manner.PATIENT, Outcome.WRONG),
        (Heard(503, json.dumps({"error": LOST}).encode(), whole=True), Manner.PATIENT, Outcome.REFUSED),
        (Heard(500, json.dumps({"error": LOST}).encode(), whole=True), Manner.PATIENT, Outcome.WRONG),
        (Heard(500, b"Internal Server Error", whole=True), Manner.PATIENT, Outcome.WRONG),
        (Heard(), Manner.PATIENT, Outcome.UNTAKEN),
        (Heard(), Manner.LEAVING, Outcome.LEFT),
    ],
)
def test_a_plain_answer_is_right_or_refused_with_its_type(heard: Heard, manner: Manner, expected: Outcome) -> None:
    assert judge(heard, WHOLE, manner, stream=False).outcome is expected
