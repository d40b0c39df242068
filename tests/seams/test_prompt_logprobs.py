"""`echo` with `logprobs` through the official client: the target scores prompts, with an answer behind them or none."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from tests.seams.gateway_peers import LETTERS, Running, always, running_gateway, until
from tests.seams.wire_peers import CountingTarget, opening, target_link

from tandem_runtime.domain.errors import BadRequest, TargetLost
from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    PromptRead,
    ReadPrompt,
    RunRounds,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.engines.scripted import ScriptedModel, lame_chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.local import LOCAL_TARGET
from tandem_runtime.ports import TargetEngine
from tandem_runtime.reading import read_prompt
from tandem_runtime.replicas import Replica
from tandem_runtime.testing import constant


def rough(prefix: tuple[TokenId, ...]) -> list[float]:
    """Logits that depend on the whole prefix, no two of which are the same."""
    weight = sum((place % 7 + 1) * (token + 2) for place, token in enumerate(prefix))
    return [((weight * (token + 3)) % 23) / 4 + token / 100 for token in range(7)]


def logprobs_after(prefix: Sequence[TokenId]) -> list[float]:
    logits = rough(tuple(prefix))
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def expected(ids: Sequence[TokenId]) -> list[float]:
    """Of each token but the first."""
    return [logprobs_after(ids[:place])[ids[place]] for place in range(1, len(ids))]


@asynccontextmanager
async def client_of(running: Running) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


ASKED: dict[str, Any] = {"model": "chat", "echo": True, "logprobs": 2, "temperature": 0}
PROMPT = "badfacegdeadbeefabcdefg" * 5
IDS = [LETTERS.index(letter.encode()) for letter in PROMPT]


def check(logprobs: Any, text: str) -> None:
    """Four lists over all tokens of the text, of which the first has none before it."""
    ids = [LETTERS.index(letter.encode()) for letter in text]
    assert logprobs.tokens == list(text)
    assert logprobs.text_offset == list(range(len(text)))
    assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(expected(ids), abs=1e-5)
    for place, top in enumerate(logprobs.top_logprobs[1:], start=1):
        known = logprobs_after(ids[:place])
        likeliest = sorted(range(7), key=lambda token: -known[token])[:2]
        assert list(top) == [LETTERS[token].decode() for token in likeliest]
        assert list(top.values()) == pytest.approx([known[token] for token in likeliest], abs=1e-5)


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
@pytest.mark.parametrize("k", [None, 4], ids=["off", "4"])
async def test_a_prompt_and_its_answer_have_the_targets_logprobs_streamed_and_plain(
    k: int | None, max_tokens: int
) -> None:
    more = {"speculation": {"off": True}} if k is None else {}
    asked = {**ASKED, "prompt": PROMPT, "max_tokens": max_tokens, "extra_body": more}
    async with (
        running_gateway(rough, lame_chain_logits, speculation=always(4)) as running,
        client_of(running) as client,
    ):
        plain = await client.completions.create(**asked)
        usual = {"include_usage": True}
        pieces = [piece async for piece in await client.completions.create(**asked, stream=True, stream_options=usual)]
    (choice,) = plain.choices
    assert choice.finish_reason == "length"
    assert (choice.text[: len(PROMPT)], len(choice.text)) == (PROMPT, len(PROMPT) + max_tokens)
    check(choice.logprobs, choice.text)
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (len(PROMPT), max_tokens)
    told = [piece.choices[0] for piece in pieces if piece.choices]
    assert told[0].text == PROMPT
    assert "".join(each.text for each in told) == choice.text
    assert told[-1].finish_reason == "length"
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(each.logprobs, name) for each in told if each.logprobs is not None]
        assert [one for part in parts for one in part] == getattr(choice.logprobs, name)
    assert pieces[-1].usage == plain.usage


async def test_an_evaluation_harness_scores_continuations() -> None:
    """As lm-eval-harness does it: ids of context and continuation together, one token asked for and dropped."""
    pairs = [([1, 0, 3], [5, 0, 2]), ([6], [3, 4, 0, 3, 1]), ([2, 2, 2, 2], [0])]
    async with running_gateway(rough, rough, speculation=always(3)) as running, client_of(running) as client:
        reply = await client.completions.create(
            model="chat",
            prompt=[context + continuation for context, continuation in pairs],
            temperature=0,
            max_tokens=1,
            logprobs=1,
            seed=1234,
            echo=True,
        )
    for choice, (context, continuation) in zip(reply.choices, pairs, strict=True):
        scores = choice.logprobs.token_logprobs[len(context) : -1]
        tops = choice.logprobs.top_logprobs[len(context) : -1]
        ids = context + continuation
        assert scores == pytest.approx(expected(ids)[len(context) - 1 :], abs=1e-5)
        is_greedy = all(score == max(top.values()) for score, top in zip(scores, tops, strict=True))
        likeliest = [
            max(range(7), key=logprobs_after(ids[:place]).__getitem__) for place in range(len(context), len(ids))
        ]
        assert is_greedy == (likeliest == continuation)


async def test_choices_of_one_prompt_share_its_reading() -> None:
    """And what it computed: the answers behind it read nothing anew but the prompt's last block."""
    target = ScriptedModel(rough)
    async with running_gateway(target) as running, client_of(running) as client:
        reply = await client.completions.create(**ASKED, prompt=[IDS, IDS[:3]], n=3, max_tokens=2)
        (replica,) = running.gateway.fleet.targets
        assert isinstance(replica.engine, BatchedTarget)
        computed = sum(replica.engine.memory.computed.values())
        await until(lambda: target.blocks.used == 0)
    assert [choice.index for choice in reply.choices] == list(range(6))
    for choice in reply.choices:
        check(choice.logprobs, choice.text)
    assert computed < 1.5 * len(IDS)


