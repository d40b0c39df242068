"""Knows a target or a draft process of the soak: the product's, over a scripted model, and at times late or twice.

Refuses to know gateways. `python -m tests.soak.role target|draft ADDRESS FOLDER SEED` serves at that address until it
is told to end, with the tokenizer of that folder.

The model's next token depends on the whole prefix, by a hash, so whatever is left out, twice or in another order gives
another text. The draft agrees with it on four of five prefixes. A share of the answers comes late, after the caller may
have given up; a share comes twice, where the second belongs to no question that is still open.
"""

import asyncio
import random
import sys
import uuid
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem_runtime.discovery import ENGINE_PORT
from tandem_runtime.domain.tokens import Capabilities, Incarnation, SessionId, TokenId
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import Cost, Pace
from tandem_runtime.engines.scripted import Script, ScriptedModel, agreeing
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.grammar import folder_grammars
from tandem_runtime.main import SystemClock, until_signalled
from tandem_runtime.model_folder import tokenizer_digest_of
from tandem_runtime.ports import Logits
from tandem_runtime.role_server import Engine, RoleName, ServeOptions, serve_role
from tandem_runtime.tokenizer import FolderTokenizer
from tandem_runtime.wire.codec import ReplyBody, RequestBody
from tandem_runtime.wire.roles import DraftRole, Role, TargetRole

ADMIN_PORT = 8002
LENGTH, SESSIONS = 768, 128
AGREEMENT = 0.8
TARGET_COST, DRAFT_COST = Cost(8, 0.3), Cost(2, 0)
"""Milliseconds of a step: answers last long enough that faults meet them."""
LATE, MOST_SECONDS_LATE = 0.01, 0.4
TWICE = 0.02
GRACE_SECONDS = 2


def wandering(tokenizer: FolderTokenizer) -> Script:
    """Likes letters, and to end at some time."""
    likes = np.array([3.0 if _is_plain(tokenizer.decode((token,))) else 0.0 for token in range(tokenizer.size)])
    likes[sorted(tokenizer.end_tokens)] = 4.0

    def script(prefix: tuple[TokenId, ...]) -> Logits:
        chance = np.random.default_rng(zlib.crc32(np.array(prefix, np.int32).tobytes()))
        logits: Logits = likes + 2 * chance.standard_normal(len(likes))
        return logits

    return script


def _is_plain(text: str) -> bool:
    return bool(text) and text.isascii() and text.replace(" ", "a").isalnum()


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A role whose answers are late at times, and at times come twice."""

    role: Role
    chance: random.Random

    @property
    def service(self) -> str:
        return self.role.service

    async def capabilities(self) -> Capabilities:
        return await self.role.capabilities()

    async def answer(self, request: RequestBody) -> AsyncGenerator[ReplyBody]:
        async with aclosing(self.role.answer(request)) as replies:
            async for reply in replies:
                if self.chance.random() < LATE:
                    await asyncio.sleep(self.chance.random() * MOST_SECONDS_LATE)
                yield reply
                if self.chance.random() < TWICE:
                    yield reply

    async def close(self, session: SessionId) -> None:
        await self.role.close(session)

    async def forget(self, tenant: str) -> None:
        await self.role.forget(tenant)


def load(name: RoleName, folder: Path, chance: random.Random) -> Engine:
    tokenizer, clock = FolderTokenizer(folder), SystemClock()
    facts = EngineFacts(
        model_digest=f"sha256:{name}",
        tokenizer_digest=tokenizer_digest_of(folder),
        incarnation=Incarnation(uuid.uuid4().hex[:12]),
        end_tokens=tokenizer.end_tokens,
        grammars=folder_grammars(folder, end_tokens=tokenizer.end_tokens, vocab_size=tokenizer.size),
    )
    script = wandering(tokenizer)
    if name is RoleName.TARGET:
        model = ScriptedModel(script, max_length=LENGTH, max_sessions=SESSIONS)
        target = BatchedTarget(model, facts, clock=clock, pace=(pace := Pace(TARGET_COST, clock=clock)))
        return Engine(Disturbed(TargetRole(target), chance), target, model, pace)
    model = ScriptedModel(agreeing(script, acceptance=AGREEMENT), max_length=LENGTH, max_sessions=SESSIONS)
    draft = BatchedDraft(model, facts, clock=clock, pace=(pace := Pace(DRAFT_COST, clock=clock)))
    return Engine(Disturbed(DraftRole(draft), chance), draft, model, pace)


def main() -> None:
    role, address, folder, seed = sys.argv[1:]
    name, chance = RoleName(role), random.Random(seed)
    options = ServeOptions(host=address, port=ENGINE_PORT, admin_port=ADMIN_PORT, grace_seconds=GRACE_SECONDS)
    until_signalled(
        lambda ending: serve_role(
            lambda: load(name, Path(folder), chance), options, ending=ending, name=name, clock=SystemClock()
        )
    )


if __name__ == "__main__":
    main()
