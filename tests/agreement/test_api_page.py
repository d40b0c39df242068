"""The page about the API names every parameter, limit and failure that the code has, and its examples run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI
from tests.seams.gateway_peers import gateway_on_a_thread

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.tool_calls import ToolFormat
from tandem_runtime.gateway import failures, schema
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.intake import LONGEST_PREDICTION

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
END = 256
TABLE = [*(bytes([code]) for code in range(256)), b""]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def named(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def talking(prefix: tuple[TokenId, ...]) -> list[float]:
    """Any letters but white space, and an end as soon as there may be one."""
    return [
        8.0 if token == END else float((token * 7 + len(prefix) * 13) % 11) - 6.0 * (token < 33) for token in range(257)
    ]


def test_every_parameter_has_a_row_and_no_row_is_of_another() -> None:
    both, chats, completions = (
        {name for row in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE) for name in named(row)}
        for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:4]
    )
    assert both | chats == set(schema.ChatRequest.model_fields)
    assert both | completions == set(schema.CompletionRequest.model_fields)


def test_what_is_refused_and_what_has_no_effect_is_named() -> None:
    (refused,) = re.findall(r"^Refused at any value(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert set(schema.REFUSED) - {"tools", "tool_choice"} == named(refused) - {"tools"}
    (notes,) = re.findall(r"never looked at are notes(.*?)\n\n", PAGE, re.DOTALL)
    assert set(schema.NOTES) - {"parallel_tool_calls"} == named(notes)


def test_every_failure_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", PAGE, re.MULTILINE)
    told = {(status, code) for _, status, _, code in failures._ROWS if status != failures.CLIENT_CLOSED}
    assert told <= {(int(status), code) for status, codes in rows for code in named(codes)}


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"choices, at most {schema.MOST_CHOICES}" in PAGE
    assert f"up to {schema.MOST_STOPS} strings" in PAGE
    assert f"or up to {schema.MOST_PROMPTS} of either" in PAGE
    assert f"At most {LONGEST_PREDICTION:,}\ntokens are read" in PAGE
    limits = Limits()
    assert f"above {limits.body_bytes >> 20} MiB" in PAGE
    assert f"{limits.sessions} choices), up to {limits.waiting} requests wait for {limits.wait_seconds:.0f} s" in PAGE
    assert f"none came free in {limits.wait_seconds:.0f} s" in PAGE


def test_the_examples_run() -> None:
    settings: dict[str, Any] = {"table": TABLE, "end_tokens": [END], "max_length": 2048}
    with gateway_on_a_thread(talking, tool_format=ToolFormat.HERMES, **settings) as url:
        (curl,) = blocks("sh")
        words = shlex.split(curl.replace("\\\n", " ").replace("MODEL", "chat"))
        reply = httpx.post(url + words[1].removeprefix("http://127.0.0.1:8000"), json=json.loads(words[-1]), timeout=30)
        assert reply.status_code == 200, reply.text
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            for example in blocks("python"):
                exec(compile(example, "docs/api.md", "exec"), {"client": client, "model": "chat"})
