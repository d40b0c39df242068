"""The lease over the in-memory cluster: one holder at a time, and silence before anybody else may begin."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tandem_operator.domain.errors import Unavailable
from tandem_operator.lease import Leadership, LeaseTerms
from tandem_operator.ports import Clock, Json, Kind
from tandem_operator.testing import FixedClock, MemoryCluster


def leadership(cluster: MemoryCluster, clock: Clock, identity: str) -> Leadership:
    return Leadership(cluster, clock, LeaseTerms("system", "tandem-operator", identity))


async def test_the_first_takes_the_lease_and_the_second_waits() -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first, second = leadership(cluster, clock, "a"), leadership(cluster, clock, "b")
    assert await first.attempt()
    assert not await second.attempt()
    assert (first.held(), second.held()) == (True, False)


async def test_a_silent_holder_is_replaced_after_the_duration_on_the_rivals_own_clock_and_not_before() -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first, second = leadership(cluster, clock, "a"), leadership(cluster, clock, "b")
    await first.attempt()
    assert not await second.attempt()
    clock.advance(14.9)
    assert not await second.attempt()
    clock.advance(0.2)
    assert await second.attempt()


async def test_a_holder_that_renews_keeps_the_lease() -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first, second = leadership(cluster, clock, "a"), leadership(cluster, clock, "b")
    for _ in range(20):
        assert await first.attempt()
        assert not await second.attempt()
        clock.advance(5)


async def test_the_fence_falls_at_the_renew_deadline_before_a_rival_may_begin() -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first, second = leadership(cluster, clock, "a"), leadership(cluster, clock, "b")
    await first.attempt()
    await second.attempt()
    with cluster.failing(lambda verb, kind, name: Unavailable("write", "planted")):
        clock.advance(9.9)
        assert not await first.attempt()
        assert first.held()
        clock.advance(0.2)
        assert not first.held()
    assert not await second.attempt()


async def test_a_released_lease_is_free_at_once() -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first, second = leadership(cluster, clock, "a"), leadership(cluster, clock, "b")
    await first.attempt()
    await first.release()
    assert not first.held()
    assert await second.attempt()


async def test_two_that_try_at_once_do_not_both_win(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first, second = leadership(cluster, clock, "a"), leadership(cluster, clock, "b")
    await first.attempt()
    await first.release()
    stale = await cluster.get(Kind.LEASE, "system", "tandem-operator")
    assert await second.attempt()

    async def read_before_the_rival_wrote(*_: object) -> object:
        return stale

    monkeypatch.setattr(cluster, "get", read_before_the_rival_wrote)
    assert not await first.attempt()


@pytest.mark.looptime
async def test_keep_calls_lost_when_renewals_fail_until_the_deadline() -> None:
    cluster, clock = MemoryCluster(), FixedClock()
    first = leadership(cluster, clock, "a")
    await first.attempt()
    lost: list[float] = []

    def fail(verb: str, kind: Kind, name: str) -> Unavailable:
        clock.advance(3)
        return Unavailable("write", "planted")

    with cluster.failing(fail):
        await first.keep(lambda: lost.append(clock.monotonic()))
    assert lost == [12]


class LoopClock:
    """The event loop's own time, which looptime moves."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class HangingCluster(MemoryCluster):
    """From a moment on, the first so many reads are never answered."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = 0

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        if self.hangs:
            self.hangs -= 1
            await asyncio.Event().wait()
        return await super().get(kind, namespace, name)


@pytest.mark.looptime
async def test_one_answer_that_never_comes_costs_no_leadership() -> None:
    cluster = HangingCluster()
    first = leadership(cluster, LoopClock(), "a")
    await first.attempt()
    keeping = asyncio.create_task(first.keep(lambda: None))
    cluster.hangs = 1
    await asyncio.sleep(60)
    assert (first.held(), keeping.done()) == (True, False)
    keeping.cancel()


@pytest.mark.looptime
async def test_an_api_server_that_hangs_ends_leadership_at_the_deadline_and_no_later() -> None:
    cluster, clock = HangingCluster(), LoopClock()
    first = leadership(cluster, clock, "a")
    await first.attempt()
    began, lost = clock.monotonic(), list[float]()
    cluster.hangs = 1000
    await first.keep(lambda: lost.append(clock.monotonic() - began))
    assert lost == [pytest.approx(10, abs=0.01)]


async def test_a_fault_of_our_own_in_a_renewal_is_a_lost_lease_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock, lost = MemoryCluster(), FixedClock(), list[str]()
    first = leadership(cluster, clock, "a")
    await first.attempt()

    async def broken(*_: object) -> Json | None:
        raise KeyError("planted")

    monkeypatch.setattr(cluster, "get", broken)
    first._terms = replace(first._terms, retry_seconds=0)
    await first.keep(lambda: lost.append("lost"))
    assert lost == ["lost"]
