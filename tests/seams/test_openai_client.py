"""The official client against a real server: plain and streamed answers, the cases on answers and streams."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from tests.seams.gateway_peers import Running, always, running_gateway

from tandem_runtime.domain.policy import SpeculationMode, SpeculationPolicy
from tandem_runtime.engines.scripted import chain_logits, lame_chain_logits
from tandem_runtime.testing import constant, reciting

OFF = SpeculationPolicy(mode=SpeculationMode.OFF)
CHAIN_16 = "fdbcdacedcfdbcda"  # 5 3 1 2 3 0 2 4 3 2 5 3 1 2 3 0 from the prompt [1]
FLAT = constant([0.0] * 7)
FLAT_WITH_END = constant([0.0] * 6 + [-0.5])


@asynccontextmanager
async def client_of(running: Running) -> AsyncIterator[Any]:
    """Untyped, since the tests hand over fields by dictionary and read our own beside the client's."""
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("speculation", [OFF, always(1), always(4), SpeculationPolicy()], ids=["off", "1", "4", "auto"])
async def test_a_chat_is_the_same_streamed_and_plain_and_for_every_k(speculation: SpeculationPolicy) -> None:
    async with (
        running_gateway(chain_logits, lame_chain_logits, speculation=speculation) as running,
        client_of(running) as client,
    ):
        asked = {"model": "chat", "messages": [{"role": "user", "content": "b"}], "max_tokens": 16, "temperature": 0}
        plain = await client.chat.completions.create(**asked)
        pieces = [piece async for piece in await client.chat.completions.create(**asked, stream=True)]
    assert plain.choices[0].message.content == CHAIN_16
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 1,
        "completion_tokens": 16,
        "total_tokens": 17,
    }
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == CHAIN_16
    assert [piece.choices[0].delta.role for piece in pieces] == ["assistant"] + [None] * (len(pieces) - 1)
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len({piece.id for piece in pieces}) == 1


async def test_a_completion_streams_what_it_answers_plain() -> None:
    async with (
        running_gateway(chain_logits, chain_logits, speculation=always(4)) as running,
        client_of(running) as client,
    ):
        asked = {"model": "chat", "prompt": [1], "max_tokens": 16, "temperature": 0}
        plain = await client.completions.create(**asked)
        pieces = [piece async for piece in await client.completions.create(**asked, stream=True)]
    assert plain.choices[0].text == "".join(piece.choices[0].text for piece in pieces) == CHAIN_16
    assert plain.speculation == {
        **plain.speculation,
        "revision": "local",
        "verification": "Coupled",
        "rejections": 0,
    }
    assert pieces[-1].speculation["proposed"] == pieces[-1].speculation["accepted"] > 0


async def test_prompts_and_choices_are_numbered_prompt_by_prompt() -> None:
    async with running_gateway(chain_logits) as running, client_of(running) as client:
        reply = await client.completions.create(model="chat", prompt=["b", "c"], n=2, max_tokens=3, temperature=0)
    assert [(choice.index, choice.text) for choice in reply.choices] == [(0, "fdb"), (1, "fdb"), (2, "ggg"), (3, "ggg")]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 12)


# C09 (llama.cpp #27972): logprobs are the target's and equal those of off.
@pytest.mark.parametrize("speculation", [OFF, always(4)], ids=["off", "4"])
async def test_logprobs_are_the_targets_and_equal_those_of_off(speculation: SpeculationPolicy) -> None:
    p = [math.log(share) for share in (0.7, 0.2, 0.1)]
    draft = constant([0.0, -50.0, -50.0])
    async with (
        running_gateway(constant(p), draft, speculation=speculation, table=[b"a", b"b", b"c"]) as running,
        client_of(running) as client,
    ):
        asked = {
            "model": "chat",
            "messages": [{"role": "user", "content": "a"}],
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 3,
            "max_tokens": 6,
        }
        plain = await client.chat.completions.create(**asked)
        pieces = [piece async for piece in await client.chat.completions.create(**asked, stream=True)]
    content = plain.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["a"] * 6
    assert [entry.bytes for entry in content] == [[97]] * 6
    for entry in content:
        assert [round(one.logprob, 4) for one in entry.top_logprobs] == [-0.3567, -1.6094, -2.3026]
        assert entry.logprob == entry.top_logprobs[0].logprob
    reported = [piece.choices[0].logprobs for piece in pieces]
    streamed = [entry for logprobs in reported if logprobs is not None for entry in logprobs.content]
    assert streamed == content


