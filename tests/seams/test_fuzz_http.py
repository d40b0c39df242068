"""Whatever bytes reach a gateway, it is never its fault: a request is served, or refused with a status of the caller's.

Requests from the gateway's own description are tried in `test_gateway_description`; here good ones are damaged, in
their JSON and in their bytes, or come in pieces. So it is with events on their way out: read in any pieces by another's
reader, they say what was written.
"""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from tests.seams.gateway_peers import gateway_on_a_thread

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.tool_calls import ToolFormat
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.gateway import sse

END = 256
TABLE = [*(bytes([code]) for code in range(256)), b""]
FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def script(prefix: tuple[TokenId, ...]) -> list[float]:
    """The chain's letters among others; it ends where the others would begin."""
    return [*chain_logits(tuple(token % 7 for token in prefix)), *([-1.0] * (len(TABLE) - 8)), 0.0]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with gateway_on_a_thread(
        script, draft=script, table=TABLE, end_tokens=[END], max_length=400, tool_format=ToolFormat.HERMES
    ) as url:
        yield url


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"enum": [1, 2]}}},
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
NAMED = {"name": "n", "schema": {"enum": [1, "a"]}}
GOOD: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/completions",
        {
            "model": "chat",
            "prompt": ["ab", "c"],
            "max_tokens": 4,
            "n": 2,
            "best_of": 3,
            "echo": True,
            "logprobs": 2,
            "seed": 3,
            "stop": ["x"],
            "logit_bias": {"97": 1.5},
            "bad_words": ["yz"],
            "allowed_token_ids": [97, 98],
            "stream_options": {"include_usage": True},
            "speculation": {"off": False, "maxDraftTokens": 3},
        },
    ),
    (
        "/v1/completions",
        {
            "model": "chat",
            "prompt": [1, 2, 3],
            "max_tokens": 0,
            "echo": True,
            "logprobs": 1,
            "stream": True,
            "structured_outputs": {"regex": "a(b|c)*"},
            "prediction": {"type": "content", "content": "abc"},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": "chat",
            "messages": [
                {"role": "system", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": "b"}]},
            ],
            "max_completion_tokens": 6,
            "tools": [TOOL],
            "tool_choice": "auto",
            "logprobs": True,
            "top_logprobs": 2,
            "temperature": 0.5,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": "chat",
            "messages": [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "7"},
            ],
            "max_tokens": 6,
            "response_format": {"type": "json_schema", "json_schema": NAMED},
        },
    ),
]
WORDS = ["", "a", "function", "object", "required", "$ref", "#", "\x00", "\U0001f600" * 40, "<tool_call>"]
KEYS = ["type", "name", "enum", "$ref", "x"]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(value: Any, path: Sequence[str | int], new: object) -> Any:
    """The value with another one at that place."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, Any]:
    path, body = draw(st.sampled_from(GOOD))
    whole: Any = body
    for _ in range(draw(st.integers(1, 2))):
        if isinstance(whole, dict | list):
            whole = changed(whole, draw(st.sampled_from(places(whole))), draw(anything))
    return path, whole


def check_answer(status: int, content: bytes, kind: str) -> None:
    """Served, or refused as the caller's fault; and an error within a stream is no fault of ours either."""
    assert status == 200 or 400 <= status < 500, content
    if kind.startswith("application/json"):
        told = json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert status == 200 or set(told["error"]) == {"message", "type", "param", "code"}
    else:
        assert b'"server_error"' not in content


def test_good_requests_are_served(address: str) -> None:
    with httpx.Client(base_url=address, timeout=30) as client:
        for path, body in GOOD:
            assert client.post(path, json=body).status_code == 200, (body, client.post(path, json=body).text)


def test_no_value_in_any_place_of_a_body_is_a_fault_of_ours(address: str) -> None:
    with httpx.Client(base_url=address, timeout=30) as client:

        @settings(FEW, max_examples=250)
        @given(damaged())
        def send(sent: tuple[str, Any]) -> None:
            path, body = sent
            reply = client.post(path, content=json.dumps(body))
            check_answer(reply.status_code, reply.content, reply.headers["content-type"])

        send()
        assert client.get("/ready").status_code == 200


