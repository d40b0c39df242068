"""Knows what a draft and a target over a `StepModel` have in common: the thread of the model, and its sessions.

Refuses to know what a session asks for.
"""

from dataclasses import replace
from typing import ClassVar, TypeVar

from tandem_runtime.domain.adapters import AdapterFacts
from tandem_runtime.domain.errors import TandemError
from tandem_runtime.domain.tokens import Capabilities, SessionId
from tandem_runtime.engines.adapters import LoopDesk
from tandem_runtime.engines.lines import PATIENCE_SECONDS, MemoryCounts
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.sessions import EngineFacts, Sessions
from tandem_runtime.engines.step_loop import StepLoop
from tandem_runtime.engines.toll import Needs
from tandem_runtime.ports import Clock, StepModel

DEFAULT_SIZE = StepSize()

LATELY_SECONDS = 30.0
"""Longer than whoever looks waits between two looks."""

LONGEST_STEP_SECONDS = 30.0
"""A step takes milliseconds, the longest chunk of a prompt on a slow processor seconds; a gateway waits for 60. One
that takes longer will most likely not end: a device that hangs does not say so."""

Self = TypeVar("Self", bound="BatchedEngine")


class BatchedEngine:
    """A context manager: inside it the model's thread runs. `lost` makes the error for work that the engine cannot
    finish, `forgotten` the one for a session that it does not hold."""

    lost: ClassVar[type[TandemError]]
    forgotten: ClassVar[type[TandemError]]
    steps: ClassVar[type[StepLoop]] = StepLoop
    """What steps over the model; a simulation has one without a thread."""

    def __init__(
        self,
        model: StepModel,
        facts: EngineFacts,
        *,
        clock: Clock,
        size: StepSize = DEFAULT_SIZE,
        pace: Pace | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._model = model
        self._clock = clock
        self._capabilities = facts.capabilities(model)
        self._end_tokens = facts.end_tokens
        self._loop = self.steps(
            model,
            clock=clock,
            lost=self.lost,
            size=size,
            pace=pace,
            patience_seconds=patience_seconds,
        )
        self.adapters = None if facts.adapters is None else LoopDesk(facts.adapters, self._loop)
        """None: this model takes none."""
        self._sessions = Sessions(model, self._loop, facts, forgotten=self.forgotten)

    def __enter__(self: Self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()

    @property
    def loop(self) -> StepLoop:
        return self._loop

    @property
    def memory(self) -> MemoryCounts:
        return self._loop.lines.counts

    @property
    def needs(self) -> Needs:
        return self._loop.needs

    @property
    def waiting(self) -> int:
        """Rounds that the engine has not answered yet."""
        return self._loop.waiting

    @property
    def trouble(self) -> str | None:
        """Why nothing is to be expected of it; None where it steps, or has nothing to do."""
        seconds = self._loop.busy_seconds
        if seconds <= LONGEST_STEP_SECONDS:
            return None
        return f"the step under way has taken {seconds:.0f} s; after {LONGEST_STEP_SECONDS:.0f} its device may hang"

    def hung(self, deadline_seconds: float) -> str | None:
        """Why nothing but another process helps: its thread cannot be ended from outside. None where it steps, and
        always with a deadline of 0."""
        seconds = self._loop.busy_seconds
        if not deadline_seconds or seconds <= deadline_seconds:
            return None
        return (
            f"the step under way has taken {seconds:.0f} s, more than --step-deadline-seconds {deadline_seconds:g}: "
            "the process should be started anew"
        )

    @property
    def largest_session_bytes(self) -> int:
        """What the session that holds most of the KV memory holds, blocks that it shares with others included."""
        return self._loop.lines.largest * self._model.block_bytes

    @property
    def is_preempting(self) -> bool:
        """Whether a session was pushed out of the KV memory in the last `LATELY_SECONDS`."""
        last = self.memory.preempted_at
        return last is not None and self._clock.monotonic() - last < LATELY_SECONDS

    @property
    def loaded_adapters(self) -> tuple[AdapterFacts, ...]:
        return () if self.adapters is None else self.adapters.loaded

    async def capabilities(self) -> Capabilities:
        """With the adapters of this moment."""
        return replace(self._capabilities, adapters=self.loaded_adapters)

    async def close(self, session: SessionId) -> None:
        await self._sessions.drop(session)

    async def forget(self, tenant: str) -> None:
        """`ports.Remembering`."""
        await self._sessions.forget(tenant)
