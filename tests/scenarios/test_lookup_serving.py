"""`serve --drafter` in one process over the trained pair's target: the same texts with the drafter on and off."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem_runtime import main
from tandem_runtime.domain.tokens import Drafter
from tandem_runtime.native_lessons import beginning
from tandem_runtime.serve import serve_pair
from tandem_runtime.settings import read_settings

PAIRS = Path(__file__).parents[2] / "examples" / "pairs"
TARGET, DRAFT = PAIRS / "target", PAIRS / "draft-good"
SAID = "The statement guarantees that if the statement returns, the statement returns the value. "


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of the API, and the address of the admin port, while a pair of these options is served."""
    command = ["serve", "--target", str(TARGET), "--port", "0", "--admin-port", "0", "--grace-seconds", "1"]
    options = main._pair_options(main._parser().parse_args([*command, "--name", "pair", *arguments]), read_settings({}))
    ending, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve_pair(options, clock=main.SystemClock(), ending=ending, started=started))
        ports = await started
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.api}", timeout=60) as http:
            yield http, f"http://127.0.0.1:{ports.admin}"
        ending.set()


async def completed(http: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    body = {"model": "pair", "prompt": SAID * 3, "max_tokens": 48, **asked}
    reply = await http.post("/v1/completions", json=body)
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
async def test_texts_are_the_same_with_the_drafter_on_and_off(drafter: str) -> None:
    proposed = 0
    async with serving("--drafter", drafter, "--mode", "Always") as (http, _):
        for asked in (
            {"temperature": 0},
            {"temperature": 0.8, "seed": 5},
            {"temperature": 1.3, "seed": 6, "top_p": 0.9},
            {"temperature": 0, "presence_penalty": 0.5, "min_tokens": 20},
        ):
            on = await completed(http, **asked)
            off = await completed(http, **asked, speculation={"off": True})
            assert on["choices"] == off["choices"]
            assert off["speculation"]["proposed"] == 0
            proposed += on["speculation"]["proposed"]
    assert proposed > 0


async def test_a_model_and_a_lookup_by_turns_change_no_text() -> None:
    auto = ("--draft", str(DRAFT), "--drafter", "auto", "--mode", "Always", "--min-draft-tokens", "3")
    async with serving(*auto) as (http, admin):
        for asked in (
            {"temperature": 0},
            {"temperature": 0.8, "seed": 5},
            {"temperature": 1.3, "seed": 6, "top_p": 0.9, "prompt": "In the context of"},
        ):
            on = await completed(http, **asked)
            off = await completed(http, **asked, speculation={"off": True})
            assert on["choices"] == off["choices"]
        (revision,) = (await http.get("/v1/speculation")).json()["revisions"]
        metrics = (await http.get(f"{admin}/metrics")).text
    assert (revision["drafters"], revision["drafts"]) == (["Model", "Suffix"], 1)
    for drafter in revision["drafters"]:
        labels = f'{{arm="on",drafter="{drafter}",revision="local"}}'
        assert re.search(rf"^tandem_spec_decode_num_accepted_tokens_total{labels} [1-9]", metrics, re.MULTILINE)


@pytest.mark.parametrize("verification", ["Rejection", "Block"])
async def test_greedy_texts_are_the_same_by_every_rule(verification: str) -> None:
    async with serving("--drafter", "suffix", "--mode", "Always", "--verification", verification) as (http, _):
        on = await completed(http, temperature=0)
        off = await completed(http, temperature=0, speculation={"off": True})
    assert on["choices"] == off["choices"]
    assert on["speculation"]["verification"] == verification
    assert on["speculation"]["accepted"] > 0


async def test_what_was_said_before_is_said_again_in_few_rounds() -> None:
    asked = {"temperature": 1.0, "seed": 7, "prompt": "In the context of", "max_tokens": 64, "ignore_eos": True}
    async with serving("--drafter", "suffix", "--mode", "Always") as (http, _):
        first, again = [await completed(http, **asked) for _ in range(2)]
    assert again["choices"] == first["choices"]
    assert again["speculation"]["rounds"] < first["speculation"]["rounds"] / 2


@pytest.mark.parametrize(("drafter", "name"), [("ngram", Drafter.NGRAM), ("suffix", Drafter.SUFFIX)])
async def test_status_and_metrics_name_the_drafter(drafter: str, name: Drafter) -> None:
    async with serving("--drafter", drafter, "--mode", "Always") as (http, admin):
        await completed(http, temperature=0)
        status = (await http.get("/v1/speculation")).json()
        metrics = (await http.get(f"{admin}/metrics")).text
    (revision,) = status["revisions"]
    assert (revision["drafters"], revision["drafts"], revision["speculating"]) == ([name], 0, True)
    assert status["sums"] == beginning().about
    assert f'tandem_spec_decode_num_drafts_total{{arm="on",drafter="{name}",revision="local"}}' in metrics
