"""A request's own prediction as a drafter: the answer never depends on it, and usage counts it where it was given."""

import asyncio
from typing import Any

import openai
import pytest
from tests.seams.gateway_peers import always, running_gateway

from tandem_runtime.domain.policy import SpeculationMode, SpeculationPolicy
from tandem_runtime.domain.tokens import Drafter
from tandem_runtime.engines.scripted import chain_logits, lame_chain_logits
from tandem_runtime.local import Lookup
from tandem_runtime.ports import StepModel
from tandem_runtime.testing import Script, constant

CHAIN_16 = "fdbcdacedcfdbcda"
"""What the chain says to "b"."""
WARM = constant([0.0, 0.4, 0.8, 1.2, 0.3, 0.1, 0.6])
OFF = SpeculationPolicy(mode=SpeculationMode.OFF)
DRAFTS: list[StepModel | Script | Lookup | None] = [None, lame_chain_logits, Lookup(Drafter.SUFFIX)]
PREDICTIONS = [CHAIN_16, "fdbaaacedcfdbcda", "gggg", "cedcfd", "f", ""]


def predicted(content: object) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


def details(usage: dict[str, Any]) -> tuple[int, int]:
    told = usage["completion_tokens_details"]
    return told["accepted_prediction_tokens"], told["rejected_prediction_tokens"]


@pytest.mark.parametrize("draft", DRAFTS, ids=["alone", "beside a model", "beside a lookup"])
@pytest.mark.parametrize("verification", ["Coupled", "Block", "Rejection"])
async def test_a_greedy_answer_is_the_same_whatever_is_predicted(
    draft: StepModel | Script | Lookup | None, verification: str
) -> None:
    for speculation in (always(4), SpeculationPolicy()):
        async with running_gateway(chain_logits, draft, speculation=speculation) as running:
            asked: dict[str, Any] = {"prompt": "b", "max_tokens": 16, "temperature": 0}
            asked["speculation"] = {"verification": verification}
            for content in PREDICTIONS:
                reply = await running.plain(**asked, **predicted(content))
                assert reply["choices"][0]["text"] == CHAIN_16


@pytest.mark.parametrize("draft", [None, WARM], ids=["alone", "beside a model"])
async def test_a_sampled_answer_is_the_same_whatever_is_predicted(draft: Script | None) -> None:
    asked: dict[str, Any] = {"prompt": "a", "max_tokens": 40, "temperature": 1.0, "seed": 11, "n": 2, "logprobs": 2}
    async with running_gateway(WARM, draft, speculation=OFF) as running:
        plain = await running.plain(**asked)
        running.put_policy(speculation=always(5))
        texts = [choice["text"] for choice in plain["choices"]]
        for content in [*texts, texts[0][:20] + "gggg" + texts[0][22:], "abcdefg" * 9]:
            assert (await running.plain(**asked, **predicted(content)))["choices"] == plain["choices"]


async def test_usage_counts_what_was_predicted_where_something_was() -> None:
    async with running_gateway(chain_logits, speculation=always(4)) as running:
        asked: dict[str, Any] = {"prompt": "b", "max_tokens": 16, "temperature": 0}
        right = await running.plain(**asked, **predicted(CHAIN_16))
        wrong = await running.plain(**asked, **predicted("ggggggg"))
        unasked = await running.plain(**asked)
    assert details(right["usage"]) == (right["speculation"]["accepted"], 0) != (0, 0)
    assert right["speculation"]["rounds"] < 16
    assert details(wrong["usage"]) == (0, wrong["speculation"]["proposed"]) != (0, 0)
    assert unasked["usage"] == {"prompt_tokens": 1, "completion_tokens": 16, "total_tokens": 17}


async def test_what_another_drafter_proposes_is_no_part_of_a_prediction() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        reply = await running.plain(prompt="b", max_tokens=16, temperature=0, **predicted(""))
    assert details(reply["usage"]) == (0, 0)
    assert reply["speculation"]["accepted"] > 0


async def test_a_prediction_proposes_nothing_where_speculation_is_off() -> None:
    async with running_gateway(chain_logits, speculation=always(4)) as running:
        asked: dict[str, Any] = {"prompt": "b", "max_tokens": 16, "temperature": 0, **predicted(CHAIN_16)}
        own = await running.plain(**asked, speculation={"off": True})
        running.put_policy(speculation=OFF)
        policy = await running.plain(**asked)
    assert details(own["usage"]) == details(policy["usage"]) == (0, 0)
    assert own["choices"] == policy["choices"]


async def test_a_request_with_a_prediction_proves_nothing_about_the_pair() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        await running.plain(prompt="b", max_tokens=16, temperature=0, **predicted(CHAIN_16))
        stratum = running.stratum()
    assert stratum["requests"] == 1
    assert stratum["proposed"] == 0


async def test_the_official_client_sends_a_prediction_and_reads_its_use_streamed_and_plain() -> None:
    async with (
        running_gateway(chain_logits, speculation=always(4)) as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        asked: Any = {
            "model": "chat",
            "messages": [{"role": "user", "content": "b"}],
            "max_tokens": 16,
            "temperature": 0,
            **predicted([{"type": "text", "text": CHAIN_16[:6]}, {"type": "text", "text": CHAIN_16[6:]}]),
        }
        plain = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        pieces = [piece async for piece in stream]

        def ask() -> Any:
            with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as other:
                return other.chat.completions.create(**asked)

        waited = await asyncio.to_thread(ask)
    told = plain.usage.completion_tokens_details
    assert (told.accepted_prediction_tokens, told.rejected_prediction_tokens) == (plain.speculation["accepted"], 0)
    assert plain.choices[0].message.content == waited.choices[0].message.content == CHAIN_16
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == CHAIN_16
    assert pieces[-1].usage.completion_tokens_details == told


async def test_a_prediction_is_tried_where_nobody_asks_for_a_k() -> None:
    async with running_gateway(chain_logits) as running:
        asked: dict[str, Any] = {"prompt": "b", "max_tokens": 120, "temperature": 0}
        plain = await running.plain(**asked)
        reply = await running.plain(**asked, **predicted(plain["choices"][0]["text"]))
        status = (await running.http.get("/v1/speculation")).json()
    assert reply["choices"] == plain["choices"]
    assert details(reply["usage"])[0] > 0
    assert {segment["drafter"] for segment in status["revisions"][0]["segments"]} == {"Prediction"}
    assert status["revisions"][0]["drafters"] == []
