"""Waits that share a timer end as those of `asyncio.timeout` do; each case but the last two is played on both."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest

from tandem_runtime.limits import within

Limit = Callable[[float], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def shared(seconds: float) -> Any:
    with within(seconds):
        yield


@asynccontextmanager
async def in_time_or_failed(limit: AbstractAsyncContextManager[Any]) -> Any:
    try:
        async with limit:
            yield
    except TimeoutError:
        pytest.fail("this one had time")


@pytest.fixture(params=[asyncio.timeout, shared], ids=["of the library", "shared"])
def limit(request: pytest.FixtureRequest) -> Limit:
    chosen: Limit = request.param
    return chosen


def timers() -> int:
    """That are set on this loop."""
    loop: Any = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)


async def test_what_comes_in_time_is_not_disturbed(limit: Limit) -> None:
    async with limit(0.02):
        await asyncio.sleep(0)
    await asyncio.sleep(0.03)


async def test_what_does_not_is_cancelled_at_its_time(limit: Limit) -> None:
    loop = asyncio.get_running_loop()
    began, never = loop.time(), asyncio.Event()
    with pytest.raises(TimeoutError):
        async with limit(0.02):
            await never.wait()
    assert 0.019 <= loop.time() - began < 1


async def test_nothing_is_waited_for_where_there_is_no_time(limit: Limit) -> None:
    with pytest.raises(TimeoutError):
        async with limit(0):
            await asyncio.Event().wait()


async def test_of_two_limits_the_earlier_one_counts_and_says_whose_it_was(limit: Limit) -> None:
    with pytest.raises(TimeoutError):
        async with limit(0.01), in_time_or_failed(limit(5)):
            await asyncio.Event().wait()
    async with limit(5):
        with pytest.raises(TimeoutError):
            async with limit(0.01):
                await asyncio.Event().wait()


async def test_an_error_of_what_is_waited_for_stays_that_error(limit: Limit) -> None:
    with pytest.raises(LookupError):
        async with limit(5):
            raise LookupError


async def test_who_is_cancelled_from_outside_is_cancelled(limit: Limit) -> None:
    async def waits() -> None:
        async with limit(5):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancellation_from_outside_is_not_taken_for_the_end_of_the_time(limit: Limit) -> None:
    """Both come in one turn of the loop."""
    cleaning = asyncio.Event()

    async def waits() -> None:
        async with limit(0.01):
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

    waiting = asyncio.create_task(waits())
    await cleaning.wait()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled() or waiting.exception() is None


async def test_each_ends_at_its_own_time_whatever_the_order_in_which_they_began() -> None:
    ended: list[float] = []

    async def waits(seconds: float) -> None:
        with suppress(TimeoutError), within(seconds):
            await asyncio.Event().wait()
        ended.append(seconds)

    await asyncio.gather(*(waits(seconds) for seconds in (0.03, 0.01, 0.05, 0.02, 0.04)))
    assert ended == [0.01, 0.02, 0.03, 0.04, 0.05]


async def test_many_waits_have_one_timer_and_leave_none() -> None:
    before = timers()
    with within(3), within(1), within(2):
        during = timers()
        await asyncio.sleep(0)
    assert (during, timers()) == (before + 1, before)
