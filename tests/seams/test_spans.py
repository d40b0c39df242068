"""Spans of OpenTelemetry as a collector gets them: of what a request went through, never of what it said."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.seams.gateway_peers import LETTERS, running_gateway
from tests.seams.test_serve import PAIR
from tests.seams.tokenizer_folders import letters_folder

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.gateway.spans import tracing
from tandem_runtime.settings import read_settings

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def silent(_: tuple[TokenId, ...]) -> list[float]:
    """All letters alike."""
    return [0.0] * len(LETTERS)


class Collector(HTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Any]:
        sent = map(ExportTraceServiceRequest.FromString, self.bodies)
        return [
            span
            for each in sent
            for resource in each.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Post(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def told(headers: dict[str, str] | None = None, **asked: Any) -> tuple[httpx.Response, list[ReadableSpan]]:
    """A request to a gateway that is traced, and its spans in the order in which they ended."""
    exporter = InMemorySpanExporter()
    async with running_gateway(silent, silent) as running:
        with tracing(exporter) as running.gateway.tracing:
            body = {"model": "chat", "prompt": "b", "max_tokens": 40, **asked}
            reply = await running.http.post("/v1/completions", json=body, headers=headers)
    return reply, list(exporter.get_finished_spans())


async def test_a_request_has_a_span_of_each_stage_below_that_of_its_caller() -> None:
    reply, (wait, prefill, decode, answer) = await told(CALLER, speculation={"minDraftTokens": 3, "maxDraftTokens": 3})
    assert [span.name for span in (answer, wait, prefill, decode)] == ["answer", "wait", "prefill", "decode"]
    assert answer.parent is not None
    assert answer.context is not None
    assert (f"{answer.context.trace_id:032x}", f"{answer.parent.span_id:016x}") == (TRACE, PARENT)
    assert {stage.parent.span_id for stage in (wait, prefill, decode) if stage.parent} == {answer.context.span_id}
    moments = [answer.start_time, wait.start_time, wait.end_time, prefill.end_time, decode.end_time, answer.end_time]
    assert moments == sorted(moments, key=lambda moment: moment or 0)
    said, speculation = reply.json(), reply.json()["speculation"]
    of = answer.attributes or {}
    assert (of["tandem.request"], of["tandem.finish"], of["tandem.revision"]) == (said["id"], "length", "local")
    assert (of["gen_ai.usage.input_tokens"], of["gen_ai.usage.output_tokens"]) == (1, 40)
    spent = decode.attributes or {}
    assert (spent["tandem.rounds"], spent["tandem.proposed"], spent["tandem.accepted"]) == tuple(
        speculation[name] for name in ("rounds", "proposed", "accepted")
    )
    seconds = sum(float(str(value)) for name, value in spent.items() if name.startswith("tandem.seconds."))
    assert 0 < seconds <= (answer.end_time or 0) / 1e9 - (prefill.end_time or 0) / 1e9 + 0.01


async def test_a_request_without_a_caller_that_traces_begins_a_trace_of_its_own() -> None:
    _, (*_, answer) = await told()
    assert answer.parent is None


async def test_a_request_that_failed_tells_the_kind_of_failure_and_no_word_of_it() -> None:
    reply, spans = await told(prompt="b" * 400)
    (answer,) = (span for span in spans if span.name == "answer")
    assert reply.status_code == 400
    assert (answer.status.is_ok, answer.status.description) == (False, "BadRequest")


def test_what_was_asked_and_said_is_in_no_span_that_a_served_pair_sends(tmp_path: Path) -> None:
    mark = "abcdefgfedcba"
    with collector() as taken, served(letters_folder(tmp_path), OTEL_EXPORTER_OTLP_ENDPOINT=taken.url) as address:
        reply = httpx.post(
            f"{address}/completions", json={"model": "chat", "prompt": mark, "max_tokens": 30}, timeout=60
        )
        text = reply.raise_for_status().json()["choices"][0]["text"]
    sent = b"".join(taken.bodies)
    assert sorted(span.name for span in taken.spans) == ["answer", "decode", "prefill", "wait"]
    assert b"tandem-gateway" in sent
    assert mark.encode() not in sent
    assert text[:8].encode() not in sent


def test_a_collector_that_does_not_answer_holds_up_no_answer_and_hardly_the_end(tmp_path: Path) -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        with served(letters_folder(tmp_path), OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as address:
            body = {"model": "chat", "prompt": "b", "max_tokens": 5}
            for _ in range(20):
                httpx.post(f"{address}/completions", json=body, timeout=20).raise_for_status()


@contextmanager
def served(tokenizer: Path, **environment: str) -> Iterator[str]:
    """The address of a pair that is served as a process, which has ended well with the block."""
    command = [sys.executable, "-m", "tandem_runtime.main", "serve", *PAIR, "--tokenizer", str(tokenizer)]
    options = ["--name", "chat", "--mode", "Always", "--port", "0", "--admin-port", "0"]
    said = os.environ | environment
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=said) as process:
        assert process.stdout is not None
        try:
            lines = "".join(process.stdout.readline() for _ in range(4))
            yield re.findall(r"^serving chat at (http://\S+)$", lines, re.MULTILINE)[0]
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert process.wait(timeout=60) == 0
            assert time.monotonic() - began < 30
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("environment", "traced"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_spans_are_sent_where_opentelemetrys_own_variables_name_a_collector(
    environment: dict[str, str], traced: bool
) -> None:
    assert read_settings(environment).traced is traced
