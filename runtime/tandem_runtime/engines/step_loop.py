"""Knows how many requests share one model: a thread of its own that steps over all that is ready, together.

Refuses to know what the requests are for, what a token means, and how logits become tokens.

Continuous batching (Yu et al. 2022, "Orca"): every step takes one piece of every job that can go on, then looks for new
jobs; nobody waits for a batch to fill or to end, but for a moment, where sessions are about to come back that would
else wait for all of a step (`domain.gathering`). Jobs of one session form a lane and run one after the other, in order
of arrival.

Long needs are cut into chunks (Agrawal et al. 2023, "Sarathi"), so that a new prompt does not hold up those who decode:
the prompts share `chunk_tokens` per step, while needs of up to `RIDE_ALONG_TOKENS` ride along. Whoever would compute a
block that another line of the step is about to make known waits for it: n choices of one prompt read it once.

Who goes first, and who gives up KV memory where it does not suffice and computes it anew later, is a matter of urgency
and of fair shares (see `domain.batching`). Who has waited for memory, or behind what is more urgent, for longer than
`LONGEST_WAIT_SECONDS` is told that the engine is overloaded. A caller's deadline is the caller's to keep: who waits no
longer cancels, and that takes effect before the next step, wherever the work stands.

What fails, fails alone: a request its own job, a model's error the jobs of the rows that it comes with. An error that
nobody foresaw, on this thread, fails all jobs at hand and empties the memory, since its books may be wrong; then the
loop goes on.

A step is all that happens between two looks for new jobs. With a pace (see `pace`) it ends, and its results are sent,
no earlier than its stated cost allows; what jobs are told of seconds is then in paced time.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, Queue
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

from tandem_runtime.domain.batching import Shares
from tandem_runtime.domain.budget import NOTHING_MEASURED, UNKNOWN
from tandem_runtime.domain.errors import Overloaded, TandemError, origin
from tandem_runtime.domain.gathering import Gathering, Ready
from tandem_runtime.domain.tokens import Priority, SessionId
from tandem_runtime.engines.jobs import Job, Step, Work, guesses_of
from tandem_runtime.engines.lines import PATIENCE_SECONDS, Lines
from tandem_runtime.engines.pace import UNPACED, Pace
from tandem_runtime.engines.planning import RIDE_ALONG_TOKENS, Plan, StepSize, plan_step
from tandem_runtime.engines.toll import Needs
from tandem_runtime.ports import Clock, Logits, Row, StepModel

__all__ = ["Beside", "Emit", "StepLoop"]

JOBS_PER_LANE = 8
"""A driver has one, two where it asks again: who has more does not wait for answers."""

LONGEST_WAIT_SECONDS = 30.0
"""For memory or room. Well below a gateway's patience, so that it can still go elsewhere."""

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Item = TypeVar("Item")

Emit: TypeAlias = Callable[[Item], None]