async def test_a_completions_logprobs_come_as_four_lists_of_one_length() -> None:
    async with running_gateway(reciting([0, 1, 2], width=7)) as running:
        reply = await running.plain(prompt="a", max_tokens=3, temperature=0, logprobs=1)
    logprobs = reply["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["a"], ["b"], ["c"]]
    assert [round(value, 5) for value in logprobs["token_logprobs"]] == [0.0, 0.0, 0.0]


# C10 (vLLM #6038): a seeded request repeats whatever the server is doing.
async def test_a_seeded_request_repeats_and_other_seeds_differ() -> None:
    async with running_gateway(FLAT, FLAT, speculation=always(2)) as running:

        async def ask(**fields: Any) -> str:
            flat: dict[str, Any] = {"prompt": "a", "temperature": 2.0, "max_tokens": 32, "seed": 42}
            return str((await running.plain(**(flat | fields)))["choices"][0]["text"])

        first = await ask()
        among = await asyncio.gather(ask(), *(ask(seed=100 + other) for other in range(15)))
        running.put_policy(speculation=always(8))
        later = await ask()
        off = await ask(speculation={"off": True})
        others = [await ask(seed=seed) for seed in range(43, 53)]
    assert [among[0], later, off] == [first] * 3
    assert len({*others, first}) >= 10


async def test_a_reply_without_a_seed_tells_the_one_that_repeats_it() -> None:
    async with running_gateway(FLAT, FLAT) as running:
        first = await running.plain(prompt="a", max_tokens=32)
        again = await running.plain(prompt="a", max_tokens=32, seed=first["speculation"]["seed"])
        other = await running.plain(prompt="a", max_tokens=32)
    assert again["choices"] == first["choices"]
    assert other["choices"] != first["choices"]
    assert again["speculation"]["seed"] == first["speculation"]["seed"]


# C11 (vLLM PR 11898): each of n choices has its own chance and its own end.
async def test_each_of_n_choices_has_its_own_chance_and_its_own_end() -> None:
    asked: dict[str, Any] = {"prompt": "a", "n": 3, "seed": 7, "temperature": 1.5, "max_tokens": 40}
    async with (
        running_gateway(FLAT_WITH_END, FLAT, speculation=always(3), end_tokens=[6]) as running,
        client_of(running) as client,
    ):
        streams = []
        for _ in range(2):
            stream = await client.completions.create(
                model="chat", **asked, stream=True, stream_options={"include_usage": True}
            )
            streams.append([piece async for piece in stream])
        plain = await running.plain(**asked)
        free = await running.plain(**(asked | {"seed": None}))
    texts = [_texts(pieces) for pieces in streams]
    assert texts[0] == texts[1] == [choice["text"] for choice in plain["choices"]]
    assert len(set(texts[0])) == 3
    assert [choice["text"] for choice in free["choices"]] != texts[0]
    ends = [choice for piece in streams[0] for choice in piece.choices if choice.finish_reason]
    assert sorted(choice.index for choice in ends) == [0, 1, 2]
    assert {choice.index: choice.finish_reason for choice in ends} == {
        choice["index"]: choice["finish_reason"] for choice in plain["choices"]
    }
    assert streams[0][-1].usage.model_dump(exclude_none=True) == plain["usage"]
    assert plain["usage"]["prompt_tokens"] == 1
    assert plain["usage"]["completion_tokens"] == sum(
        len(choice["text"]) + (choice["finish_reason"] == "stop") for choice in plain["choices"]
    )


def _texts(pieces: list[Any]) -> list[str]:
    texts = ["", "", ""]
    for piece in pieces:
        for choice in piece.choices:
            texts[choice.index] += choice.text
    return texts


# C12 (ferrox #124): a character split over tokens arrives whole.
@pytest.mark.parametrize("k", [1, 4], ids=["in two rounds", "in one run"])
async def test_a_character_split_over_tokens_arrives_whole(k: int) -> None:
    table = [b"x", b"\xf0\x9f", b"\x98\x80", b"\xff", b"."]
    script = reciting([1, 2, 3, 0, 4], width=5)
    async with (
        running_gateway(script, script, speculation=always(k), table=table) as running,
        client_of(running) as client,
    ):
        asked = {"model": "chat", "prompt": "x", "temperature": 0}
        stream = await client.completions.create(**asked, max_tokens=5, stream=True)
        pieces = [piece.choices[0].text async for piece in stream]
        cut = await client.completions.create(**asked, max_tokens=1)
        cut_stream = await client.completions.create(**asked, max_tokens=1, stream=True)
        cut_pieces = [piece.choices[0].text async for piece in cut_stream]
    assert "".join(pieces) == "\U0001f600\ufffdx."
    assert any("\U0001f600" in piece for piece in pieces)
    assert "".join(cut_pieces) == cut.choices[0].text


# C13 (SwiftLM #126): text that may become a stop is not sent until it cannot.
@pytest.mark.parametrize(
    ("third", "text", "reason"),
    [(b" fox jumps", "The quick br", "stop"), (b"ish", "The quick brownish", "length")],
    ids=["a stop", "a false alarm"],
)
async def test_text_that_may_become_a_stop_is_not_sent_until_it_cannot(third: bytes, text: str, reason: str) -> None:
    table = [b"?", b"The quick br", b"own", third]
    script = reciting([1, 2, 3], width=4)
    async with (
        running_gateway(script, script, speculation=always(2), table=table) as running,
        client_of(running) as client,
    ):
        asked = {"model": "chat", "max_tokens": 3, "temperature": 0, "stop": ["own fox"], "stream": True}
        completion = [piece async for piece in await client.completions.create(**asked, prompt="?")]
        messages = [{"role": "user", "content": "?"}]
        chat = [piece async for piece in await client.chat.completions.create(**asked, messages=messages)]
    assert "".join(piece.choices[0].text for piece in completion) == text
    assert completion[-1].choices[0].finish_reason == reason
    assert "".join(piece.choices[0].delta.content or "" for piece in chat) == text
    assert chat[-1].choices[0].finish_reason == reason


# C14 (llama.cpp #15443): usage comes in a piece of its own, when asked for.
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"stop": ["c"]}], ids=["plain", "two choices", "a stop in a run"])
async def test_usage_comes_in_a_piece_of_its_own_when_asked_for(fields: dict[str, object]) -> None:
    async with (
        running_gateway(chain_logits, chain_logits, speculation=always(4)) as running,
        client_of(running) as client,
    ):
        asked = {"model": "chat", "prompt": "b", "max_tokens": 7, "temperature": 0, **fields}
        plain = await client.completions.create(**asked)
        with_usage = [
            piece
            async for piece in await client.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        ]
        without = [piece async for piece in await client.completions.create(**asked, stream=True)]
    assert [piece.choices for piece in with_usage if piece.usage is not None] == [[]]
    assert with_usage[-1].usage == plain.usage
    assert all(piece.usage is None and piece.choices for piece in without)


