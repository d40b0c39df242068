"""Reports of other engines, with their tables, through a whole gateway: memory that comes back and holds what is the
request's own, adapters that stay on the target, callers that leave at any moment, acceptance over tokens."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.seams.gateway_peers import Running, always, running_gateway, until

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.policy import SpeculationPolicy, SpeculationState
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.ports import Logits, ReadAdapter, Row

OFF = SpeculationPolicy(state=SpeculationState.OFF)
END = 6


def wrong_chain_logits(prefix: tuple[TokenId, ...]) -> list[float]:
    """Never the target's choice."""
    row = chain_logits(prefix)
    return [*row[-1:], *row[:-1]]


def only(token: TokenId) -> list[float]:
    return [float(token == each) for each in range(7)]


async def ids_of(running: Running, prompt: Sequence[TokenId], count: int, **fields: Any) -> list[TokenId]:
    """What a greedy answer goes on with; texts are `a` for 0 to `g` for 6."""
    reply = await running.plain(prompt=list(prompt), max_tokens=count, temperature=0, **fields)
    return ["abcdefg".index(letter) for letter in reply["choices"][0]["text"]]


# C22 (sglang-jax #1147): every block comes back.
@pytest.mark.parametrize("guesses", [wrong_chain_logits, chain_logits], ids=["wrong", "perfect"])
async def test_every_block_comes_back_after_two_hundred_requests(guesses: Script) -> None:
    target, draft = ScriptedModel(chain_logits, max_length=256), ScriptedModel(guesses, max_length=256)

    def free() -> list[int]:
        return [model.blocks.count - model.blocks.used for model in (target, draft)]

    async with running_gateway(target, draft, speculation=always(4)) as running:
        before = free()
        for number in range(200):
            prompt = [(number + at) % 7 for at in range(10)]
            assert len(await ids_of(running, prompt, 30)) == 30
            await until(lambda: free() == before)
        assert running.stratum()["proposed"] >= 200 * 24


SHARED = [
    (4, 6, [2, 5, 3, 1, 2, 3, 0, 2]),
    (16, 1, [4, 5, 1, 4, 2, 1, 0, 4]),
    (17, 5, [6, 6, 6, 6, 6, 6, 6, 6]),
    (32, 6, [3, 5, 0, 1, 5, 2, 0, 5]),
]


# C23 (see the table): a reused prefix holds committed tokens only.
@pytest.mark.parametrize(("shared", "then", "answer"), SHARED)
async def test_a_prefix_that_is_known_holds_what_was_committed_and_not_what_was_proposed(
    shared: int, then: TokenId, answer: list[TokenId]
) -> None:
    def pair() -> tuple[ScriptedModel, ScriptedModel]:
        return ScriptedModel(chain_logits, max_length=256), ScriptedModel(lame_chain_logits, max_length=256)

    async with running_gateway(*pair(), speculation=always(5)) as running:
        whole = [1, *await ids_of(running, [1], 40)]
        assert whole[:17] == [1, 5, 3, 1, 2, 3, 0, 2, 4, 3, 2, 5, 3, 1, 2, 3, 0]
        assert whole[shared] == {4: 2, 16: 0, 17: 2, 32: 3}[shared]
        assert await ids_of(running, [*whole[:shared], then], 8) == answer
        assert await ids_of(running, whole[:shared], 8) == whole[shared : shared + 8]
    async with running_gateway(*pair(), speculation=always(5)) as running:
        assert await ids_of(running, [*whole[:shared], then], 8) == answer


async def test_a_prefix_of_any_prompt_warm_is_the_same_cold() -> None:
    prompts = [[0], [6, 2], [3] * 15, [5, 4] * 8, [2, 2, 1] * 11]
    for prompt in prompts:
        told: list[tuple[list[TokenId], list[list[TokenId]]]] = []
        for is_warm in (True, False):
            draft = ScriptedModel(lame_chain_logits, max_length=256)
            async with running_gateway(chain_logits, draft, speculation=always(5)) as running:
                whole = [*prompt, *await ids_of(running, prompt, 40)] if is_warm else told[0][0]
                cuts = [whole[:cut] for cut in (len(prompt) + 3, 16, 17, 32, 33)]
                cuts += [[*cut, (token + 1) % 7] for cut in cuts for token in (cut[-1],)]
                told.append((whole, [await ids_of(running, cut, 8) for cut in cuts]))
        assert told[0] == told[1]