Beside: TypeAlias = tuple[SessionId, int]
"""A lane of work that goes on beside a session's own, and that nobody waits for."""


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
        size: StepSize,
        pace: Pace | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._model = model
        self.lines = Lines(model, now=clock.monotonic, patience_seconds=patience_seconds)
        self._clock = clock
        self._pace = pace or Pace(UNPACED, clock=clock)
        self.needs = Needs()
        self._due = clock.monotonic()
        self._lost = lost
        self._size = size
        self._costs = size.costs or NOTHING_MEASURED
        self._ended = clock.monotonic()
        """When the last step did."""
        self._shares = {priority: Shares() for priority in Priority}
        self._commands: Queue[Callable[[], None]] = Queue()
        """No SimpleQueue: of Python 3.11, that one may wait for ever where a short timeout is over before it waits."""
        self._lanes: dict[SessionId | Beside, deque[Job]] = {}
        self._starving = False
        self._gathering = Gathering()
        self._waits_until: float | None = None
        """None: the next step begins at once."""
        self._busy_since: float | None = None
        """When the step under way began, with the commands before it; None between two steps."""
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
        job = Job(lane, work, answer, gives_way=False, since=self._clock.monotonic())
        self._ask(partial(self._enter, job))
        try:
            result: Result = await future
        finally:
            if future.cancelled():
                self._tell(partial(self._drop, job))
        return result

    def go(self, lane: SessionId, work: Work[None]) -> None:
        """Carry `work` through in its turn, though nobody waits for it. If it fails, it ends there."""
        job = Job(lane, work, _unheard, gives_way=False, since=self._clock.monotonic())
        self._ask(partial(self._enter, job))

    async def stream(self, lane: SessionId, work: Callable[[Emit[Item]], Work[None]]) -> AsyncIterator[Item]:
        """What `work` emits, as it comes. Closing the iterator, or any later job in the lane, ends the work."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Item | None] = asyncio.Queue()
        failures: list[TandemError] = []

        def emit(item: Item) -> None:
            self.post(loop, partial(arrived.put_nowait, item))

        def ended(_result: None, error: TandemError | None) -> None:
            failures.extend([error] if error else [])
            self.post(loop, partial(arrived.put_nowait, None))

        job = Job(lane, work(emit), ended, gives_way=True, since=self._clock.monotonic())
        self._ask(partial(self._enter, job))
        try:
            while (item := await arrived.get()) is not None:
                yield item
        finally:
            self._tell(partial(self._drop, job))
        if failures:
            raise failures[0]

    @property
    def waiting(self) -> int:
        """Jobs that somebody waits for, those in the step under way included. May be read on any thread."""
        return sum(len(jobs) for lane, jobs in list(self._lanes.items()) if not isinstance(lane, tuple))

    @property
    def beside(self) -> int:
        """Jobs that nobody waits for. May be read on any thread."""
        return sum(isinstance(lane, tuple) for lane in list(self._lanes))

    @property
    def busy_seconds(self) -> float:
        """For how long the step under way has been; 0 between two. May be read on any thread."""
        since = self._busy_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def now(self) -> float:
        """On the model's thread: the clock's time, but during a step not before the step's results are due."""
        return max(self._clock.monotonic(), self._due)

    def go_beside(self, lane: Beside, work: Work[None]) -> None:
        """On the model's thread: carry `work` through though nobody waits for it. If it fails, it ends there."""
        self._enter(Job(lane, work, _unheard, gives_way=True, since=self.now()))

    def end_beside(self, lanes: Sequence[Beside]) -> None:
        """On the model's thread: whatever goes on there ends. Idempotent."""
        for lane in lanes:
            for job in reversed([*self._lanes.get(lane, ())]):
                self._finish(job)

    def soon(self, command: Callable[[], None]) -> None:
        """On the model's thread: run `command` on it once what is known by now has been sent."""
        self._tell(command)

    def expect(self, session: SessionId, priority: Priority) -> None:
        """On the model's thread: `session` is about to be answered, and will ask again. A step may wait for it, unless
        nobody waits for what it does."""
        if priority < Priority.BACKGROUND:
            self._gathering.left(session, self.now(), priority)

    def end_lane(self, lane: SessionId | Beside, error: TandemError) -> None:
        """On the model's thread: all jobs of the lane fail with `error`, and no more of it are expected."""
        self._gathering.forget(lane)
        for job in reversed([*self._lanes.get(lane, ())]):  # so that none begins
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

        return future, lambda result, error: self.post(loop, partial(settle, result, error))

    # From here on: the model's thread only.

    def _live(self) -> None:
        try:
            while not self._stopping:
                self.turn()
                self.send()
        finally:  # also after a bug: callers are told, and not left to wait
            self._end()

    @property
    def is_idle(self) -> bool:
        """Whether a turn would begin by waiting."""
        return self._commands.empty() and (self._waits_until is not None or self._starving or not self._lanes)

    @property
    def waits_until(self) -> float | None:
        """The moment at which a step begins that waits for sessions, whoever comes; None: none waits."""
        return self._waits_until

    def turn(self) -> None:
        """Do what has been asked for, and take a step. On the thread of the loop; a simulation of virtual time, which
        starts none, takes the turns itself."""
        commands = self._awaited() + self._arrived()
        began = self._busy_since = self._clock.monotonic()
        for command in commands:
            with self._surviving():
                command()
        if not self._stopping:
            with self._surviving():
                self._step_or_wait(began, is_news=bool(commands))
        self._busy_since = None

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Whatever goes wrong, the thread goes on, from a state that is surely right."""
        try:
            yield
        except Exception as error:
            _log.error("loop failed jobs=%d error=%s", self.waiting, origin(error))
            self.lines.forget()
            for lane in list(self._lanes):
                self.end_lane(lane, self._as_ours(error))

    def _end(self) -> None:
        with self._closing:
            self._closed = True
        _call_all(self._arrived())
        for lane in list(self._lanes):
            self.end_lane(lane, self._lost("the engine was stopped"))
        self.send()

    def _stop(self) -> None:
        self._stopping = True

    def _awaited(self) -> list[Callable[[], None]]:
        """What must come before there is anything to do: a command, or where a step waits or jobs have no memory,
        time."""
        if not self._lanes:
            return [self._commands.get()]
        if self._waits_until is not None:
            patience = max(self._waits_until - self._clock.monotonic(), 0.0)
        elif self._starving:
            patience = self.lines.seconds_of_patience([job.line for job in self._first_jobs()])
        else:
            return []
        try:
            return [self._commands.get(timeout=patience)]
        except Empty:
            return []

    def _arrived(self) -> list[Callable[[], None]]:
        commands = []
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands

    def _enter(self, job: Job) -> None:
        lane = self._lanes.setdefault(job.lane, deque())
        if len(lane) >= JOBS_PER_LANE:
            job.answer(None, Overloaded(f"{len(lane)} requests of this session wait already; wait for their answers"))
            return
        lane.append(job)
        self._gathering.returned(job.lane, job.since)
        if lane[0] is job:
            self._begin(job, lane)
        elif lane[0].gives_way:
            self._finish(lane[0])

    def _begin(self, job: Job, lane: deque[Job]) -> None:
        if job.gives_way and len(lane) > 1:
            self._finish(job)
        else:
            self._advance(job)

    def _drop(self, job: Job) -> None:
        if job in self._lanes.get(job.lane, ()):
            self._finish(job)

    def _first_jobs(self) -> list[Job]:
        return [lane[0] for lane in self._lanes.values()]

    def _step_or_wait(self, began: float, *, is_news: bool) -> None:
        """Wait, unless that has been done and nothing came; whatever comes, it is decided anew."""
        has_waited = self._waits_until is not None and not is_news
        seconds = 0.0 if has_waited else self._worth_waiting(began)
        self._waits_until = began + seconds if seconds > 0 else None
        if self._waits_until is None:
            self._gathering.began()
            self._step(began)

    def _worth_waiting(self, now: float) -> float:
        """For how many seconds. Those who decode plainly are not kept, nor is a step that has room for nobody else."""
        costs = self._costs.step_alone(now=now) if self._gathering.expects else None
        jobs = self._first_jobs()
        if costs is None or not jobs or any(job.gives_way for job in jobs):
            return 0.0
        rows = sum(job.compulsory + len(job.slots) for job in jobs if job.compulsory <= RIDE_ALONG_TOKENS)
        urgency = min(job.claim.priority for job in jobs)
        return 0.0 if rows >= self._size.rows else self._gathering.wait(Ready(len(jobs), rows, costs, urgency), now)

    def _step(self, began: float) -> None:
        seconds = UNKNOWN if self._size.costs is None else self._costs.seconds(now=began)
        plan = plan_step(self._first_jobs(), self.lines, self._shares, size=self._size, seconds=seconds)
        self._starving = not plan.parts
        if plan.parts:
            self._due = self._pace.due(plan.rows, began)
            jobs = [job for job, _ in plan.parts]
            last, came = fmean(job.line.used_at for job in jobs), fmean(job.since < self._ended for job in jobs)
            self._compute(plan, began)
            self._pace.stretch(began, self._due)
            self._ended = self._clock.monotonic()
            if not plan.chunked:  # one with a prompt in it tells little of what a guess costs
                self._measure(plan.rows, self._ended - began, cycle=self._ended - last, came_during=came)
        for job in plan.given_up:
            self._drop(job)
        for job in plan.starved:
            if self._clock.monotonic() - max(job.since, job.line.used_at) > LONGEST_WAIT_SECONDS:
                self._finish(job, error=Overloaded("the engine's KV memory or its steps are full; try again later"))

    def _measure(self, rows: Sequence[Row], seconds: float, *, cycle: float, came_during: float) -> None:
        """Learn what a step cost, and those who shared it."""
        learned = self._costs.learned(sum(len(row.tokens) for row in rows), seconds, now=self._ended)
        self._costs = learned.shared(cycle, came_during, seconds)

    def _compute(self, plan: Plan, began: float) -> None:
        outcomes = self._forward(plan.rows)
        self.needs.add(plan.rows, self._model.toll)
        sessions = sum(job.is_asked_for for job, _ in plan.parts)
        step = Step(self.now() - began, sessions, guesses_of(plan.parts))
        for (job, row), outcome in zip(plan.parts, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._finish(job, error=self._as_ours(outcome))
                continue
            self.lines.fed(job.current, len(row.tokens))
            job.took(row, outcome, waited=began - job.since, step=step)
            if not job.missing:
                self._advance(job)

    def _forward(self, rows: Sequence[Row]) -> list[Logits | Exception]:
        """Each row's logits, or the error that it has alone: a step that fails, for want of memory or by the fault of a
        row, is halved. The same rows again give the same."""
        try:
            return [*self._model.forward(rows)]
        except Exception as error:  # the job of this row fails; those beside it must not
            if len(rows) > 1:
                half = len(rows) // 2
                return [*self._forward(rows[:half]), *self._forward(rows[half:])]
            _log.error("row failed error=%s", origin(error))
            return [error]

    def _advance(self, job: Job) -> None:
        """Hand the job what it wanted (nothing, at first) and hear what it wants next."""
        begins = job.want is None
        try:
            want = next(job.work) if begins else job.work.send(job.seen(self._model.blocks.used_share))
        except StopIteration as end:
            self._finish(job, result=end.value)
        except Exception as error:  # a fault of one request, such as NaN logits
            self._finish(job, error=self._as_ours(error))
        else:
            if not begins:
                job.since = self.now()
            self.lines.begin(want)
            job.need(want)

    def _finish(self, job: Job, *, result: Any = None, error: TandemError | None = None) -> None:
        """Take the job out of its lane, answer, and let the next one begin. A failed line is computed anew."""
        job.work.close()
        if error is not None and job.want is not None:
            self.lines.cut(job.want.line, 0)
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

    def post(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """On the model's thread: `call` runs on `loop` once the results of the step under way are due."""
        self._outbox.setdefault(loop, []).append(call)

    def send(self) -> None:
        """Wake each event loop once per step, with all that there is for it."""
        outbox, self._outbox = self._outbox, {}
        for loop, calls in outbox.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_call_all, calls)


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _unheard(_result: None, error: TandemError | None) -> None:
    """Where the answer of work goes that nobody waits for. An error that nobody foresaw is told all the same."""
    if error is not None and isinstance(error.__cause__, Exception):
        _log.error("work beside failed error=%s", origin(error.__cause__))
