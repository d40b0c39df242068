"""What a round waits for leaves first: the next question to a draft, and then the text of the last round."""

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from tests.seams.gateway_peers import always, running_gateway

from tandem_runtime.domain.tokens import (
    Capabilities,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    ScoreTokens,
    SessionId,
)
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.gateway.app import Api
from tandem_runtime.ports import DraftEngine
from tandem_runtime.wire.outbox import Outbox

BODY = json.dumps({"model": "chat", "prompt": "b", "max_tokens": 40, "temperature": 0, "stream": True}).encode()
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
}


@dataclass
class Asked:
    """A draft that is asked through an outbox, as one behind a link is, and writes down what leaves."""

    engine: DraftEngine
    left: list[str]
    outbox: Outbox = field(default_factory=Outbox)

    async def send(self) -> None:
        async for _ in self.outbox.frames():
            self.left.append("question")

    async def capabilities(self) -> Capabilities:
        return await self.engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self.engine.open(request)

    async def propose(self, request: ProposeRound) -> Proposal:
        self.outbox.put(b"question")
        return await self.engine.propose(request)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...] | None:
        return await self.engine.score(request)

    async def close(self, session: SessionId) -> None:
        await self.engine.close(session)


async def test_the_question_of_the_next_round_leaves_before_the_text_of_the_last() -> None:
    left: list[str] = []
    pending = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await asyncio.Future()

    async def send(message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"").replace(b" ", b"")
        if b'"text":"' in body and b'"text":""' not in body:
            left.append("text")

    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        (replica,) = running.gateway.fleet.drafts
        asked = replica.engine = Asked(replica.engine, left)
        sending = asyncio.create_task(asked.send())
        await Api(running.gateway, keys=None).app()(SCOPE, receive, send)
        asked.outbox.end()
        await sending
    rounds = left.count("question")
    assert rounds == 8
    assert left == ["question", *["question", "text"] * (rounds - 1), "text"]
