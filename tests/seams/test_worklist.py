"""The worklist under simulated loop time: nothing is missed, nothing of one key runs twice at once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from tandem_operator.domain.errors import Unavailable
from tandem_operator.worklist import PATIENCE_SECONDS, Worklist, back_off

pytestmark = pytest.mark.looptime


class LoopClock:
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def running(
    work: Callable[[str], Awaitable[float | None]], *, resync_seconds: float = 1000, workers: int = 8
) -> AsyncIterator[Worklist[str]]:
    worklist: Worklist[str] = Worklist(work, clock=LoopClock(), resync_seconds=resync_seconds, workers=workers)
    task = asyncio.create_task(worklist.run())
    try:
        yield worklist
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_key_added_ten_times_while_it_waits_is_looked_at_once() -> None:
    looks: list[str] = []

    async def work(key: str) -> None:
        looks.append(key)

    async with running(work) as worklist:
        for _ in range(10):
            await worklist.add("a", after_seconds=5)
        await asyncio.sleep(10)
    assert looks == ["a"]


async def test_a_key_added_during_its_look_is_looked_at_once_more_and_never_in_parallel() -> None:
    active, most, looks = 0, 0, 0

    async def work(key: str) -> None:
        nonlocal active, most, looks
        active, looks = active + 1, looks + 1
        most = max(most, active)
        await asyncio.sleep(10)
        active -= 1

    async with running(work) as worklist:
        await worklist.add("a")
        await asyncio.sleep(1)
        await worklist.add("a")
        await worklist.add("a")
        await asyncio.sleep(100)
    assert (looks, most) == (2, 1)


async def test_a_slow_key_does_not_delay_another() -> None:
    done: list[tuple[str, float]] = []

    async def work(key: str) -> None:
        await asyncio.sleep(60 if key == "slow" else 0)
        done.append((key, asyncio.get_running_loop().time()))

    async with running(work) as worklist:
        await worklist.add("slow")
        await asyncio.sleep(1)
        await worklist.add("quick")
        await asyncio.sleep(100)
    assert done[0] == ("quick", 1)


async def test_a_failing_key_comes_back_with_a_growing_back_off() -> None:
    looks: list[float] = []

    async def work(key: str) -> None:
        looks.append(asyncio.get_running_loop().time())
        raise RuntimeError("planted")

    async with running(work) as worklist:
        await worklist.add("a")
        await asyncio.sleep(200)
    gaps = [b - a for a, b in itertools.pairwise(looks)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_an_add_cuts_a_back_off_short() -> None:
    looks: list[float] = []

    async def work(key: str) -> None:
        looks.append(asyncio.get_running_loop().time())
        raise RuntimeError("planted")

    async with running(work) as worklist:
        await worklist.add("a")
        await asyncio.sleep(4)
        await worklist.add("a")
        await asyncio.sleep(0.5)
    assert looks == [0, 1, 3, 4]


async def test_the_look_says_when_it_wants_to_look_again_and_the_resync_bounds_it() -> None:
    looks: dict[str, list[float]] = {"soon": [], "late": []}

    async def work(key: str) -> float | None:
        looks[key].append(asyncio.get_running_loop().time())
        return 10.0 if key == "soon" else 1000.0

    async with running(work, resync_seconds=25) as worklist:
        await worklist.add("soon")
        await worklist.add("late")
        await asyncio.sleep(51)
    assert looks == {"soon": [0, 10, 20, 30, 40, 50], "late": [0, 25, 50]}


async def test_a_key_of_which_nothing_is_left_is_not_looked_at_again_until_it_is_added() -> None:
    looks: list[str] = []

    async def work(key: str) -> None:
        looks.append(key)

    async with running(work, resync_seconds=25) as worklist:
        await worklist.add("a")
        await asyncio.sleep(100)
        assert (looks, len(worklist)) == (["a"], 0)
        await worklist.add("a")
        await asyncio.sleep(100)
    assert looks == ["a", "a"]


async def test_an_object_made_anew_during_the_look_that_finds_it_gone_is_looked_at_afterwards() -> None:
    active, most, looks = 0, 0, 0

    async def work(key: str) -> float | None:
        nonlocal active, most, looks
        active, looks = active + 1, looks + 1
        most = max(most, active)
        await asyncio.sleep(10)
        active -= 1
        return None if looks == 1 else 1000.0

    async with running(work) as worklist:
        await worklist.add("a")
        await asyncio.sleep(1)
        await worklist.add("a")
        await asyncio.sleep(100)
        assert len(worklist) == 1
    assert (looks, most) == (2, 1)


@pytest.mark.parametrize(
    ("failures", "asked", "seconds"), [(1, None, 1), (1, 7.0, 7), (5, 7.0, 16), (1, 3600.0, 60), (5000, None, 60)]
)
async def test_a_back_off_is_never_shorter_than_the_server_asked(failures: int, asked: float, seconds: float) -> None:
    assert back_off(failures, Unavailable("get", "slow down", retry_after_seconds=asked)) == seconds


async def test_who_is_woken_goes_before_those_whose_time_has_come() -> None:
    looks: list[str] = []

    async def work(key: str) -> float | None:
        looks.append(key)
        await asyncio.sleep(1)
        return None

    async with running(work, workers=1) as worklist:
        for key in ("a", "b", "c", "d"):
            await worklist.add(key, after_seconds=5)
        await asyncio.sleep(5.5)
        await worklist.add("d")
        await worklist.add("new")
        await asyncio.sleep(10)
    assert looks == ["a", "d", "new", "b", "c"]


async def test_nobody_waits_for_long_because_others_are_woken_again_and_again() -> None:
    looks: dict[str, list[float]] = {}

    async def work(key: str) -> float | None:
        looks.setdefault(key, []).append(asyncio.get_running_loop().time())
        await asyncio.sleep(1)
        return 20.0

    async with running(work, workers=1) as worklist:
        await worklist.add("quiet")
        for _ in range(60):
            await asyncio.sleep(1)
            for key in ("busy", "busier"):
                await worklist.add(key)
    gaps = [b - a for a, b in itertools.pairwise(looks["quiet"])]
    assert gaps
    assert max(gaps) <= 1 + 20 + PATIENCE_SECONDS + 2
    assert len(looks["busy"]) > 20


async def test_a_thousand_keys_are_each_looked_at_when_they_are_due() -> None:
    looks: dict[str, list[float]] = {}

    async def work(key: str) -> float | None:
        looks.setdefault(key, []).append(asyncio.get_running_loop().time())
        return 10.0

    async with running(work) as worklist:
        for key in range(1000):
            await worklist.add(str(key), after_seconds=1 + key % 7)
        await asyncio.sleep(31.5)
    wanted = {str(key): [1.0 + key % 7 + 10 * turn for turn in range(4)] for key in range(1000)}
    assert looks == {key: [moment for moment in times if moment < 31.5] for key, times in wanted.items()}
