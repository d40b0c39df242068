"""The engine ports over the wire: their suites themselves, with each engine behind a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Self

import pytest
from tests.seams import port_words, test_engine_port_limits, test_engine_ports
from tests.seams.wire_peers import connected, served

from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole

SUITES = (test_engine_ports, test_engine_port_limits)
LOCAL_ONLY = {"test_a_cancelled_round_leaves_the_session_as_it_was"}
"""A cancel that crosses the wire may come after the round is done: then the round stands, and asking again tells it."""

for suite in SUITES:
    globals().update(
        {name: rule for name, rule in vars(suite).items() if name.startswith("test_") and name not in LOCAL_ONLY}
    )
pair = port_words.pair


class Wired:
    """Stands where the suite makes an engine. The link is made at the first call, as a `with` cannot wait for it."""

    def __init__(self, engine: BatchedTarget | BatchedDraft, stack: AsyncExitStack) -> None:
        self._engine = engine
        self._stack = stack
        self._remote: RemoteTarget | RemoteDraft | None = None
        self._linking = asyncio.Lock()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._engine)
        return self

    def __exit__(self, *_: object) -> None:
        """The stack ends server and engine, in that order."""

    def __getattr__(self, method: str) -> Any:
        if method == "run":
            return self._run

        async def call(*arguments: object) -> Any:
            return await getattr(await self._peer(), method)(*arguments)

        return call

    async def _run(self, request: object) -> AsyncIterator[Any]:
        peer = await self._peer()
        assert isinstance(peer, RemoteTarget)
        verdicts = peer.run(request)  # type: ignore[arg-type]  # the suite's own request
        try:
            async for verdict in verdicts:
                yield verdict
        finally:
            await verdicts.aclose()

    async def _peer(self) -> RemoteTarget | RemoteDraft:
        async with self._linking:
            if self._remote is None:
                self._remote = await self._link()
            return self._remote

    async def _link(self) -> RemoteTarget | RemoteDraft:
        enter = self._stack.enter_async_context
        if isinstance(self._engine, BatchedTarget):
            server = await enter(served(TargetRole(self._engine)))
            return await enter(connected(RemoteTarget, server.port))
        server = await enter(served(DraftRole(self._engine)))
        return await enter(connected(RemoteDraft, server.port))


@pytest.fixture(autouse=True)
async def over_the_wire(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for suite in SUITES:
            monkeypatch.setattr(suite, "target_of", lambda *a, **k: Wired(port_words.target_of(*a, **k), stack))
            monkeypatch.setattr(suite, "draft_of", lambda *a, **k: Wired(port_words.draft_of(*a, **k), stack))
        yield