def request_bytes(path: str, body: bytes, *, chunks: Sequence[int] = ()) -> bytes:
    """A whole HTTP request; with `chunks`, its body comes in pieces of these sizes, and a last one."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    if not chunks:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    framed = b""
    for size in [*chunks, len(body)]:
        piece, body = body[:size], body[size:]
        framed += b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b""
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + framed + b"0\r\n\r\n"


def answer_to(address: str, parts: Sequence[bytes], *, patience_seconds: float = 20) -> bytes:
    """What comes back by the time at which the gateway hangs up, or none of it has come for so long. Empty: nothing."""
    host, port = address.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=20)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        told = b""
        try:
            for part in parts:
                peer.sendall(part)
            peer.settimeout(patience_seconds)
            while more := peer.recv(65536):
                told += more
        except (ConnectionError, TimeoutError):
            pass  # hung up on, or left to wait for what it says is still to come: both are answers
    return told


def choices_of(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    return json.loads(body)["choices"]


def test_a_request_in_any_pieces_is_the_same_request(address: str) -> None:
    """Byte by byte on the socket, and in chunks of HTTP whose borders lie anywhere, also within a character."""
    body = json.dumps(
        {"model": "chat", "prompt": "äöü \U0001f600", "max_tokens": 5, "temperature": 0}, ensure_ascii=False
    ).encode()
    whole = request_bytes("/v1/completions", body)
    expected = choices_of(answer_to(address, [whole]))
    assert choices_of(answer_to(address, [bytes([byte]) for byte in whole])) == expected

    @settings(FEW, max_examples=25)
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.lists(st.integers(0, len(whole) + 200), max_size=4))
    def send(chunks: list[int], cuts: list[int]) -> None:
        request = request_bytes("/v1/completions", body, chunks=chunks)
        ends = [0, *sorted(cuts), len(request)]
        parts = [request[start:end] for start, end in pairwise(ends)]
        assert choices_of(answer_to(address, parts)) == expected

    send()


WHOLE = request_bytes("/v1/completions", b'{"model": "chat", "prompt": "ab", "max_tokens": 2}')


@st.composite
def torn(draw: st.DrawFn) -> bytes:
    request = bytearray(WHOLE)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(request)))
        request[at : at + draw(st.integers(0, 4))] = draw(
            st.binary(max_size=4) | st.sampled_from([b"\r\n", b"\x00", b":", b"HTTP"])
        )
    return bytes(request)


def test_no_bytes_on_a_connection_are_a_fault_of_ours(address: str) -> None:
    @settings(FEW, max_examples=80)
    @given(torn() | st.binary(max_size=80))
    @example(b"GET /v1/completions HTTP/9.9\r\n\r\n")
    @example(b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\nConnection: close\r\n\r\n")
    @example(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n")
    def send(request: bytes) -> None:
        answer = answer_to(address, [request], patience_seconds=0.3)
        if answer:
            version, status = answer.split(b" ", 2)[:2]
            assert version == b"HTTP/1.1"
            assert status == b"200" or b"400" <= status < b"500", answer

    send()
    assert httpx.get(f"{address}/ready").status_code == 200


def read(pieces: Sequence[bytes]) -> list[str]:
    """The events as OpenAI's own client reads them."""
    return [event.data for event in SSEDecoder().iter_bytes(iter(pieces))]


@settings(FEW, max_examples=200)
@given(st.lists(st.text(max_size=20), max_size=4), st.lists(st.integers(1, 9), max_size=30))
@example(["a\r\nb\rc\nd", "", ": no comment", "data: x", "\u2028\u0085\x0b\x0c"], [1] * 30)
def test_events_read_in_any_pieces_say_what_was_written(texts: list[str], sizes: list[int]) -> None:
    written = b"".join(sse.frame_event(json.dumps({"text": text})) + sse.KEEP_ALIVE for text in texts) + sse.DONE
    cuts = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    pieces = [piece for piece in (written[a:b] for a, b in zip(cuts, [*cuts[1:], len(written)], strict=True)) if piece]
    one_by_one = [bytes([byte]) for byte in written]
    for told in (read(pieces), read(one_by_one)):
        assert told[-1] == "[DONE]"
        assert [json.loads(event)["text"] for event in told[:-1]] == texts