@pytest.mark.parametrize(
    "more", [{"n": 16}, {"n": 16, "stream": True}, {"prompt": [[1] * 4097] * 16}], ids=["n", "streamed", "prompts"]
)
async def test_a_reply_that_would_fill_the_memory_is_refused_before_anything_is_read(more: dict[str, Any]) -> None:
    target = ScriptedModel(rough, max_length=8000)
    async with running_gateway(target) as running:
        body = {**ASKED, "prompt": [1] * 4097, "max_tokens": 0, **more}
        reply = await running.http.post("/v1/completions", json=body)
        (replica,) = running.gateway.fleet.targets
        assert isinstance(replica.engine, BatchedTarget)
        assert sum(replica.engine.memory.computed.values()) == 0
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "echo")
    assert "65552" in reply.json()["error"]["message"]


async def test_the_echo_alone_needs_no_logprobs() -> None:
    async with running_gateway(rough) as running:
        plain = await running.plain(prompt=["abc", "d"], echo=True, max_tokens=0)
        pieces = [event async for event in running.stream(prompt="abc", echo=True, max_tokens=0)]
        stratum = running.stratum()
    assert [(choice["text"], choice["logprobs"], choice["finish_reason"]) for choice in plain["choices"]] == [
        ("abc", None, "length"),
        ("d", None, "length"),
    ]
    assert plain["usage"] == {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4}
    assert [(event["choices"][0]["text"], event["choices"][0]["finish_reason"]) for event in pieces] == [
        ("abc", None),
        ("", "length"),
    ]
    assert (stratum["rounds"], stratum["requests"], stratum["errors"]) == (0, 2, 0)


async def test_a_prompt_may_fill_the_context_where_no_answer_is_asked_for() -> None:
    async with running_gateway(rough, max_length=64) as running:
        reply = await running.plain(prompt=IDS[:64], echo=True, logprobs=0, max_tokens=0)
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == 64