# C24 (llama.cpp #27852): a request's draft starts from its own tokens alone.
async def test_a_draft_sees_none_of_the_tokens_of_the_request_before_it() -> None:
    seen: list[tuple[TokenId, ...]] = []

    def recording(prefix: tuple[TokenId, ...]) -> list[float]:
        seen.append(prefix)
        return lame_chain_logits(prefix)

    second = [2, 0, 1, 1] * 5
    proposals = []
    for earlier in ([4] * 200, None):
        target = ScriptedModel(chain_logits, max_length=256, max_sessions=1)
        draft = ScriptedModel(recording, max_length=256, max_sessions=1)
        async with running_gateway(target, draft, speculation=always(4)) as running:
            if earlier is not None:
                await ids_of(running, earlier, 20)
                await until(lambda draft=draft: draft.blocks.used == 0)  # type: ignore[misc]
            seen.clear()
            reply = await running.plain(prompt=second, max_tokens=40, temperature=0)
            assert seen
            assert all(list(prefix[: len(second)]) == second[: len(prefix)] for prefix in seen)
            proposals.append({name: reply["speculation"][name] for name in ("proposed", "accepted", "rejections")})
    assert proposals[0] == proposals[1]
    assert proposals[0]["accepted"] > 0


# C25 (ATOM PR 1562), its other moments: a client that leaves while its prompt is read, and while it is queued.
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("speculation", [always(4), OFF], ids=["on", "off"])
async def test_a_client_that_leaves_while_its_prompt_is_read_frees_both_engines(
    stream: bool, speculation: SpeculationPolicy
) -> None:
    target, draft = SlowReader(chain_logits), SlowReader(lame_chain_logits)
    async with running_gateway(target, draft, speculation=speculation) as running:
        asked = {"prompt": [number % 7 for number in range(15_000)], "max_tokens": 50, "stream": stream}
        await leave(running, asked, when=lambda: target.chunks > 2)
        await until(lambda: running.gateway.sessions == 0, seconds=1)
        await until(lambda: target.blocks.used == draft.blocks.used == 0, seconds=1)
        read = target.chunks
        await asyncio.sleep(0.2)
        assert target.chunks == read
        assert running.stratum()["rounds"] == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("limits", "sessions"), [(Limits(sessions=1), 64), (Limits(), 1)], ids=["for the gateway", "for a target"]
)
async def test_a_client_that_leaves_while_it_is_queued_leaves_nothing(
    stream: bool, limits: Limits, sessions: int
) -> None:
    target = ScriptedModel(chain_logits, max_length=200_000, max_sessions=sessions)
    async with running_gateway(target, limits=limits, max_length=200_000) as running:
        body = {"model": "chat", "prompt": "b", "max_tokens": 100_000, "stream": True}
        async with running.http.stream("POST", "/v1/completions", json=body) as holding:
            lines = holding.aiter_lines()  # kept: once it is gone the stream is closed
            await anext(lines)
            asked = {"prompt": "c", "max_tokens": 50, "stream": stream}
            await leave(running, asked, when=lambda: running.gateway.waiting == 1)
            await until(lambda: (running.gateway.waiting, running.gateway.sessions) == (0, 1), seconds=1)
        await until(lambda: running.gateway.sessions == target.blocks.used == 0, seconds=1)
        aborts = counted(running, 'code="499"')
        await running.plain(prompt="b", max_tokens=3)
        assert sum(aborts) == 2  # the one in line, and the one that held the place
        assert (counted(running, 'code="499"'), counted(running, 'code="200"')) == (aborts, [1.0])


class SlowReader(ScriptedModel):
    """Takes a while for each step; counts those that hold a prompt's tokens."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, max_length=16_000, max_sessions=4)
        self.chunks = 0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.chunks += any(len(row.tokens) > 16 for row in rows)
        time.sleep(0.02)
        return super().forward(rows)


def counted(running: Running, label: str) -> list[float]:
    """Requests of that label by revision and arm."""
    lines = running.gateway.books.metrics.render().decode().splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith("tandem_requests_total{") and label in line]


async def leave(running: Running, asked: dict[str, Any], *, when: Callable[[], bool]) -> None:
    """Ask, and hang up at that moment."""
    async with httpx.AsyncClient(base_url=running.url) as leaving:
        asking = asyncio.create_task(leaving.post("/v1/completions", json={"model": "chat", **asked}))
        await until(when)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


LAST = {2: 2, 3: 1099}
"""At which place of its answer a prompt's answer ends."""


def ends_in_time(prefix: tuple[TokenId, ...]) -> list[float]:
    return only(END if len(prefix) - 1 == LAST.get(prefix[0]) else 1)


