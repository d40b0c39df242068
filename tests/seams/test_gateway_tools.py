"""Tools through the official client: calls streamed and plain in each form, forced calls, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel
from tests.seams.gateway_peers import Running, always, running_gateway

from tandem_runtime.domain.policy import SpeculationMode, SpeculationPolicy
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.tool_calls import ToolFormat
from tandem_runtime.testing import Script

END = 0
TABLE = [b"", *(bytes([code]) for code in range(1, 128))]
OFF = SpeculationPolicy(mode=SpeculationMode.OFF)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ARGUMENTS = '{"city": "Oslo", "days": 2}'
ANSWERS = {
    ToolFormat.HERMES: f'Let me see.\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    ToolFormat.LLAMA: f'{{"name": "weather", "parameters": {ARGUMENTS}}}',
    ToolFormat.MISTRAL: f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]',
}


def saying(text: str) -> Script:
    """A model that says `text` behind the last question mark, then ends."""
    answer = [*text.encode(), END]

    def script(prefix: tuple[TokenId, ...]) -> list[float]:
        said = len(prefix) - 1 - max((at for at, token in enumerate(prefix) if token == ord("?")), default=0)
        logits = [0.0] * len(TABLE)
        logits[answer[min(said, len(answer) - 1)]] = 20.0
        return logits

    return script


def wild(prefix: tuple[TokenId, ...]) -> list[float]:
    """A model of no sense, that likes to end."""
    return [
        8.0 if token == END else float((token * 7 + len(prefix) * 13) % 11) - 6.0 * (token < 33) for token in range(128)
    ]


@asynccontextmanager
async def gateway(script: Script, format: ToolFormat | None = ToolFormat.HERMES, **more: Any) -> AsyncIterator[Running]:
    async with running_gateway(
        script, script, table=TABLE, end_tokens=[END], max_length=2048, draft_length=2048, tool_format=format, **more
    ) as running:
        yield running


@asynccontextmanager
async def client_of(running: Running) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def asking(**fields: Any) -> dict[str, Any]:
    asked = {"model": "chat", "messages": [{"role": "user", "content": "How is it?"}], "temperature": 0}
    return asked | {"max_tokens": 200, "tools": [WEATHER, CLOCK]} | fields


def gathered(pieces: list[Any]) -> tuple[str, list[tuple[str, str, str]], str]:
    """Content, calls as (id, name, arguments), and the reason, of a streamed choice."""
    content, calls, reason = "", dict[int, list[str]](), ""
    for piece in pieces:
        (choice,) = piece.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            known = calls.setdefault(call.index, ["", "", ""])
            for at, more in enumerate((call.id, call.function.name, call.function.arguments)):
                known[at] += more or ""
    return content, [(call[0], call[1], call[2]) for call in calls.values()], reason


@pytest.mark.parametrize("speculation", [OFF, always(4)], ids=["off", "4"])
@pytest.mark.parametrize("format", ToolFormat)
async def test_a_call_arrives_streamed_and_plain(format: ToolFormat, speculation: SpeculationPolicy) -> None:
    async with (
        gateway(saying(ANSWERS[format]), format, speculation=speculation) as running,
        client_of(running) as client,
    ):
        plain = await client.chat.completions.create(**asking())
        pieces = [piece async for piece in await client.chat.completions.create(**asking(), stream=True)]

        def ask() -> Any:
            with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as other:
                return list(other.chat.completions.create(**asking(), stream=True))

        waited = await asyncio.to_thread(ask)
    message = plain.choices[0].message
    (call,) = message.tool_calls
    words = "Let me see." if format is ToolFormat.HERMES else None
    assert (message.content, call.function.name, call.function.arguments) == (words, "weather", ARGUMENTS)
    assert plain.choices[0].finish_reason == "tool_calls"
    assert (len(call.id), call.id.isalnum()) == (9, True)
    for streamed in (pieces, waited):
        content, ((_, name, arguments),), reason = gathered(streamed)
        assert (content, name, arguments, reason) == (words or "", "weather", ARGUMENTS, "tool_calls")
    told = [piece for piece in pieces if piece.choices[0].delta.tool_calls]
    assert len(told) > 3


async def test_choices_have_calls_of_their_own() -> None:
    async with gateway(saying(ANSWERS[ToolFormat.HERMES])) as running, client_of(running) as client:
        reply = await client.chat.completions.create(**asking(n=2))
    ids = [choice.message.tool_calls[0].id for choice in reply.choices]
    assert len(set(ids)) == 2


async def test_an_answer_without_a_call_is_an_answer() -> None:
    async with gateway(saying("It is <b>fine</b>. ")) as running, client_of(running) as client:
        plain = await client.chat.completions.create(**asking())
        pieces = [piece async for piece in await client.chat.completions.create(**asking(), stream=True)]
    assert plain.choices[0].message.content == "It is <b>fine</b>. "
    assert plain.choices[0].message.tool_calls is None
    assert (plain.choices[0].finish_reason, gathered(pieces)) == ("stop", ("It is <b>fine</b>. ", [], "stop"))


async def test_a_call_that_the_length_cuts_ends_by_length() -> None:
    async with gateway(saying(ANSWERS[ToolFormat.LLAMA]), ToolFormat.LLAMA) as running, client_of(running) as client:
        reply = await client.chat.completions.create(**asking(max_tokens=45))
    assert reply.choices[0].finish_reason == "length"
    assert ARGUMENTS.startswith(reply.choices[0].message.tool_calls[0].function.arguments)


@pytest.mark.parametrize(
    ("stop", "told", "reason"),
    [
        (', "days"', '{"city": "Oslo"', "stop"),
        ("</tool_call>", ARGUMENTS, "tool_calls"),
        ("weather", None, "stop"),
    ],
)
async def test_a_call_that_a_stop_string_cuts_ends_by_stop(stop: str, told: str | None, reason: str) -> None:
    """Whoever goes by the reason takes no half call for a whole one; streamed, nothing of it could be taken back."""
    asked = asking(stop=[stop])
    async with gateway(saying(ANSWERS[ToolFormat.HERMES])) as running, client_of(running) as client:
        plain = await client.chat.completions.create(**asked)
        pieces = [piece async for piece in await client.chat.completions.create(**asked, stream=True)]
    calls = [call.function.arguments for call in plain.choices[0].message.tool_calls or ()]
    assert calls == ([] if told is None else [told])
    assert plain.choices[0].finish_reason == reason
    content, streamed, streamed_reason = gathered(pieces)
    assert (content, [call[2] for call in streamed], streamed_reason) == (
        plain.choices[0].message.content,
        calls,
        reason,
    )


async def test_at_most_one_call_is_told_where_no_more_are_wanted() -> None:
    twice = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>' * 2
    async with gateway(saying(twice)) as running, client_of(running) as client:
        both = await client.chat.completions.create(**asking())
        one = await client.chat.completions.create(**asking(parallel_tool_calls=False))
    assert [len(reply.choices[0].message.tool_calls) for reply in (both, one)] == [2, 1]


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_forced_call_fits_its_schema_and_is_the_same_for_every_k(format: ToolFormat, seed: int) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    asked = asking(tool_choice=named, temperature=1.0, seed=seed, max_tokens=600)
    async with gateway(wild, format, speculation=OFF) as running, client_of(running) as client:
        off = await client.chat.completions.create(**asked)
        running.put_policy(speculation=always(4))
        on = await client.chat.completions.create(**asked)
        pieces = [piece async for piece in await client.chat.completions.create(**asked, stream=True)]
    (call,) = off.choices[0].message.tool_calls
    assert (call.function.name, off.choices[0].finish_reason) == ("weather", "tool_calls")
    jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])  # type: ignore[index]
    assert on.choices[0].message.tool_calls[0].function == call.function
    content, ((_, name, arguments),), reason = gathered(pieces)
    assert (content, name, arguments, reason) == ("", "weather", call.function.arguments, "tool_calls")
    assert off.choices[0].message.content is None


async def test_a_call_that_is_required_is_of_any_tool() -> None:
    names = set()
    clock = {"type": "function", "function": {**CLOCK["function"], "parameters": {"additionalProperties": False}}}  # type: ignore[dict-item]
    async with gateway(wild) as running, client_of(running) as client:
        for seed in range(12):
            asked = asking(tool_choice="required", temperature=1.5, seed=seed, max_tokens=600, tools=[WEATHER, clock])
            reply = await client.chat.completions.create(**asked)
            names.add(reply.choices[0].message.tool_calls[0].function.name)
    assert names == {"weather", "clock"}


async def test_a_conversation_goes_on_behind_a_call() -> None:
    async with gateway(saying(ANSWERS[ToolFormat.HERMES])) as running, client_of(running) as client:
        first = await client.chat.completions.create(**asking())
        message = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain. And then?"}
        messages = [*asking()["messages"], message, result]
        again = await client.chat.completions.create(**asking(messages=messages, tool_choice="none"))
    assert again.choices[0].message.content == ANSWERS[ToolFormat.HERMES]
    assert again.choices[0].finish_reason == "stop"
    assert again.usage.prompt_tokens == len("How is it?Let me see.Rain. And then?")


def changed(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {**WEATHER["function"], **function}}]  # type: ignore[dict-item]


OPENINGS = {ToolFormat.HERMES: "Let me see.\n<tool_call>", ToolFormat.LLAMA: '{"', ToolFormat.MISTRAL: "[TOOL_CALLS]"}


def opening(format: ToolFormat) -> Script:
    """A model that opens a call of its own accord, then makes no sense, and ends where it may."""
    begins = [*OPENINGS[format].encode()]

    def script(prefix: tuple[TokenId, ...]) -> list[float]:
        said = len(prefix) - 1 - max((at for at, token in enumerate(prefix) if token == ord("?")), default=0)
        logits = wild(prefix)
        if said < len(begins):
            logits[begins[said]] = 40.0
        return logits

    return script


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_strict_tool_is_called_as_its_schema_says_though_nobody_asked_for_a_call(
    format: ToolFormat, seed: int
) -> None:
    asked = asking(tools=[*changed(strict=True), CLOCK], temperature=1.0, seed=seed, max_tokens=900)
    async with gateway(opening(format), format, speculation=OFF) as running, client_of(running) as client:
        off = await client.chat.completions.create(**asked)
        running.put_policy(speculation=always(4))
        on = await client.chat.completions.create(**asked)
        pieces = [piece async for piece in await client.chat.completions.create(**asked, stream=True)]
        free = await client.chat.completions.create(**(asked | {"tools": [WEATHER, CLOCK]}))
    message, reason = off.choices[0].message, off.choices[0].finish_reason
    if format is ToolFormat.HERMES:
        assert message.content.startswith("Let me see.")
    else:
        assert message.content is None
    whole = message.tool_calls if reason == "tool_calls" else message.tool_calls[:-1]
    for call in whole:
        if call.function.name == "weather":
            jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])  # type: ignore[index]
        else:
            assert isinstance(json.loads(call.function.arguments), dict)
    assert message.tool_calls
    told = [call.function for call in message.tool_calls]
    assert [call.function for call in on.choices[0].message.tool_calls] == told
    content, calls, streamed_reason = gathered(pieces)
    assert content == (message.content or "")
    assert [(name, arguments) for _, name, arguments in calls] == [(one.name, one.arguments) for one in told]
    assert streamed_reason == reason
    assert not free.choices[0].message.tool_calls  # unless it is held to one, such a model makes no call


@pytest.mark.parametrize("format", ToolFormat)
async def test_a_strict_tool_is_called_once_where_one_call_is_wanted(format: ToolFormat) -> None:
    asked = asking(tools=changed(strict=True), parallel_tool_calls=False, temperature=1.0, max_tokens=900)
    async with gateway(opening(format), format, speculation=always(3)) as running, client_of(running) as client:
        replies = [await client.chat.completions.create(**asked, seed=seed) for seed in range(4)]
    for reply in replies:
        (call,) = reply.choices[0].message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])  # type: ignore[index]
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.choices[0].message.content == ("Let me see." if format is ToolFormat.HERMES else None)


class Weather(BaseModel):
    """The weather of a city"""

    city: Literal["Oslo", "Rome"]
    unit: Literal["C", "F"] | None


async def test_the_official_client_parses_what_a_strict_tool_is_called_with() -> None:
    """Its helper writes the schema, with strict, and reads the arguments back into the model's own class."""
    tool = openai.pydantic_function_tool(Weather)
    cities = set()
    async with gateway(opening(ToolFormat.HERMES), speculation=always(3)) as running, client_of(running) as client:
        for seed in range(6):
            asked = asking(tools=[tool], temperature=1.0, seed=seed, max_tokens=900, stop=["</tool_call>"])
            reply = await client.chat.completions.parse(**asked)
            (call,) = reply.choices[0].message.tool_calls
            assert isinstance(call.function.parsed_arguments, Weather)
            cities.add(call.function.parsed_arguments.city)
    assert cities == {"Oslo", "Rome"}