async def test_a_token_that_cannot_come_has_a_number_that_json_can_carry() -> None:
    async with running_gateway(constant([0.0, -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0])) as running:
        reply = await running.http.post(
            "/v1/completions", json={**ASKED, "prompt": "abab", "max_tokens": 1, "logprobs": 5}
        )
    told = json.loads(reply.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told["choices"][0]["logprobs"]["token_logprobs"][1:4] == pytest.approx([-9999.0, -1.7917595, -9999.0])


async def test_logits_without_a_law_fail_the_request_before_anything_is_told() -> None:
    async with running_gateway(lambda prefix: rough(prefix) if len(prefix) < 20 else [math.nan] * 7) as running:
        for stream in (False, True):
            body = {**ASKED, "prompt": PROMPT, "max_tokens": 0, "stream": stream}
            reply = await running.http.post("/v1/completions", json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (500, "not_a_number")


class _Reading:
    """A target whose readings may be lost, or none of its business."""

    def __init__(self, engine: BatchedTarget) -> None:
        self._engine = engine
        self.losses = 0
        self.reads = 0

    async def capabilities(self) -> Capabilities:
        return await self._engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self._engine.open(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        return await self._engine.verify(request)

    def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        return self._engine.run(request)

    async def read(self, request: ReadPrompt) -> PromptRead:
        self.reads += 1
        if self.losses:
            self.losses -= 1
            raise TargetLost("gone")
        return await self._engine.read(request)

    async def close(self, session: SessionId) -> None:
        await self._engine.close(session)


def wrapped(running: Running) -> tuple[Replica[TargetEngine], _Reading]:
    (replica,) = running.gateway.fleet.targets
    assert isinstance(replica.engine, BatchedTarget)
    replica.engine = reading = _Reading(replica.engine)
    return replica, reading


async def test_a_target_that_is_lost_while_it_reads_is_replaced() -> None:
    async with running_gateway(rough) as running, client_of(running) as client:
        first, one = wrapped(running)
        one.losses = 1
        other = _Reading(one._engine)
        second = Replica[TargetEngine](f"{first.uid}-2", LOCAL_TARGET, other, first.capabilities)
        with running.gateway.fleet.targets.holding(second):
            reply = await client.completions.create(**ASKED, prompt=PROMPT, max_tokens=3)
        check(reply.choices[0].logprobs, reply.choices[0].text)
        alone = await client.completions.create(**ASKED, prompt=PROMPT, max_tokens=3)
    assert alone.choices[0].logprobs == reply.choices[0].logprobs
    assert other.reads == 1


async def test_a_target_that_was_lost_once_is_forgiven_by_reading() -> None:
    """Where nothing else is asked of it too: it would have one session at a time for good."""
    body = {**ASKED, "prompt": "abc", "max_tokens": 0}
    async with running_gateway(rough) as running:
        target, reading = wrapped(running)
        reading.losses = 1
        (await running.http.post("/v1/completions", json=body)).raise_for_status()
        record = target.patience.record
    assert (record.failures, record.good) == (1, 1)


class _Illiterate(_Reading):
    read = None  # type: ignore[assignment]  # as a target of another make


async def test_a_target_that_cannot_read_prompts_says_so() -> None:
    async with running_gateway(rough) as running:
        (replica,) = running.gateway.fleet.targets
        assert isinstance(replica.engine, BatchedTarget)
        engine = _Illiterate(replica.engine)
        replica.engine = engine
        reply = await running.http.post("/v1/completions", json={**ASKED, "prompt": "ab", "max_tokens": 1})
        answer = await running.plain(prompt="ab", max_tokens=2)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
    assert answer["choices"][0]["text"]


async def test_so_does_one_behind_a_wire_that_does_not_know_the_question() -> None:
    """As a target of an older release."""
    async with target_link(CountingTarget()) as (target, _):
        with pytest.raises(BadRequest, match="tells no logprobs of prompts") as refused:
            await read_prompt(target, opening(), alternatives=0)
    assert refused.value.parameter == "logprobs"


async def test_callers_that_leave_while_their_prompts_are_read_hold_nothing() -> None:
    target = ScriptedModel(rough, max_length=4000, max_sessions=4)
    async with running_gateway(target) as running:
        for _ in range(3):
            async with httpx.AsyncClient(base_url=running.url) as leaving:
                body = {**ASKED, "prompt": IDS * 30, "max_tokens": 5}
                asking = [asyncio.create_task(leaving.post("/v1/completions", json=body)) for _ in range(4)]
                await until(lambda: running.gateway.sessions == 4)
                await until(lambda: target.blocks.used > 0)
                for each in asking:
                    each.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
            await until(lambda: running.gateway.sessions == 0)
            await until(lambda: target.blocks.used == 0)
        assert await running.plain(prompt="abc", max_tokens=2)
