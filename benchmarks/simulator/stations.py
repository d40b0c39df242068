"""Knows a server that computes in steps: what is ready shares the next one, and the step costs what its parts cost.

Refuses to know models, sessions, and what is computed. It follows `engines.step_loop` and `engines.planning`: short
needs ride along, long ones are cut into chunks, a job's needs come one after the other, whose turn it is follows
`domain.batching`, guesses that are not worth a step's seconds are left out, by what steps were measured to take, and a
step waits for sessions that are about to come back as `domain.gathering` says. What it leaves out is memory: nobody is
preempted here.

`sessions` bounds how many jobs share a step, as a batch bound of an engine does: without one a step whose cost does not
grow with its rows could carry any load.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from benchmarks.simulator.costs import Part, StepCost
from tandem_runtime.domain.batching import Claim, Shares
from tandem_runtime.domain.budget import NOTHING_MEASURED, Offer, kept_slots
from tandem_runtime.domain.gathering import Gathering, Ready
from tandem_runtime.domain.tokens import Priority
from tandem_runtime.engines.planning import RIDE_ALONG_TOKENS, StepSize

SIZE = StepSize()
MOST_SESSIONS = 512
"""Per step, where nobody says less."""


@dataclass(frozen=True, slots=True)
class Need:
    """So many `tokens` must be read before the last `outputs` of them yield logits. The last of all are guesses;
    `survivals` are those of all that were asked for, if their gateway tells any."""

    tokens: int
    outputs: int = 1
    survivals: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Took:
    """What a need took: the wait before its first step, its steps, how many sessions shared the last one, how many
    guesses of others that one judged, and how many of its own were left out."""

    queue_seconds: float
    forward_seconds: float
    sessions: int
    beside: int = 0
    left_out: int = 0


Told = Callable[[Took], None]


@dataclass(frozen=True, slots=True)
class Asker:
    """A session as a step may wait for it: one that asks again once its needs are met, or decodes `plainly`."""

    session: Hashable
    plainly: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """Needs of one session, met in order; `told` hears of each. The session's last one was met at `used_at`. Nobody
    waits for who is no `asker`."""

    claim: Claim
    needs: deque[Need]
    told: Told
    since: float
    used_at: float
    asker: Asker | None = None
    read: int = 0
    """Tokens of the first need."""
    queue_seconds: float | None = None
    forward_seconds: float = 0.0
    kept: int | None = None
    """So many of the guesses that the first need asked for are judged; None: that is not decided."""

    @property
    def missing(self) -> int:
        return self.needs[0].tokens - self.read - self.left_out

    @property
    def left_out(self) -> int:
        """Of the first need's guesses."""
        return 0 if self.kept is None else max(self.needs[0].outputs - 1 - self.kept, 0)

    @property
    def slots(self) -> tuple[float, ...]:
        return self.needs[0].survivals[: self.kept]


@dataclass(slots=True)
class Usage:
    """What a station did so far."""

    steps: int = 0
    busy_seconds: float = 0.0
    parts: int = 0
    rows: int = 0


@dataclass(slots=True)
class _Step:
    """A step being planned."""

    sessions: int
    parts: list[tuple[Job, Part]] = field(default_factory=list)
    chunked: int = 0
    riding: int = 0

    def rows_for(self, job: Job) -> int:
        """How many rows of its need there is room for; 0: none."""
        if len(self.parts) >= self.sessions:
            return 0
        missing = job.missing
        is_long = missing > RIDE_ALONG_TOKENS
        room = SIZE.chunk_tokens - self.chunked if is_long else SIZE.rows - self.riding
        if self.parts and self.parts[0][0].claim.priority < job.claim.priority:
            room = min(room, max(0, SIZE.chunk_tokens - self.chunked - self.riding))
        return min(missing, room) if is_long or missing <= room else 0

    def take(self, job: Job, rows: int) -> None:
        is_long = job.missing > RIDE_ALONG_TOKENS
        self.chunked += rows if is_long else 0
        self.riding += 0 if is_long else rows
        self.parts.append((job, Part(rows, job.needs[0].outputs - job.left_out if rows == job.missing else 0)))


