"""C25's first stages, through HTTP: a caller that leaves while its request waits, or while its prompt is read."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import Running, running_gateway, until

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.ports import Logits, Row

CHUNKS = 12
PROMPT = "b" * (256 * CHUNKS)


class SlowReader(ScriptedModel):
    """Takes its time over each chunk of a prompt, and counts them."""

    chunks = 0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        if any(len(row.tokens) > 64 for row in rows):
            self.chunks += 1
            time.sleep(0.1)
        return super().forward(rows)


def slowly(prefix: tuple[TokenId, ...]) -> list[float]:
    time.sleep(0.002)
    return chain_logits(prefix)


@asynccontextmanager
async def asking(running: Running, **fields: Any) -> AsyncIterator[None]:
    """A caller that leaves at the end of the block."""
    body = {"model": "chat", "temperature": 0, "max_tokens": 2000, **fields}
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as leaving:
        request = asyncio.create_task(leaving.post("/v1/completions", json=body))
        try:
            yield
            assert not request.done()
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_caller_that_leaves_while_its_prompt_is_read_frees_both_engines(stream: bool) -> None:
    target, draft = (SlowReader(chain_logits, max_length=6000) for _ in range(2))
    async with running_gateway(target, draft) as running:
        async with asking(running, prompt=PROMPT, stream=stream):
            await until(lambda: target.chunks >= 2)
        await until(lambda: running.is_empty, seconds=2)
        read = target.chunks
        await running.plain(prompt="b", max_tokens=4, temperature=0, speculation={"off": True})
        metrics = running.gateway.books.metrics.render().decode()
    assert (target.chunks, read < CHUNKS) == (read, True)
    assert 'code="499"' in metrics


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_caller_that_leaves_while_it_waits_has_had_no_seat_and_leaves_the_line(stream: bool) -> None:
    target = ScriptedModel(slowly, max_length=6000)
    async with running_gateway(target, limits=Limits(sessions=1)) as running:
        async with asking(running, prompt="b"):
            await until(lambda: running.gateway.sessions == 1)
            async with asking(running, prompt="c", stream=stream):
                await until(lambda: running.gateway.waiting == 1)
            await until(lambda: running.gateway.waiting == 0, seconds=2)
            assert running.gateway.sessions == 1
        await until(lambda: running.is_empty, seconds=2)
        reply = await running.plain(prompt="b", max_tokens=4, temperature=0)
    assert reply["usage"]["completion_tokens"] == 4