async def test_a_model_that_makes_no_call_says_of_a_strict_tool_what_it_says_of_another() -> None:
    async with gateway(saying("It is fine. ")) as running, client_of(running) as client:
        replies = [
            await client.chat.completions.create(**asking(tools=changed(strict=strict))) for strict in (True, False)
        ]
    assert [reply.choices[0].message.content for reply in replies] == ["It is fine. "] * 2
    assert [reply.choices[0].finish_reason for reply in replies] == ["stop"] * 2


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "'weather'"),
    ({"tools": changed(name="a b")}, "tools[0].function.name", "a b"),
    ({"tools": changed(parameters={"type": "string"})}, "tools[0].function.parameters", "'string'"),
    ({"tools": changed(strict=True), "ignore_eos": True}, "ignore_eos", "tools[0].function.strict"),
    (
        {"tools": [CLOCK, *changed(strict=True, parameters={"properties": {"a": {"type": "colour"}}})]},
        "tools[1].function.parameters.properties.a",
        "compiled",
    ),
    (
        {"tools": changed(strict=True, parameters={"properties": {"a": {"$ref": "#"}}})},
        "tools[0].function.parameters",
        "$defs",
    ),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "custom"),
    ({"tools": [CLOCK] * 129}, "tools", "128"),
    ({"tool_choice": "always"}, "tool_choice.type", "always"),
    ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice.function.name", "'fly'"),
    ({"response_format": {"type": "json_object"}}, "response_format", "tool_choice none"),
    ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice", "tool_choice none"),
    ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos", "tool_choice"),
    (
        {"tool_choice": "required", "tools": changed(parameters={"properties": {"a": {"type": "colour"}}})},
        "tools[0].function.parameters.properties.a",
        "compiled",
    ),
    (
        {"tool_choice": "required", "tools": changed(parameters={"properties": {"a": {"$ref": "#"}}})},
        "tools[0].function.parameters",
        "$defs",
    ),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": "[]"}}],
                }
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
        "JSON object",
    ),
]


async def test_what_cannot_be_kept_is_refused_by_field_and_value() -> None:
    faults = []
    async with gateway(wild) as running:
        for change, parameter, part in REFUSED:
            reply = await running.http.post("/v1/chat/completions", json=asking(**change))
            error = reply.json()["error"]
            if (reply.status_code, error["param"]) != (400, parameter) or part not in error["message"]:
                faults.append((change, reply.status_code, error))
    assert not faults


async def test_tools_of_one_name_for_different_definitions_cannot_both_be_forced() -> None:
    other = changed(
        name="other", parameters={"$defs": {"City": {"enum": ["Bonn"]}}, "properties": {"c": {"$ref": "#/$defs/City"}}}
    )
    async with gateway(wild) as running:
        reply = await running.http.post(
            "/v1/chat/completions", json=asking(tools=[WEATHER, *other], tool_choice="required")
        )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[1].function.parameters")
