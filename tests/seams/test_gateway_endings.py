"""Where answers end, and what is told of their tokens, through the whole gateway: streamed and plain, on and off."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.seams.gateway_peers import LETTERS, Running, always, running_gateway

from tandem_runtime.domain.policy import SpeculationMode, SpeculationPolicy, VerificationChoice
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.ports import Logits, Row
from tandem_runtime.testing import constant, reciting

LAW_ONLY = sorted(set(VerificationChoice) - {VerificationChoice.AUTO, VerificationChoice.COUPLED})
"""Verifications that keep the target's law and, at a temperature, not the text."""
OFF = SpeculationPolicy(mode=SpeculationMode.OFF)
CHAIN = "fdbcdacedcfdbcda"
"""What the chain model says after [1], in letters."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller learns of one answer. `logprobs` holds one entry per reported token."""

    text: str
    reason: str
    completion_tokens: int
    logprobs: tuple[float, ...]
    tokens: tuple[str, ...]


async def told(running: Running, **fields: Any) -> Told:
    """One answer of the older endpoint; it is asked for streamed and plain, and both must tell the same."""
    asked: dict[str, Any] = {"logprobs": 2, "temperature": 0} | fields
    whole = await running.plain(**asked)
    (choice,) = whole["choices"]
    plain = Told(
        choice["text"],
        choice["finish_reason"],
        whole["usage"]["completion_tokens"],
        tuple(choice["logprobs"]["token_logprobs"]),
        tuple(choice["logprobs"]["tokens"]),
    )
    events = [event async for event in running.stream(**asked, stream_options={"include_usage": True})]
    pieces = [choice for event in events for choice in event["choices"]]
    reported = [piece["logprobs"] for piece in pieces if piece["logprobs"] is not None]
    (reason,) = [piece["finish_reason"] for piece in pieces if piece["finish_reason"]]
    streamed = Told(
        "".join(piece["text"] for piece in pieces),
        reason,
        events[-1]["usage"]["completion_tokens"],
        tuple(value for logprobs in reported for value in logprobs["token_logprobs"]),
        tuple(token for logprobs in reported for token in logprobs["tokens"]),
    )
    assert streamed == plain
    return plain