class Device:
    """What stations compute on, one step at a time; of the stations that wait, the first by `order` goes on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._idle = True

    def ask_for(self, turn: Callable[[], None], order: int) -> None:
        """Call `turn` when the device is free; it is taken until `leave`."""
        self._waiting.append((order, turn))
        if self._idle:
            self._idle = False
            self._loop.call_soon(self.leave)

    def leave(self) -> None:
        """Free for the next."""
        if not self._waiting:
            self._idle = True
            return
        first = min(self._waiting, key=lambda asking: asking[0])
        self._waiting.remove(first)
        first[1]()


class Station:
    """A server of stated cost in the running loop's time. `chance` draws the noise of each step's cost; with others on
    its `device` it takes turns."""

    def __init__(
        self,
        cost: StepCost,
        *,
        chance: Callable[[], float],
        sessions: int = MOST_SESSIONS,
        device: Device,
        order: int = 0,
    ) -> None:
        self._cost = cost
        self._chance = chance
        self._sessions = sessions
        self._device = device
        self._order = order
        self._loop = asyncio.get_running_loop()
        self._jobs: list[Job] = []
        self._shares = {priority: Shares() for priority in Priority}
        self._asked = False
        self._costs = NOTHING_MEASURED
        self._ended = 0.0
        """When the last step did."""
        self._gathering = Gathering()
        self._alarm: asyncio.TimerHandle | None = None
        """When a step begins that waits."""
        self._has_waited = False
        self.usage = Usage()

    async def meet(
        self,
        claim: Claim,
        needs: Sequence[Need],
        *,
        hop_seconds: float = 0.0,
        used_at: float | None = None,
        asker: Asker | None = None,
    ) -> list[Took]:
        """What each need took, when the word that all are met has come back; either way takes `hop_seconds`.
        Cancelling drops them."""
        met: list[Took] = []
        done = self._loop.create_future()

        def told(took: Took) -> None:
            met.append(took)
            if len(met) == len(needs):
                self._loop.call_later(hop_seconds, _settle, done)

        job = self.begin(claim, needs, told, hop_seconds=hop_seconds, used_at=used_at, asker=asker)
        try:
            await done
        except asyncio.CancelledError:
            self.drop(job)
            raise
        return met

    def begin(
        self,
        claim: Claim,
        needs: Sequence[Need],
        told: Told,
        *,
        hop_seconds: float = 0.0,
        used_at: float | None = None,
        asker: Asker | None = None,
    ) -> Job:
        """A job that arrives after `hop_seconds`; `told` is called at the end of the step that met a need."""
        since = self._loop.time() + hop_seconds
        job = Job(claim, deque(needs), told, since, since if used_at is None else used_at, asker)
        self._loop.call_at(job.since, self._arrive, job)
        return job

    def _arrive(self, job: Job) -> None:
        if not job.needs:
            return
        self._jobs.append(job)
        if job.asker is not None:
            self._gathering.returned(job.asker.session, job.since)
        self._has_waited = False
        self._ask()

    def forget(self, session: Hashable) -> None:
        """It is closed, and comes back no more."""
        self._gathering.forget(session)

    def drop(self, job: Job) -> None:
        """Forget what is left of it; the step under way goes on."""
        job.needs.clear()
        if job in self._jobs:
            self._jobs.remove(job)

    def _ask(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._asked:
            self._asked = True
            self._device.ask_for(self._step_or_wait, self._order)

    def _step_or_wait(self) -> None:
        """Wait, unless that has been done and nobody came; meanwhile the device is another's."""
        seconds = 0.0 if self._has_waited else self._worth_waiting()
        self._has_waited = False
        if seconds > 0:
            self._asked = False
            self._alarm = self._loop.call_later(seconds, self._wait_no_more)
            self._device.leave()
        else:
            self._gathering.began()
            self._step()

    def _wait_no_more(self) -> None:
        self._has_waited = True
        self._ask()

    def _worth_waiting(self) -> float:
        """As `StepLoop` has it; no more than may share the step are waited for."""
        now, jobs = self._loop.time(), self._jobs
        costs = self._costs.step_alone(now=now) if self._gathering.expects else None
        if costs is None or not 0 < len(jobs) < self._sessions:
            return 0.0
        if any(job.asker is not None and job.asker.plainly for job in jobs):
            return 0.0
        rows = sum(job.missing for job in jobs if job.missing - len(job.slots) <= RIDE_ALONG_TOKENS)
        urgency = min(job.claim.priority for job in jobs)
        return 0.0 if rows >= SIZE.rows else self._gathering.wait(Ready(len(jobs), rows, costs, urgency), now)

    def _step(self) -> None:
        step = _Step(self._sessions)
        self._leave_out()
        for job in self._in_order():
            rows = step.rows_for(job)
            if rows:
                step.take(job, rows)
                self._shares[job.claim.priority].charge(job.claim, rows)
        parts = [part for _, part in step.parts]
        seconds = self._cost.seconds(parts) * self._chance() if parts else 0.0
        self._note(parts, seconds)
        self._loop.call_later(seconds, self._end, step, self._loop.time())

    def _leave_out(self) -> None:
        """Of the short needs that can share the step, the guesses that are not worth its seconds."""
        first = sorted(self._jobs, key=lambda job: job.since)[: self._sessions]
        riding = [job for job in first if job.missing <= RIDE_ALONG_TOKENS]
        offers = [Offer(job.claim, max(job.missing - len(job.slots), 1), job.slots) for job in riding]
        seconds = self._costs.seconds(now=self._loop.time())
        long = min(sum(job.missing for job in first) - sum(job.missing for job in riding), SIZE.chunk_tokens)
        beside = replace(seconds, fixed=seconds.fixed + seconds.per_row * long, rows=SIZE.rows)
        for job, kept in zip(riding, kept_slots(offers, beside), strict=True):
            if job.slots and job.kept is None:
                job.kept = kept

    def _measure(self, step: _Step, seconds: float) -> None:
        """What a step took that read no prompt, before those in it are told."""
        now, ended, self._ended = self._loop.time(), self._ended, self._loop.time()
        if step.parts and not step.chunked:
            came = fmean(job.since < ended for job, _ in step.parts)
            learned = self._costs.learned(step.riding, seconds, now=now)
            self._costs = learned.shared(now - fmean(job.used_at for job, _ in step.parts), came, seconds)

    def _in_order(self) -> Iterator[Job]:
        jobs = sorted(self._jobs, key=lambda job: job.since)
        for priority in sorted({job.claim.priority for job in jobs}):
            waiting = [(job.claim.tenant, job) for job in jobs if job.claim.priority is priority]
            yield from self._shares[priority].turns(waiting)

    def _note(self, parts: list[Part], seconds: float) -> None:
        self.usage.steps += 1 if parts else 0
        self.usage.busy_seconds += seconds
        self.usage.parts += len(parts)
        self.usage.rows += sum(part.rows for part in parts)

    def _end(self, step: _Step, began: float) -> None:
        parts, seconds = step.parts, self._loop.time() - began
        self._measure(step, seconds)
        guesses = sum(part.proposed for _, part in parts)
        for job, part in parts:
            self._took(job, part, Took(began - job.since, seconds, len(parts), guesses - part.proposed))
        self._asked = False
        if self._jobs:
            self._ask()
        self._device.leave()

    def _took(self, job: Job, part: Part, took: Took) -> None:
        if not job.needs:
            return
        job.read += part.rows
        if job.queue_seconds is None:
            job.queue_seconds = took.queue_seconds
        job.forward_seconds += took.forward_seconds
        if job.missing:
            return
        told = Took(job.queue_seconds, job.forward_seconds, took.sessions, took.beside, job.left_out)
        job.needs.popleft()
        job.since = job.used_at = self._loop.time()
        job.read, job.kept, job.queue_seconds, job.forward_seconds = 0, None, None, 0.0
        if not job.needs:
            self.drop(job)
            self._expect(job)
        job.told(told)

    def _expect(self, job: Job) -> None:
        asker, urgency = job.asker, job.claim.priority
        if asker is not None and not asker.plainly and urgency < Priority.BACKGROUND:
            self._gathering.left(asker.session, self._loop.time(), urgency)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