def right_but_for(prefix: tuple[TokenId, ...]) -> list[float]:
    """Of the short answer the first token is right alone; of the long one all but the last of each 22, which make three
    rounds of 5 guesses that stand and one of 3."""
    place = len(prefix) - 1
    is_wrong = place in (1, 2) if prefix[0] == 2 else place % 22 == 21
    return only(4 if is_wrong else 1)


# C30 (slime PR 2240): acceptance is pooled over tokens, not averaged over requests.
async def test_acceptance_is_pooled_over_tokens() -> None:
    target, draft = ScriptedModel(ends_in_time, max_length=2000), ScriptedModel(right_but_for, max_length=2000)
    async with running_gateway(target, draft, speculation=always(5), end_tokens=(END,)) as running:
        told = [
            (await running.plain(prompt=[kind], max_tokens=1900, temperature=0))["speculation"]
            for kind in (2, 2, 2, 3, 2, 2, 2, 2)
        ]
        stratum, metrics = running.stratum(), running.gateway.books.metrics.render().decode()
    figures = [(one["accepted"], one["rejections"], one["proposed"], one["rounds"]) for one in told]
    assert set(figures) == {(1, 2, 10, 2), (900, 50, 1000, 200)}
    accepted, examined = sum(stratum["acceptance"]["accepted"]), sum(stratum["acceptance"]["examined"])
    assert (accepted, examined, stratum["proposed"]) == (907, 971, 1070)
    assert (round(accepted / examined, 3), round(accepted / stratum["proposed"], 3)) == (0.934, 0.848)
    for name, count in (("num_draft_tokens", 1070), ("num_accepted_tokens", 907)):
        assert any(
            line.startswith(f"tandem_spec_decode_{name}_total{{") and float(line.split()[-1]) == count
            for line in metrics.splitlines()
        )


class Adapted(ScriptedModel):
    """With an adapter that moves every logit on by one token."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, max_length=256)
        self.installed: set[AdapterDigest] = set()
        self.seen: set[AdapterDigest | None] = set()

    def read_adapter(self, folder: Path) -> ReadAdapter:
        digest = AdapterDigest(f"sha256:{folder.name}")
        return ReadAdapter(digest, 1, 1, lambda: self.installed.add(digest))

    def drop_adapter(self, digest: AdapterDigest) -> None:
        self.installed.discard(digest)

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.seen.update(row.adapter for row in rows)
        return [
            logits if row.adapter is None else np.roll(logits, 1, axis=-1)
            for row, logits in zip(rows, super().forward(rows), strict=True)
        ]


def ten_rounds(prefix: tuple[TokenId, ...]) -> list[float]:
    """Of one token, and the end after ten rounds of four guesses: all of which stand, or, with the adapter, none."""
    place, with_adapter = len(prefix) - 1, 2 in prefix[1:]
    if with_adapter:
        return only(END - 1 if place == 9 else 1)
    return only(END if place == 49 else 1)


# C21 (vLLM PR 11966): an adapter of the target stays on the target.
async def test_an_adapter_of_the_target_stays_on_the_target() -> None:
    target, draft = Adapted(ten_rounds), Adapted(lambda _: only(1))
    adapters = Adapters(target)
    adapters.put_in("legal", adapters.read("legal", Path("legal")))
    told: dict[str, set[str]] = {"chat": set(), "chat:legal": set()}
    async with running_gateway(target, draft, speculation=always(4), end_tokens=(END,), adapters=adapters) as running:

        async def ask(model: str) -> None:
            reply = await running.plain(model=model, prompt=[0], max_tokens=200, temperature=0)
            told[model].add(reply["choices"][0]["text"])

        for _ in range(20):
            await asyncio.gather(ask("chat"), ask("chat:legal"), ask("chat"))
        acceptance, proposed = running.stratum()["acceptance"], running.stratum()["proposed"]
        (revision,) = (await running.http.get("/v1/speculation")).json()["revisions"]
    believed = {segment["adapter"]: segment["survivals"][0] for segment in revision["segments"]}
    assert told == {"chat": {"b" * 49}, "chat:legal": {"c" * 9}}
    assert (draft.seen, target.seen) == ({None}, {None, AdapterDigest("sha256:legal")})
    accepted, examined = sum(acceptance["accepted"]), sum(acceptance["examined"])
    assert (accepted, examined, proposed) == (1600, 1800, 2400)
    assert believed[None] > 0.9
    assert believed["sha256:legal"] < 0.1