class Peak(ScriptedModel):
    """Remembers how many tokens a slot ever held."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, max_length=256)
        self.peak = 0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.peak = max(self.peak, *(row.start + len(row.tokens) for row in rows))
        return super().forward(rows)


# C06 (transformers #47912): an accepted end token ends the output at any position; the sixth is the bonus.
@pytest.mark.parametrize("ends", [(6,), (5, 6)], ids=["one end token", "two end tokens"])
@pytest.mark.parametrize("position", [1, 2, 3, 4, 5, 6])
async def test_an_accepted_end_token_ends_an_answer_at_any_position(position: int, ends: tuple[TokenId, ...]) -> None:
    order = [0, 1, 2, 3, 4, 0]
    order[position - 1] = 6
    script = reciting(order, width=7)
    target, draft = Peak(script), Peak(script)
    async with running_gateway(target, draft, speculation=always(5), end_tokens=ends) as running:
        answer = await told(running, prompt="a", max_tokens=20)
        off = await told(running, prompt="a", max_tokens=20, speculation={"off": True})
    letters = [LETTERS[token].decode() for token in order[:position]]
    assert (answer.text, answer.reason, answer.completion_tokens) == ("".join(letters[:-1]), "stop", position)
    assert answer.tokens == tuple(letters)
    assert answer == off
    assert target.blocks.used == draft.blocks.used == 0


async def test_ignore_eos_is_refused_by_name_or_honoured() -> None:
    script = reciting([0, 1, 6, 2, 3], width=7)
    async with running_gateway(script, script, speculation=always(5), end_tokens=[6]) as running:
        body = {"model": "chat", "prompt": "a", "max_tokens": 10, "temperature": 0, "ignore_eos": True}
        reply = await running.http.post("/v1/completions", json=body)
    if reply.status_code == 400:
        assert "ignore_eos" in reply.json()["error"]["message"]
    else:
        (choice,) = reply.json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("abgcdabgcd", "length")


WORDS = [b"x", b" y", b"END", b" p", b" q", b" r", b"E", b"ND"]


# C07 (SGLang #31599): the earliest ending in token order wins; at the same token a stop beats the length.
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 2, 3, 4, 5), ("x y", "stop", 3)),
        ((0, 1, 3, 4, 5, 2), ("x y p q r", "length", 5)),
        ((0, 1, 3, 4, 2, 5), ("x y p q", "stop", 5)),
        ((0, 1, 6, 7, 4, 5), ("x y", "stop", 4)),
        ((0, 1, 3, 4, 6, 7), ("x y p qE", "length", 5)),
        ((0, 1, 3, 6, 7, 5), ("x y p", "stop", 5)),
    ],
    ids=["a stop first", "a stop too late", "both at once", "over a border", "a border at the end", "a border at once"],
)
@pytest.mark.parametrize("speculation", [OFF, always(1), always(3), always(5)], ids=["off", "1", "3", "5"])
async def test_the_earliest_ending_in_token_order_wins(
    speculation: SpeculationPolicy, order: tuple[TokenId, ...], expected: tuple[str, str, int]
) -> None:
    script = reciting(order, width=8)
    async with running_gateway(script, script, speculation=speculation, table=WORDS) as running:
        answer = await told(running, prompt=[0], max_tokens=5, stop=["END"])
    assert (answer.text, answer.reason, answer.completion_tokens) == expected
    assert len(answer.tokens) == len(answer.logprobs) == expected[2]


# C08 (lattice #242): a round never outgrows the token budget, neither the request's nor the model's.
@pytest.mark.parametrize("speculation", [OFF, always(4)], ids=["off", "4"])
@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5, 6])
async def test_an_answer_has_exactly_the_tokens_asked_for(speculation: SpeculationPolicy, max_tokens: int) -> None:
    target = Peak(chain_logits)
    async with running_gateway(target, chain_logits, speculation=speculation) as running:
        answer = await told(running, prompt="b", max_tokens=max_tokens)
    assert (answer.text, answer.reason, answer.completion_tokens) == (CHAIN[:max_tokens], "length", max_tokens)
    assert target.peak == max_tokens  # the prompt's one token, and all of the answer but the last
    assert target.blocks.used == 0


@pytest.mark.parametrize("speculation", [OFF, always(4)], ids=["off", "4"])
@pytest.mark.parametrize("left", [1, 3])
async def test_an_answer_ends_at_the_models_length(speculation: SpeculationPolicy, left: int) -> None:
    lengths = {"max_length": 8 + left, "draft_length": 8 + left}
    async with running_gateway(chain_logits, chain_logits, speculation=speculation, **lengths) as running:  # type: ignore[arg-type]  # two lengths
        answer = await told(running, prompt=[1] * 8, max_tokens=50)
    assert (len(answer.text), answer.reason, answer.completion_tokens) == (left, "length", left)


async def test_no_tokens_at_all_are_refused_alike_on_and_off() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        body = {"model": "chat", "prompt": "b", "max_tokens": 0}
        replies = [
            await running.http.post("/v1/completions", json={**body, "speculation": {"off": off}, "stream": stream})
            for off in (False, True)
            for stream in (False, True)
        ]
    assert [reply.status_code for reply in replies] == [400] * 4
    assert len({reply.text for reply in replies}) == 1
    assert "max_tokens" in replies[0].json()["error"]["message"]


# C09 (llama.cpp #27972, SGLang #10660): whatever judges and whatever is proposed, the logprobs are the target's own.
@pytest.mark.parametrize("verification", [VerificationChoice.COUPLED, *LAW_ONLY])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_every_token_has_the_targets_logprob_in_every_verification(
    verification: VerificationChoice, temperature: float
) -> None:
    shares = {"a": 0.7, "b": 0.2, "c": 0.1}
    target, draft = constant([math.log(share) for share in shares.values()]), constant([0.0, -50.0, -50.0])
    speculation = replace(always(4), verification=verification)
    async with running_gateway(target, draft, speculation=speculation, table=[b"a", b"b", b"c"]) as running:
        fields = {"prompt": "a", "max_tokens": 6, "temperature": temperature, "seed": 11}
        answer = await told(running, **fields)
        off = await told(running, **fields, speculation={"off": True})
    assert len(answer.logprobs) == 6
    expected = [math.log(shares[token]) for token in answer.tokens]
    assert list(answer.logprobs) == pytest.approx(expected, abs=1e-9)
    if verification is VerificationChoice.COUPLED or temperature == 0:
        assert answer == off


async def test_the_logprobs_are_those_of_off_bit_by_bit() -> None:
    async with running_gateway(chain_logits, lame_chain_logits, speculation=always(3)) as running:
        for seed in range(5):
            fields = {"prompt": "b", "max_tokens": 40, "temperature": 1.3, "seed": seed}
            assert await told(running, **fields) == await told(running, **fields, speculation={"off": True})


# C10 (vLLM #6038, #13196): in rejection a seeded request repeats at one K; at temperature 0 its text is that of off.
@pytest.mark.parametrize("verification", LAW_ONLY)
async def test_a_seeded_request_repeats_at_one_k_whatever_else_is_served(verification: VerificationChoice) -> None:
    flat = constant([0.0] * 7)
    async with running_gateway(flat, flat, speculation=replace(always(4), verification=verification)) as running:

        async def ask(**fields: Any) -> str:
            asked: dict[str, Any] = {"prompt": "a", "temperature": 2.0, "max_tokens": 32, "seed": 42} | fields
            return str((await running.plain(**asked))["choices"][0]["text"])

        idle = [await ask(), await ask()]
        among = await asyncio.gather(ask(), *(ask(seed=100 + other) for other in range(15)))
        others = [await ask(seed=seed) for seed in range(43, 53)]
    assert {*idle, among[0]} == {idle[0]}
    assert len({*others, idle[0]}) >= 10


@pytest.mark.parametrize("verification", LAW_ONLY)
@pytest.mark.parametrize("k", [1, 2, 8])
async def test_at_temperature_zero_the_text_is_that_of_off_in_every_verification(
    k: int, verification: VerificationChoice
) -> None:
    speculation = replace(always(k), verification=verification)
    async with running_gateway(chain_logits, lame_chain_logits, speculation=speculation) as running:
        answer = await told(running, prompt="b", max_tokens=16)
        assert answer == await told(running, prompt="b", max_tokens=16, speculation={"off": True})
    assert answer.text == CHAIN


# C11 (vLLM PR 11898, TensorRT-LLM #19487): each of n choices has its own chance and its own end, at both endpoints.
@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})],
    ids=["completions", "chat"],
)
@pytest.mark.parametrize("seed", [7, None], ids=["seeded", "unseeded"])
async def test_choices_differ_end_for_themselves_and_share_the_prompt(
    path: str, field: dict[str, Any], seed: int | None
) -> None:
    asked = {**field, "n": 3, "seed": seed, "temperature": 1.5, "max_tokens": 40}
    flat, ends_at = constant([0.0] * 7), -0.5 if seed is not None else -50.0  # by chance, unseeded answers could agree
    async with running_gateway(constant([0.0] * 6 + [ends_at]), flat, speculation=always(3), end_tokens=[6]) as running:
        plain = await running.plain(path, **asked)
        again = await running.plain(path, **asked)
        events = [event async for event in running.stream(path, **asked, stream_options={"include_usage": True})]
    ends = {
        choice["index"]: choice["finish_reason"]
        for event in events
        for choice in event["choices"]
        if choice["finish_reason"]
    }
    assert sorted(ends) == [choice["index"] for choice in plain["choices"]] == [0, 1, 2]
    assert set(ends.values()) <= {"stop", "length"}
    assert (again["choices"] == plain["choices"]) is (seed is not None)
    assert plain["usage"]["prompt_tokens"] == events[-1]["usage"]["prompt_tokens"] == 1
    texts = [_text(choice) for choice in plain["choices"]]
    ended = sum(choice["finish_reason"] == "stop" for choice in plain["choices"])
    assert plain["usage"]["completion_tokens"] == sum(map(len, texts)) + ended
    assert len(set(texts)) == 3
    if seed is not None:
        assert len({len(text) for text in texts}) > 1
        assert events[-1]["usage"] == plain["usage"]


def _text(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])
