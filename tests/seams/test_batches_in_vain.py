"""A batch that a busy target lets wait for as long as it may is told so, and asked of no other target."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.seams.gateway_peers import running_gateway

from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    PromptRead,
    ReadPrompt,
    RunRounds,
    SessionId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.driver import Deadlines
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.local import LOCAL_TARGET
from tandem_runtime.ports import TargetEngine
from tandem_runtime.replicas import Replica


class _Busy:
    """A target that takes sessions, and has something more urgent to do for ever."""

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine
        self.opened = 0

    async def capabilities(self) -> Capabilities:
        return await self._engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        self.opened += 1
        return await self._engine.open(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError(request)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        await asyncio.Event().wait()
        async for verdict in self._engine.run(request):
            yield verdict

    async def read(self, request: ReadPrompt) -> PromptRead:
        await asyncio.Event().wait()
        raise AssertionError(request)

    async def close(self, session: SessionId) -> None:
        await self._engine.close(session)


@pytest.mark.parametrize("asked", [{}, {"echo": True, "logprobs": 0}], ids=["answered", "read"])
async def test_a_batch_that_waited_in_vain_begins_on_no_other_target(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadlines, "verify_of", lambda _, __: 0.05)
    body = {"model": "chat", "prompt": "abc", "max_tokens": 3, "service_tier": "flex", **asked}
    async with running_gateway(chain_logits) as running:
        (first,) = running.gateway.fleet.targets
        engines = [_Busy(first.engine), _Busy(first.engine)]
        first.engine = engines[0]
        second = Replica[TargetEngine](f"{first.uid}-2", LOCAL_TARGET, engines[1], first.capabilities)
        with running.gateway.fleet.targets.holding(second):
            reply = await running.http.post("/v1/completions", json=body)
    assert (reply.status_code, reply.headers.get("retry-after")) == (429, "60")
    assert sorted(each.opened for each in engines) == [0, 1]
