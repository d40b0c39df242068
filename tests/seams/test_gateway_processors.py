"""OpenAI's and vLLM's sampling fields through a whole gateway: each shapes the answer, or says why it cannot."""

import json
from typing import Any

import openai
import pytest
from tests.seams.gateway_peers import always, running_gateway

from tandem_runtime.testing import constant

END = 0
TABLE = [b"", *(bytes([code]) for code in range(32, 127))]
PET = {"type": "object", "properties": {"pet": {"enum": ["cat"]}}, "required": ["pet"]}


def preferring(order: str) -> list[float]:
    """The letters of `order`, best first; then the end token, then all others, a space last."""
    logits = [-5.0] * len(TABLE)
    logits[END], logits[TABLE.index(b" ")] = 0.0, -9.0
    for place, letter in enumerate(order):
        logits[TABLE.index(letter.encode())] = 9.0 - 0.5 * place
    return logits


HONOURED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 6}, "aaaaaa"),
    ({"max_tokens": 6, "frequency_penalty": 0.4}, "aababc"),
    ({"max_tokens": 6, "presence_penalty": 1.3}, "abcaaa"),
    ({"max_tokens": 3, "extra_body": {"repetition_penalty": 1.1}}, "baa"),
    ({"max_tokens": 6, "extra_body": {"bad_words": ["aa", "bb"]}}, "ababab"),
    ({"max_tokens": 3, "extra_body": {"allowed_token_ids": [TABLE.index(b"c")]}}, "ccc"),
    ({"logit_bias": {"0": 100}, "extra_body": {"min_tokens": 4}}, "aaaa"),
    ({"max_tokens": 3, "logit_bias": {"0": 100}, "extra_body": {"ignore_eos": True}}, ""),
    ({"response_format": {"type": "json_object"}}, "{}"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PET}}}, '{"pet":"cat"}'),
    ({"extra_body": {"structured_outputs": {"json": PET}}}, '{"pet":"cat"}'),
    ({"extra_body": {"structured_outputs": {"json": json.dumps(PET)}}}, '{"pet":"cat"}'),
    ({"extra_body": {"structured_outputs": {"choice": ["c.t", "cow (x)"]}}}, "c.t"),
    ({"extra_body": {"structured_outputs": {"regex": "(ba){2}"}}}, "baba"),
    ({"extra_body": {"structured_outputs": {"json_object": True}}}, "{}"),
    ({"extra_body": {"structured_outputs": {"grammar": 'start: x ("-" x)~2\nx: "cow" | "co"\n'}}}, "co-co-co"),
]


@pytest.mark.parametrize("k", [0, 4])
async def test_each_field_shapes_the_answer_the_same_for_every_k(k: int) -> None:
    faults = []
    model = constant(preferring("abc}{"))
    speculation = always(k) if k else None
    draft = constant(preferring("ba")) if k else None
    async with (
        running_gateway(model, draft, table=TABLE, end_tokens=(END,), speculation=speculation) as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for fields, expected in HONOURED:
            asked: dict[str, Any] = {"max_tokens": 40, **fields}
            reply = await client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "a"}], temperature=0, **asked
            )
            if reply.choices[0].message.content != expected:
                faults.append((fields, reply.choices[0].message.content))
        ignored = await running.plain(prompt="a", max_tokens=3, temperature=0, logit_bias={"0": 100}, ignore_eos=True)
    assert not faults
    assert (ignored["choices"][0]["finish_reason"], ignored["usage"]["completion_tokens"]) == ("length", 3)


SCHEMA = {"type": "object", "properties": {"age": {"type": "numbre"}}}
BAD_GRAMMARS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}},
        "response_format.json_schema.schema.properties.age",
        "numbre",
    ),
    ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json.properties.age", "numbre"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed"),
    (
        {"structured_outputs": {"grammar": 'start: "a"\nx "b"'}},
        "structured_outputs.grammar",
        "line 2, column 3: Expected",
    ),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "structured_outputs.grammar", "this looks like GBNF"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "Empty grammar"),
    ({"structured_outputs": {"grammar": "start: start"}}, "structured_outputs.grammar", "leaves no text"),
    (
        {"structured_outputs": {"grammar": 'start: "a"\n' * 257}},
        "structured_outputs.grammar",
        "has 257 lines; at most 256",
    ),
    ({"structured_outputs": {"grammar": "a" * 65537}}, "structured_outputs.grammar", "has 65537 characters"),
    (
        {"structured_outputs": {"grammar": 'start: "a"\n %llguidance {"no_forcing": true}'}},
        "structured_outputs.grammar",
        "line 2: options of %llguidance",
    ),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "leave one out"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "leave one out",
    ),
    ({"response_format": {"type": "json_object"}, "bad_words": ["{"]}, "response_format", "bad_words left no token"),
]


@pytest.mark.parametrize(("fields", "parameter", "part"), BAD_GRAMMARS)
async def test_a_grammar_that_cannot_be_served_is_a_400_that_names_its_path(
    fields: dict[str, Any], parameter: str, part: str
) -> None:
    async with running_gateway(constant(preferring("ab")), table=TABLE, end_tokens=(END,)) as running:
        reply = await running.http.post("/v1/completions", json={"model": "chat", "prompt": "a", **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, parameter)
    assert part in error["message"]
