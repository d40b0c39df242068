"""What a gateway refuses, and how every refusal looks: OpenAI's error shape, the right status, the parameter named."""

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.seams.gateway_peers import LETTERS, running_gateway, until

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.delivery import report_failure
from tandem_runtime.gateway.key_file import KeyFile
from tandem_runtime.gateway.keys import ApiKeys
from tandem_runtime.testing import TableTokenizer, constant

CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "b"}], "max_tokens": 2}
TEXT: dict[str, Any] = {"model": "chat", "prompt": "b", "max_tokens": 2}

# (endpoint's body, what is changed, the parameter that the error names, a part of its message)
BAD_BODIES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (TEXT, {"n": 0}, "n", "0"),
    (TEXT, {"n": 17}, "n", "17"),
    (TEXT, {"top_p": 0}, "top_p", "0"),
    (TEXT, {"top_p": 1.5}, "top_p", "1.5"),
    (TEXT, {"temperature": -1}, "temperature", "-1"),
    (TEXT, {"temperature": "hot"}, "temperature", "hot"),
    (TEXT, {"max_tokens": 0}, "max_tokens", "0"),
    (TEXT, {"max_tokens": "5"}, "max_tokens", "5"),
    (TEXT, {"max_tokens": True}, "max_tokens", "true"),
    (TEXT, {"top_k": -1}, "top_k", "-1"),
    (TEXT, {"min_p": 2}, "min_p", "2"),
    (TEXT, {"seed": 2**64}, "seed", "18446744073709551616"),
    (TEXT, {"seed": -(2**63) - 1}, "seed", "-9223372036854775809"),
    (TEXT, {"stop": [""]}, "stop[0]", ""),
    (TEXT, {"stop": ["x"] * 17}, "stop", "16"),
    (TEXT, {"logprobs": 6}, "logprobs", "6"),
    (TEXT, {"logprobs": True}, "logprobs", "true"),
    (TEXT, {"logit_bias": {"191222": -100}}, "logit_bias", "191222"),
    (TEXT, {"logit_bias": {"-1": 5}}, "logit_bias", "-1"),
    (TEXT, {"logit_bias": {"1": 101}}, "logit_bias", "101"),
    (TEXT, {"prompt": [0] * 300}, "prompt", "300"),
    (TEXT, {"prompt": ""}, "prompt", "empty"),
    (TEXT, {"prompt": []}, "prompt", ""),
    (TEXT, {"prompt": [7]}, "prompt", "7"),
    (TEXT, {"prompt": [-1]}, "prompt", "-1"),
    (TEXT, {"prompt": {"text": "b"}}, "prompt", ""),
    (TEXT, {"prompt": ["b", 1]}, "prompt", ""),
    (TEXT, {"prompt": None}, "prompt", ""),
    (TEXT, {"model": None}, "model", ""),
    (TEXT, {"echo": True, "logprobs": 6}, "logprobs", "6"),
    (TEXT, {"echo": True, "max_tokens": 0, "best_of": 2}, "best_of", "best_of"),
    (TEXT, {"echo": True, "max_tokens": 0, "prompt": [0] * 257}, "prompt", "257"),
    (TEXT, {"echo": False, "max_tokens": 0}, "max_tokens", "echo"),
    (TEXT, {"echo": "yes"}, "echo", "yes"),
    (TEXT, {"suffix": "end"}, "suffix", "leave it out"),
    (TEXT, {"best_of": 1, "n": 2}, "best_of", "below n"),
    (TEXT, {"best_of": 17}, "best_of", "17"),
    (CHAT, {"best_of": 2}, "best_of", "leave it out"),
    (TEXT, {"presence_penalty": 2.5}, "presence_penalty", "2.5"),
    (TEXT, {"frequency_penalty": "much"}, "frequency_penalty", "much"),
    (TEXT, {"repetition_penalty": 0}, "repetition_penalty", "0"),
    (TEXT, {"repetition_penalty": 11}, "repetition_penalty", "11"),
    (TEXT, {"min_tokens": -1}, "min_tokens", "-1"),
    (TEXT, {"min_tokens": 3}, "min_tokens", "above the 2 tokens"),
    (TEXT, {"bad_words": ["a", ""]}, "bad_words[1]", ""),
    (TEXT, {"bad_words": ["xyz"]}, "bad_words", "xyz"),
    (TEXT, {"bad_words": "a"}, "bad_words", "a"),
    (TEXT, {"allowed_token_ids": []}, "allowed_token_ids", ""),
    (TEXT, {"allowed_token_ids": [1, 7]}, "allowed_token_ids", "token id 7"),
    (TEXT, {"allowed_token_ids": [-1]}, "allowed_token_ids[0]", "-1"),
    (TEXT, {"ignore_eos": "yes"}, "ignore_eos", "yes"),
    (TEXT, {"structured_outputs": {"grammar": "root ::= a"}}, "structured_outputs.grammar", "needs an end token"),
    (TEXT, {"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "leave it out"),
    (TEXT, {"structured_outputs": {"choice": []}}, "structured_outputs.choice", ""),
    (TEXT, {"structured_outputs": {}}, "structured_outputs", "exactly one"),
    (TEXT, {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
    (TEXT, {"guided_json": {}}, "guided_json", "leave it out"),
    (TEXT, {"temprature": 0}, "temprature", "leave it out"),
    (TEXT, {"messages": []}, "messages", "leave it out"),
    (TEXT, {"stream_options": {"include_use": True}}, "stream_options.include_use", "leave it out"),
    (TEXT, {"speculation": {"off": "yes"}}, "speculation.off", "yes"),
    (TEXT, {"speculation": {"maxDraftTokens": 0}}, "speculation.maxDraftTokens", "0"),
    (TEXT, {"speculation": {"minDraftTokens": 4, "maxDraftTokens": 2}}, "speculation", "minDraftTokens"),
    (TEXT, {"speculation": {"verification": "Lossy"}}, "speculation.verification", "Lossy"),
    (TEXT, {"speculation": {"k": 3}}, "speculation.k", "leave it out"),
    (TEXT, {"prediction": "b"}, "prediction", ""),
    (TEXT, {"prediction": {"type": "content"}}, "prediction.content", ""),
    (TEXT, {"prediction": {"type": "text", "content": "b"}}, "prediction.type", "text"),
    (TEXT, {"prediction": {"type": "content", "content": 7}}, "prediction.content", "7"),
    (TEXT, {"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction.content", "text"),
    (TEXT, {"prediction": {"type": "content", "content": "xyz"}}, "prediction.content", "no token"),
    (TEXT, {"prediction": {"type": "content", "content": "a" * 16_385}}, "prediction.content", "16385 tokens"),
    (CHAT, {"messages": []}, "messages", ""),
    (CHAT, {"messages": "b"}, "messages", ""),
    (CHAT, {"messages": [{"role": "robot", "content": "b"}]}, "messages[0].role", "robot"),
    (CHAT, {"messages": [{"role": "tool", "content": "b"}]}, "messages[0]", "tool_call_id"),
    (CHAT, {"messages": [{"role": "user", "content": "b", "tool_call_id": "1"}]}, "messages[0]", "tool_call_id"),
    (CHAT, {"messages": [{"role": "tool", "content": "b", "tool_call_id": "1"}]}, "messages[0]", "takes no tools"),
    (CHAT, {"messages": [{"role": "user", "content": "b", "refusal": "no"}]}, "messages[0].refusal", "leave it out"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", ""),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "text"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function", ""),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "takes no tools"),
    (CHAT, {"tool_choice": "required"}, "tool_choice", "give some"),
    (TEXT, {"tools": [{"type": "function"}]}, "tools", "leave it out"),
    (CHAT, {"response_format": {"type": "json"}}, "response_format.type", "json"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format", "names none"),
    (CHAT, {"store": True}, "store", "leave it out"),
    (CHAT, {"logprobs": 3}, "logprobs", "3"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs", "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21"),
    (CHAT, {"prompt": "b"}, "prompt", "leave it out"),
    (TEXT, {"logit_bias": {"01": 1}}, "logit_bias", "01"),
    (TEXT, {"logit_bias": {"9" * 5000: 1}}, "logit_bias", "9999"),
]


def _path(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if body is CHAT else "/v1/completions"


async def test_a_bad_request_gets_a_400_that_names_field_and_value_streamed_or_not() -> None:
    """C15 (mistral.rs #1874) and C20 (vLLM PR 16529): before any stream starts and before any model call."""
    faults = []
    async with running_gateway(chain_logits) as running:
        for body, change, parameter, part in BAD_BODIES:
            for stream in (False, True):
                reply = await running.http.post(_path(body), json={**body, **change, "stream": stream})
                error = reply.json()["error"]
                seen = (reply.status_code, error["type"], error["param"], reply.headers["content-type"])
                if (
                    seen != (400, "invalid_request_error", parameter, "application/json")
                    or part not in error["message"]
                ):
                    faults.append((change, seen, error["message"]))
        assert running.gateway.sessions == 0
    assert not faults


HARMLESS = [
    {"metadata": {"a": "b"}, "user": "u", "store": False, "safety_identifier": "s", "prompt_cache_key": "k"},
    {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1,
        "min_tokens": 0,
        "tools": [],
        "tool_choice": "none",
        "service_tier": "auto",
    },
    {"response_format": {"type": "text"}, "stop": None, "seed": None, "n": None, "logit_bias": None, "tools": None},
    {"stop": "z", "logit_bias": {"0": -100}, "top_k": 3, "min_p": 0.1, "stream_options": {"include_usage": True}},
]


@pytest.mark.parametrize("fields", HARMLESS)
async def test_fields_that_ask_for_nothing_or_are_honoured_are_taken(fields: dict[str, object]) -> None:
    async with running_gateway(chain_logits) as running:
        reply = await running.http.post("/v1/chat/completions", json={**CHAT, **fields})
    assert reply.status_code == 200, reply.text


def test_a_fault_of_ours_is_logged_by_its_place_and_without_what_the_user_wrote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def take(table: dict[str, int], prompt: str) -> int:
        return table[prompt]

    try:
        take({}, "a secret prompt")
    except KeyError as error:
        failure = report_failure(error)
    assert (failure.status, "secret" in failure.body) == (500, False)
    assert "request failed error=KeyError at take:" in caplog.text
    assert "secret" not in caplog.text


async def test_every_failure_has_openais_error_shape() -> None:
    limits = Limits(body_bytes=1000)
    async with running_gateway(chain_logits, limits=limits) as running:
        replies = [
            await running.http.post("/v1/completions", content=b"{"),
            await running.http.post("/v1/completions", content=b'{"model": "chat", "prompt": "b", "temperature": NaN}'),
            await running.http.post("/v1/completions", content=b"[]"),
            await running.http.post("/v1/completions", content=b"\xff\xfe"),
            await running.http.post("/v1/completions", json={**TEXT, "user": "u" * 2000}),
            await running.http.post("/v1/completions", json={**TEXT, "model": "other"}),
            await running.http.get("/v1/completions"),
            await running.http.get("/v1/embeddings"),
            await running.http.get("/metrics"),
            await running.http.get("/internal/evidence"),
            await running.http.get("/v1/models/"),
        ]
    seen = [(reply.status_code, reply.json()["error"]["code"]) for reply in replies]
    assert seen == [
        (400, "invalid_value"),
        (400, "invalid_value"),
        (400, "invalid_value"),
        (400, "invalid_value"),
        (413, "body_too_large"),
        (404, "model_not_found"),
        (405, "method_not_allowed"),
        *[(404, "not_found")] * 4,
    ]
    assert all(set(reply.json()["error"]) == {"message", "type", "param", "code"} for reply in replies)
    assert replies[6].headers["allow"] == "POST"


async def test_a_refusal_reaches_the_official_client_as_its_own_error() -> None:
    async with (
        running_gateway(chain_logits) as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="chat", prompt="b", n=0, stream=True)
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="b")
    assert caught.value.param == "n"


async def test_a_running_stream_is_untouched_by_bad_requests() -> None:
    async with running_gateway(chain_logits) as running:
        body: dict[str, Any] = {"model": "chat", "prompt": "b", "max_tokens": 200, "temperature": 0}
        quiet = (await running.plain(**body))["choices"][0]["text"]
        text = ""
        async with running.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    if len(text) < 20:
                        bad = await running.http.post("/v1/completions", json={**TEXT, "logit_bias": {"191222": -100}})
                        assert bad.status_code == 400
    assert text == quiet


async def test_keys_open_the_gateway_and_nothing_else_does() -> None:
    keys = ApiKeys("# ours\n\nacme:secret-1\nbeta:secret:2\n", source="keys")
    offered = [None, "Bearer wrong", "Basic secret-1", "Bearer secret", "Bearer secret-1", "bearer secret:2"]
    async with running_gateway(chain_logits, keys=keys) as running:
        seen = []
        for header in offered:
            headers = {} if header is None else {"authorization": header}
            reply = await running.http.post("/v1/completions", json=TEXT, headers=headers)
            listing = await running.http.get("/v1/models", headers=headers)
            seen.append((reply.status_code, listing.status_code))
            assert "secret" not in reply.text
        health = await running.http.get("/health")
    assert seen == [(401, 401)] * 4 + [(200, 200)] * 2
    assert health.status_code == 200


def test_a_key_file_that_is_no_text_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"acme:secret-\xe9\n")
    with pytest.raises(SettingRefused, match="keys cannot be read: byte 12 is not UTF-8") as caught:
        KeyFile(tmp_path / "keys")
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)


async def test_a_full_house_says_when_to_come_back() -> None:
    never_ending = constant([0.0] * 7)
    limits = Limits(sessions=2, retry_seconds=7, wait_seconds=0.05)
    async with running_gateway(never_ending, limits=limits, max_length=100_000) as running:
        body = {"model": "chat", "prompt": "b", "max_tokens": 50_000}
        async with running.http.stream("POST", "/v1/completions", json={**body, "n": 2, "stream": True}) as stream:
            lines = stream.aiter_lines()  # kept: once it is gone the stream is closed
            await anext(lines)
            full = await running.http.post("/v1/completions", json=body)
            never = await running.http.post("/v1/completions", json={**body, "n": 3})
        await until(lambda: running.gateway.sessions == 0)
        later = await running.http.post("/v1/completions", json=TEXT)
    assert (full.status_code, full.headers["retry-after"], full.json()["error"]["code"]) == (429, "7", "overloaded")
    assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
    assert later.status_code == 200


async def test_a_body_that_is_cut_short_is_the_callers_end_and_no_failure_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_gateway(chain_logits) as running:
        host, port = running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        reply = await running.http.post("/v1/completions", json=TEXT)
        registry = running.gateway.books.metrics.registry
        labels = {"revision": "", "arm": "off", "code": "499"}
        await until(lambda: registry.get_sample_value("tandem_requests_total", labels) == 1)
    assert reply.status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


UNREADABLE = {
    "nested beyond reason": b"[" * 200_000,
    "nested beyond reason in a field": b'{"model": "chat", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "half a surrogate pair in a prompt": b'{"model": "chat", "prompt": "\\ud800"}',
    "half a surrogate pair in a message": b'{"model": "chat", "messages": [{"role": "user", "content": "\\udfff"}]}',
    "a number of 5000 digits": b'{"model": "chat", "prompt": "b", "max_tokens": ' + b"9" * 5000 + b"}",
    "another encoding": json.dumps(TEXT).encode("utf-16"),
    "a byte that is no text": b'{"model": "chat", "prompt": "\xff"}',
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_body_that_no_reader_could_take_is_a_400_and_no_failure_of_ours(
    path: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(chain_logits) as running:
        reply = await running.http.post(path, content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert "not JSON" in reply.json()["error"]["message"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


LONG = {
    "a model": {"model": "m" * 100_000},
    "a field nobody knows": {"f" * 100_000: 1},
    "a token": {"prompt": [int("9" * 4000)]},
    "a biased token": {"logit_bias": {"x" * 100_000: 1}},
    "a temperature": {"temperature": "t" * 100_000},
}


@pytest.mark.parametrize("change", LONG.values(), ids=LONG.keys())
async def test_a_refusal_quotes_no_more_than_a_line_of_what_was_sent(change: dict[str, Any]) -> None:
    async with running_gateway(chain_logits) as running:
        reply = await running.http.post("/v1/completions", json={**TEXT, **change})
    assert reply.status_code in {400, 404}
    assert len(reply.content) < 1000


class _Busy(TableTokenizer):
    """Stands for a text that keeps the tokenizer busy until `done` is set."""

    def __init__(self) -> None:
        super().__init__(LETTERS)
        self.begun, self.done = threading.Event(), threading.Event()

    def encode(self, text: str) -> tuple[TokenId, ...]:
        self.begun.set()
        assert self.done.wait(timeout=20), "nobody else was served meanwhile"
        return super().encode(text)


async def test_a_text_that_takes_long_to_read_holds_up_no_other_request() -> None:
    busy = _Busy()
    async with running_gateway(chain_logits) as running:
        running.gateway.tokenizer = busy
        long = asyncio.create_task(running.http.post("/v1/completions", json=TEXT))
        await until(busy.begun.is_set)
        other = await running.http.get("/v1/models")
        busy.done.set()
        reply = await long
    assert (other.status_code, reply.status_code) == (200, 200)
