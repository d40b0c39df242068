"""Knows a target and a draft that compute nothing and take stated times, both served over gRPC by this process.

Refuses to know HTTP, gateways and what is measured: `python -m benchmarks.stage.engines TARGET DRAFT FOLDER LOG`, with
two addresses, the folder of the tokenizer and a file. It says `ready`, serves until it is told to end (SIGTERM), and
writes down what it took: for each stream its rounds, each as when the guess was asked for, when it was ready, when the
verdict was asked for, when that was ready, in seconds of the clock that all processes of a machine share.

Only the engines are replaced. The servers, the wire, the messages, the event loop, when garbage is looked for and the
moment at which an answer leaves, by a thread that is not the event loop's, are the product's. Every guess is right, so
a round of K guesses says K + 1 tokens.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.stage.alarms import Alarms
from benchmarks.stage.prompts import VOCABULARY, Told, told_by
from tandem_runtime.discovery import ENGINE_PORT
from tandem_runtime.domain.errors import DraftForgot, SessionLost
from tandem_runtime.domain.tokens import (
    Capabilities,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    RunRounds,
    ScoreTokens,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.main import until_signalled
from tandem_runtime.model_folder import tokenizer_digest_of
from tandem_runtime.tokenizer import FolderTokenizer
from tandem_runtime.wire.roles import DraftRole, Role, TargetRole
from tandem_runtime.wire.server import EngineServer

TEXT = " rain in the north, wind from the sea and sun in the south"
"""Said over and over; each of its tokens has a text of its own, so that each round shows some."""
LIFE = Incarnation("timed")
LENGTH = 1 << 16
MILLISECONDS = 1000


@dataclass(slots=True)
class Log:
    """The rounds of each stream, as four moments each."""

    rounds: dict[int, list[tuple[float, float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    guessed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Of the round in progress."""

    def judged(self, stream: int, asked: float, ready: float) -> None:
        self.rounds[stream].append((*self.guessed.pop(stream, (asked, asked)), asked, ready))


@dataclass(slots=True)
class Timed:
    """What both engines have in common."""

    tokens: tuple[TokenId, ...]
    capable: Capabilities
    alarms: Alarms
    log: Log
    sessions: dict[SessionId, Told] = field(default_factory=dict)

    async def capabilities(self) -> Capabilities:
        return self.capable

    async def open(self, request: OpenSession) -> Opened:
        self.sessions[request.session] = told_by(request.prompt)
        return Opened(LIFE)

    async def close(self, session: SessionId) -> None:
        self.sessions.pop(session, None)

    def said(self, position: int) -> TokenId:
        return self.tokens[position % len(self.tokens)]


@dataclass(slots=True)
class TimedTarget(Timed):
    """`ports.TargetEngine`."""

    async def verify(self, request: VerifyRound) -> Verdict:
        asked = time.monotonic()
        told, ids = self.sessions.get(request.session), request.proposal.ids
        if told is None:
            raise SessionLost("no such session")
        seconds = await self._takes(told, request.offset)
        self.log.judged(told.stream, asked, await self.alarms.at(asked + seconds))
        return self._verdict(request.round, request.offset, len(ids), seconds)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        told = self.sessions.get(request.session)
        if told is None:
            raise SessionLost("no such session")
        for step in range(request.max_tokens):
            asked = time.monotonic()
            seconds = await self._takes(told, request.offset + step)
            self.log.judged(told.stream, asked, await self.alarms.at(asked + seconds))
            yield self._verdict(request.round + step, request.offset + step, 0, seconds)

    async def _takes(self, told: Told, offset: int) -> float:
        """Seconds of a verify; never, for what says so, once something was said."""
        if told.verify_ms is None and offset:
            await asyncio.Event().wait()
        return (told.verify_ms or 0.0) / MILLISECONDS

    def _verdict(self, number: int, offset: int, accepted: int, seconds: float) -> Verdict:
        token = self.said(offset + accepted)
        return Verdict(number, offset, accepted, token, forward_seconds=seconds)


@dataclass(slots=True)
class TimedDraft(Timed):
    """`ports.DraftEngine`."""

    async def propose(self, request: ProposeRound) -> Proposal:
        asked = time.monotonic()
        told = self.sessions.get(request.session)
        if told is None:
            raise DraftForgot("no such session")
        seconds = request.k * told.guess_ms / MILLISECONDS
        self.log.guessed[told.stream] = asked, await self.alarms.at(asked + seconds)
        begin = request.base + len(request.committed)
        ids = tuple(self.said(position) for position in range(begin, begin + request.k))
        return Proposal(ids, draft_seconds=seconds)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        return (True,) * len(request.ids)


async def serve(addresses: tuple[str, str], folder: Path, log: Log, ending: asyncio.Event) -> None:
    tokens = FolderTokenizer(folder).continuation(TEXT)
    capable = Capabilities("timed", tokenizer_digest_of(folder), VOCABULARY, LENGTH, "Bitwise")
    async with AsyncExitStack() as stack:
        alarms = stack.enter_context(Alarms())
        roles: tuple[Role, Role] = (
            TargetRole(TimedTarget(tokens, capable, alarms, log)),
            DraftRole(TimedDraft(tokens, capable, alarms, log)),
        )
        for role, address in zip(roles, addresses, strict=True):
            await stack.enter_async_context(EngineServer(role, host=address, port=ENGINE_PORT))
        print("ready", flush=True)
        await ending.wait()


def main() -> None:
    target, draft, folder, written = sys.argv[1:]
    log = Log()
    until_signalled(partial(serve, (target, draft), Path(folder), log))
    Path(written).write_text(json.dumps(log.rounds))


if __name__ == "__main__":
    main()
