"""The worker that replays answers, over a small target that does as it is told."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from tests.seams.gateway_peers import ShiftedClock, until
from tests.seams.wire_peers import CountingTarget, next_token, opening, target_link

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.errors import NotANumber, Overloaded, SessionLost, TandemError
from tandem_runtime.domain.policy import PairRevision, RevisionName, RoleHash
from tandem_runtime.domain.replay import Replay, Result
from tandem_runtime.domain.tokens import (
    Capabilities,
    Incarnation,
    Opened,
    OpenSession,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.gateway.replays import ReplayJob, ReplayLimits, Replays
from tandem_runtime.ports import TargetEngine
from tandem_runtime.replicas import Pool, Replica

TARGET = RoleHash("91ab02c4")
REVISION = PairRevision(RevisionName("6f2c9a41"), TARGET, None, 100)
QUICK = ReplayLimits(look_seconds=0.001, busy_seconds=0.001, queue_seconds=0.5, answer_seconds=5)
ANSWER = tuple(index * 5 % 7 for index in range(40))


@dataclass
class Reciter:
    """A target that says ANSWER. `steps` lets tokens out; `lies`, `waits` and `error` are what goes wrong."""

    determinism: str = "Bitwise"
    lies: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()
    error: TandemError | None = None
    steps: asyncio.Semaphore | None = None
    openings: list[OpenSession] = field(default_factory=list)
    open_now: set[SessionId] = field(default_factory=set)
    said: list[int] = field(default_factory=list)

    @property
    def capable(self) -> Capabilities:
        return Capabilities("model", "tokenizer", 7, 1000, self.determinism)

    async def capabilities(self) -> Capabilities:
        return self.capable

    async def open(self, request: OpenSession) -> Opened:
        self.openings.append(request)
        self.open_now.add(request.session)
        return Opened(Incarnation("life"))

    async def verify(self, request: VerifyRound) -> Verdict:
        raise AssertionError("a replay proposes nothing")

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        for offset in range(request.offset, request.offset + request.max_tokens):
            if self.steps is not None:
                await self.steps.acquire()
            if self.error is not None:
                raise self.error
            self.said.append(offset)
            token = ANSWER[offset] + 1 if offset in self.lies else ANSWER[offset]
            seconds = 1.0 if offset in self.waits and self.said.count(offset) == 1 else 0.0
            yield Verdict(offset, offset, 0, token, queue_seconds=seconds)

    async def close(self, session: SessionId) -> None:
        self.open_now.discard(session)


class WatchedPool(Pool[TargetEngine]):
    """Counts how often somebody looked for an idle replica."""

    looks = 0

    def idle(
        self, role_hash: RoleHash, *, now: float, adapter: AdapterDigest | None = None
    ) -> Replica[TargetEngine] | None:
        self.looks += 1
        return super().idle(role_hash, now=now, adapter=adapter)


@dataclass
class Stage:
    """The worker with replicas of its target."""

    replays: Replays
    pool: WatchedPool
    results: list[Result]

    def offer(
        self,
        name: str = "s",
        *,
        target: RoleHash = TARGET,
        answer: tuple[TokenId, ...] = ANSWER,
        tenant: str | None = None,
    ) -> Replay:
        asked = OpenSession(
            SessionId(name), (1,), (), SamplingParameters(7), Verification.COUPLED, max_tokens=len(answer)
        )
        replay = Replay(asked, answer)
        revision = PairRevision(REVISION.name, target, None, 100)
        self.replays.offer(ReplayJob(revision, replay, self.results.append, tenant=tenant))
        return replay

    async def settled(self) -> list[Result]:
        await until(lambda: self.replays.waiting == 0)
        return self.results


@contextmanager
def stage(*engines: Reciter, limits: ReplayLimits = QUICK) -> Iterator[tuple[Stage, list[Replica[TargetEngine]]]]:
    pool = WatchedPool()
    replicas = [
        Replica[TargetEngine](f"uid-{number}", TARGET, engine, engine.capable) for number, engine in enumerate(engines)
    ]
    for replica in replicas:
        pool._replicas[replica.uid] = replica
    yield Stage(Replays(pool, clock=ShiftedClock(), limits=limits), pool, []), replicas


@contextmanager
def working(staged: Stage) -> Iterator[asyncio.Task[None]]:
    task = asyncio.create_task(staged.replays.run())
    try:
        yield task
    finally:
        task.cancel()


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_equal_answers_are_equal_and_their_sessions_closed() -> None:
    engine = Reciter()
    with stage(engine) as (staged, _), working(staged):
        staged.offer("a")
        staged.offer("b", answer=ANSWER[:1])
        assert await staged.settled() == [Result.EQUAL, Result.EQUAL]
    assert (engine.said, engine.open_now) == ([*range(40), 0], set())


async def test_a_difference_is_told_by_its_position_and_not_by_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    with stage(Reciter(lies=frozenset({23}))) as (staged, _), working(staged):
        replay = staged.offer()
        assert await staged.settled() == [Result.DIFFERENT]
    assert replay.equal == 23
    assert caplog.messages == [
        "answer differs from plain decoding revision=6f2c9a41 session=s-replay position=23 verification=Coupled"
        " temperature=1.0"
    ]


async def test_a_difference_on_a_target_that_is_not_bitwise_is_uncertain() -> None:
    near = Reciter("NearTie", lies=frozenset({3}))
    with stage(near) as (staged, _), working(staged):
        staged.offer()
        staged.offer(answer=ANSWER[:3])
        assert await staged.settled() == [Result.UNCERTAIN, Result.EQUAL]


async def test_a_replay_never_begins_where_this_gateway_has_a_session() -> None:
    engine = Reciter()
    with stage(engine) as (staged, replicas), working(staged):
        borrowed = staged.pool.borrow(TARGET, "any")
        assert borrowed is not None
        staged.offer()
        await until(lambda: staged.pool.looks > 3)
        assert engine.openings == []
        staged.pool.give_back(borrowed)
        assert await staged.settled() == [Result.EQUAL]
        assert (replicas[0].sessions, replicas[0].served) == (0, 1)


async def test_a_replay_takes_the_replica_that_serves_nobody() -> None:
    busy, idle = Reciter(), Reciter()
    with stage(busy, idle) as (staged, replicas), working(staged):
        replicas[0].sessions = 1
        staged.offer()
        assert await staged.settled() == [Result.EQUAL]
    assert (len(busy.openings), len(idle.openings)) == (0, 1)


async def test_a_replay_gives_way_at_the_next_token_and_goes_on_where_it_stood() -> None:
    engine = Reciter(steps=asyncio.Semaphore(10))
    assert engine.steps is not None
    with stage(engine) as (staged, replicas), working(staged):
        replay = staged.offer()
        await until(lambda: replay.equal == 10)
        replicas[0].sessions = 1
        engine.steps.release()
        await until(lambda: not engine.open_now)
        assert (replay.equal, staged.results) == (11, [])
        replicas[0].sessions = 0
        for _ in range(40):
            engine.steps.release()
        assert await staged.settled() == [Result.EQUAL]
    assert [len(opening.output) for opening in engine.openings] == [0, 11]
    assert engine.said == [*range(40)]


async def test_a_wait_at_the_target_shows_other_company_and_is_given_way_to() -> None:
    engine = Reciter(waits=frozenset({0, 9, 17}))
    with stage(engine) as (staged, _), working(staged):
        staged.offer()
        assert await staged.settled() == [Result.EQUAL]
    assert [len(opening.output) for opening in engine.openings] == [0, 1, 18]  # not at 9, within a run of its own


@pytest.mark.parametrize("error", [NotANumber("NaN"), SessionLost("who?")])
async def test_a_target_that_does_not_carry_a_replay_through_fails_it_and_no_other(error: TandemError) -> None:
    engine = Reciter(error=error)
    with stage(engine) as (staged, _), working(staged):
        staged.offer()
        await staged.settled()
        engine.error = None
        staged.offer()
        assert await staged.settled() == [Result.FAILED, Result.EQUAL]
    assert engine.open_now == set()


async def test_a_full_target_is_asked_again_later() -> None:
    engine = Reciter(error=Overloaded("full"))
    with stage(engine) as (staged, _), working(staged):
        staged.offer()
        await until(lambda: len(engine.openings) > 2)
        engine.error = None
        assert await staged.settled() == [Result.EQUAL]


async def test_a_target_that_never_answers_fails_the_replay() -> None:
    limits = ReplayLimits(look_seconds=0.001, answer_seconds=0.01)
    with stage(Reciter(steps=asyncio.Semaphore(3)), limits=limits) as (staged, _), working(staged):
        staged.offer()
        assert await staged.settled() == [Result.FAILED]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [(ReplayLimits(jobs=3), 3), (ReplayLimits(tokens=2 * 41), 2), (ReplayLimits(jobs=0), 0)],
)
async def test_what_does_not_fit_is_dropped(limits: ReplayLimits, kept: int) -> None:
    with stage(Reciter(), limits=limits) as (staged, _):
        for _ in range(5):
            staged.offer()
        assert (staged.replays.waiting, staged.results) == (kept, [Result.DROPPED] * (5 - kept))


async def test_an_answer_whose_target_is_gone_or_that_waited_too_long_is_dropped_and_holds_up_no_other() -> None:
    with stage(Reciter()) as (staged, _), working(staged):
        staged.offer(target=RoleHash("00000000"))
        staged.offer()
        assert await staged.settled() == [Result.DROPPED, Result.EQUAL]
    with stage(Reciter(), limits=ReplayLimits(kept_seconds=-1)) as (staged, _), working(staged):
        staged.offer()
        assert await staged.settled() == [Result.DROPPED]


async def test_the_end_drops_the_queue_and_what_comes_later_and_frees_the_target() -> None:
    engine = Reciter(steps=asyncio.Semaphore(5))
    with stage(engine) as (staged, _):
        task = asyncio.create_task(staged.replays.run())
        first, _ = staged.offer("a"), staged.offer("b")
        await until(lambda: first.equal == 5)
        await ended(task)
        staged.offer("c")
    assert (staged.results, staged.replays.waiting) == ([Result.DROPPED] * 3, 0)
    assert engine.open_now == set()


async def test_over_the_wire_an_answer_is_equal_a_false_one_found_and_no_session_left_behind() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        pool: Pool[TargetEngine] = Pool()
        results: list[Result] = []
        replays = Replays(pool, clock=ShiftedClock(), limits=QUICK)
        with pool.holding(Replica("uid", TARGET, remote, engine.capable)):
            task = asyncio.create_task(replays.run())
            for lie in (None, 20):
                said = [1, 2, 3]
                while len(said) < 43:
                    said.append(next_token(said))
                answer = tuple(0 if offset == lie else token for offset, token in enumerate(said[3:]))
                replay = Replay(opening(f"s{lie}"), answer)
                replays.offer(ReplayJob(REVISION, replay, results.append))
                await until(lambda: replays.waiting == 0)
                assert replay.equal == (40 if lie is None else lie)
            await until(lambda: not engine.prefixes)
            await ended(task)
    assert results == [Result.EQUAL, Result.DIFFERENT]


async def test_what_is_a_forgotten_tenants_is_dropped_at_once_and_what_is_under_way_with_its_next_token() -> None:
    engine = Reciter(steps=asyncio.Semaphore(3))
    with stage(engine) as (staged, _), working(staged):
        staged.offer("a", tenant="gone")
        await until(lambda: engine.said == [0, 1, 2])
        for name, tenant in (("b", "gone"), ("c", "stays"), ("d", None)):
            staged.offer(name, tenant=tenant)
        staged.replays.forget({"gone"})
        assert (staged.replays.waiting, staged.results) == (2, [Result.DROPPED] * 2)
        assert engine.steps is not None
        for _ in range(200):
            engine.steps.release()
        assert await staged.settled() == [Result.DROPPED] * 2 + [Result.EQUAL] * 2
    assert engine.said == [0, 1, 2, 3, *range(40), *range(40)]
    assert (engine.open_now, [opened.session for opened in engine.openings]) == (
        set(),
        ["a-replay", "c-replay", "d-replay"],
    )


async def test_a_target_that_fails_under_a_forgotten_replay_is_no_failure() -> None:
    engine = Reciter(steps=asyncio.Semaphore(1))
    with stage(engine) as (staged, _), working(staged):
        staged.offer("a", tenant="gone")
        await until(lambda: engine.said == [0])
        staged.replays.forget({"gone"})
        engine.error = NotANumber("no law")
        assert engine.steps is not None
        engine.steps.release()
        staged.offer("b")
        await until(lambda: len(staged.results) == 2)
    assert staged.results == [Result.DROPPED, Result.FAILED]