# C29 (SGLang PR 11572): the bonus token is not an accepted token.
async def test_the_bonus_token_is_not_an_accepted_token() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        reply = await running.plain(prompt="b", max_tokens=50, temperature=0)
        metrics = running.gateway.books.metrics.render().decode()
    counts = {name: reply["speculation"][name] for name in ("rounds", "proposed", "accepted", "rejections")}
    assert counts == {"rounds": 10, "proposed": 40, "accepted": 40, "rejections": 0}
    labels = '{arm="on",drafter="Model",revision="local"}'
    assert f"tandem_spec_decode_num_draft_tokens_total{labels} 40.0" in metrics
    assert f"tandem_spec_decode_num_accepted_tokens_total{labels} 40.0" in metrics
    assert f"tandem_spec_decode_num_drafts_total{labels} 10.0" in metrics


async def test_the_synchronous_client_of_a_thread_works_too() -> None:
    async with running_gateway(chain_logits) as running:

        def ask() -> str:
            with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
                reply = client.completions.create(model="chat", prompt="b", max_tokens=3, temperature=0)
                return reply.choices[0].text

        assert await asyncio.to_thread(ask) == "fdb"


@pytest.mark.parametrize("speculation", [OFF, always(4)], ids=["off", "4"])
async def test_the_best_of_several_answers_are_those_of_the_greatest_logprobs(speculation: SpeculationPolicy) -> None:
    warm = constant([0.0, 1.0, 2.0, 0.5, 0.0, 0.0, 0.0])
    asked: dict[str, Any] = {"prompt": ["a", "b"], "max_tokens": 8, "seed": 5}
    async with running_gateway(warm, warm, speculation=speculation) as running:
        all_of_them = await running.plain(**asked, n=4, logprobs=0)
        best = await running.plain(**asked, n=2, best_of=4)
    ranked = []
    for start in (0, 4):
        group = all_of_them["choices"][start : start + 4]
        group.sort(key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]) / 8)
        ranked += [choice["text"] for choice in group[:2]]
    assert [(choice["index"], choice["text"]) for choice in best["choices"]] == list(enumerate(ranked))
    assert all(choice["logprobs"] is None for choice in best["choices"])
    assert best["usage"] == all_of_them["usage"]


async def test_the_best_of_several_is_not_streamed() -> None:
    async with running_gateway(chain_logits) as running, client_of(running) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="chat", prompt="b", best_of=2, stream=True)
        assert refused.value.param == "best_of"
        pieces = [
            piece
            async for piece in await client.completions.create(model="chat", prompt="b", n=2, best_of=2, stream=True)
        ]
    assert {piece.choices[0].index for piece in pieces} == {0, 1}


async def test_an_echo_stands_before_the_text_streamed_and_plain() -> None:
    async with running_gateway(chain_logits) as running, client_of(running) as client:
        asked = {"model": "chat", "max_tokens": 3, "temperature": 0, "echo": True}
        texts = await client.completions.create(**asked, prompt=["b", "cab"], n=2)
        ids = await client.completions.create(**asked, prompt=[2, 0, 1])
        pieces = [piece async for piece in await client.completions.create(**asked, prompt="b", stream=True)]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(**asked, prompt=[1, 99])
    assert [choice.text for choice in texts.choices] == ["bfdb"] * 2 + [ids.choices[0].text] * 2
    assert ids.choices[0].text.startswith("cab")
    assert pieces[0].choices[0].text == "b"
    assert "".join(piece.choices[0].text for piece in pieces) == "bfdb"
    assert texts.usage.completion_tokens == 12
    assert refused.value.param == "prompt"


async def test_a_model_is_found_by_its_name() -> None:
    async with running_gateway(chain_logits) as running, client_of(running) as client:
        assert (await client.models.retrieve("chat")).id == "chat"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
