"""Targets whose steps a test takes one by one, and step costs that they know from the start."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence

from tandem_runtime.domain.budget import Measured
from tandem_runtime.domain.costs import Plane
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Priority,
    Proposal,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.ports import Logits, Row, TargetEngine

LIFE = Incarnation("life-1")
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE)
INTERACTIVE, BATCH, BACKGROUND = Priority
GUESSES = (6, 6, 6, 6, 6)
"""Few of which stand, so that a round is six rows for about one token."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class StillClock:
    """No time passes: what a loop knew of steps is what it knows."""

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


class SteppedModel(ScriptedModel):
    """The chain model; notes every step by the first tokens of its rows' prompts, and takes one when it is let."""

    def __init__(self, *, kv_blocks: int = 512, max_length: int = 512) -> None:
        super().__init__(chain_logits, max_length=max_length, max_sessions=64, kv_blocks=kv_blocks)
        self.steps: list[list[tuple[TokenId, int]]] = []
        self.error: Exception | None = None
        self.let = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.entered.release()
        assert self.let.acquire(timeout=30)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        outputs = super().forward(rows)
        self.steps.append([(self._memory[row.blocks[0]][0], len(row.tokens)) for row in rows])
        return outputs

    def rows_by_prompt(self) -> Counter[TokenId]:
        counts = Counter[TokenId]()
        for step in self.steps:
            for first, rows in step:
                counts[first] += rows
        return counts


class Everybody:
    """Sessions named by the first token of their prompt, so that a step tells whose rows it holds."""

    def __init__(self, target: TargetEngine, model: SteppedModel) -> None:
        self.target = target
        self.model = model

    async def open(
        self, name: str, first: TokenId, priority: Priority = INTERACTIVE, *, weight: float = 1.0, length: int = 1
    ) -> None:
        greedy = SamplingParameters(seed=1, temperature=0.0)
        await self.target.open(
            OpenSession(
                SessionId(name),
                (first, *(ord(name[-1]) % 6,) * (length - 1)),
                (),
                greedy,
                Verification.COUPLED,
                max_tokens=self.model.max_length - length,
                tenant=f"tenant-{first}",
                weight=weight,
                priority=priority,
            )
        )

    def round(
        self, name: str, number: int, ids: tuple[TokenId, ...] = (), *, offset: int | None = None
    ) -> "asyncio.Task[Verdict]":
        asked = VerifyRound(SessionId(name), LIFE, number, number if offset is None else offset, Proposal(ids))
        return self.ask(asked)

    def ask(self, asked: VerifyRound) -> "asyncio.Task[Verdict]":
        return asyncio.create_task(self.target.verify(asked))

    async def stand(self) -> None:
        """Until the model's thread stands in a step."""
        assert await asyncio.to_thread(self.model.entered.acquire, timeout=30)

    async def step(self) -> None:
        """Let the step under way end, and the next one begin with what has arrived by now."""
        await asyncio.sleep(0)
        self.model.let.release()
        await self.stand()

    def let_go(self) -> None:
        self.model.let.release(100_000)


class Stated(Measured):
    """What steps cost is known, and stays so."""

    def learned(self, rows: int, seconds: float, *, now: float) -> Measured:
        return self

    def shared(self, cycle: float, came_during: float, step: float) -> Measured:
        return self


def known_costs(fixed: float, per_row: float) -> Measured:
    """Seconds of a step, and of each row in it."""
    return Stated(Plane(fixed, per_row, 0.0, *(0.0,) * 6, at=1e12), steps=1000)
