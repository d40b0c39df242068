"""Small engines for the wire's tests, and both ends of a link in one process over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from tandem_runtime.domain.errors import DraftForgot, SessionLost
from tandem_runtime.domain.tokens import (
    Capabilities,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.wire.client import Backoff, RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, Role, TargetRole
from tandem_runtime.wire.server import EngineServer
from tandem_runtime.wire.tls import RoleTls

CAPABILITIES = Capabilities(
    model_digest="sha256:" + "a" * 64,
    tokenizer_digest="sha256:" + "b" * 64,
    vocab_size=1000,
    max_length=4096,
    determinism="Bitwise",
)

Peer = TypeVar("Peer", RemoteTarget, RemoteDraft)
QUICK = Backoff(first_seconds=0.02, most_seconds=0.1)


def opening(session: str = "s", *, prompt: tuple[int, ...] = (1, 2, 3), temperature: float = 1.0) -> OpenSession:
    return OpenSession(
        session=SessionId(session),
        prompt=prompt,
        output=(),
        parameters=SamplingParameters(seed=7, temperature=temperature),
        verification=Verification.COUPLED,
        max_tokens=64,
    )


def next_token(prefix: Sequence[int]) -> int:
    return (prefix[-1] * 31 + len(prefix)) % 1000


def verify(opened: Opened, session: str, *, round: int = 0, offset: int = 0, ids: tuple[int, ...] = ()) -> VerifyRound:
    return VerifyRound(SessionId(session), opened.incarnation, round, offset, Proposal(ids=ids))


def run(opened: Opened, session: str, *, max_tokens: int) -> RunRounds:
    return RunRounds(SessionId(session), opened.incarnation, 0, 0, max_tokens)


def propose(opened: Opened, session: str, *, k: int = 3) -> ProposeRound:
    return ProposeRound(SessionId(session), opened.incarnation, 0, (), k)


class CountingTarget:
    """Always continues with `next_token`. While `gate` is clear, verifies and runs wait before each verdict."""

    def __init__(self, *, incarnation: str = "first") -> None:
        self.incarnation = Incarnation(incarnation)
        self.capable = CAPABILITIES
        self.prefixes: dict[SessionId, list[int]] = {}
        self.closed: list[SessionId] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Semaphore(0)
        """Released each time that a call begins to wait at the gate."""
        self.cancelled = 0
        self.run_tokens = 0
        self.error: Exception | None = None

    async def capabilities(self) -> Capabilities:
        return self.capable

    async def open(self, request: OpenSession) -> Opened:
        self._raise()
        self.prefixes[request.session] = [*request.prompt, *request.output]
        return Opened(self.incarnation, cached_tokens=len(request.prompt))

    async def verify(self, request: VerifyRound) -> Verdict:
        self._raise()
        if request.session not in self.prefixes or request.incarnation != self.incarnation:
            raise SessionLost(f"no session {request.session} in {request.incarnation}")
        await self._pass_gate()
        return self._judge(request.session, request.round, request.offset, request.proposal.ids)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        try:
            for step in range(request.max_tokens):
                await self._pass_gate()
                self.run_tokens += 1
                yield self._judge(request.session, request.round + step, request.offset + step, ())
        except GeneratorExit:
            self.cancelled += 1
            raise

    async def close(self, session: SessionId) -> None:
        self.prefixes.pop(session, None)
        self.closed.append(session)

    def _judge(self, session: SessionId, round: int, offset: int, ids: tuple[int, ...]) -> Verdict:
        accepted = 0
        for guess in ids:
            if guess != next_token(self.prefixes[session]):
                break
            accepted += 1
            self.prefixes[session].append(guess)
        token = next_token(self.prefixes[session])
        self.prefixes[session].append(token)
        return Verdict(round=round, offset=offset, accepted=accepted, token=token)

    async def _pass_gate(self) -> None:
        if not self.gate.is_set():
            self.waiting.release()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


class CountingDraft:
    """Proposes 0, 1, 2, ...; hangs for sessions opened with the prompt (666,); raises `error` for every proposal."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hanging: set[SessionId] = set()
        self.open_sessions: set[SessionId] = set()
        self.hung = asyncio.Semaphore(0)
        self.freed = asyncio.Semaphore(0)

    async def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self, request: OpenSession) -> Opened:
        self.open_sessions.add(request.session)
        if request.prompt == (666,):
            self.hanging.add(request.session)
        return Opened(Incarnation("draft"))

    async def propose(self, request: ProposeRound) -> Proposal:
        if request.session in self.hanging:
            self.hung.release()
            try:
                await asyncio.Event().wait()
            finally:
                self.freed.release()
        if request.session not in self.open_sessions:
            raise DraftForgot("no such session")
        if self.error is not None:
            raise self.error
        return Proposal(ids=tuple(range(request.k)), draft_seconds=0.001)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        return tuple(token % 2 == 0 for token in request.ids)

    async def close(self, session: SessionId) -> None:
        self.open_sessions.discard(session)
        self.freed.release()


@asynccontextmanager
async def served(role: Role, *, port: int = 0, tls: RoleTls | None = None) -> AsyncIterator[EngineServer]:
    async with EngineServer(role, host="127.0.0.1", port=port, tls=tls) as server:
        yield server


@asynccontextmanager
async def connected(kind: type[Peer], port: int, *, tls: RoleTls | None = None) -> AsyncIterator[Peer]:
    async with kind(f"127.0.0.1:{port}", backoff=QUICK, tls=tls) as remote:
        await remote.wait_connected()
        yield remote


@asynccontextmanager
async def target_link(engine: CountingTarget) -> AsyncIterator[tuple[RemoteTarget, EngineServer]]:
    async with served(TargetRole(engine)) as server, connected(RemoteTarget, server.port) as remote:
        yield remote, server


@asynccontextmanager
async def draft_link(engine: CountingDraft) -> AsyncIterator[RemoteDraft]:
    async with served(DraftRole(engine)) as server, connected(RemoteDraft, server.port) as remote:
        yield remote
