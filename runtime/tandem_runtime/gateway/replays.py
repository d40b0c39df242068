"""Knows when finished answers are made again without speculation: one at a time, and only where nobody else is served.

Refuses to keep, log or count what was said: jobs live in memory until they are done, and a difference is told by its
position. Replays are no requests: they are in no usage, no evidence of speed or acceptance, and no switchback slot.

How a busy target is known. This gateway counts its own sessions on each replica: a replay begins on one without any and
gives way at the next token when one comes. Of other gateways' sessions the target itself tells: work that waits for a
step under way has company. A replay that gives way closes its session and goes on later from the tokens found equal.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.errors import Overloaded, TandemError, TargetLost
from tandem_runtime.domain.policy import PairRevision
from tandem_runtime.domain.replay import Replay, Result
from tandem_runtime.domain.tokens import Opened
from tandem_runtime.ports import Clock, TargetEngine
from tandem_runtime.replicas import Pool, Replica

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """Bounds of the queue, and times. `queue_seconds`: a wait for the target that shows other company there."""

    jobs: int = 32
    tokens: int = 500_000
    kept_seconds: float = 600.0
    look_seconds: float = 0.1
    busy_seconds: float = 1.0
    queue_seconds: float = 0.005
    answer_seconds: float = 60.0
    close_seconds: float = 2.0


@dataclass(slots=True, eq=False)
class ReplayJob:
    """`settled` is told the result, once. `adapter` is what the answer was made with, `tenant` whose it is."""

    revision: PairRevision
    replay: Replay
    settled: Callable[[Result], None]
    adapter: AdapterDigest | None = None
    tenant: str | None = None
    until: float = 0.0


class Replays:
    """The queue and its one worker."""

    def __init__(self, targets: Pool[TargetEngine], *, clock: Clock, limits: ReplayLimits | None = None) -> None:
        self._targets = targets
        self._clock = clock
        self._limits = limits or ReplayLimits()
        self._jobs: list[ReplayJob] = []
        self._arrived = asyncio.Event()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Jobs that are not settled yet, the one under way included."""
        return len(self._jobs)

    def offer(self, job: ReplayJob) -> None:
        """Queue the job, or drop it where the queue is full or closed; never waits."""
        tokens = job.replay.tokens + sum(known.replay.tokens for known in self._jobs)
        if self._closed or len(self._jobs) == self._limits.jobs or tokens > self._limits.tokens:
            job.settled(Result.DROPPED)
            return
        job.until = self._clock.monotonic() + self._limits.kept_seconds
        self._jobs.append(job)
        self._arrived.set()

    def forget(self, tenants: Set[str]) -> None:
        """Drop what is theirs, the job under way too, which ends with the token that it waits for."""
        for job in list(self._jobs):
            if job.tenant in tenants:
                self._settle(job, Result.DROPPED)

    async def run(self) -> None:
        """Replay until cancelled; then everything that is left is dropped, and so is what comes later."""
        try:
            while True:
                job, replica = await self._next()
                await self._work(job, replica)
        finally:
            self._closed = True
            for job in list(self._jobs):
                self._settle(job, Result.DROPPED)

    async def _next(self) -> tuple[ReplayJob, Replica[TargetEngine]]:
        """The oldest job whose target serves nobody; jobs that have waited too long, or whose target is gone, go."""
        while True:
            self._drop_hopeless()
            for job in self._jobs:
                now = self._clock.monotonic()
                replica = self._targets.idle(job.revision.target, now=now, adapter=job.adapter)
                if replica is not None:
                    return job, replica
            await self._look_again()

    async def _look_again(self) -> None:
        if self._jobs:
            await asyncio.sleep(self._limits.look_seconds)
        else:
            self._arrived.clear()
            await self._arrived.wait()

    def _drop_hopeless(self) -> None:
        now, served = self._clock.monotonic(), self._targets.admitted()
        for job in list(self._jobs):
            if now > job.until or job.revision.target not in served:
                self._settle(job, Result.DROPPED)

    def _settle(self, job: ReplayJob, result: Result) -> None:
        self._jobs.remove(job)
        job.settled(result)

    async def _work(self, job: ReplayJob, replica: Replica[TargetEngine]) -> None:
        """Carry the job on until it is settled or must give way."""
        try:
            has_company = await self._carry_on(job, replica)
        except Overloaded:
            has_company = True
        except (TandemError, TimeoutError) as error:
            if job not in self._jobs:
                return
            kind = type(error).__name__
            log.info("replay failed revision=%s position=%d error=%s", job.revision.name, job.replay.equal, kind)
            self._settle(job, Result.FAILED)
            return
        if job not in self._jobs:
            return
        if job.replay.over:
            self._tell(job, job.replay.result(replica.capabilities.determinism))
        elif has_company:
            await asyncio.sleep(self._limits.busy_seconds)

    def _tell(self, job: ReplayJob, result: Result) -> None:
        opening = job.replay.opening()
        if result is not Result.EQUAL:
            log.warning(
                "answer differs from plain decoding revision=%s session=%s position=%d verification=%s temperature=%s",
                job.revision.name,
                opening.session,
                job.replay.equal,
                opening.verification,
                opening.parameters.temperature,
            )
        self._settle(job, result)

    async def _carry_on(self, job: ReplayJob, replica: Replica[TargetEngine]) -> bool:
        """Compare tokens to the end or until a session comes; true if the target has company that is not ours."""
        engine, opening = replica.engine, job.replay.opening()
        try:
            opened = await self._in_time(engine.open(opening))
            while not self._must_end(job, replica):
                if await self._compare_run(job, replica, opened):
                    return True
            return False
        finally:
            await self._release(engine.close(opening.session))

    def _must_end(self, job: ReplayJob, replica: Replica[TargetEngine]) -> bool:
        return job.replay.over or replica.sessions > 0 or job not in self._jobs

    async def _compare_run(self, job: ReplayJob, replica: Replica[TargetEngine], opened: Opened) -> bool:
        """One run, or its part until a session comes; true if its first token had to wait for others' work."""
        replay, began = job.replay, job.replay.equal
        verdicts = replica.engine.run(replay.run(opened.incarnation))
        try:
            while verdict := await self._in_time(anext(verdicts, None)):
                replay.told(verdict)
                if replay.equal == began + 1 and verdict.queue_seconds > self._limits.queue_seconds:
                    return True
                if self._must_end(job, replica):
                    return False
        finally:
            if isinstance(verdicts, AsyncGenerator):
                await self._release(verdicts.aclose())
        if replay.equal == began:
            raise TargetLost("the target ended a run without a token")
        return False

    async def _release(self, closing: Awaitable[None]) -> None:
        """A target that cannot be reached has freed the session already."""
        with suppress(TandemError, TimeoutError):
            async with asyncio.timeout(self._limits.close_seconds):
                await closing

    async def _in_time(self, answer: Awaitable[Answer]) -> Answer:
        async with asyncio.timeout(self._limits.answer_seconds):
            return await answer
