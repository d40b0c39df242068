"""Knows how to ask a draft what it would have proposed of an answer that it had no part in.

Refuses to stand in the way of traffic: jobs wait in a short queue, one is scored at a time, and what does not fit is
dropped. So alpha stays known while speculation is off, and a new draft is judged before anyone is served by it.

In coupled verification a proposed token is accepted iff it equals the target's own choice under the shared noise, so
with the request's own seed and parameters a match bit is exactly an acceptance bit.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass

from tandem_runtime.asking import in_time, scored
from tandem_runtime.domain.errors import TandemError, origin
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.domain.tokens import OpenSession, ScoreTokens, TokenId
from tandem_runtime.ports import DraftEngine
from tandem_runtime.replicas import Pool

WAITING_JOBS = 32
SCORE_SECONDS = 10.0
"""A draft that takes longer has other work; the job is dropped."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShadowJob:
    """`output` is what the target emitted in the session of `opening`, for `tenant`; `scored` takes (matched,
    examined)."""

    draft: RoleHash
    opening: OpenSession
    output: tuple[TokenId, ...]
    scored: Callable[[int, int], None]
    tenant: str | None = None


class Shadow:
    """The queue and its one worker."""

    def __init__(self, drafts: Pool[DraftEngine]) -> None:
        self._drafts = drafts
        self._jobs: asyncio.Queue[ShadowJob] = asyncio.Queue(WAITING_JOBS)
        self.dropped = 0

    def offer(self, job: ShadowJob) -> None:
        """Queue the job or drop it; never waits."""
        try:
            self._jobs.put_nowait(job)
        except asyncio.QueueFull:
            self.dropped += 1

    def forget(self, tenants: Set[str]) -> None:
        """Drop what is theirs and waits; what is being scored is over in seconds."""
        for _ in range(self._jobs.qsize()):
            job = self._jobs.get_nowait()
            if job.tenant in tenants:
                self.dropped += 1
            else:
                self._jobs.put_nowait(job)
            self._jobs.task_done()

    async def run(self) -> None:
        """Score jobs for ever."""
        while True:
            job = await self._jobs.get()
            try:
                await self._score(job)
            except TandemError as error:
                self.dropped += 1
                log.info("shadow score dropped: %s", origin(error))
            finally:
                self._jobs.task_done()

    async def settle(self) -> None:
        """Wait until every queued job is scored or dropped."""
        await self._jobs.join()

    async def _score(self, job: ShadowJob) -> None:
        replica = self._drafts.borrow(job.draft, job.opening.session)
        if replica is None:
            self.dropped += 1
            return
        try:
            bits = await in_time(SCORE_SECONDS, _bits(replica.engine, job))
            if bits is None:
                self.dropped += 1
            else:
                job.scored(sum(bits), len(bits))
        finally:
            self._drafts.give_back(replica, served=False)  # it proposed nothing, and nobody learnt what that costs
            await in_time(SCORE_SECONDS, replica.engine.close(job.opening.session))


async def _bits(draft: DraftEngine, job: ShadowJob) -> tuple[bool, ...] | None:
    opened = await draft.open(job.opening)
    return await scored(draft, ScoreTokens(job.opening.session, opened.incarnation, 0, job.output))
