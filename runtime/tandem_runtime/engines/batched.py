"""Knows what a draft and a target over a `StepModel` have in common: the thread of the model, and its sessions.

Refuses to know what a session asks for.
"""

from typing import ClassVar, TypeVar

from tandem_runtime.domain.errors import TandemError
from tandem_runtime.domain.tokens import Capabilities, SessionId
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.sessions import EngineFacts, Sessions
from tandem_runtime.engines.step_loop import CHUNK_TOKENS, StepLoop
from tandem_runtime.ports import Clock, StepModel

Self = TypeVar("Self", bound="BatchedEngine")


class BatchedEngine:
    """A context manager: inside it the model's thread runs. `lost` makes the error for work that the engine cannot
    finish, `forgotten` the one for a session that it does not hold."""

    lost: ClassVar[type[TandemError]]
    forgotten: ClassVar[type[TandemError]]

    def __init__(
        self,
        model: StepModel,
        facts: EngineFacts,
        *,
        clock: Clock,
        chunk_tokens: int = CHUNK_TOKENS,
        pace: Pace | None = None,
    ) -> None:
        self._capabilities = facts.capabilities(model)
        self._end_tokens = facts.end_tokens
        self._loop = StepLoop(model, clock=clock, lost=self.lost, chunk_tokens=chunk_tokens, pace=pace)
        self._sessions = Sessions(model, self._loop, facts, forgotten=self.forgotten)

    def __enter__(self: Self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()

    async def capabilities(self) -> Capabilities:
        return self._capabilities

    async def close(self, session: SessionId) -> None:
        await self._sessions.drop(session)
