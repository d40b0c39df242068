"""Shapes of replies, and bytes of events."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.commands import Emit
from tandem_runtime.domain.tokens import FinishReason, TokenLogprob
from tandem_runtime.gateway import sse
from tandem_runtime.gateway.present import (
    Answer,
    ChatPresenter,
    Chunk,
    Head,
    Presenter,
    TextPresenter,
    count_usage,
    likeliest,
)
from tandem_runtime.gateway.replies import SpeculationReport
from tandem_runtime.gateway.streaming import ReplyStream

REPORT: SpeculationReport = {
    "revision": "r",
    "arm": "on",
    "verification": "Coupled",
    "seed": 1,
    "rounds": 2,
    "proposed": 3,
    "accepted": 2,
    "rejections": 1,
}
TABLE = ["a", "bc", "d", "\ufffd"]
EMITS = [
    Emit((0,), "a", (TokenLogprob(-0.1),)),
    Emit((1, 2), "", (TokenLogprob(-0.2), TokenLogprob(-0.3, ((2, -0.3), (3, -2.0))))),
    Emit((3,), "bcd", (TokenLogprob(-0.4),)),
]


def presenter(kind: type[Presenter], **head: Any) -> Presenter:
    return kind(Head("id", 7, "chat", **head), TABLE.__getitem__)


def stream_of(shown: Presenter, emits: list[Emit], *, usage_of_prompt: int | None) -> list[Chunk]:
    stream = ReplyStream(shown, choices=1, usage_of_prompt=usage_of_prompt)
    chunks = [chunk for emit in emits for chunk in stream.emitted(0, emit)]
    return chunks + stream.finished(0, FinishReason.STOP, REPORT)


def test_a_chat_begins_with_its_role_and_ends_with_its_reason_and_then_usage() -> None:
    chunks = stream_of(presenter(ChatPresenter, usage_asked=True), EMITS, usage_of_prompt=5)
    head = {"id": "id", "object": "chat.completion.chunk", "created": 7, "model": "chat"}

    def chunk(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**head, "choices": [choice], "usage": None}

    assert chunks == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}),
        chunk({"content": "bcd"}),
        chunk({}, "stop"),
        {
            **head,
            "choices": [],
            "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
            "speculation": REPORT,
        },
    ]


def test_without_usage_the_report_rides_on_the_last_chunk() -> None:
    chunks = stream_of(presenter(TextPresenter), EMITS, usage_of_prompt=None)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert ["speculation" in chunk for chunk in chunks] == [False, False, True]
    assert all("usage" not in chunk for chunk in chunks)


def test_logprobs_come_with_their_tokens_also_while_the_text_is_held_back() -> None:
    chunks: list[Any] = list(stream_of(presenter(TextPresenter, logprobs_asked=True), EMITS, usage_of_prompt=None))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "", "bcd", ""]
    assert chunks[1]["choices"][0]["logprobs"] == {
        "tokens": ["bc", "d"],
        "token_logprobs": [-0.2, -0.3],
        "top_logprobs": [{}, {"d": -0.3, "\ufffd": -2.0}],
        "text_offset": [1, 3],
    }
    assert chunks[2]["choices"][0]["logprobs"]["text_offset"] == [4]


def test_a_chats_logprobs_tell_bytes_where_a_token_is_whole_text() -> None:
    chunks: list[Any] = list(stream_of(presenter(ChatPresenter, logprobs_asked=True), EMITS, usage_of_prompt=None))
    content = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [(entry["token"], entry["bytes"]) for entry in content] == [
        ("a", [97]),
        ("bc", [98, 99]),
        ("d", [100]),
        ("\ufffd", None),
    ]
    assert content[2]["top_logprobs"] == [
        {"token": "d", "logprob": -0.3, "bytes": [100]},
        {"token": "\ufffd", "logprob": -2.0, "bytes": None},
    ]


def test_the_whole_answer_equals_its_pieces() -> None:
    answer = Answer()
    for emit in EMITS:
        answer.add(emit)
    answer.finish = FinishReason.LENGTH
    usage = count_usage(prompt_tokens=5, answers=[answer])
    whole: Any = presenter(ChatPresenter).whole([answer], usage, REPORT)
    assert whole == {
        "id": "id",
        "object": "chat.completion",
        "created": 7,
        "model": "chat",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "abcd", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
        "speculation": REPORT,
    }


def test_the_report_comes_when_the_last_choice_has_ended() -> None:
    stream = ReplyStream(presenter(TextPresenter), choices=2, usage_of_prompt=None)
    first = stream.finished(1, FinishReason.STOP, REPORT)
    last = stream.finished(0, FinishReason.LENGTH, REPORT)
    assert [("speculation" in chunk) for chunk in (*first, *last)] == [False, True]


@given(st.text())
def test_an_event_read_byte_by_byte_gives_back_what_was_framed(text: str) -> None:
    data = json.dumps({"text": text})
    assert read_events(sse.frame_event(data) + sse.KEEP_ALIVE + sse.DONE) == [data, "[DONE]"]


@given(st.text(alphabet="a\r\n: "))
def test_line_ends_in_data_become_lines_of_the_event(text: str) -> None:
    assert read_events(sse.frame_event(text)) == [text.replace("\r\n", "\n").replace("\r", "\n")]


def test_a_line_is_framed_as_an_event_of_one_line() -> None:
    assert sse.frame_line('{"text":"é"}'.encode()) == sse.frame_event('{"text":"é"}')


def read_events(stream: bytes) -> list[str]:
    """A reader after the HTML standard, section 9.2.6, fed with one byte at a time."""
    events: list[str] = []
    data: list[str] = []
    line = b""
    for byte in stream:
        if byte != ord("\n"):
            line += bytes([byte])
            continue
        if not line and data:
            events.append("\n".join(data))
            data = []
        field, _, value = line.decode().partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        line = b""
    return events


def test_the_likeliest_by_token_are_kept_of_every_prompt() -> None:
    def answer(text: str, *logprobs: float) -> Answer:
        return Answer(text, logprobs=[TokenLogprob(each) for each in logprobs])

    answers = [answer("a", -2.0), answer("b", -0.5, -0.5, -0.5), answer("c", -1.0), *([answer("d", -1.0)] * 3)]
    assert [kept.text for kept in likeliest(answers, of=3, keep=2)] == ["b", "c", "d", "d"]
