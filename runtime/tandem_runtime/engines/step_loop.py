"""Knows how many requests share one model: a thread of its own that steps over all that is ready, together.

Refuses to know what the requests are for, what a token means, and how logits become tokens.

Continuous batching (Yu et al. 2022, "Orca"): every step takes one piece of every job that can go on, then looks for new
jobs; nobody waits for a batch to fill or to end. A job is a generator, so that what it needs is written as a
conversation: it yields a `Want`, is sent a `Seen`, and returns its result.

    def work() -> Work[int]:
        seen = yield Want(line, tokens, first=len(tokens) - 1)     # one pass, or many when the prompt is long
        return int(seen.logits[-1].argmax())

Long needs are cut into chunks (Agrawal et al. 2023, "Sarathi"), so that a new prompt does not hold up those who decode:
the prompts share `chunk_tokens` per step, first come first served, while needs of up to `RIDE_ALONG_TOKENS` always ride
along. Jobs of one session form a lane and run one after the other, in order of arrival.

A step is all that happens between two looks for new jobs. With a pace (see `pace`) it ends, and its results are sent,
no earlier than its stated cost allows; what jobs are told of seconds is then in paced time.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tandem_runtime.domain.errors import Overloaded, TandemError, origin
from tandem_runtime.domain.tokens import SessionId, TokenId
from tandem_runtime.engines.pace import UNPACED, Pace
from tandem_runtime.ports import Clock, Logits, Row, StepModel

__all__ = ["CHUNK_TOKENS", "RIDE_ALONG_TOKENS", "Line", "Seen", "StepLoop", "Want", "Work"]

CHUNK_TOKENS = 256
"""Prompt tokens per step: about what a step over a handful of verify rows can carry without doubling its time."""

RIDE_ALONG_TOKENS = 32
"""A need up to this size is taken whole in every step: it holds any proposal that pays."""

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(slots=True)
class Line:
    """The KV memory of one session: a slot of the model, and the ids whose keys and values stand in it."""

    slot: int
    held: list[TokenId] = field(default_factory=list)

    def keep(self, tokens: list[TokenId]) -> int:
        """Forget what `tokens` does not begin with; how many ids are left. This is the whole roll-back."""
        limit = min(len(self.held), len(tokens))
        if self.held[:limit] != tokens[:limit]:
            limit = next(i for i in range(limit) if self.held[i] != tokens[i])
        del self.held[limit:]
        return limit


@dataclass(frozen=True, slots=True)
class Want:
    """The logits that follow `tokens[first]`, `tokens[first + 1]`, ... to the end, given all before them."""

    line: Line
    tokens: list[TokenId]
    first: int


@dataclass(frozen=True, slots=True)
class Seen:
    """`logits` is [len(tokens) - first, vocab]; the seconds are those of the steps that made it, and of the wait."""

    logits: Logits
    queue_seconds: float
    forward_seconds: float
    kv_used: float


Work: TypeAlias = Generator[Want, Seen, Result]
Emit: TypeAlias = Callable[[Item], None]


@dataclass(slots=True, eq=False)
class _Job:
    """One conversation under way. `want` is None before its first word."""

    lane: SessionId
    work: Work[Any]
    answer: Callable[[Any, TandemError | None], None]
    gives_way: bool
    since: float
    want: Want | None = None
    parts: list[Logits] = field(default_factory=list)
    queue_seconds: float | None = None
    forward_seconds: float = 0.0

    def need(self, want: Want) -> None:
        """Begin a want: what is held of it already is not fed again, save for positions whose logits are wanted."""
        self.want, self.parts = want, []
        self.queue_seconds, self.forward_seconds = None, 0.0
        del want.line.held[min(want.line.keep(want.tokens), want.first) :]

    @property
    def current(self) -> Want:
        assert self.want is not None, "a job in a lane's first place has said what it wants"
        return self.want

    @property
    def missing(self) -> int:
        return len(self.current.tokens) - len(self.current.line.held)

    def row(self, size: int) -> Row:
        """The next `size` tokens of what is missing."""
        want, start = self.current, len(self.current.line.held)
        end = start + size
        return Row(want.line.slot, start, tuple(want.tokens[start:end]), outputs=max(0, end - max(start, want.first)))

    def took(self, row: Row, logits: Logits, *, waited: float, seconds: float) -> bool:
        """Note that `row` was computed; true when the want is fulfilled."""
        if self.queue_seconds is None:
            self.queue_seconds = waited
        self.forward_seconds += seconds
        self.current.line.held.extend(row.tokens)
        if row.outputs:
            self.parts.append(logits)
        return self.missing == 0

    def seen(self, kv_used: float) -> Seen:
        logits = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)
        return Seen(logits, self.queue_seconds or 0.0, self.forward_seconds, kv_used)


class StepLoop:
    """Owns a model on a thread of its own. `submit`, `stream` and `call` are for the event loop's side.

    `lost` makes the error for work that this loop cannot finish: a model that raised, a loop that was stopped.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        clock: Clock,
        lost: Callable[[str], TandemError],
        chunk_tokens: int = CHUNK_TOKENS,
        pace: Pace | None = None,
    ) -> None:
        self._model = model
        self._clock = clock
        self._pace = pace or Pace(UNPACED, clock=clock)
        self._due = clock.monotonic()
        self._lost = lost
        self._chunk_tokens = chunk_tokens
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lanes: dict[SessionId, deque[_Job]] = {}
        self._outbox: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._stopping = False
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._live, name="step-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step under way; what is unfinished fails as lost. Idempotent."""
        self._tell(self._stop)
        if self._thread.is_alive():
            self._thread.join()

    async def call(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the model's thread, between two steps."""
        future, answer = self._reply_slot()

        def act() -> None:
            try:
                answer(action(), None)
            except Exception as error:  # whatever it was, it belongs to the caller and not to the thread
                answer(None, self._as_ours(error))

        self._ask(act)
        result: Result = await future
        return result

    async def submit(self, lane: SessionId, work: Work[Result]) -> Result:
        """Carry `work` through; cancelling the caller ends it at the next step."""
        future, answer = self._reply_slot()
        job = _Job(lane, work, answer, gives_way=False, since=self._clock.monotonic())
        self._ask(partial(self._enter, job))
        try:
            result: Result = await future
        finally:
            if future.cancelled():
                self._tell(partial(self._drop, job))
        return result

    async def stream(self, lane: SessionId, work: Callable[[Emit[Item]], Work[None]]) -> AsyncIterator[Item]:
        """What `work` emits, as it comes. Closing the iterator, or any later job in the lane, ends the work."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Item | None] = asyncio.Queue()
        failures: list[TandemError] = []

        def emit(item: Item) -> None:
            self._post(loop, partial(arrived.put_nowait, item))

        def ended(_result: None, error: TandemError | None) -> None:
            failures.extend([error] if error else [])
            self._post(loop, partial(arrived.put_nowait, None))

        job = _Job(lane, work(emit), ended, gives_way=True, since=self._clock.monotonic())
        self._ask(partial(self._enter, job))
        try:
            while (item := await arrived.get()) is not None:
                yield item
        finally:
            self._tell(partial(self._drop, job))
        if failures:
            raise failures[0]

    def now(self) -> float:
        """On the model's thread: the clock's time, but during a step not before the step's results are due."""
        return max(self._clock.monotonic(), self._due)

    def end_lane(self, lane: SessionId, error: TandemError) -> None:
        """On the model's thread: all jobs of the lane fail with `error`."""
        for job in list(self._lanes.get(lane, ())):
            self._finish(job, error=error)

    def _tell(self, command: Callable[[], None]) -> bool:
        """Queue a command for the thread; false when the thread has ended or is about to."""
        with self._closing:
            if not self._closed:
                self._commands.put(command)
            return not self._closed

    def _ask(self, command: Callable[[], None]) -> None:
        if not self._tell(command):
            raise self._lost("the engine was stopped")

    def _reply_slot(self) -> tuple[asyncio.Future[Any], Callable[[Any, TandemError | None], None]]:
        """A future of the running loop, and how the thread fills it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: TandemError | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)

        return future, lambda result, error: self._post(loop, partial(settle, result, error))

    # From here on: the model's thread only.

    def _live(self) -> None:
        while not self._stopping:
            commands = [] if self._lanes else [self._commands.get()]
            commands += self._arrived()
            began = self._clock.monotonic()
            _call_all(commands)
            if not self._stopping:
                self._step(began)
            self._send()
        with self._closing:
            self._closed = True
        _call_all(self._arrived())
        for lane in list(self._lanes):
            self.end_lane(lane, self._lost("the engine was stopped"))
        self._send()

    def _stop(self) -> None:
        self._stopping = True

    def _arrived(self) -> list[Callable[[], None]]:
        commands = []
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands

    def _enter(self, job: _Job) -> None:
        lane = self._lanes.setdefault(job.lane, deque())
        lane.append(job)
        if lane[0] is job:
            self._begin(job, lane)
        elif lane[0].gives_way:
            self._finish(lane[0])

    def _begin(self, job: _Job, lane: deque[_Job]) -> None:
        if job.gives_way and len(lane) > 1:
            self._finish(job)
        else:
            self._advance(job, None)

    def _drop(self, job: _Job) -> None:
        if job in self._lanes.get(job.lane, ()):
            self._finish(job)

    def _step(self, began: float) -> None:
        plan = self._plan()
        if plan:
            rows = [row for _, row in plan]
            self._due = self._pace.due(rows, began)
            self._compute(plan, rows, began)
            self._pace.stretch(began, self._due)

    def _compute(self, plan: list[tuple[_Job, Row]], rows: list[Row], began: float) -> None:
        try:
            outputs = self._model.forward(rows)
        except Exception as error:  # the jobs of this step fail; those of the next must not
            _log.error("step failed rows=%d error=%s", len(plan), origin(error))
            for job, _ in plan:
                self._finish(job, error=self._as_ours(error))
            return
        seconds = self.now() - began
        for (job, row), logits in zip(plan, outputs, strict=True):
            if job.took(row, logits, waited=began - job.since, seconds=seconds):
                self._advance(job, job.seen(self._model.kv_used))

    def _plan(self) -> list[tuple[_Job, Row]]:
        """One piece of each lane's first job, while the prompt budget lasts."""
        plan: list[tuple[_Job, Row]] = []
        budget = self._chunk_tokens
        for lane in self._lanes.values():
            job = lane[0]
            size = job.missing
            if size > RIDE_ALONG_TOKENS:
                size = min(size, budget)
                budget -= size
            if size:
                plan.append((job, job.row(size)))
        return plan

    def _advance(self, job: _Job, seen: Seen | None) -> None:
        """Hand the job what it wanted (nothing, at first) and hear what it wants next."""
        try:
            want = next(job.work) if seen is None else job.work.send(seen)
        except StopIteration as end:
            self._finish(job, result=end.value)
        except Exception as error:  # a fault of one request, such as NaN logits
            self._finish(job, error=self._as_ours(error))
        else:
            if seen is not None:
                job.since = self.now()
            job.need(want)

    def _finish(self, job: _Job, *, result: Any = None, error: TandemError | None = None) -> None:
        """Take the job out of its lane, answer, and let the next one begin. A failed line is computed anew."""
        job.work.close()
        if error is not None and job.want is not None:
            job.want.line.held.clear()
        lane = self._lanes[job.lane]
        was_first = lane[0] is job
        lane.remove(job)
        job.answer(result, error)
        if not lane:
            del self._lanes[job.lane]
        elif was_first:
            self._begin(lane[0], lane)

    def _as_ours(self, error: Exception) -> TandemError:
        match error:
            case TandemError():
                return error
            case MemoryError():
                return Overloaded("the engine is out of memory; try again later")
            case _:
                lost = self._lost(f"the model failed ({type(error).__name__})")
                lost.__cause__ = error
                return lost

    def _post(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._outbox.setdefault(loop, []).append(call)

    def _send(self) -> None:
        """Wake each event loop once per step, with all that there is for it."""
        outbox, self._outbox = self._outbox, {}
        for loop, calls in outbox.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_call_all, calls)


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
